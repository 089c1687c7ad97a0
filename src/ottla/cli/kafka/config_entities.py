"""What kafka-configs.sh does for users, clients and addresses: limits of all three, and passwords of users."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.cli.kafka.asking import ask
from ottla.cli.kafka.configs import IP_QUOTAS, QUOTAS, SCRAM
from ottla.cli.kafka.java import double_text
from ottla.cli.kafka.options import Failed
from ottla.client.cluster import Cluster
from ottla.client.connection import check
from ottla.wire import scram
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.credentials import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from ottla.wire.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from ottla.cli.kafka.configs import Entities

ENTITY_TYPES = {"users": "user", "clients": "client-id", "ips": "ip"}
SHOWN = {"user": "user-principal", "client-id": "client-id", "ip": "ip"}
EXACT, DEFAULT, ANY = 0, 1, 2
ITERATIONS = 4096
CREDENTIAL = re.compile(r"(?:iterations=(-?[0-9]*),)?password=(.*)")
SALT_BYTES = 24


async def describe(cluster: Cluster, entities: Entities) -> None:
    for entry in await quotas_of(cluster, entities):
        names = {part.entity_type: part.entity_name for part in entry.entity}
        shown = [_shown(kind, names[kind]) for kind in SHOWN if kind in names]
        values = sorted((value.key, double_text(value.value)) for value in entry.values)
        limits = ", ".join(f"{key}={value}" for key, value in values)
        print(f"Quota configs for {', '.join(shown)} are {limits}")
    if "users" in entities.types and "clients" not in entities.types and "" not in entities.names:
        await _describe_credentials(cluster, entities.names)


def _shown(kind: str, name: str | None) -> str:
    return f"the default {SHOWN[kind]}" if name is None else f"{SHOWN[kind]} '{name}'"


async def quotas_of(cluster: Cluster, entities: Entities) -> list[DescribeClientQuotasResponse.Entry]:
    component, components = DescribeClientQuotasRequest.Component, []
    for kind, name in zip_longest(entities.types, entities.names):
        if kind is None:
            raise Failed("More entity names specified than entity types")
        how = ANY if name is None else EXACT if name else DEFAULT
        components.append(component(entity_type=ENTITY_TYPES[kind], match_type=how, match=name or None))
    answer = await ask(cluster, DescribeClientQuotasRequest(components=components, strict=True))
    check(answer.error_code, answer.error_message)
    entries: list[DescribeClientQuotasResponse.Entry] = answer.entries or []
    return sorted(entries, key=lambda entry: sorted((p.entity_type, p.entity_name or "") for p in entry.entity))


async def _describe_credentials(cluster: Cluster, names: Sequence[str]) -> None:
    by_user: dict[str, list[str]] = {}
    for user, mechanism, iterations in await credentials_of(cluster, names):
        by_user.setdefault(user, []).append(f"{mechanism}=iterations={iterations}")
    for user, infos in by_user.items():
        print(f"SCRAM credential configs for user-principal '{user}' are {', '.join(infos)}")


async def credentials_of(cluster: Cluster, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """User, mechanism and iterations; all users without names. Who has no password is left out, as Kafka does it."""
    users = [DescribeUserScramCredentialsRequest.User(name=name) for name in names]
    answer = await ask(cluster, DescribeUserScramCredentialsRequest(users=users or None))
    check(answer.error_code, answer.error_message)
    names_of = {each.number: each.name for each in scram.MECHANISMS}
    return [
        (result.user, names_of.get(info.mechanism, "UNKNOWN"), info.iterations)
        for result in sorted(answer.results, key=lambda result: result.user)
        if not result.error_code
        for info in result.credential_infos
    ]


async def alter(cluster: Cluster, entities: Entities, put: Mapping[str, str], delete: Sequence[str]) -> None:
    if entities.types[0] == "ips":
        unknown = [name for name in (*put, *delete) if name not in IP_QUOTAS]
        if unknown:
            what = "Only connection quota configs can be added for 'ips' using --bootstrap-server."
            raise Failed(f"{what} Unexpected config names: {','.join(unknown)}")
        await _alter_quotas(cluster, entities, put, delete)
        return
    _check_names(entities, put, delete)
    if any(name in QUOTAS for name in (*put, *delete)):
        await _alter_quotas(cluster, entities, put, delete)
    else:
        await _alter_credentials(cluster, entities.names[0], put, delete)


def _check_names(entities: Entities, put: Mapping[str, str], delete: Sequence[str]) -> None:
    is_client = entities.types[0] == "clients" or len(entities.types) == 2
    allowed = QUOTAS if is_client else (*QUOTAS, *SCRAM)
    what, kind = ("quota", "clients") if is_client else ("quota and SCRAM credential", "users")
    for verb, names in (("added", list(put)), ("deleted", list(delete))):
        unknown = [name for name in names if name not in allowed]
        if unknown:
            only = f"Only {what} configs can be {verb} for '{kind}' using --bootstrap-server."
            raise Failed(f"{only} Unexpected config names: {_scala(verb, unknown)}")
    if is_client or not any(name in SCRAM for name in (*put, *delete)):
        return
    if "" in entities.names:
        what = (
            "--entity-default or --user-defaults is not allowed with User SCRAM Credentials using --bootstrap-server."
        )
        raise Failed(f"The use of {what}")
    if any(name in QUOTAS for name in (*put, *delete)):
        both = "Cannot alter both quota and SCRAM credential configs simultaneously for 'users'"
        raise Failed(f"{both} using --bootstrap-server.")


def _scala(verb: str, names: Sequence[str]) -> str:
    """As Scala prints the collection that it has at this place."""
    return f"{'Set' if verb == 'added' else 'ArrayBuffer'}({', '.join(names)})"


async def _alter_quotas(cluster: Cluster, entities: Entities, put: Mapping[str, str], delete: Sequence[str]) -> None:
    known = {value.key for entry in (await quotas_of(cluster, entities))[:1] for value in entry.values}
    missing = [name for name in delete if name not in known]
    if missing:
        raise Failed(f"Invalid config(s): {','.join(missing)}")
    entry = AlterClientQuotasRequest.Entry
    ops = [entry.Op(key=key, value=_limit(key, value), remove=False) for key, value in put.items()]
    ops += [entry.Op(key=key, value=0.0, remove=True) for key in delete]
    pairs = zip(entities.types, entities.names, strict=True)
    who = [entry.Entity(entity_type=ENTITY_TYPES[kind], entity_name=name or None) for kind, name in pairs]
    answer = await ask(cluster, AlterClientQuotasRequest(entries=[entry(entity=who, ops=ops)], validate_only=False))
    for result in answer.entries:
        check(result.error_code, result.error_message)


def _limit(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Failed(f"Cannot parse quota configuration value for {key}: {text}")


async def _alter_credentials(cluster: Cluster, user: str, put: Mapping[str, str], delete: Sequence[str]) -> None:
    request = AlterUserScramCredentialsRequest
    deletions = [request.Deletion(name=user, mechanism=scram.BY_NAME[name].number) for name in delete]
    upsertions = [_upsertion(user, mechanism, text) for mechanism, text in put.items()]
    answer = await ask(cluster, request(deletions=deletions, upsertions=upsertions))
    for result in answer.results:
        check(result.error_code, result.error_message)


def _upsertion(user: str, mechanism: str, text: str) -> AlterUserScramCredentialsRequest.Upsertion:
    """The password is salted here; it never travels."""
    match = CREDENTIAL.fullmatch(text)
    if match is None:
        raise Failed(f"Invalid credential property {mechanism.replace('-', '_')}={text}")
    if not match[2]:
        raise KafkaError(Error.UNACCEPTABLE_CREDENTIAL, "Password must not be empty")
    iterations = int(match[1]) if match[1] not in (None, "-1") else ITERATIONS
    if iterations < scram.ITERATIONS_MIN:
        raise Failed(
            f"Iterations {iterations} is less than the minimum {scram.ITERATIONS_MIN} required for {mechanism}"
        )
    salt = secrets.token_bytes(SALT_BYTES)
    how = scram.BY_NAME[mechanism]
    salted = scram.salted(how, match[2], salt, iterations)
    return AlterUserScramCredentialsRequest.Upsertion(
        name=user, mechanism=how.number, iterations=iterations, salt=salt, salted_password=salted
    )
