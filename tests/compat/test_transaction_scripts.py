"""Scripts of transactional producers, played on our node and on Apache Kafka 4.3.1: all are told the same, and the
same is written.

OTTLA_DIFFERENTIAL_SELF sets Apache against Apache; OTTLA_DIFFERENTIAL_SEED tries other talks, OTTLA_DIFFERENTIAL_TALKS more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apache import kafka
from compat.dealings import Dealings, until
from compat.parties import Line
from compat.peers import difference, ours_and_apaches
from compat.talks import Talk
from compat.test_classic_scripts import read_topic
from ottla.wire.messages.cluster import ApiVersionsRequest, UpdateFeaturesRequest

pytestmark = pytest.mark.apache

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "num.partitions": "2",
    "transaction.max.timeout.ms": "120000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
SEED = os.environ.get("OTTLA_DIFFERENTIAL_SEED", "ottla")
TALKS = int(os.environ.get("OTTLA_DIFFERENTIAL_TALKS", "8"))
STEPS = 30
Script = Callable[[Dealings], None]
SCRIPTS: list[Script] = []


def script(play: Script) -> Script:
    SCRIPTS.append(play)
    return play


def in_versions(play: Callable[[Dealings, int], None], versions: range) -> None:
    for number in versions:
        SCRIPTS.append(lambda deal, version=number: play(deal, version))  # type: ignore[misc]
        SCRIPTS[-1].__name__ = f"{play.__name__}_v{number}"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    with ours_and_apaches(tmp_path_factory.mktemp("scripts"), SETTINGS) as both:
        yield both


# --- one producer


def first_generation(deal: Dealings, version: int) -> None:
    """Two transactions, one committed and one aborted, in one version of everything."""
    adds, ends = min(version, 3), min(version, 4)
    deal.init("a", version)
    for committed in (True, False):
        deal.add("a", 0, 1, version=adds)
        deal.add("a", 0, version=adds)
        deal.produce("a", 0, version=version + 6)
        deal.add_group("a", ends)
        deal.offsets("a", 0, 1, version=ends)
        deal.look()
        deal.end("a", committed, ends)
        deal.settle()
        deal.look()
    deal.init("a", version, is_known=version >= 3)
    deal.look()


in_versions(first_generation, range(6))


@script
def second_generation(deal: Dealings) -> None:
    """Partitions and groups come into the transaction by being written to; each end gives a new epoch (KIP-890)."""
    deal.init("a")
    for committed in (True, False, True):
        deal.produce("a", 0, 12)
        deal.produce("a", 0, 12)
        deal.offsets("a", 0, version=5)
        deal.look()
        deal.end("a", committed, 5)
        deal.settle()
        deal.look()


@script
def ends_that_are_repeated(deal: Dealings) -> None:
    """The answer got lost: the same end again, and the other one."""
    deal.init("a")
    for version in (0, 4):
        deal.add("a", 0)
        deal.end("a", True, version)
        deal.settle()
        deal.end("a", True, version)
        deal.end("a", False, version)
    for committed in (True, False):
        deal.produce("a", 0, 12)
        before = deal.dealer("a").epoch
        deal.end("a", committed, 5)
        deal.settle()
        for other in (committed, not committed):
            deal.end("a", other, 5, producer_epoch=before)
        deal.dealer("a").epoch = before + 1
    deal.look()


@script
def ends_of_nothing(deal: Dealings) -> None:
    deal.init("a")
    for version in range(6):
        for committed in (True, False):
            deal.end("a", committed, version)
            deal.settle()
    deal.look()


@script
def nobody_knows_it(deal: Dealings) -> None:
    """No producer ever asked for an id."""
    for version in range(4):
        deal.add("a", 0, version=version, producer_id=77, producer_epoch=0)
    for version in (4, 5):
        for only in (False, True):
            deal.add("a", 0, version=version, producer_id=77, producer_epoch=0, verify_only=only)
    for version in range(5):
        deal.add_group("a", version, producer_id=77, producer_epoch=0)
    for version in range(6):
        deal.end("a", version=version, producer_id=77, producer_epoch=0)
        deal.offsets("a", version=version, producer_id=77, producer_epoch=0)
    for version in range(3, 13):
        deal.produce("a", version=version, producer_id=77, producer_epoch=0)
    deal.look()


@script
def names_that_are_none(deal: Dealings) -> None:
    deal.init("a")
    for version in range(6):
        deal.init("b", version, transactional_id="")
        for timeout in (0, -1, 120_001, 2**31 - 1):
            deal.init("b", version, transaction_timeout_ms=timeout)
    for version in range(3, 6):
        for values in ((5, -1), (-1, 5), (-2, -2)):
            deal.init("b", version, producer_id=values[0], producer_epoch=values[1])
            deal.init("b", version, transactional_id=None, producer_id=values[0], producer_epoch=values[1])
    for version in range(6):
        deal.add("a", 0, version=version, transactional_id="")
        deal.end("a", version=version, transactional_id="")
        deal.offsets("a", version=version, transactional_id="")
        deal.offsets("a", version=version, group_id="")
    for version in range(5):
        deal.add_group("a", version, transactional_id="")
        deal.add_group("a", version, group_id="")
    deal.look()


@script
def partitions_that_are_none(deal: Dealings) -> None:
    deal.init("a")
    for version in range(6):
        deal.add("a", version=version)
        deal.add("a", 0, 9, version=version)
        deal.add("a", 0, version=version, topic="none-of-these")
        deal.add("a", 0, version=version, topic="__transaction_state")
        deal.offsets("a", 9, version=version)
        deal.offsets("a", 0, version=version, topic="none-of-these")
    deal.look()
    for version in (9, 11, 12):
        deal.produce("a", 9, version)
        deal.produce("a", 0, version, topic="none-of-these")
    deal.look()


@script
def written_without_being_added(deal: Dealings) -> None:
    """The leader asks the coordinator, in words that each version knows."""
    deal.init("a")
    for version in range(3, 12):
        deal.produce("a", 0, version)
    for version in range(5):
        deal.offsets("a", version=version)
    deal.look()
    deal.add("a", 1)
    for version in range(3, 12):
        deal.produce("a", 0, version)
    for version in range(5):
        deal.offsets("a", version=version)
    deal.produce("a", 1)
    deal.look()
    deal.end("a")
    deal.settle()
    deal.produce("a", 1)
    deal.produce("a", 1, 9)
    deal.look()


@script
def verified_only(deal: Dealings) -> None:
    deal.init("a")
    for version in (4, 5):
        deal.add("a", 0, version=version, verify_only=True)
    deal.add("a", 0)
    for version in (4, 5):
        deal.add("a", 0, version=version, verify_only=True)
        deal.add("a", 0, 1, version=version, verify_only=True)
        deal.add("a", 0, 1, version=version, verify_only=True, off=1)
        deal.add("a", 0, 1, version=version, verify_only=True, off=-1)
        deal.add("a", 0, 1, version=version, verify_only=True, producer_id=77)
    deal.look()


# --- wrong numbers


@script
def wrong_numbers(deal: Dealings) -> None:
    deal.init("a")
    deal.init("a", is_known=True)
    for step in ("before", "during"):
        epochs: list[dict[str, int]] = [{"off": 1}, {"off": -1}, {"producer_epoch": -1}]
        for wrong in (*epochs, {"producer_id": 77}, {"producer_id": -1}, {"producer_id": 77, "producer_epoch": -2}):
            for version in range(6):
                deal.add("a", 0, version=version, **wrong)
                deal.end("a", version=version, **wrong)
                deal.offsets("a", version=version, **wrong)
            for version in range(5):
                deal.add_group("a", version, **wrong)
            if "producer_id" not in wrong or wrong["producer_id"] > 0:
                for version in (9, 11, 12):
                    deal.produce("a", 0, version, **wrong)
        deal.look()
        if step == "before":
            deal.add("a", 0)
            deal.add_group("a")
            deal.produce("a")
            deal.offsets("a")
    deal.end("a")
    deal.settle()
    deal.look()


@script
def sequences_in_transactions(deal: Dealings) -> None:
    deal.init("a")
    deal.add("a", 0, 1)
    deal.produce("a", 0, sequence=5)
    deal.produce("a", 0, sequence=6)
    deal.produce("a", 0, sequence=6)
    deal.produce("a", 0, sequence=9)
    deal.produce("a", 0, sequence=5)
    deal.end("a")
    deal.settle()
    deal.produce("a", 1, 12, sequence=5)
    deal.produce("a", 1, 12, sequence=0)
    deal.produce("a", 1, 12, sequence=0)
    deal.look()
    deal.end("a", True, 5)
    deal.settle()
    deal.produce("a", 1, 12, sequence=1)
    deal.produce("a", 1, 12, sequence=0)
    deal.look()


# --- two producers


def old_one_speaks(deal: Dealings, *versions: int) -> None:
    """What a producer hears that another one has replaced, whatever it tries."""
    for version in versions:
        deal.add("a", 0, version=min(version, 3))
        deal.add_group("a", min(version, 4))
        deal.produce("a", 0, min(version + 7, 12))
        deal.offsets("a", version=version)
        deal.end("a", True, version)
        deal.end("a", False, version)
        if version >= 3:
            deal.init("a", version, is_known=True)


@script
def fenced_between_transactions(deal: Dealings) -> None:
    """TXN-08."""
    deal.init("a")
    deal.add("a", 0)
    deal.produce("a")
    deal.end("a")
    deal.settle()
    deal.init("b")
    old_one_speaks(deal, 0, 1, 2, 3, 4)
    deal.look()


@script
def fenced_in_a_transaction(deal: Dealings) -> None:
    """TXN-08: what the old one wrote is aborted."""
    deal.init("a")
    deal.add("a", 0)
    deal.add_group("a")
    deal.produce("a")
    deal.offsets("a")
    deal.init("b", again=True)
    deal.settle()
    deal.look()
    old_one_speaks(deal, 0, 2, 4, 5)
    deal.add("b", 0)
    deal.produce("b")
    old_one_speaks(deal, 1, 2)
    deal.end("b")
    deal.settle()
    deal.look()


@script
def fenced_in_the_second_generation(deal: Dealings) -> None:
    deal.init("a")
    deal.produce("a", 0, 12)
    deal.offsets("a", version=5)
    deal.init("b", again=True)
    deal.settle()
    deal.produce("a", 0, 12)
    deal.produce("a", 1, 12)
    deal.offsets("a", version=5)
    deal.end("a", True, 5)
    deal.end("a", False, 5)
    deal.produce("b", 0, 12)
    deal.produce("a", 0, 12)
    deal.look()
    deal.end("b", True, 5)
    deal.settle()
    deal.look()


@script
def an_id_that_is_brought_along(deal: Dealings) -> None:
    """KIP-360: a new epoch for whoever has the current one, and for nobody else."""
    deal.init("a")
    deal.init("a", is_known=True)
    deal.init("a", is_known=True)
    epoch = deal.dealer("a").epoch
    for version in (3, 4, 5):
        deal.init("b", version, producer_id=deal.dealer("a").id, producer_epoch=epoch - 1)
        deal.init("b", version, producer_id=deal.dealer("a").id, producer_epoch=epoch - 2)
        deal.init("b", version, producer_id=deal.dealer("a").id, producer_epoch=epoch + 2)
        deal.init("b", version, producer_id=77, producer_epoch=epoch)
        deal.look()
    deal.add("a", 0)
    deal.init("a", is_known=True, again=True)
    deal.settle()
    deal.look()


@script
def another_timeout(deal: Dealings) -> None:
    deal.init("a", transaction_timeout_ms=1000)
    deal.look()
    deal.init("a", transaction_timeout_ms=2000)
    deal.look()


# --- time


def too_slow(deal: Dealings, version: int) -> None:
    """A transaction that takes too long is aborted, and its producer is fenced. It has time enough to be written before."""
    deal.init("a", transaction_timeout_ms=1500)
    deal.add("a", 0)
    deal.produce("a")
    deal.until_state("CompleteAbort")
    deal.look()
    deal.add("a", 0, version=min(version, 3))
    deal.produce("a", 0, version + 7)
    deal.end("a", True, version)
    deal.end("a", False, version)
    deal.init("a", max(version, 3), is_known=True)
    deal.look()


in_versions(too_slow, range(6))


# --- offsets


@script
def offsets_that_are_deleted_meanwhile(deal: Dealings) -> None:
    deal.init("a")
    deal.add_group("a")
    deal.offsets("a", 0, 1)
    deal.forget_offset(0)
    deal.look()
    deal.end("a")
    deal.settle()
    deal.look()


@script
def a_group_that_is_deleted_meanwhile(deal: Dealings) -> None:
    deal.init("a")
    deal.add_group("a")
    deal.offsets("a", 0)
    deal.forget_group()
    deal.look()
    deal.offsets("a", 1)
    deal.end("a")
    deal.settle()
    deal.look()


@script
def members_that_are_none(deal: Dealings) -> None:
    deal.init("a")
    deal.add_group("a")
    for version in range(6):
        for generation in (-2, -1, 0, 7):
            for member in ("", "m"):
                deal.offsets("a", version=version, generation_id=generation, member_id=member)
        deal.offsets("a", version=version, group_instance_id="i")
    deal.look()


# --- markers from outside


@script
def markers_by_hand(deal: Dealings) -> None:
    deal.init("a")
    deal.add("a", 0, 1)
    deal.produce("a", 0)
    deal.mark("a", 0, 9, off=-1)
    deal.mark("a", 0, coordinator_epoch=-1)
    deal.mark("a", 0, topic="none-of-these")
    deal.look()
    deal.mark("a", 0, 1)
    deal.look()
    deal.mark("a", 0, 1, committed=True, version=2, transaction_version=2)
    deal.mark("a", 0, 1, committed=True, version=2, transaction_version=2, off=1)
    deal.look()
    deal.produce("a", 0)
    deal.look()


@script
def lists(deal: Dealings) -> None:
    deal.init("a")
    mine = {"transactional_id_pattern": f"{deal.name}.*"}
    deal.listed(**mine)
    deal.add("a", 0)
    for version in range(3):
        deal.listed(version, producer_id_filters=[deal.dealer("a").id])
    for states in (["Ongoing"], ["Empty"], ["ongoing"], ["Ongoing", "Nonsense", ""]):
        deal.listed(state_filters=states, **mine)
    for duration in (-1, 0, 60_000):
        deal.listed(duration_filter=duration, **mine)
    for pattern in ("", "(", deal.name, "nothing"):
        deal.listed(transactional_id_pattern=pattern, producer_id_filters=[deal.dealer("a").id])


@pytest.mark.parametrize("play", SCRIPTS, ids=lambda play: play.__name__)
def test_same_words(play: Script, addresses: list[str]) -> None:
    """TXN-07, TXN-08: what producers, administrators and readers are told."""
    compare(play, addresses, f"t-{play.__name__}")


@pytest.mark.parametrize("number", range(TALKS))
def test_same_words_in_talks(number: int, addresses: list[str]) -> None:
    """TXN-07, TXN-08: what nobody has written a script for."""
    compare(lambda deal: Talk(deal, random.Random(f"{SEED}/{number}")).go_on(STEPS), addresses, f"talk-{SEED}-{number}")


@pytest.mark.parametrize("level", [1, 0])
def test_same_words_at_lower_levels(level: int, addresses: list[str]) -> None:
    """PRT-07: the last ones of all, for they lower `transaction.version` while the brokers run."""
    for address in addresses:
        lower(address, level)
    compare(lambda deal: first_generation(deal, 4), addresses, f"t-level-{level}")


def compare(play: Script, addresses: list[str], name: str) -> None:
    minutes: list[list[tuple[str, str, Any]]] = []
    written: list[list[Any]] = []
    for address in addresses:
        deal = Dealings(address, name)
        try:
            play(deal)
        finally:
            deal.close()
        minutes.append(deal.minutes())
        written.append(deal.records(read_topic(address, "__transaction_state")))
    for number, (ours, theirs) in enumerate(zip(*minutes, strict=True)):
        assert ours[:2] == theirs[:2]
        assert not difference(ours[2], theirs[2]), f"answer {number} of {len(minutes[0])}, {ours[:2]}"
    assert written[0] == written[1]


def lower(address: str, level: int) -> None:
    update = UpdateFeaturesRequest.Update(feature="transaction.version", max_version_level=level, upgrade_type=2)
    versions = ApiVersionsRequest(client_software_name="test", client_software_version="1")

    def is_so() -> bool:
        line.send(versions, 4)
        told: Any = line.hear()
        levels = {row.name: row.max_version_level for row in told.finalized_features}
        return bool(levels.get("transaction.version", 0) == level)

    line = Line(address)
    try:
        line.send(UpdateFeaturesRequest(feature_updates=[update]), 1)
        answer: Any = line.hear()
        assert answer.error_code == 0
        until(is_so)
    finally:
        line.close()
