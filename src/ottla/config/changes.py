"""Changes to settings: what the operations of a request make of a resource's settings, and whether they may be so.

Error codes are Apache Kafka's, also where they could be better: a bad value is INVALID_CONFIG for a topic but
INVALID_REQUEST for a broker (KAFKA-13609).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.kinds import Setting
from ottla.config.settings import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    DYNAMIC_ONLY,
    GROUP_SETTINGS,
    NODE_SETTINGS,
    base_name,
)
from ottla.wire.errors import Error, KafkaError

SET, DELETE, APPEND, SUBTRACT = range(4)
WORDS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

# Keys and certificates belong to a listener; changing them for all listeners at once is not offered.
ONLY_PER_LISTENER = frozenset(
    (
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    )
)
# Of what can be set for one listener, these can also be set for all brokers.
CLUSTER_LISTENER = frozenset(("max.connections", "max.connection.creation.rate", "num.network.threads"))

METRICS_INTERVAL_MS = (100, 3_600_000)
MATCHED = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


class Operation(NamedTuple):
    name: str
    kind: int
    value: str | None


class UnknownOperation(KafkaError):
    """Neither set, delete, append nor subtract."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(Error.UNKNOWN_SERVER_ERROR, f"Unknown operations type {operation.kind}")


def check_operations(operations: Sequence[Operation]) -> None:
    """What holds for every resource, before anybody looks at names and values."""
    names = [operation.name for operation in operations]
    if len(set(names)) < len(names):
        raise KafkaError(Error.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [operation.name for operation in operations if operation.kind != DELETE and operation.value is None]
    if nulls:
        raise KafkaError(Error.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def outcome(
    operations: Iterable[Operation], current: Mapping[str, str], table: Mapping[str, Setting]
) -> dict[str, str | None]:
    """What each named setting becomes; None where it goes. Lists are appended to and subtracted from."""
    changes: dict[str, str | None] = {}
    for operation in operations:
        name, kind, value = operation
        if kind not in (SET, DELETE, APPEND, SUBTRACT):
            raise UnknownOperation(operation)
        if kind in WORDS:
            changes[name] = _spliced(name, kind, value or "", current.get(name), table.get(name))
        else:
            changes[name] = None if kind == DELETE else value
    return changes


def _spliced(name: str, kind: int, value: str, current: str | None, row: Setting | None) -> str:
    if row is None or row.kind != "list":
        why = f"Can't {WORDS[kind]} to key {name} because its type is not LIST."
        raise KafkaError(Error.INVALID_CONFIG, why)
    text = row.default if current is None else current
    parts = [part for part in (text or "").split(",") if part]
    for part in _split(value):
        if kind == SUBTRACT and part in parts:
            parts.remove(part)
        elif kind == APPEND and part not in parts:
            parts.append(part)
    return ",".join(parts)


def _split(value: str) -> list[str]:
    """As Java splits: empty pieces at the end do not count, but the empty text is one piece."""
    parts = value.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts if value.strip(",") or not value else []


def applied(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**current, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def check_broker(config: BrokerConfig, values: Mapping[str, str], *, for_all: bool) -> None:
    """Whether these may be the dynamic settings of this broker, or `for_all` brokers."""
    fixed = [name for name in values if name in BROKER_SETTINGS and not BROKER_SETTINGS[name].scope]
    _none_of(fixed, "Cannot update these configs dynamically")
    bare = [name for name in values if name in ONLY_PER_LISTENER]
    _none_of(bare, "These security configs can be dynamically updated only per-listener using the listener prefix")
    try:
        for name, text in values.items():
            _check_type(name, text)
        if for_all:
            single = [name for name in values if _only_for_one(name)]
            _none_of(single, "Cannot update these configs at default cluster level, broker id must be specified")
        config.check_dynamic(
            values if for_all else config.dynamic_default, config.dynamic_broker if for_all else values
        )
    except KafkaError as error:
        raise KafkaError(Error.INVALID_REQUEST, error.message) from error


def _none_of(names: list[str], why: str) -> None:
    if names:
        raise KafkaError(Error.INVALID_REQUEST, f"{why}: [{', '.join(names)}]")


def _check_type(name: str, text: str) -> None:
    row = NODE_SETTINGS.get(base_name(name))
    if row is None or not row.scope:
        return
    value = row.parse(text)
    reporters = value if name == "metric.reporters" and isinstance(value, tuple) else ()
    if (row.kind == "class" and value != row.default) or any(each != row.default for each in reporters):
        # No Java class can be loaded here, whatever its name.
        raise KafkaError(
            Error.INVALID_REQUEST, f"Invalid value {text} for configuration {name}: Class could not be found."
        )


def _only_for_one(name: str) -> bool:
    if (base := base_name(name)) != name:
        return base not in CLUSTER_LISTENER
    return name in BROKER_SETTINGS and BROKER_SETTINGS[name].scope == "broker"


def check_group(config: BrokerConfig, values: Mapping[str, str]) -> None:
    """Whether a group may have these settings. Most must lie between two settings of the broker."""
    effective = {name: config.stand_in(row) for name, row in GROUP_SETTINGS.items()}
    for name in values:
        if name not in GROUP_SETTINGS:
            raise KafkaError(Error.INVALID_CONFIG, f"Unknown group config name: {name}")
    effective.update((name, GROUP_SETTINGS[name].parse(text)) for name, text in values.items())
    for name, value in effective.items():
        _check_bounds(config, name, value)
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if effective[session] <= effective[heartbeat]:  # type: ignore[operator]
            raise KafkaError(Error.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


def _check_bounds(config: BrokerConfig, name: str, value: object) -> None:
    kind, _, rest = name.partition(".")
    low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest.removeprefix('num.')}"
    if low in BROKER_SETTINGS and value < config[low]:
        raise KafkaError(Error.INVALID_CONFIG, f"{name} must be greater than or equal to {low}")
    if high in BROKER_SETTINGS and value > config[high]:
        raise KafkaError(Error.INVALID_CONFIG, f"{name} must be less than or equal to {high}")


def check_client_metrics(values: Mapping[str, str]) -> None:
    """Whether a client metrics subscription may have these settings."""
    for name in values:
        if name not in CLIENT_METRICS_SETTINGS:
            raise KafkaError(Error.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    parsed = {name: CLIENT_METRICS_SETTINGS[name].parse(text) for name, text in values.items()}
    interval = parsed.get("interval.ms")
    low, high = METRICS_INTERVAL_MS
    if isinstance(interval, int) and not low <= interval <= high:
        why = f"Invalid value {interval} for interval.ms, interval must be between {low} and {high} (1 hour)"
        raise KafkaError(Error.INVALID_REQUEST, why)
    patterns = parsed.get("match", ())
    assert isinstance(patterns, tuple)
    for pattern in patterns:
        _check_match(pattern)


def _check_match(pattern: str) -> None:
    name, separator, expression = (part.strip() for part in pattern.partition("="))
    try:
        re.compile(expression)
        sound = bool(separator) and name in MATCHED
    except re.error:
        sound = False
    if not sound:
        raise KafkaError(Error.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def list_settings_of_brokers() -> Mapping[str, Setting]:
    """Settings that APPEND and SUBTRACT know for brokers: those that a properties file may have."""
    return {name: row for name, row in BROKER_SETTINGS.items() if name not in DYNAMIC_ONLY}
