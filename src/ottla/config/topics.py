"""Which settings a topic may have: names, values, and what must hold between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.config.kinds import invalid
from ottla.config.settings import TOPIC_SETTINGS
from ottla.wire.errors import Error, KafkaError

NOTHING: Mapping[str, str] = {}


def validate_topic_configs(
    values: Mapping[str, str | None], *, broker: BrokerConfig | None = None, existing: Mapping[str, str] = NOTHING
) -> None:
    """Raise INVALID_CONFIG unless a topic may have exactly these settings of its own.

    `broker` fills in what the topic does not say, `existing` is what it had before: some changes have no way back.
    """
    nulls = [name for name, value in values.items() if value is None]
    if nulls:
        raise _refused(f"Null value not supported for topic configs: {','.join(nulls)}")
    for name in values:
        if name not in TOPIC_SETTINGS:
            raise _refused(f"Unknown topic config name: {name}")
    effective = broker.topic_settings(NOTHING) if broker else _defaults()
    effective.update((name, TOPIC_SETTINGS[name].parse(text)) for name, text in values.items() if text is not None)
    _check_compaction(effective)
    if effective["remote.storage.enable"]:
        _check_tiered(effective, enabled=broker is not None and broker["remote.log.storage.system.enable"])
    elif existing.get("remote.storage.enable", "").lower() == "true" and not effective["remote.log.delete.on.disable"]:
        raise _refused("remote.storage.enable can be switched off only together with remote.log.delete.on.disable=true")


def _refused(text: str) -> KafkaError:
    return KafkaError(Error.INVALID_CONFIG, text)


def _defaults() -> dict[str, Any]:
    return {name: setting.default_value() for name, setting in TOPIC_SETTINGS.items()}


def _check_compaction(effective: Mapping[str, Any]) -> None:
    low, high = effective["min.compaction.lag.ms"], effective["max.compaction.lag.ms"]
    if low > high:
        raise _refused(f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})")


def _check_tiered(effective: Mapping[str, Any], *, enabled: bool) -> None:
    if not enabled:
        raise _refused(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    if "compact" in effective["cleanup.policy"]:
        raise _refused("Remote log storage is unsupported for the compacted topics")
    _check_local("bytes", effective)
    _check_local("ms", effective)


def _check_local(unit: str, effective: Mapping[str, Any]) -> None:
    """What stays here can only be a part of what is kept at all. -2 follows the whole, -1 is without limit."""
    name, local, whole = f"local.retention.{unit}", effective[f"local.retention.{unit}"], effective[f"retention.{unit}"]
    if local == -2:
        return
    if effective["remote.log.copy.disable"] and local != whole:
        raise _refused(f"With remote.log.copy.disable, {name} must be -2 or the same as retention.{unit}")
    if whole > -1 and local == -1:
        raise invalid(name, local, f"Value must not be -1 as retention.{unit} value is set as {whole}.")
    if whole > -1 and local > whole:
        raise invalid(name, local, f"Value must not be more than retention.{unit} property value: {whole}")
