"""Every request and response there is, by api key."""

from types import ModuleType

from ottla.wire.messages import (
    brokers,
    cluster,
    commits,
    credentials,
    fetch,
    groups,
    metadata,
    offsets,
    placement,
    produce,
    quorum,
    quotas,
    settings,
    topics,
    transactions,
    voters,
)
from ottla.wire.schema import Layout

FAMILIES = (
    produce,
    fetch,
    offsets,
    metadata,
    topics,
    settings,
    transactions,
    cluster,
    groups,
    commits,
    placement,
    voters,
    quotas,
    credentials,
    brokers,
    quorum,
)


def _by_key(families: tuple[ModuleType, ...], ending: str) -> dict[int, Layout]:
    classes = (thing for family in families for thing in vars(family).values() if isinstance(thing, Layout))
    return {cls.key: cls for cls in classes if cls.__name__.endswith(ending)}


REQUESTS = _by_key(FAMILIES, "Request")
RESPONSES = _by_key(FAMILIES, "Response")
