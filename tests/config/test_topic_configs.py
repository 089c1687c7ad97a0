"""What a topic may set, with the rules between settings."""

from __future__ import annotations

import pytest

from ottla.config import BrokerConfig, single_node_defaults, validate_topic_configs
from ottla.wire.errors import Error, KafkaError

TIERED = BrokerConfig(single_node_defaults() | {"remote.log.storage.system.enable": "true"})
PLAIN = BrokerConfig(single_node_defaults())


def refusal(values: dict[str, str | None], broker: BrokerConfig = PLAIN, existing: dict[str, str] | None = None) -> str:
    with pytest.raises(KafkaError) as refused:
        validate_topic_configs(values, broker=broker, existing=existing or {})
    assert refused.value.error is Error.INVALID_CONFIG
    return refused.value.message


def test_good_settings_pass() -> None:
    validate_topic_configs({})
    validate_topic_configs({"retention.ms": "1000", "cleanup.policy": "compact,delete", "segment.bytes": "1048576"})
    validate_topic_configs({"cleanup.policy": "", "internal.segment.bytes": "100"}, broker=PLAIN)
    validate_topic_configs({"remote.storage.enable": "true"}, broker=TIERED)


def test_names_and_nulls() -> None:
    assert refusal({"no.such.config": "1"}) == "Unknown topic config name: no.such.config"
    assert refusal({"retention.ms": None}) == "Null value not supported for topic configs: retention.ms"


def test_values() -> None:
    """TRAP-17: a segment of less than 1 MiB is refused."""
    assert "at least 1048576" in refusal({"segment.bytes": "1048575"})
    assert "compact, delete" in refusal({"cleanup.policy": "banana"})


def test_compaction_lags_fit_each_other_and_the_brokers_default() -> None:
    assert "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)" in refusal(
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    )
    broker = BrokerConfig(single_node_defaults() | {"log.cleaner.max.compaction.lag.ms": "7"})
    assert "(8) > max.compaction.lag.ms (7)" in refusal({"min.compaction.lag.ms": "8"}, broker)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cleanup.policy": "compact"}, "compacted"),
        ({"retention.bytes": "100", "local.retention.bytes": "101"}, "local.retention.bytes"),
        ({"retention.ms": "100", "local.retention.ms": "-1"}, "must not be -1"),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "5"}, "remote.log.copy.disable"),
    ],
)
def test_tiered_topics(values: dict[str, str | None], words: str) -> None:
    assert words in refusal({"remote.storage.enable": "true"} | values, TIERED)


def test_tiering_needs_a_broker_that_does_it_and_has_no_silent_way_back() -> None:
    assert "disabled in the broker" in refusal({"remote.storage.enable": "true"})
    tiered = {"remote.storage.enable": "true"}
    assert "remote.log.delete.on.disable" in refusal({"remote.storage.enable": "false"}, TIERED, tiered)
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    validate_topic_configs(off, broker=TIERED, existing=tiered)
