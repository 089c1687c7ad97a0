"""Settings of Java's producer and consumer by their own names, and what they are for our client.

Those that have no meaning here (buffers of sockets, metrics, class names of serialisers) are passed over, as Java's client
passes over names it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.client.assignors import Assignor
    from ottla.client.membership import Manners

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
CONFIG_EXCEPTION = "org.apache.kafka.common.config.ConfigException"
ASSIGNOR_CLASSES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "cooperative-sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """`name=value`; a name alone has an empty value."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def number(settings: Mapping[str, str], name: str, default: int, kind: str = "INT") -> int:
    text = settings.get(name)
    try:
        return default if text is None else int(text.strip())
    except ValueError:
        raise _invalid(name, text, f"Not a number of type {kind}")


def boolean(settings: Mapping[str, str], name: str, default: bool) -> bool:
    text = settings.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise _invalid(name, text, "Expected value to be either true or false")
    return text.strip().lower() == "true"


def one_of(settings: Mapping[str, str], name: str, default: str, known: Iterable[str]) -> str:
    text = settings.get(name, default).strip().lower()
    if text not in known:
        raise _invalid(name, settings.get(name), f"String must be one of: {', '.join(known)}")
    return text


def _invalid(name: str, value: object, why: str) -> Failed:
    return Failed(f"{CONFIG_EXCEPTION}: Invalid value {value} for configuration {name}: {why}")


def producer_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `Producer`."""
    acks = ACKS[one_of(settings, "acks", "all", ACKS)]
    codec = one_of(settings, "compression.type", "none", CODECS)
    level = settings.get(f"compression.{codec}.level")
    options: dict[str, Any] = {
        "acks": acks,
        "codec": CODECS.index(codec),
        "level": None if level is None else number(settings, f"compression.{codec}.level", 0),
        "linger_ms": number(settings, "linger.ms", 5, "LONG"),
        "batch_bytes": max(1, number(settings, "batch.size", 16384)),
        "delivery_s": number(settings, "delivery.timeout.ms", 120_000) / 1000,
        "idempotent": _idempotent(settings, acks),
        "flying_max": _flying_max(settings),
    }
    if settings.get("partitioner.class", "").endswith("RoundRobinPartitioner"):
        from ottla.client.partitioning import RoundRobin

        options["partitioner"] = RoundRobin()
    elif boolean(settings, "partitioner.ignore.keys", False):
        options["partitioner"] = lambda _topic, _key, _count: None
    return options


def transactional_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Those that make transactions of it, if there is a transactional id."""
    name = settings.get("transactional.id")
    if not name:
        return {}
    if not _idempotent(settings, ACKS[one_of(settings, "acks", "all", ACKS)]):
        raise Failed(f"{CONFIG_EXCEPTION}: Cannot set a transactional.id without also enabling idempotence.")
    return {"transactional_id": name, "transaction_timeout_ms": number(settings, "transaction.timeout.ms", 60_000)}


def _idempotent(settings: Mapping[str, str], acks: int) -> bool:
    """On unless told otherwise; settings that rule it out switch it off, unless it was asked for by name."""
    asked = settings.get("enable.idempotence")
    wanted = boolean(settings, "enable.idempotence", True)
    if wanted and asked is not None and acks != -1:
        need = (
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence."
        )
        raise Failed(f"{CONFIG_EXCEPTION}: {need}")
    return wanted and acks == -1


def _flying_max(settings: Mapping[str, str]) -> int | None:
    """Java's client counts requests of a connection, ours batches of a partition."""
    if "max.in.flight.requests.per.connection" not in settings:
        return None
    return max(1, number(settings, "max.in.flight.requests.per.connection", 5))


def consumer_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `GroupConsumer`, save for cluster, group and topics."""
    reads = reading_options(settings)
    auto = boolean(settings, "enable.auto.commit", True)
    return {
        **reads,
        "protocol": one_of(settings, "group.protocol", "classic", ("classic", "consumer")),
        "manners": _manners(settings),
        "auto_commit_ms": number(settings, "auto.commit.interval.ms", 5000) if auto else None,
    }


def reading_options(settings: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `Consumer`, save for cluster and positions."""
    from ottla.client.cluster import EARLIEST, LATEST

    resets = {"earliest": EARLIEST, "latest": LATEST, "none": None}
    levels = ("read_uncommitted", "read_committed")
    return {
        "reset": resets[one_of(settings, "auto.offset.reset", "latest", resets)],
        "read_committed": one_of(settings, "isolation.level", levels[0], levels) == "read_committed",
        "wait_ms": number(settings, "fetch.max.wait.ms", 500),
        "bytes_min": number(settings, "fetch.min.bytes", 1),
        "bytes_max": number(settings, "fetch.max.bytes", 50 << 20),
        "partition_bytes_max": number(settings, "max.partition.fetch.bytes", 1 << 20),
    }


def _manners(settings: Mapping[str, str]) -> Manners:
    from ottla.client.membership import Manners

    usual = Manners()
    return Manners(
        session_timeout_ms=number(settings, "session.timeout.ms", usual.session_timeout_ms),
        rebalance_timeout_ms=number(settings, "max.poll.interval.ms", usual.rebalance_timeout_ms),
        heartbeat_ms=number(settings, "heartbeat.interval.ms", usual.heartbeat_ms),
        instance_id=settings.get("group.instance.id"),
        assignors=_assignors(settings.get("partition.assignment.strategy")) or usual.assignors,
        server_assignor=settings.get("group.remote.assignor"),
    )


def _assignors(text: str | None) -> list[Assignor]:
    from ottla.client.assignors import ASSIGNORS

    found = []
    for name in filter(None, (part.strip() for part in (text or "").split(","))):
        known = ASSIGNORS.get(ASSIGNOR_CLASSES.get(name.rpartition(".")[2], name))
        if known is None:
            raise _invalid("partition.assignment.strategy", name, f"Class {name} could not be found.")
        found.append(known)
    return found
