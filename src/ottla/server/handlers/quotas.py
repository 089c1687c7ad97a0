"""Limits of users, clients and addresses: told from the committed picture, changed by the controller.

Version 1 of both requests is flexible and changes nothing else. What keeps to the limits: `server/quotas.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from ottla.metadata import controller
from ottla.metadata.image import QuotaEntity
from ottla.metadata.quotas import Alteration, Component, describe_client_quotas, names_to_resolve
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

Told = DescribeClientQuotasResponse.Entry
Changed = AlterClientQuotasResponse.Entry


@serves(DescribeClientQuotasRequest, versions="0-1")
async def describe(request: DescribeClientQuotasRequest, ctx: Context) -> DescribeClientQuotasResponse:
    asked = [Component(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        found = describe_client_quotas(ctx.image, asked, request.strict)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(error_message="", entries=[_told(entity, limits) for entity, limits in found])


def _told(entity: QuotaEntity, limits: Mapping[str, float]) -> Told:
    return Told(
        entity=[Told.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[Told.Value(key=key, value=value) for key, value in limits.items()],
    )


@serves(AlterClientQuotasRequest, versions="0-1", forwarded=True)
async def alter(request: AlterClientQuotasRequest, ctx: Context) -> AlterClientQuotasResponse:
    wanted = [_alteration(entry) for entry in request.entries]
    validate_only = request.validate_only
    try:
        unresolved = await unresolvable(names_to_resolve(wanted))
        outcomes = await ctx.node.controller.propose(
            lambda image: controller.alter_client_quotas(image, wanted, unresolved, validate_only=validate_only)
        )
    except KafkaError as error:
        outcomes = {alteration.entity: error for alteration in wanted}
    return AlterClientQuotasResponse(entries=[_changed(entity, error) for entity, error in outcomes.items()])


def _alteration(entry: AlterClientQuotasRequest.Entry) -> Alteration:
    named = [(each.entity_type, each.entity_name) for each in entry.entity]
    return Alteration.of(named, [(op.key, None if op.remove else op.value) for op in entry.ops])


def _changed(entity: QuotaEntity, error: KafkaError | None) -> Changed:
    return Changed(
        error_code=error.code if error else 0,
        error_message=error.message if error and error.error is not Error.UNKNOWN_SERVER_ERROR else None,
        entity=[Changed.Entity(entity_type=kind, entity_name=name) for kind, name in entity],
    )


async def unresolvable(names: Iterable[str]) -> set[str]:
    """Which of these are no hosts that the system knows."""
    unknown = set()
    for name in sorted(names):
        try:
            await asyncio.get_running_loop().getaddrinfo(name, None)
        except OSError:
            unknown.add(name)
    return unknown
