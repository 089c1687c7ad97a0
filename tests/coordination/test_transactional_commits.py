"""Offsets in transactions (TxnOffsetCommit): who may send them, what is written, and what an open transaction holds up."""

from __future__ import annotations

from typing import Any

import pytest

from classic_bench import ClassicBench
from consumers_bench import GROUP, Consumer, Crowd, topic_id
from groups_bench import GroupsBench
from machine_bench import Asked
from ottla.coordination import commits, listing
from ottla.coordination.commits import Wanted, WantedTopic
from ottla.coordination.machine import Caller
from ottla.coordination.offsets import tombstone
from ottla.coordination.records import OffsetCommitValue, pack
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetDeleteRequest
from ottla.wire.messages.transactions import TxnOffsetCommitRequest

PRODUCER = 7
UNSTABLE = Error.UNSTABLE_OFFSET_COMMIT.code
NEWEST = 5


def request(*partitions: int, offset: int = 9, note: str | None = None, **more: Any) -> TxnOffsetCommitRequest:
    asked = [
        TxnOffsetCommitRequest.Topic.Partition(
            partition_index=index, committed_offset=offset, committed_leader_epoch=3, committed_metadata=note
        )
        for index in partitions or (0,)
    ]
    topics = [TxnOffsetCommitRequest.Topic(name="t", partitions=asked)]
    return TxnOffsetCommitRequest(**{"group_id": "g", "transactional_id": "x", "topics": topics, **more})


def send(bench: GroupsBench, asked: TxnOffsetCommitRequest, version: int = NEWEST, producer: int = PRODUCER) -> Error:
    """As the driver does it: the records are written in the producer's transaction. The first error that is told."""
    try:
        decision = commits.commit_in_transaction(bench.groups, asked, Caller("", "", version, Asked()), bench.moment)
    except KafkaError as error:
        return error.error
    for record in decision.records:
        bench.coordinator.replay(record, len(bench.log), producer)
        bench.log.append(pack(record))
    assert decision.reply is not None
    codes = [p.error_code for topic in decision.reply.topics for p in topic.partitions]
    return next((row for row in Error if row.code and row.code in codes), Error.NONE)


def fetch(bench: GroupsBench, partition: int = 0, stable: bool = False, group: str = "g") -> int:
    """The offset, or the error."""
    wanted = Wanted(group, [WantedTopic("t", bytes(16), [partition])], require_stable=stable)
    told = bench.ask(commits.fetch, wanted).reply.topics[0].partitions[0]
    return int(told.error_code or told.committed_offset)


# --- who may


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_anybody_may_commit_for_a_group_that_nobody_has_joined(version: int) -> None:
    """TXN-05: by the id of the group alone, as producers before KIP-447 do."""
    bench = GroupsBench()
    assert send(bench, request(), version) is Error.NONE
    assert fetch(bench) == -1
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    assert fetch(bench) == 9
    assert send(bench, request(generation_id=0), version) is Error.UNKNOWN_MEMBER_ID


def test_a_generation_of_a_group_that_is_not_there_is_an_old_one() -> None:
    """TXN-05: whatever the version; OffsetCommit tells newer clients that there is no group."""
    bench = GroupsBench()
    assert send(bench, request(generation_id=0)) is Error.ILLEGAL_GENERATION
    assert bench.log == []


def test_a_member_of_a_classic_group_names_its_generation() -> None:
    """TXN-05, PRT-06: by group metadata (KIP-447)."""
    bench = ClassicBench()
    member, _ = bench.stable(1, static=1)
    generation = bench.group.generation
    assert send(bench, request(member_id=member, generation_id=generation)) is Error.NONE
    assert send(bench, request(member_id=member, generation_id=generation - 1)) is Error.ILLEGAL_GENERATION
    assert send(bench, request(member_id="other", generation_id=generation)) is Error.UNKNOWN_MEMBER_ID
    assert send(bench, request(member_id=member)) is Error.ILLEGAL_GENERATION
    replaced = request(member_id=member, generation_id=generation, group_instance_id="i0")
    assert send(bench, replaced) is Error.FENCED_INSTANCE_ID
    assert send(bench, request()) is Error.NONE, "who says nothing of members is believed"


def test_a_rebalance_holds_up_no_transaction() -> None:
    """TXN-10: what was read before the rebalance may still be committed while its members are told their parts."""
    bench = ClassicBench()
    (member,) = bench.stable(1)
    bench.join(member, speaks=[("range", b"other topics")])
    assert bench.group.state == "CompletingRebalance"
    assert send(bench, request(member_id=member, generation_id=bench.group.generation)) is Error.NONE


def test_a_commit_in_a_transaction_is_no_heartbeat() -> None:
    """Apache Kafka keeps no session alive by it; a producer is another client than the member."""
    bench = ClassicBench()
    (member,) = bench.stable(1)
    bench.pass_ms(6_000)
    assert send(bench, request(member_id=member, generation_id=bench.group.generation)) is Error.NONE
    bench.pass_ms(4_001)
    assert bench.heartbeat(member) is Error.UNKNOWN_MEMBER_ID


def test_a_member_of_a_consumer_group_names_its_epoch() -> None:
    """TXN-05, KIP-1251: what it has held since may be committed in an epoch that is past. The answer speaks of generations."""
    crowd = Crowd({"t": 2})
    one = Consumer(crowd, "one").join()
    crowd.pass_ms(2000)
    crowd.grow("t", 3)
    one.beat()
    assert one.epoch == 3
    who: dict[str, Any] = {"group_id": GROUP, "member_id": "one"}
    assert send(crowd, request(0, 2, generation_id=3, **who)) is Error.NONE
    assert send(crowd, request(0, 1, generation_id=2, **who)) is Error.NONE
    assert send(crowd, request(0, 2, generation_id=2, **who)) is Error.ILLEGAL_GENERATION
    assert send(crowd, request(generation_id=4, **who)) is Error.ILLEGAL_GENERATION
    assert send(crowd, request(group_id=GROUP, member_id="two", generation_id=3)) is Error.UNKNOWN_MEMBER_ID
    assert send(crowd, request(group_id=GROUP)) is Error.NONE
    crowd.coordinator.end_transaction(PRODUCER, committed=True)
    assert fetch(crowd, 1, group=GROUP) == 9


# --- what is written


def test_the_record_of_an_offset_in_a_transaction() -> None:
    """With the id of its topic, so that it is not taken for one of a later topic of that name."""
    crowd = Crowd({"t": 1})
    send(crowd, request(note="note"))
    (record,) = crowd.written()
    assert record.value == OffsetCommitValue(
        offset=9,
        leader_epoch=3,
        metadata="note",
        commit_timestamp=crowd.moment.wall_ms,
        topic_id=topic_id("t"),
    )


def test_a_note_that_is_too_long_refuses_its_partition_alone() -> None:
    bench = GroupsBench(offset_metadata_max_bytes=3)
    asked = request(0, 1, note="abc")
    asked.topics[0].partitions[1].committed_metadata = "abcd"
    assert send(bench, asked) is Error.OFFSET_METADATA_TOO_LARGE
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    assert (fetch(bench), fetch(bench, 1)) == (9, -1)


# --- while it is open


def test_offsets_are_unstable_until_the_marker() -> None:
    """TXN-10, TRAP-53: a consumer that takes over waits for the transactions of the one before it."""
    bench = GroupsBench()
    send(bench, request(offset=5))
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    send(bench, request(offset=6))
    send(bench, request(offset=7), producer=PRODUCER + 1)
    assert (fetch(bench), fetch(bench, stable=True)) == (5, UNSTABLE)
    bench.coordinator.end_transaction(PRODUCER + 1, committed=True)
    assert (fetch(bench), fetch(bench, stable=True)) == (7, UNSTABLE)
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    assert fetch(bench, stable=True) == 7, "the later record holds, whichever marker came last"


def test_deleted_offsets_do_not_come_back_with_the_marker() -> None:
    bench = GroupsBench()
    send(bench, request(0, 1))
    parts = [OffsetDeleteRequest.Topic.Partition(partition_index=0)]
    asked = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequest.Topic(name="t", partitions=parts)])
    assert bench.ask(commits.delete, asked).error is Error.NONE
    assert (fetch(bench, 0, stable=True), fetch(bench, 1, stable=True)) == (-1, UNSTABLE)
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    assert (fetch(bench, 0, stable=True), fetch(bench, 1, stable=True)) == (-1, 9)


def test_a_group_that_is_deleted_takes_its_pending_offsets_with_it() -> None:
    bench = GroupsBench()
    send(bench, request(0, 1))
    assert bench.ask(listing.delete, "g").reply is not None
    assert bench.written()[-3:-1] == [tombstone("g", "t", 0), tombstone("g", "t", 1)]
    assert "g" not in bench.groups.offsets
    bench.coordinator.end_transaction(PRODUCER, committed=True)
    assert "g" not in bench.groups.offsets
    assert fetch(bench, stable=True) == -1


def test_a_topic_that_is_deleted_takes_its_pending_offsets_with_it() -> None:
    crowd = Crowd({"t": 1})
    send(crowd, request())
    crowd.delete("t")
    crowd.coordinator.end_transaction(PRODUCER, committed=True)
    assert fetch(crowd, stable=True) == -1
