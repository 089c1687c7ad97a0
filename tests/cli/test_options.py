"""How values on the command line are read."""

from __future__ import annotations

import argparse

import pytest

from ottla.cli.mistakes import Mistake, explain
from ottla.cli.options import BOOTSTRAP, BOOTSTRAP_VARIABLE, add_bootstrap, moment_ms, pairs
from ottla.cli.text import data_of, header_name, shown, table
from ottla.wire.errors import Error, KafkaError

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("1700000000000", 1_700_000_000_000),
        ("10m", NOW - 600_000),
        ("250ms", NOW - 250),
        ("2d", NOW - 172_800_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.500+01:00", 1_700_000_000_500),
    ],
)
def test_times(text, expected):
    assert moment_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "soon", "10 minutes", "-5", "2023-99-01"])
def test_what_is_no_time(text):
    with pytest.raises(Mistake, match="is not a time"):
        moment_ms(text, NOW)


@pytest.mark.parametrize(
    ("variable", "words", "expected"),
    [
        (None, [], BOOTSTRAP),
        ("", [], BOOTSTRAP),
        ("there:1", [], "there:1"),
        ("there:1", ["-b", "elsewhere:2"], "elsewhere:2"),
    ],
)
def test_the_broker_to_begin_with(monkeypatch, variable, words, expected):
    """The example of a pipeline reads the same variable: what is written for it goes to the broker it is read from."""
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(BOOTSTRAP_VARIABLE, variable)
    parser = argparse.ArgumentParser()
    add_bootstrap(parser)
    assert parser.parse_args(words).bootstrap_server == expected


def test_pairs():
    assert pairs(["a=1", "b = x=y", "a=2"], "--set") == {"a": "2", "b": "x=y"}
    assert pairs(None, "--set") == {}


@pytest.mark.parametrize("data", [None, b"", "ěščř".encode(), b"\xff\x00", bytes(range(256))])
def test_bytes_survive_being_shown(data):
    assert data_of(shown(data)) == data


def test_header_names_that_are_not_text():
    assert header_name("ok\udcff") == "ok\\xff"


def test_table():
    assert table([("a", "long"), ("wider", 1)]) == "a      long\nwider  1"


def test_errors_stay_on_one_line():
    line = explain(KafkaError(Error.INVALID_CONFIG, "several\n  lines\tof text"))
    assert line == "several lines of text (INVALID_CONFIG)"
    assert explain(RuntimeError("a defect")) is None
