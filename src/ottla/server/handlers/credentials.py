"""Passwords of users for SCRAM: who has one and how strong it is, set and removed (KIP-554)."""

from __future__ import annotations

from ottla.metadata import controller
from ottla.metadata.credentials import Deletion, Described, Upsertion, describe_scram_credentials
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

Told = DescribeUserScramCredentialsResponse.Result
Changed = AlterUserScramCredentialsResponse.Result


@serves(DescribeUserScramCredentialsRequest, versions="0-0")
async def describe(request: DescribeUserScramCredentialsRequest, ctx: Context) -> DescribeUserScramCredentialsResponse:
    found = describe_scram_credentials(ctx.image, [user.name for user in request.users or ()])
    return DescribeUserScramCredentialsResponse(error_message="", results=[_told(each) for each in found])


def _told(described: Described) -> Told:
    user, held, error = described
    return Told(
        user=user,
        error_code=error.code if error else 0,
        error_message=error.message if error else "",
        credential_infos=[Told.CredentialInfo(mechanism=kind, iterations=count) for kind, count in held],
    )


@serves(AlterUserScramCredentialsRequest, versions="0-0", forwarded=True)
async def alter(request: AlterUserScramCredentialsRequest, ctx: Context) -> AlterUserScramCredentialsResponse:
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in request.upsertions
    ]
    try:
        outcomes = await ctx.node.controller.propose(
            lambda image: controller.alter_scram_credentials(image, deletions, upsertions)
        )
    except KafkaError as error:
        outcomes = dict.fromkeys([each.name for each in deletions] + [each.name for each in upsertions], error)
    return AlterUserScramCredentialsResponse(results=[_changed(user, error) for user, error in outcomes.items()])


def _changed(user: str, error: KafkaError | None) -> Changed:
    return Changed(
        user=user,
        error_code=error.code if error else 0,
        error_message=error.message if error and error.error is not Error.UNKNOWN_SERVER_ERROR else None,
    )
