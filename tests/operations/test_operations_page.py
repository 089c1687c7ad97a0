"""docs/operations.md: what it names exists, what it says about defaults is true, and what it must tell it tells."""

from __future__ import annotations

import re

import pytest

from harness import TREE
from ottla.config import BrokerConfig, single_node_defaults
from ottla.config.settings import NODE_SETTINGS, TOPIC_SETTINGS
from ottla.log.ballast import AMPLE_BYTES, BYTES, NAME
from ottla.log.files import FILES_MAX
from ottla.server.measures import NodeMetrics

PAGE = (TREE / "docs" / "operations.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part for part in PAGE.split("\n## ")[1:]}
CLIENT_SETTINGS = {
    *("auto.offset.reset", "session.timeout.ms", "isolation.level"),
    *("transactional.id", "transaction.timeout.ms", "enable.auto.commit", "auto.commit.interval.ms"),
}
FEATURES = {"transaction.version"}
FILES = {"partition.metadata"}
KERNEL_SETTINGS = {"vm.dirty_background_ratio", "vm.dirty_ratio"}
UNITS = {"MiB": 1 << 20, "s": 1000, "min": 60_000, "day": 86_400_000, "days": 86_400_000, "": 1}


def config() -> BrokerConfig:
    return BrokerConfig({**single_node_defaults(), "log.dirs": "unused"})


def test_settings_and_metrics_on_the_page_exist() -> None:
    """LOG-24: no name that nobody obeys, no metric that nobody serves."""
    named = {text.split("=")[0] for text in re.findall(r"`([a-z][a-z.]*\.[a-z.]+(?:=[^`]*)?)`", PAGE)}
    assert len(named) > 20
    assert named <= CLIENT_SETTINGS | KERNEL_SETTINGS | FEATURES | FILES | set(TOPIC_SETTINGS) | set(NODE_SETTINGS)
    metrics = set(re.findall(r"`(ottla_[a-z_]+)`", PAGE))
    assert metrics and metrics <= set(NodeMetrics({}).registry._declared)


@pytest.mark.parametrize(
    ("name", "told"),
    re.findall(
        r"^\| `([a-z.]+)`(?:, `[a-z.]+`)? \| ([\d,]+ ?\w*) \|",
        SECTIONS["Limits"] + SECTIONS["Transactions"],
        re.MULTILINE,
    ),
)
def test_defaults_on_the_page_are_true(name: str, told: str) -> None:
    """Numbers with a unit, rounded down to it."""
    number, _, unit = told.partition(" ")
    assert config()[name] // UNITS[unit] == int(number.replace(",", ""))


def test_the_figures_about_room_and_files_are_true() -> None:
    """LOG-23, LOG-24"""
    assert NAME in SECTIONS["Disk full"]
    assert (
        f"of {BYTES >> 20} MiB" in SECTIONS["Disk full"] and f"{AMPLE_BYTES >> 20} MiB of room" in SECTIONS["Disk full"]
    )
    assert f"{FILES_MAX:,} per directory" in SECTIONS["Open files"]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("What an acknowledgement means", ("commit log", "no fsync per write", "replicas")),
        ("Codecs", ("lz4 | low latency", "zstd | storage", "snappy | general", "gzip | cold data")),
        ("How bytes move", ("sendfile", "two copies", "the network is", "write-behind", "read-ahead", "TLS")),
        ("Groups", ("auto commit risks", "not how far it has worked", "commits after the work")),
        ("Transactions", ("idempotent producer and transactions came with Kafka 0.11 in 2017", "exactly-once")),
        (
            "Why it is built like this",
            ("append-only", "quorum", "in a group", "object stores", "KIP-500", "3.3", "4.0"),
        ),
        ("How many partitions", ("twice the number of consumers", "headroom", "memory", "descriptor")),
    ],
)
def test_what_the_page_must_tell(section: str, words: tuple[str, ...]) -> None:
    """LOG-16, LOG-22, REC-09, IO-05, IO-06, IO-11, KRF-19, KRF-21, OFF-04, OPS-06, TXN-12: advice that belongs there."""
    for word in words:
        assert word.lower() in SECTIONS[section].replace("\n", " ").lower(), word
