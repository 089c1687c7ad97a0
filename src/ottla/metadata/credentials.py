"""Passwords for SCRAM (KIP-554): what clients may set and remove, and what may be told of them.

A client salts the password itself; what is kept (RFC 5802) is enough to check a login and not enough to make one. Checks,
order and words are Apache Kafka's. One request changes each user once, so that a second mechanism needs a second request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.metadata.decisions import Decision, Versioned
from ottla.metadata.features import SCRAM_CREDENTIALS
from ottla.metadata.image import Credential, Image
from ottla.metadata.records import RemoveUserScramCredentialRecord
from ottla.metadata.snapshot import credential_record
from ottla.wire import scram
from ottla.wire.errors import Error, KafkaError

Outcomes = dict[str, KafkaError | None]


class Deletion(NamedTuple):
    name: str
    mechanism: int


class Upsertion(NamedTuple):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def alter_scram_credentials(
    image: Image, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> Decision[Outcomes]:
    granted: dict[str, Deletion | Upsertion] = {}
    refused: Outcomes = {}
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    for change in changes:
        if change.name in refused:
            continue
        try:
            if granted.pop(change.name, None) is not None:
                why = "A user credential cannot be altered twice in the same request"
                raise KafkaError(Error.DUPLICATE_RESOURCE, why)
            _check(image, change)
            granted[change.name] = change
        except KafkaError as error:
            refused[change.name] = error
    for change in [change for change in granted.values() if isinstance(change, Upsertion)]:
        if not change.salted_password:  # Java's HMAC cannot bear an empty key
            refused[change.name] = KafkaError(Error.UNKNOWN_SERVER_ERROR)
            del granted[change.name]
    records = [_record(change) for change in granted.values()]
    return Decision(records, dict.fromkeys(granted) | refused)


def _check(image: Image, change: Deletion | Upsertion) -> None:
    if image.metadata_version < SCRAM_CREDENTIALS:
        raise KafkaError(Error.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not change.name:
        raise KafkaError(Error.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in scram.BY_NUMBER:
        raise KafkaError(Error.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Upsertion):
        _check_upsertion(change)
    elif (change.name, change.mechanism) not in image.credentials:
        raise KafkaError(Error.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _check_upsertion(change: Upsertion) -> None:
    if change.iterations < scram.ITERATIONS_MIN:
        raise KafkaError(Error.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > scram.ITERATIONS_MAX:
        raise KafkaError(Error.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _record(change: Deletion | Upsertion) -> Versioned:
    if isinstance(change, Deletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism), 0
    return credential_record(change.name, change.mechanism, _kept(change)), 0


def _kept(change: Upsertion) -> Credential:
    keys = scram.keys(scram.BY_NUMBER[change.mechanism], change.salted_password)
    return Credential(change.salt, keys.stored, keys.server, change.iterations)


class Described(NamedTuple):
    """One user: mechanisms with their iterations, or why there is nothing to tell."""

    user: str
    held: list[tuple[int, int]]
    error: KafkaError | None = None


def describe_scram_credentials(image: Image, users: Iterable[str]) -> list[Described]:
    """Of these users, or of all if none is named."""
    asked = Counter(users) or Counter({name: 1 for name, _ in sorted(image.credentials)})
    return [_described(image, user, times) for user, times in asked.items()]


def _described(image: Image, user: str, times: int) -> Described:
    if times > 1:
        why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return Described(user, [], KafkaError(Error.DUPLICATE_RESOURCE, why))
    found = ((mechanism, image.credentials.get((user, mechanism))) for mechanism in scram.BY_NUMBER)
    held = [(mechanism, credential.iterations) for mechanism, credential in found if credential is not None]
    if held:
        return Described(user, held)
    why = f"Attempt to describe a user credential that does not exist: {user}"
    return Described(user, [], KafkaError(Error.RESOURCE_NOT_FOUND, why))
