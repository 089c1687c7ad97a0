"""Text to values and back, judged by what Apache Kafka 4.3.1 answered to the same text."""

from __future__ import annotations

import pytest

from ottla.config.kinds import KIND_CODES, render
from ottla.config.settings import (
    BROKER_SETTINGS,
    CLIENT_METRICS_SETTINGS,
    DYNAMIC_ONLY,
    GROUP_SETTINGS,
    NODE_SETTINGS,
    TOPIC_SETTINGS,
    base_name,
    broker_setting,
)
from ottla.wire.errors import Error, KafkaError

ALL = [*NODE_SETTINGS.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values(), *CLIENT_METRICS_SETTINGS.values()]


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("cleanup.policy", "", (), ""),
        ("cleanup.policy", " compact , delete ", ("compact", "delete"), "compact,delete"),
        ("compression.type", " gzip ", "gzip", "gzip"),
        ("retention.ms", "-1", -1, "-1"),
        ("retention.ms", " 7 ", 7, "7"),
        ("retention.ms", "+5", 5, "5"),
        ("retention.bytes", "-5", -5, "-5"),
        ("preallocate", "TRUE", True, "true"),
        ("min.cleanable.dirty.ratio", "1e-3", 0.001, "0.001"),
        ("min.cleanable.dirty.ratio", "1d", 1.0, "1.0"),
        ("min.cleanable.dirty.ratio", " .5 ", 0.5, "0.5"),
        ("leader.replication.throttled.replicas", "*", ("*",), "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2"), "0:1,1:2"),
        ("compression.gzip.level", "-1", -1, "-1"),
        ("segment.bytes", "1048576", 1048576, "1048576"),
    ],
)
def test_text_becomes_a_value_and_back(name: str, text: str, value: object, shown: str) -> None:
    parsed = TOPIC_SETTINGS[name].parse(text)
    assert parsed == value
    assert render(parsed) == shown


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cleanup.policy", "compact,", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "cleanup.policy",
            "banana",
            "Invalid value banana for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("retention.ms", "1_000", "Invalid value 1_000 for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "", "Invalid value  for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "retention.ms",
            "9223372036854775808",
            "Invalid value 9223372036854775808 for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "segment.bytes",
            "1048575",
            "Invalid value 1048575 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            "message.timestamp.type",
            "banana",
            "Invalid value banana for configuration message.timestamp.type: "
            "String must be one of: CreateTime, LogAppendTime",
        ),
    ],
)
def test_a_bad_value_is_refused_in_apaches_words(name: str, text: str, message: str) -> None:
    """TRAP-17 among others: segments below 1 MiB."""
    with pytest.raises(KafkaError) as refused:
        TOPIC_SETTINGS[name].parse(text)
    assert refused.value.error is Error.INVALID_CONFIG
    assert refused.value.message == message


@pytest.mark.parametrize("text", ["banana", "0:1:2", "none"])
def test_throttled_replicas_are_pairs_or_a_star(text: str) -> None:
    with pytest.raises(KafkaError):
        TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse(text)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("latest", True),
        ("EARLIEST", False),
        ("by_duration:PT1S", True),
        ("by_duration:x", False),
        ("by_duration:P", False),
    ],
)
def test_where_a_share_group_begins(text: str, good: bool) -> None:
    setting = GROUP_SETTINGS["share.auto.offset.reset"]
    if good:
        assert setting.parse(text) == text
    else:
        with pytest.raises(KafkaError):
            setting.parse(text)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.5, "0.5"),
        (1e7, "1.0E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1234567.0, "1234567.0"),
        (1e-4, "1.0E-4"),
    ],
)
def test_doubles_are_shown_as_java_shows_them(number: float, shown: str) -> None:
    assert render(number) == shown


def test_every_row_of_the_tables_is_sound() -> None:
    """A default that its own row forbids, or a stand-in that does not exist, is a slip in a table."""
    for setting in ALL:
        assert setting.kind in KIND_CODES, setting.name
        assert setting.why and len(setting.why) > 5, setting.name
        if setting.default is not None:
            assert render(setting.parse(setting.default)) == render(setting.default_value()), setting.name
        for name in setting.stand_ins:
            assert name in BROKER_SETTINGS, setting.name


def test_the_tables_are_as_large_as_apaches() -> None:
    """Counted in 4.3.1: 360 of brokers and 3 that are only dynamic, 34 of topics, 17 of groups, 3 of client metrics."""
    assert len(BROKER_SETTINGS) == 360 + len(DYNAMIC_ONLY)
    assert (len(TOPIC_SETTINGS), len(GROUP_SETTINGS), len(CLIENT_METRICS_SETTINGS)) == (34, 17, 3)


def test_a_setting_of_one_listener_is_known_by_its_plain_name() -> None:
    assert base_name("listener.name.internal.ssl.client.auth") == "ssl.client.auth"
    assert base_name("listener.name.internal.scram-sha-256.sasl.jaas.config") == "sasl.jaas.config"
    assert broker_setting("listener.name.x.ssl.key.password") is BROKER_SETTINGS["ssl.key.password"]
    assert broker_setting("listener.name.x") is None
