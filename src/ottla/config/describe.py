"""Settings as DescribeConfigs lists them: value, where it comes from, and what would count without that.

The places are those of `ottla.config.broker`, and three more: a topic's own setting (1), a client metrics subscription's
(7) and a group's (8). `synonyms` lists every place that has a value, the one that counts first. Apache Kafka drops those
in front of the first that bears the setting's own name, so that log.retention.hours shows neither as a synonym of
log.retention.ms that is not set, nor as the source of a topic's retention.ms; clients see the same here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import dropwhile
from typing import NamedTuple

from ottla.config.broker import DEFAULT, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, BrokerConfig
from ottla.config.kinds import KIND_CODES, Setting, Value, render
from ottla.config.settings import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    DYNAMIC_ONLY,
    GROUP_SETTINGS,
    MILLISECONDS,
    NODE_SETTINGS,
    SAME_VALUE,
    TOPIC_SETTINGS,
    base_name,
    broker_setting,
)
from ottla.wire.errors import KafkaError

TOPIC, CLIENT_METRICS, GROUP = 1, 7, 8

ALWAYS_LISTED = [name for name, row in BROKER_SETTINGS.items() if not row.internal and name not in DYNAMIC_ONLY]


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: int


class Entry(NamedTuple):
    name: str
    value: str | None
    read_only: bool
    source: int
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    kind_code: int
    why: str | None


def describe_broker(config: BrokerConfig) -> list[Entry]:
    """Everything that counts on this node: all settings, and whatever else its properties or the metadata name."""
    given = config.static | config.dynamic_default | config.dynamic_broker
    names = dict.fromkeys([*ALWAYS_LISTED, *given])
    return [_broker_entry(name, config[name], _synonyms(config, name)) for name in names]


def describe_all_brokers(config: BrokerConfig) -> list[Entry]:
    """Only what was set for all brokers."""
    entries = []
    for name, text in config.dynamic_default.items():
        synonyms = [synonym for synonym in _synonyms(config, name) if synonym.source == DYNAMIC_DEFAULT]
        entries.append(_broker_entry(name, text, synonyms))
    return entries


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    effective = config.topic_settings(overrides)
    return _own_entries(config, TOPIC_SETTINGS, overrides, effective, TOPIC)


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    effective = {name: config.stand_in(row) for name, row in GROUP_SETTINGS.items()}
    return _own_entries(config, GROUP_SETTINGS, overrides, effective | _parsed(GROUP_SETTINGS, overrides), GROUP)


def describe_client_metrics(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    effective = {name: row.default_value() for name, row in CLIENT_METRICS_SETTINGS.items()}
    effective |= _parsed(CLIENT_METRICS_SETTINGS, overrides)
    return _own_entries(config, CLIENT_METRICS_SETTINGS, overrides, effective, CLIENT_METRICS)


def created_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Entry]:
    """As CreateTopics answers: sorted, texts as they were given, and the true source of values in other units."""
    effective = config.topic_settings(overrides)
    entries = []
    for name, row in sorted(TOPIC_SETTINGS.items()):
        if name in overrides or not row.internal:
            text, source = (overrides[name], TOPIC) if name in overrides else _given(config, row)
            shown = render(effective[name]) if text is None else text
            entries.append(Entry(name, shown, False, source, False, (), KIND_CODES[row.kind], None))
    return entries


def _given(config: BrokerConfig, row: Setting) -> tuple[str | None, int]:
    """What stands in for a topic's setting: its text, or None where it is in another unit, and its source."""
    for places, source in _places(config):
        for name in row.stand_ins:
            if name in places:
                return None if name.rpartition(".")[2] in MILLISECONDS else places[name], source
    return None, DEFAULT


def _places(config: BrokerConfig) -> tuple[tuple[Mapping[str, str], int], ...]:
    return (config.dynamic_broker, DYNAMIC_BROKER), (config.dynamic_default, DYNAMIC_DEFAULT), (config.static, STATIC)


def _parsed(table: Mapping[str, Setting], overrides: Mapping[str, str]) -> dict[str, Value]:
    """What can be read of the overrides; another release may have stored what means nothing here."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        try:
            values[name] = table[name].parse(text)
        except (KeyError, KafkaError):
            continue
    return values


def _own_entries(
    config: BrokerConfig,
    table: Mapping[str, Setting],
    overrides: Mapping[str, str],
    effective: Mapping[str, Value],
    source: int,
) -> list[Entry]:
    entries = [
        _own_entry(config, row, name in overrides, effective[name], source)
        for name, row in table.items()
        if name in overrides or not row.internal
    ]
    unknown = [name for name in overrides if name not in table]
    return entries + [
        Entry(name, None, False, source, True, (Synonym(name, None, source),), 0, None) for name in unknown
    ]


def _own_entry(config: BrokerConfig, row: Setting, overridden: bool, value: Value, source: int) -> Entry:
    shown = render(value)
    synonyms = list(_synonyms(config, row.stand_ins[0])) if row.stand_ins else []
    if source == GROUP and not row.stand_ins:
        synonyms = [Synonym(row.name, row.default, DEFAULT)]
    if overridden:
        synonyms.insert(0, Synonym(row.name, shown, source))
    first = synonyms[0].source if synonyms else DEFAULT
    return Entry(row.name, shown, False, first, False, tuple(synonyms), KIND_CODES[row.kind], row.why)


def _broker_entry(name: str, value: Value, synonyms: Iterable[Synonym]) -> Entry:
    row = broker_setting(name)
    listed = tuple(synonyms)
    source = listed[0].source if listed else DEFAULT
    if row is None:
        return Entry(name, None, True, source, True, listed, 0, None)
    known = NODE_SETTINGS.get(name)
    read_only = known is None or not known.scope
    shown = None if row.sensitive else render(value)
    why = known.why if known else None
    return Entry(name, shown, read_only, source, row.sensitive, listed, KIND_CODES[row.kind], why)


def _synonyms(config: BrokerConfig, name: str) -> Iterable[Synonym]:
    """Every place with a value for this setting, strongest first, and for those that stand in for it."""
    row = broker_setting(name)
    hidden = row is None or row.sensitive
    base = base_name(name)
    names = SAME_VALUE.get(name, (name,) if base == name else (name, base))
    found = [
        Synonym(other, None if hidden else places[other], source)
        for places, source in (*_places(config), (_shown_defaults(names), DEFAULT))
        for other in names
        if other in places
    ]
    return dropwhile(lambda synonym: synonym.name != name, found)


def _shown_defaults(names: Iterable[str]) -> dict[str, str]:
    rows = (NODE_SETTINGS.get(name) for name in names if name not in DYNAMIC_ONLY)
    return {row.name: row.default for row in rows if row is not None and row.default is not None}
