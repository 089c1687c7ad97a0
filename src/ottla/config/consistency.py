"""What must hold between the settings of a node, at its start and when some are changed while it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.wire.errors import Error, KafkaError

Values = Mapping[str, Any]

# Threads come and go in steps: at most doubled, at most halved. They have no effect here, but scripts meet the same rules.
THREADS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "log.cleaner.threads",
    "remote.log.reader.threads",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
)


GROUP_MINIMUM = re.compile(r"group\.(consumer|share|streams)\.min\..*")
# What each thread that cleans needs to remember keys.
CLEANER_BYTES_MIN = 1 << 20
NOT_SET, UNLIMITED = -2, -1

# 1@localhost:9093, 2@[::1]:9093
VOTER = re.compile(r"[0-9]+@.+:[0-9]+")


def check_together(values: Values) -> None:
    """Raise INVALID_CONFIG with the first rule that is broken."""
    for broken in _broken(values):
        raise KafkaError(Error.INVALID_CONFIG, broken)


def _broken(values: Values) -> Iterator[str]:
    yield from _broken_about_data(values)
    yield from _broken_about_peers(values)
    yield from _broken_about_connections(values)
    yield from _broken_about_groups(values)


def _broken_about_data(values: Values) -> Iterator[str]:
    retention = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
    first = next(name for name in retention if values[name] is not None)
    if values[first] == 0:
        yield f"{first} must be unlimited (-1) or, greater than or equal to 1"
    if values["log.roll.ms"] is not None and values["log.roll.ms"] < 1:
        yield "log.roll.ms must be greater than or equal to 1"
    if values["log.roll.jitter.ms"] is not None and values["log.roll.jitter.ms"] < 0:
        yield "log.roll.jitter.ms must be greater than or equal to 0"
    if values["log.cleaner.dedupe.buffer.size"] <= 0:
        yield "log.cleaner.dedupe.buffer.size must be positive"
    directories = values["log.dirs"] or values["log.dir"]
    missing = [path for path in values["cordoned.log.dirs"] if path not in directories and path != "*"]
    if missing:
        yield f"All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : {missing[0]}"


def _broken_about_peers(values: Values) -> Iterator[str]:
    if values["replica.fetch.wait.max.ms"] > values["replica.lag.time.max.ms"]:
        yield "replica.fetch.wait.max.ms must not be above replica.lag.time.max.ms, or followers leave the in-sync set"
    if 2 * values["broker.heartbeat.interval.ms"] > values["broker.session.timeout.ms"]:
        yield "broker.heartbeat.interval.ms must be at most half of broker.session.timeout.ms"
    if values["group.min.session.timeout.ms"] > values["group.max.session.timeout.ms"]:
        yield "group.min.session.timeout.ms must not be above group.max.session.timeout.ms"


def _broken_about_groups(values: Values) -> Iterator[str]:
    """What a group gets where it says nothing must lie between what it may say."""
    for low in [name for name in values if GROUP_MINIMUM.fullmatch(name)]:
        name, high = low.replace(".min.", "."), low.replace(".min.", ".max.")
        if name in values and values[name] < values[low]:
            yield f"{name} must be greater than or equal to {low}"
        if name in values and high in values and values[name] > values[high]:
            yield f"{name} must be less than or equal to {high}"


def _broken_about_connections(values: Values) -> Iterator[str]:
    roles = values["process.roles"]
    names = {entry.split("://")[0].upper() for entry in values["listeners"]}
    controllers = {name.upper() for name in values["controller.listener.names"]}
    quorum = values["controller.quorum.voters"] or values["controller.quorum.bootstrap.servers"]
    yield from _broken_about_voters(values)
    if "broker" in roles and names <= controllers:
        yield "listeners: a broker needs a listener that is not in controller.listener.names"
    if "broker" not in roles and not names <= controllers:
        yield "listeners: all must be in controller.listener.names where process.roles is controller"
    if "controller" not in roles and names & controllers:
        yield "listeners: none may be in controller.listener.names where process.roles is broker"
    # A single node that nobody else votes with needs no listener for its controller.
    if "controller" in roles and quorum and not controllers <= names:
        yield "controller.listener.names: each must be one of listeners on a controller"
    overrides = values["max.connections.per.ip.overrides"]
    for entry in filter(None, (part.strip() for part in overrides.split(","))):
        host, _, count = entry.rpartition(":")
        if not host or not count.strip().isdecimal():
            yield f"max.connections.per.ip.overrides: {entry!r} is not host:count"
    if values["max.connections.per.ip"] == 0 and not overrides:
        yield "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."


def _broken_about_voters(values: Values) -> Iterator[str]:
    """A controller is one of the fixed voters, if there are any; who is only a broker is none, and must know some."""
    voters, me = values["controller.quorum.voters"], values["node.id"]
    is_controller = "controller" in values["process.roles"]
    for voter in voters:
        if not VOTER.fullmatch(voter.strip()):
            yield f"controller.quorum.voters: {voter!r} is not id@host:port"
    is_named = me in [int(voter.partition("@")[0]) for voter in voters]
    if voters and is_controller and not is_named:
        yield f"controller.quorum.voters: node.id {me} is a controller and must be included in the set of voters"
    if is_named and not is_controller:
        yield f"controller.quorum.voters: node.id {me} is only a broker and must not be included in the set of voters"
    if not is_controller and not voters and not values["controller.quorum.bootstrap.servers"]:
        yield "controller.quorum.bootstrap.servers: who is only a broker must be told where controllers are"


# Kafka opens and closes listeners while it runs. We do not, and what is not obeyed must not be accepted.
BOUND_AT_START = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def check_change(old: Values, new: Values) -> None:
    """Raise INVALID_CONFIG for a step that is allowed at a start, but not while the node runs."""
    for name in BOUND_AT_START:
        if new[name] != old[name]:
            why = f"{name} cannot be changed while this broker runs: change it where the node is started"
            raise KafkaError(Error.INVALID_CONFIG, why)
    for name in THREADS:
        if new[name] != old[name] and not old[name] // 2 <= new[name] <= old[name] * 2:
            why = f"{name}={new[name]} must be at least half and at most double the current value {old[name]}"
            raise KafkaError(Error.INVALID_CONFIG, why)
    if new["log.cleaner.threads"] < 1:
        raise KafkaError(Error.INVALID_CONFIG, "log.cleaner.threads must be at least 1")
    for broken in _broken_steps(old, new):
        raise KafkaError(Error.INVALID_CONFIG, broken)
    if new["max.connection.creation.rate"] < 1:
        raise KafkaError(
            Error.INVALID_CONFIG, f"Invalid max.connection.creation.rate {new['max.connection.creation.rate']}"
        )


def _broken_steps(old: Values, new: Values) -> Iterator[str]:
    """Rules that Kafka looks at only when one of these settings changes."""

    def changed(*names: str) -> bool:
        return any(old[name] != new[name] for name in names)

    if changed("max.connections") and new["max.connections"] < 1:
        yield f"Invalid max.connections {new['max.connections']}"
    buffer, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    if changed(buffer, threads) and new[buffer] < CLEANER_BYTES_MIN * new[threads]:
        yield f"{buffer} must be at least 1MB per cleaner thread"
    for local, whole in (
        ("log.local.retention.ms", "log.retention.ms"),
        ("log.local.retention.bytes", "log.retention.bytes"),
    ):
        kept, limit = new[local], _retention_ms(new) if whole == "log.retention.ms" else new[whole]
        if changed(local, whole) and limit != UNLIMITED and kept != NOT_SET and not 0 <= kept <= limit:
            yield f"{local} must not be more than {whole}, which is {limit}"


def _retention_ms(values: Values) -> int:
    if values["log.retention.ms"] is not None:
        return int(values["log.retention.ms"])
    minutes = values["log.retention.minutes"]
    limit = minutes * 60_000 if minutes is not None else values["log.retention.hours"] * 3_600_000
    return int(limit) if limit >= 0 else UNLIMITED
