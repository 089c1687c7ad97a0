"""`ottla cluster features` as people type it, against a node of its own: what is changed here others would notice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.cli.features import common_to_all
from ottla.cli.kafka.features import Feature
from ottla.cli.main import main
from ottla.testing import broker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker() as running:
        yield running.bootstrap


class Features:
    """Runs a change, and tells what was printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        self._capsys, self._bootstrap = capsys, bootstrap

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        ended = main(["cluster", "features", "-b", self._bootstrap, *words])
        said = self._capsys.readouterr()
        assert ended == code, said.out + said.err
        return said.err if code else said.out

    def as_json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def levels(self) -> dict[str, int]:
        return {each["feature"]: each["level"] for each in self.as_json()}


@pytest.fixture
def features(capsys: pytest.CaptureFixture[str], bootstrap: str) -> Features:
    return Features(capsys, bootstrap)


def test_levels_are_shown(features: Features) -> None:
    """With or without the word that kafka-features.sh has for it; metadata.version by its release, too."""
    heading, *rows = (line.split() for line in features().splitlines())
    assert heading == ["feature", "level", "lowest", "highest"]
    assert ["group.version", "1", "0", "1"] in rows
    assert ["metadata.version", "30", "(4.3-IV0)", "7", "(3.3-IV3)", "30", "(4.3-IV0)"] in rows
    (group,) = [each for each in features.as_json("describe") if each["feature"] == "group.version"]
    assert group.pop("epoch") > 0
    assert group == {"feature": "group.version", "level": 1, "min": 0, "max": 1}


def test_levels_are_changed_and_changed_back(features: Features) -> None:
    """A dry run changes nothing; what already has its level is told apart."""
    dry = features("downgrade", "transaction.version=1", "--dry-run").splitlines()
    assert dry[1].split() == ["transaction.version", "2", "1", "can", "be", "downgraded"]
    assert dry[2] == "nothing was changed: this was a dry run"
    assert features.levels()["transaction.version"] == 2
    assert features("downgrade", "transaction.version=1").splitlines()[1].endswith("downgraded")
    assert features.levels()["transaction.version"] == 1
    assert features.as_json("disable", "group.version") == [
        {"feature": "group.version", "before": 1, "after": 0, "error": None}
    ]
    _, group, metadata = features("upgrade", "group.version=1", "metadata.version=4.3").splitlines()
    assert group.split() == ["group.version", "0", "1", "upgraded"]
    assert metadata.split()[0] == "metadata.version" and metadata.endswith("as before")
    assert features.levels()["group.version"] == 1


def test_a_whole_release(features: Features) -> None:
    """Features of that release that this node does not know are left alone."""
    features("downgrade", "transaction.version=0")
    changed = {each["feature"]: each["after"] for each in features.as_json("upgrade", "--release", "4.3")}
    assert changed["transaction.version"] == features.levels()["transaction.version"] == 2
    assert changed["metadata.version"] == 30 and "share.version" not in changed


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("upgrade transaction.version=0", ": `ottla cluster features downgrade` lowers levels"),
        ("upgrade group.version=2", "only supports versions 0-1"),
        ("disable group.version kraft.version", "Can't downgrade the version of this feature."),
        ("upgrade transacton.version=2", ": did you mean 'transaction.version'?"),
        ("disable something-else", ": see `ottla cluster features`"),
        ("downgrade metadata.version=22", "because it might delete metadata information."),
    ],
)
def test_what_the_cluster_refuses(features: Features, words: str, advice: str) -> None:
    """One line that says what to do, exit code 1, and nothing changes."""
    before = features.levels()
    said = features(*words.split(), code=1)
    assert f"{advice} (INVALID_UPDATE_VERSION)" in said and len(said.splitlines()) == 1
    assert features.levels() == before


def test_a_downgrade_to_a_higher_level(features: Features) -> None:
    features("downgrade", "transaction.version=1")
    said = features("downgrade", "transaction.version=2", code=1)
    assert "Can't downgrade to a newer version: `ottla cluster features upgrade` raises levels" in said
    features("upgrade", "transaction.version=2")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("upgrade", "say what to upgrade: FEATURE=LEVEL"),
        ("downgrade group.version=0 --release 4.2", "say what to downgrade: FEATURE=LEVEL"),
        ("upgrade group.version", "equals sign not found"),
        ("upgrade group.version=1 group.version=0", "group.version was specified more than once"),
        ("upgrade --release 9.9", "Supported metadata.version are: "),
        ("upgrade metadata.version=9.9", "Supported metadata.version are: "),
    ],
)
def test_what_cannot_be_understood(features: Features, words: str, advice: str) -> None:
    said = features(*words.split(), code=2)
    assert advice in said and len(said.splitlines()) == 1


def test_brokers_that_differ() -> None:
    """What all of them support counts, and what the one says that has read most of the metadata."""
    old, new = Feature("some.version", 0, 2, 1, epoch=7), Feature("some.version", 1, 3, 2, epoch=9)
    assert common_to_all([new, old], brokers=2) == Feature("some.version", 1, 2, 2, epoch=9)
    assert common_to_all([new], brokers=2) == Feature("some.version", 0, 0, 2, epoch=9)
