"""Limits of users, clients and addresses: what may be set, and which ones a question means (KIP-546, KIP-612).

The checks, their order and their words are Apache Kafka's; so is it that of an entity that comes twice in one request the
first change is made although the answer speaks of the second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from ottla.metadata.decisions import RECORDS_PER_REQUEST_MAX, Decision, Versioned
from ottla.metadata.image import Image, QuotaEntity, quota_entity
from ottla.metadata.snapshot import quota_record
from ottla.wire.errors import Error, KafkaError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

# The largest whole number a limit may be, and what Kafka calls its type; None where fractions are allowed.
Whole = tuple[float, str]
OF_CLIENTS: Mapping[str, Whole | None] = {
    PRODUCER_BYTE_RATE: (2.0**63, "a LONG"),
    CONSUMER_BYTE_RATE: (2.0**63, "a LONG"),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
OF_ADDRESSES: Mapping[str, Whole | None] = {CONNECTION_CREATION_RATE: (2.0**31 - 1, "an INT")}
# How Apache Kafka tells up to three limits that were set together: the order of its hash map, which clients' tests expect.
TOLD_ORDER = (CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE, PRODUCER_BYTE_RATE)
FRACTION_MAX = 1e-6

EXACT, DEFAULT, SPECIFIED = range(3)
MATCH_NAMES = ("MATCH_TYPE_EXACT", "MATCH_TYPE_DEFAULT", "MATCH_TYPE_SPECIFIED")
ANY = object()


class Alteration(NamedTuple):
    """What is wanted of one entity: limits by key, None where one is to be removed."""

    entity: QuotaEntity
    operations: list[tuple[str, float | None]]

    @classmethod
    def of(cls, named: Iterable[tuple[str, str | None]], operations: Iterable[tuple[str, float | None]]) -> Alteration:
        return cls(quota_entity(named), list(operations))


Outcomes = dict[QuotaEntity, KafkaError | None]


def names_to_resolve(wanted: Iterable[Alteration]) -> set[str]:
    """Hosts that are named where an address is expected; whoever decides must know which of them exist."""
    names = {name for alteration in wanted for kind, name in alteration.entity if kind == IP and name}
    return {name for name in names if not _is_address(name)}


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def alter_client_quotas(
    image: Image, wanted: Iterable[Alteration], unresolved: Collection[str] = (), *, validate_only: bool = False
) -> Decision[Outcomes]:
    """`unresolved`: names of hosts that do not exist."""
    records: list[Versioned] = []
    outcomes: Outcomes = {}
    for alteration in wanted:
        entity, operations = alteration
        changes = dict(operations)
        if entity in outcomes or len(changes) != len(operations):
            outcomes[entity] = _refused(f"Ignoring duplicate entity {_written(entity)}")
            continue
        try:
            records += _changed(image, entity, changes, unresolved)
            outcomes[entity] = None
        except KafkaError as error:
            outcomes[entity] = error
    if len(records) > RECORDS_PER_REQUEST_MAX:
        raise KafkaError(Error.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    return Decision([] if validate_only else records, outcomes)


def _changed(
    image: Image, entity: QuotaEntity, changes: Mapping[str, float | None], unresolved: Collection[str]
) -> list[Versioned]:
    _check_entity(entity)
    limits = _limits_of(dict(entity), unresolved)
    now = image.quotas.get(entity, {})
    for key, value in changes.items():
        if value is not None:
            _check_limit(limits, key, value)
    differing = [(key, value) for key, value in changes.items() if not _is_same(now.get(key), value)]
    return [(quota_record(entity, key, value), 0) for key, value in differing]


def _is_same(now: float | None, wanted: float | None) -> bool:
    both_odd = now is not None and wanted is not None and math.isnan(now) and math.isnan(wanted)
    return now == wanted or both_odd


def _check_entity(entity: QuotaEntity) -> None:
    if not entity:
        raise _refused("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in TYPES:
            raise _refused(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _refused(f"Empty {kind} not supported")


def _limits_of(entity: Mapping[str, str | None], unresolved: Collection[str]) -> Mapping[str, Whole | None]:
    if IP not in entity:
        return OF_CLIENTS
    if len(entity) > 1:
        raise _refused("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if entity[IP] in unresolved:
        raise _refused(f"{entity[IP]} is not a valid IP or resolvable host.")
    return OF_ADDRESSES


def _check_limit(limits: Mapping[str, Whole | None], key: str, value: float) -> None:
    if key not in limits:
        raise _refused(f"Invalid configuration key {key}")
    if value <= 0:
        raise _refused(f"Quota {key} must be greater than 0")
    whole = limits[key]
    if whole is None:
        return
    largest, called = whole
    if value > largest:
        raise _refused(f"Proposed value for {key} is too large for {called}.")
    if math.fmod(value, 1.0) > FRACTION_MAX:
        raise _refused(f"{key} cannot be a fractional value.")


def _refused(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_REQUEST, why)


def _written(entity: QuotaEntity) -> str:
    """As Java shows it."""
    named = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{named}}})"


# --- describing


class Component(NamedTuple):
    """What a question wants an entity to be of one type."""

    entity_type: str
    match_type: int
    match: str | None


def describe_client_quotas(
    image: Image, components: Iterable[Component], strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """The entities that match, with their limits; the simpler ones first. `strict`: only those of exactly these types."""
    wanted: dict[str, object] = {}
    for component in components:
        _check_type(component.entity_type, wanted)
        wanted[component.entity_type] = _wanted_name(component)
    if IP in wanted and len(wanted) > 1:
        raise _refused(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    found = [entity for entity in image.quotas if _matches(dict(entity), wanted, strict)]
    found.sort(key=lambda entity: (len(entity), repr(entity)))
    return [(entity, _in_told_order(image.quotas[entity])) for entity in found]


def _in_told_order(limits: Mapping[str, float]) -> Mapping[str, float]:
    first = {key: limits[key] for key in TOLD_ORDER if key in limits}
    return {**first, **limits}


def _check_type(entity_type: str, before: Collection[str]) -> None:
    if not entity_type:
        raise _refused("Invalid empty entity type.")
    if entity_type in before:
        raise _refused(f"Entity type {entity_type} cannot appear more than once in the filter.")
    if entity_type not in TYPES:
        raise KafkaError(Error.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")


def _wanted_name(component: Component) -> object:
    """A name, None for the default, or ANY."""
    if not EXACT <= component.match_type <= SPECIFIED:
        raise _refused(f"Unknown match type {component.match_type}")
    kind = MATCH_NAMES[component.match_type]
    if component.match_type == EXACT:
        if component.match is None:
            raise _refused(f"Request specified {kind}, but set match string to null.")
        return component.match
    if component.match is not None:
        raise _refused(f"Request specified {kind}, but also specified a match string.")
    return None if component.match_type == DEFAULT else ANY


def _matches(entity: Mapping[str, str | None], wanted: Mapping[str, object], strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    return all(kind in entity and name in (ANY, entity[kind]) for kind, name in wanted.items())
