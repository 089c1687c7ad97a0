"""Settings of topics, brokers and groups as records. What a value may be is checked before it comes here."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.metadata.decisions import MIN_INSYNC_REPLICAS, Decision, Versioned
from ottla.metadata.image import TOPIC, Image, Resource
from ottla.metadata.records import ClearElrRecord, ConfigRecord


def set_all(resource: Resource, values: Mapping[str, str | None]) -> list[Versioned]:
    kind, name = resource
    return [
        (ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value), 0)
        for key, value in values.items()
    ]


def incremental_alter_configs(image: Image, changes: Mapping[Resource, Mapping[str, str | None]]) -> Decision[None]:
    """Set what is named, take away what is named with None, and leave the rest."""
    records: list[Versioned] = []
    for resource, values in changes.items():
        now = image.settings.get(resource, {})
        differing = {name: value for name, value in values.items() if now.get(name) != value}
        records += set_all(resource, differing)
        records += _eligible_again(image, resource, differing)
    return Decision(records, None)


def _eligible_again(image: Image, resource: Resource, changed: Mapping[str, str | None]) -> list[Versioned]:
    """Who is eligible to lead was worked out with the old minimum: with a new one it starts over (KIP-966)."""
    kind, name = resource
    if not image.elr_enabled or MIN_INSYNC_REPLICAS not in changed:
        return []
    return [(ClearElrRecord(topic_name=name if kind == TOPIC else ""), 0)]
