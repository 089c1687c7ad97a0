"""The store of committed offsets: what stands in the topic goes in, and comes out as it was meant."""

from __future__ import annotations

import pytest

from ottla.coordination.offsets import Commit, Offsets, read_commit, tombstone
from ottla.coordination.records import OffsetCommitKey, OffsetCommitValue, Record, pack
from ottla.wire.codec import Malformed, encode

TOPIC_ID = bytes(range(16))


def packed(
    offset: int, group: str = "g", topic: str = "t", partition: int = 0, note: str = "", topic_id: bytes = TOPIC_ID
) -> tuple[bytes, bytes]:
    key, value = pack(
        Record(
            OffsetCommitKey(group=group, topic=topic, partition=partition),
            OffsetCommitValue(
                offset=offset, leader_epoch=3, metadata=note, commit_timestamp=1_000 + offset, topic_id=topic_id
            ),
        )
    )
    assert value is not None
    return key, value


def gone(group: str = "g", topic: str = "t", partition: int = 0) -> tuple[bytes, None]:
    return pack(tombstone(group, topic, partition))[0], None


def offset_of(offsets: Offsets, group: str = "g", topic: str = "t", partition: int = 0) -> int | None:
    found = offsets.find(group, topic, partition)
    return None if found is None else found.offset


@pytest.mark.parametrize("note", ["", "a", "x" * 126, "x" * 127, "x" * 4096, "häh?", "\U0001f40d"])
def test_an_offset_comes_back_as_it_was_committed(note: str) -> None:
    """OFF-08: the note comes back too."""
    offsets = Offsets()
    assert offsets.replay(*packed(42, note=note), 7)
    assert offsets.find("g", "t", 0) == Commit(42, 3, note, 1_042, -1, TOPIC_ID)
    assert list(offsets.all_of("g")) == [("t", 0, Commit(42, 3, note, 1_042, -1, TOPIC_ID))]


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("topic_id", [bytes(16), TOPIC_ID])
def test_every_version_of_a_value_can_be_read(version: int, topic_id: bytes) -> None:
    """TRAP-51: version 4 is written, or 1 with an expiry of its own; older ones are in old directories."""
    said = OffsetCommitValue(
        offset=9, leader_epoch=2, metadata="m", commit_timestamp=5, expire_timestamp=6, topic_id=topic_id
    )
    value = version.to_bytes(2, "big") + encode(said, version)
    offsets = Offsets()
    assert offsets.replay(packed(0)[0], value, 0)
    epoch, expiry = 2 if version >= 3 else -1, 6 if version == 1 else -1
    assert offsets.find("g", "t", 0) == Commit(9, epoch, "m", 5, expiry, topic_id if version == 4 else bytes(16))


def test_an_expiry_of_its_own_is_written_in_the_version_that_has_room_for_it() -> None:
    """TRAP-51."""
    value = OffsetCommitValue(offset=9, metadata="", commit_timestamp=5, expire_timestamp=6, topic_id=TOPIC_ID)
    _, written = pack(Record(OffsetCommitKey(group="g", topic="t", partition=0), value))
    assert written is not None
    assert written[:2] == b"\0\1"
    assert read_commit(written) == Commit(9, -1, "", 5, 6, bytes(16))


def test_the_oldest_number_of_the_key_is_known() -> None:
    offsets = Offsets()
    key, value = packed(4)
    assert offsets.replay(b"\0\0" + key[2:], value, 0)
    assert offset_of(offsets) == 4


@pytest.mark.parametrize("kind", [2, 3, 8, 11, 300])
def test_other_kinds_of_records_are_left_to_others(kind: int) -> None:
    """TRAP-51: kinds of groups that do not exist here are passed over."""
    offsets = Offsets()
    key, value = packed(1)
    offsets.replay(key, value, 0)
    assert not offsets.replay(kind.to_bytes(2, "big") + key[2:], value, 1)


def test_a_value_of_a_later_release_is_passed_over() -> None:
    offsets = Offsets()
    assert offsets.replay(packed(1)[0], b"\0\5whatever", 0)
    assert offset_of(offsets) is None


@pytest.mark.parametrize("cut", [1, 3, 8, 20])
def test_what_cannot_be_read_is_refused(cut: int) -> None:
    key, value = packed(1, note="noted")
    with pytest.raises(Malformed):
        Offsets().replay(key, value[:-cut], 0)
    with pytest.raises(Malformed):
        Offsets().replay(key[:-cut] if cut < 8 else key[:5], value, 0)


def test_groups_topics_and_partitions_are_told_apart() -> None:
    """OFF-09: each group has its own; names that begin alike, or end in bytes that look like a number, are others."""
    offsets = Offsets()
    places = [(g, t, p) for g in ("g", "gg", "", "é") for t in ("t", "tt", "t\0\0", "") for p in (0, 1, 256)]
    for number, (group, topic, partition) in enumerate(places):
        offsets.replay(*packed(number, group, topic, partition), number)
    for number, (group, topic, partition) in enumerate(places):
        assert offset_of(offsets, group, topic, partition) == number
    assert sum(len(list(offsets.all_of(group))) for group in offsets.by_group) == len(places)


def test_a_tombstone_ends_an_offset_but_not_the_group() -> None:
    offsets = Offsets()
    offsets.replay(*packed(1), 0)
    offsets.replay(*gone(), 1)
    assert offset_of(offsets) is None
    assert "g" in offsets
    offsets.forget("g")
    assert "g" not in offsets


def test_a_group_that_still_has_offsets_is_not_forgotten() -> None:
    """A classic group that becomes a consumer group ends as a classic one; its offsets stay."""
    offsets = Offsets()
    offsets.replay(*packed(1), 0)
    offsets.forget("g")
    assert offset_of(offsets) == 1


def test_a_tombstone_for_nothing_makes_no_group() -> None:
    offsets = Offsets()
    offsets.replay(*gone(), 1)
    assert "g" not in offsets


# --- transactions


def test_an_offset_in_a_transaction_counts_when_that_is_committed() -> None:
    offsets = Offsets()
    offsets.replay(*packed(1), 0)
    offsets.replay(*packed(5), 1, producer_id=77)
    assert offset_of(offsets) == 1
    assert offsets.is_pending("g", "t", 0)
    assert not offsets.is_pending("g", "t", 1)
    assert not offsets.is_pending("other", "t", 0)
    offsets.end_transaction(77, committed=True)
    assert offset_of(offsets) == 5
    assert not offsets.is_pending("g", "t", 0)
    assert not offsets.has_open_transactions("g")


def test_an_offset_in_an_aborted_transaction_never_was() -> None:
    offsets = Offsets()
    offsets.replay(*packed(5), 1, producer_id=77)
    offsets.end_transaction(77, committed=False)
    offsets.end_transaction(77, committed=True)
    assert offset_of(offsets) is None
    assert "g" in offsets


def test_the_later_record_holds_and_not_the_later_marker() -> None:
    """TRAP-53: what was committed after the pending record was written is not undone by its marker."""
    offsets = Offsets()
    offsets.replay(*packed(5), 10, producer_id=77)
    offsets.replay(*packed(9), 11)
    assert offsets.is_pending("g", "t", 0)
    offsets.end_transaction(77, committed=True)
    assert offset_of(offsets) == 9


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_transactions_the_later_record_holds(first: int) -> None:
    """TRAP-53."""
    offsets = Offsets()
    offsets.replay(*packed(5), 10, producer_id=1)
    offsets.replay(*packed(6), 11, producer_id=2)
    offsets.end_transaction(first, committed=True)
    assert offset_of(offsets) == (5 if first == 1 else 6)
    assert offsets.is_pending("g", "t", 0)
    offsets.end_transaction(3 - first, committed=True)
    assert offset_of(offsets) == 6


def test_the_last_record_of_a_transaction_about_a_partition_holds() -> None:
    offsets = Offsets()
    offsets.replay(*packed(5), 10, producer_id=1)
    offsets.replay(*packed(9), 11)
    offsets.replay(*packed(6), 12, producer_id=1)
    offsets.end_transaction(1, committed=True)
    assert offset_of(offsets) == 6


def test_a_tombstone_ends_what_is_pending_too() -> None:
    offsets = Offsets()
    offsets.replay(*packed(5), 10, producer_id=1)
    assert offsets.has("g", "t", 0)
    offsets.replay(*gone(), 11)
    assert not offsets.has("g", "t", 0)
    offsets.end_transaction(1, committed=True)
    assert offset_of(offsets) is None


# --- tombstones


def test_all_offsets_of_a_group_end_once_each() -> None:
    offsets = Offsets()
    offsets.replay(*packed(1), 0)
    offsets.replay(*packed(2, topic="u"), 1)
    offsets.replay(*packed(3), 2, producer_id=1)
    offsets.replay(*packed(4, topic="v"), 3, producer_id=1)
    offsets.replay(*packed(5, group="other"), 4)
    assert offsets.tombstones("g") == [tombstone("g", topic, 0) for topic in "tuv"]
    assert offsets.tombstones("nobody") == []


def test_offsets_of_a_deleted_topic_end_unless_they_are_of_another_of_that_name() -> None:
    offsets = Offsets()
    offsets.replay(*packed(1, group="a"), 0)
    offsets.replay(*packed(1, group="b"), 1, producer_id=5)
    offsets.replay(*packed(1, group="c", topic="tt"), 2)
    assert offsets.tombstones_of_topic("t", TOPIC_ID, 9) == {
        "a": [tombstone("a", "t", 0)],
        "b": [tombstone("b", "t", 0)],
    }
    assert offsets.tombstones_of_topic("t", TOPIC_ID, 1) == {"a": [tombstone("a", "t", 0)]}
    assert offsets.tombstones_of_topic("t", bytes(15) + b"1", 9) == {}
    assert offsets.tombstones_of_topic("never", TOPIC_ID, 9) == {}


def test_an_offset_of_a_later_topic_stays_where_a_transaction_had_one_of_the_deleted() -> None:
    offsets, other_id = Offsets(), bytes(15) + b"1"
    offsets.replay(*packed(1), 0, producer_id=5)
    offsets.replay(*packed(2, topic_id=other_id), 1)
    assert offsets.tombstones_of_topic("t", TOPIC_ID, 9) == {}
