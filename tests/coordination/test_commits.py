"""Decisions about committed offsets that a socket does not show: time, transactions, members of classic groups."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from classic_bench import ClassicBench
from groups_bench import GroupsBench
from ottla.coordination import commits
from ottla.coordination.commits import Wanted, WantedTopic
from ottla.coordination.machine import Moment
from ottla.coordination.offsets import tombstone
from ottla.coordination.records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue, Record, pack
from ottla.metadata.image import Image
from ottla.metadata.records import TopicRecord
from ottla.metadata.replay import replay
from ottla.wire.codec import encode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetDeleteRequest
from ottla.wire.messages.subscriptions import ConsumerProtocolSubscription

DAY_MS = 24 * 3600 * 1000
WEEK_MS = 7 * DAY_MS
CHECK_MS = 600_000
ID, OTHER_ID = b"i" * 16, b"o" * 16


def subscribed(*topics: str) -> list[tuple[str, bytes]]:
    """What a member says that reads these topics."""
    return [("range", b"\0\0" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0))]


def request(offset: int, topic: str = "t", partition: int = 0, **more: Any) -> OffsetCommitRequest:
    asked = OffsetCommitRequest.Topic.Partition(partition_index=partition, committed_offset=offset)
    topics = [OffsetCommitRequest.Topic(name=topic, topic_id=ID, partitions=[asked])]
    return OffsetCommitRequest(**{"group_id": "g", "topics": topics, **more})


def commit(bench: GroupsBench, offset: int, version: int = 9, **more: Any) -> Error:
    asked = bench.ask(commits.commit, request(offset, **more), version)
    if isinstance(asked.reply, KafkaError):
        return asked.error
    code = asked.reply.topics[0].partitions[0].error_code
    return next(row for row in Error if row.code == code)


def fetch(bench: GroupsBench, topic: str = "t", partition: int = 0, topic_id: bytes = bytes(16), **more: Any) -> Any:
    wanted = Wanted("g", [WantedTopic(topic, topic_id, [partition])], **more)
    asked = bench.ask(commits.fetch, wanted)
    if isinstance(asked.reply, KafkaError):
        return asked.error
    told = asked.reply.topics[0].partitions[0]
    return told.committed_offset if told.error_code == 0 else told.error_code


def begun(bench: GroupsBench) -> GroupsBench:
    """There is a topic, and rounds of expiry begin."""
    bench.image, _ = replay(bench.image, [TopicRecord(name="t", topic_id=ID)], 1, 1)
    bench.take_over()
    return bench


# --- what is written


def test_an_offset_is_written_with_the_id_of_its_topic() -> None:
    """OFF-02, TRAP-51: in the layout that Apache writes."""
    bench = GroupsBench()
    assert commit(bench, 5) is Error.NONE
    (written,) = bench.log
    key, value = written
    assert key == b"\0\1\0\1g\0\1t\0\0\0\0"
    assert value is not None
    assert value[:2] == b"\0\4"
    assert value.endswith(b"\1\0\x10" + ID)


def test_a_retention_of_its_own_is_written_as_the_moment_of_expiry() -> None:
    """TRAP-51: versions 2 to 4."""
    bench = GroupsBench()
    commit(bench, 5, version=4, retention_time_ms=1_000)
    value = bench.written()[0].value
    assert isinstance(value, OffsetCommitValue)
    assert value.expire_timestamp == value.commit_timestamp + 1_000 == bench.moment.wall_ms + 1_000


def test_a_retention_beyond_all_time_is_for_ever() -> None:
    bench = begun(GroupsBench())
    assert commit(bench, 5, version=2, retention_time_ms=2**63 - 1) is Error.NONE
    bench.pass_ms(2 * WEEK_MS)
    assert fetch(bench) == 5


def test_what_is_refused_writes_nothing() -> None:
    bench = GroupsBench(offset_metadata_max_bytes=3)
    assert commit(bench, 5, generation_id_or_member_epoch=1) is Error.GROUP_ID_NOT_FOUND
    assert commit(bench, 5, version=8, generation_id_or_member_epoch=1) is Error.ILLEGAL_GENERATION
    asked = request(5)
    asked.topics[0].partitions[0].committed_metadata = "\U0001f40d" * 2  # four characters as Java counts
    bench.ask(commits.commit, asked)
    assert bench.log == []


# --- by id


def test_an_offset_of_another_topic_of_that_name_is_not_told_by_id() -> None:
    bench = GroupsBench()
    commit(bench, 5)
    assert fetch(bench, topic_id=ID) == 5
    assert fetch(bench, topic_id=OTHER_ID) == -1
    assert fetch(bench) == 5


def test_an_offset_without_an_id_is_told_by_any() -> None:
    """Releases before 4.1 wrote none."""
    bench = GroupsBench()
    asked = request(5)
    asked.topics[0].topic_id = bytes(16)
    bench.ask(commits.commit, asked)
    assert fetch(bench, topic_id=OTHER_ID) == 5


# --- transactions


def in_transaction(bench: GroupsBench, offset: int, producer_id: int) -> None:
    """A record that was appended in a transaction, as the log of another broker may hold it."""
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=bench.moment.wall_ms, topic_id=ID)
    record = Record(OffsetCommitKey(group="g", topic="t", partition=0), value)
    bench.coordinator.replay(record, len(bench.log), producer_id)
    bench.log.append(pack(record))


def test_whoever_wants_stable_offsets_waits_for_the_end_of_the_transaction() -> None:
    """KIP-447."""
    bench = GroupsBench()
    commit(bench, 5)
    in_transaction(bench, 9, producer_id=7)
    unstable = Error.UNSTABLE_OFFSET_COMMIT.code
    assert fetch(bench) == 5
    assert fetch(bench, require_stable=True) == unstable
    assert fetch(bench, partition=1, require_stable=True) == -1
    (told,) = bench.ask(commits.fetch, Wanted("g", None, require_stable=True)).reply.topics
    assert [(p.committed_offset, p.error_code) for p in told.partitions] == [(-1, unstable)]
    bench.coordinator.end_transaction(7, committed=True)
    assert fetch(bench, require_stable=True) == 9


def test_the_later_record_holds_whatever_the_markers_say() -> None:
    """TRAP-53."""
    bench = GroupsBench()
    in_transaction(bench, 9, producer_id=7)
    commit(bench, 5)
    assert fetch(bench, require_stable=True) == Error.UNSTABLE_OFFSET_COMMIT.code
    bench.coordinator.end_transaction(7, committed=True)
    assert fetch(bench, require_stable=True) == 5


# --- expiry


def test_offsets_of_a_simple_group_expire_after_the_commit() -> None:
    """TRAP-52, TRAP-73: seven days after the last commit of each, and the group goes with the last of them."""
    bench = begun(GroupsBench())
    commit(bench, 1)
    bench.pass_ms(DAY_MS)
    commit(bench, 2, partition=1)
    bench.pass_ms(WEEK_MS - DAY_MS - 1)
    assert fetch(bench) == 1
    bench.pass_ms(CHECK_MS)
    assert (fetch(bench), fetch(bench, partition=1)) == (-1, 2)
    assert "g" in bench.groups.offsets
    bench.pass_ms(DAY_MS + CHECK_MS)
    assert "g" not in bench.groups.offsets
    assert bench.written()[-2:] == [tombstone("g", "t", 1), Record(GroupMetadataKey(group="g"), None)]
    bench.take_over()
    assert "g" not in bench.groups.offsets


def test_the_retention_is_a_setting() -> None:
    bench = begun(GroupsBench(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000))
    commit(bench, 1)
    bench.pass_ms(59_000)
    assert fetch(bench) == 1
    bench.pass_ms(2_000)
    assert fetch(bench) == -1


def test_expiry_that_cannot_be_written_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: a round that is not over must not go on at once, for ever."""
    monkeypatch.setattr(commits, "TOMBSTONES_BYTES_MAX", 1)
    bench = begun(GroupsBench(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000))
    commit(bench, 1)
    commit(bench, 2, partition=1)
    bench.pass_ms(59_000)
    bench.most_bytes = 0
    ring, rung = bench.coordinator.ring, Counter[int]()

    def counted(moment: Moment) -> Any:
        rung[moment.elapsed_ms] += 1
        assert rung[moment.elapsed_ms] < 10, "again and again at one moment"
        return ring(moment)

    monkeypatch.setattr(bench.coordinator, "ring", counted)
    bench.pass_ms(4_000)
    assert rung
    bench.most_bytes = 1 << 20
    bench.pass_ms(5_000)
    assert (fetch(bench), fetch(bench, partition=1)) == (-1, -1)


def test_a_moment_of_expiry_given_by_the_client_counts_alone() -> None:
    bench = begun(GroupsBench())
    commit(bench, 1, version=4, retention_time_ms=1)
    commit(bench, 2, version=4, partition=1, retention_time_ms=2 * WEEK_MS)
    bench.pass_ms(CHECK_MS)
    assert (fetch(bench), fetch(bench, partition=1)) == (-1, 2)
    bench.pass_ms(WEEK_MS + DAY_MS)
    assert fetch(bench, partition=1) == 2
    bench.pass_ms(WEEK_MS)
    assert fetch(bench, partition=1) == -1


def test_offsets_of_a_group_that_was_left_expire_after_the_last_one_went() -> None:
    """TRAP-52."""
    bench = ClassicBench()
    begun(bench)
    (member,) = bench.stable(1)
    more = {"member_id": member, "generation_id_or_member_epoch": bench.group.generation}
    assert commit(bench, 1, **more) is Error.NONE
    for _ in range(WEEK_MS // 5_000 // 500):  # it stays, for a good part of the time
        bench.pass_ms(5_000)
        assert bench.heartbeat(member) is Error.NONE
    bench.leave((member, None))
    bench.pass_ms(WEEK_MS - CHECK_MS)
    assert fetch(bench) == 1
    bench.pass_ms(2 * CHECK_MS)
    assert fetch(bench) == -1
    assert bench.groups.by_id == {}
    assert "g" not in bench.groups.offsets


def test_offsets_of_a_topic_that_is_read_do_not_expire() -> None:
    """TRAP-52: a member that subscribes and never commits keeps them; offsets of other topics go."""
    bench = ClassicBench(offsets_retention_minutes=1)
    begun(bench)
    member = bench.named()
    bench.join(member, speaks=subscribed("t"))
    bench.pass_ms(10_000)
    bench.settle()
    more = {"member_id": member, "generation_id_or_member_epoch": bench.group.generation}
    for topic in ("t", "u"):
        assert commit(bench, 1, topic=topic, **more) is Error.NONE
    for _ in range(CHECK_MS // 5_000 + 1):
        bench.pass_ms(5_000)
        assert bench.heartbeat(member) is Error.NONE
    assert (fetch(bench), fetch(bench, topic="u")) == (1, -1)


def test_offsets_of_a_group_in_a_rebalance_do_not_expire() -> None:
    bench = ClassicBench(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1_000)
    begun(bench)
    commit(bench, 1, topic="u", version=4, retention_time_ms=1)
    member = bench.named()
    bench.join(member, speaks=subscribed("t"))
    for state in ("PreparingRebalance", "CompletingRebalance"):
        assert bench.group.state == state
        bench.pass_ms(2_000)  # some looks
        assert fetch(bench, topic="u") == 1
        bench.pass_ms(1_000)
    bench.settle()
    bench.pass_ms(1_000)
    assert fetch(bench, topic="u") == -1


def test_an_offset_that_a_transaction_would_change_does_not_expire() -> None:
    """TRAP-52."""
    bench = begun(GroupsBench())
    commit(bench, 1)
    in_transaction(bench, 2, producer_id=7)
    bench.pass_ms(WEEK_MS + CHECK_MS)
    assert fetch(bench) == 1
    bench.coordinator.end_transaction(7, committed=False)
    bench.pass_ms(CHECK_MS)
    assert fetch(bench) == -1


def test_a_group_whose_only_offsets_are_in_an_open_transaction_stays() -> None:
    bench = begun(GroupsBench())
    in_transaction(bench, 2, producer_id=7)
    bench.pass_ms(WEEK_MS + CHECK_MS)
    assert "g" in bench.groups.offsets
    bench.coordinator.end_transaction(7, committed=False)
    bench.pass_ms(CHECK_MS)
    assert "g" not in bench.groups.offsets


def test_a_group_with_somebody_in_it_stays_without_offsets() -> None:
    bench = ClassicBench(offsets_retention_check_interval_ms=1_000)
    begun(bench)
    (member,) = bench.stable(1)
    bench.pass_ms(2_000)
    assert bench.heartbeat(member) is Error.NONE


def test_an_empty_group_without_offsets_goes_at_the_next_look() -> None:
    bench = begun(GroupsBench())
    commit(bench, 1)
    bench.carry_out(commits.Decision(records=[tombstone("g", "t", 0)]))
    assert "g" in bench.groups.offsets
    bench.pass_ms(CHECK_MS)
    assert "g" not in bench.groups.offsets


@pytest.mark.parametrize(("groups", "partitions"), [(1, 6_000), (6_000, 1), (70, 100)])
def test_a_round_of_expiry_is_done_in_pieces(groups: int, partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long, and no batch is too large; in the end all are gone."""
    bench = begun(GroupsBench(offsets_retention_minutes=1))
    for number in range(groups):
        partition = OffsetCommitRequest.Topic.Partition
        asked = [partition(partition_index=index, committed_offset=1) for index in range(partitions)]
        for at in range(0, partitions, 1_000):
            topics = [OffsetCommitRequest.Topic(name="t", topic_id=ID, partitions=asked[at : at + 1_000])]
            bench.ask(commits.commit, OffsetCommitRequest(group_id=f"g{number}", topics=topics))
    pieces: list[int] = []
    carry_out = bench.carry_out

    def counting(decision: commits.Decision[Any]) -> commits.Decision[Any]:
        pieces.append(len(decision.records))
        return carry_out(decision)

    monkeypatch.setattr(bench, "carry_out", counting)
    bench.pass_ms(CHECK_MS)
    assert not bench.groups.offsets.by_group
    assert sum(pieces) == groups * partitions + groups
    assert len(pieces) > 3
    assert max(pieces) <= 2_500


# --- deletes


def delete(bench: GroupsBench, *topics: str) -> Any:
    partition = OffsetDeleteRequest.Topic.Partition(partition_index=0)
    asked = [OffsetDeleteRequest.Topic(name=topic, partitions=[partition]) for topic in topics]
    answer = bench.ask(commits.delete, OffsetDeleteRequest(group_id="g", topics=asked)).reply
    if isinstance(answer, KafkaError):
        return answer.error
    return [topic.partitions[0].error_code for topic in answer.topics]


def test_offsets_of_topics_that_members_read_cannot_be_deleted() -> None:
    """KIP-496."""
    bench = ClassicBench()
    member = bench.named()
    bench.join(member, speaks=subscribed("t"))
    bench.pass_ms(10_000)
    bench.settle()
    more = {"member_id": member, "generation_id_or_member_epoch": bench.group.generation}
    for topic in ("t", "u"):
        commit(bench, 1, topic=topic, **more)
    assert delete(bench, "t", "u") == [Error.GROUP_SUBSCRIBED_TO_TOPIC.code, 0]
    assert (fetch(bench), fetch(bench, topic="u")) == (1, -1)


def test_offsets_of_a_group_that_does_something_else_can_be_deleted_when_it_is_empty() -> None:
    bench = ClassicBench()
    member = bench.named()
    bench.join(member, protocol_type="connect")
    bench.pass_ms(10_000)
    bench.settle()
    more = {"member_id": member, "generation_id_or_member_epoch": bench.group.generation}
    commit(bench, 1, **more)
    assert delete(bench, "t") is Error.NON_EMPTY_GROUP
    bench.leave((member, None))
    assert delete(bench, "t") == [0]
    assert fetch(bench) == -1


def topic_deleted(bench: GroupsBench, topic: str, topic_id: bytes) -> None:
    for decide in commits.topic_deleted(bench.groups, topic, topic_id, bench.moment):
        bench.carry_out(decide())


def test_a_deleted_topic_takes_its_offsets_with_it() -> None:
    """Those of a topic that has the same name now stay."""
    bench = GroupsBench()
    commit(bench, 1)
    commit(bench, 1, group_id="h")
    topic_deleted(bench, "t", OTHER_ID)
    assert fetch(bench) == 1
    topic_deleted(bench, "t", ID)
    assert fetch(bench) == -1
    assert [len(kept) for kept in bench.groups.offsets.by_group.values()] == [0, 0]


@pytest.mark.parametrize(("groups", "partitions"), [(9, 1_000), (2_000, 1), (5_001, 1)])
def test_many_offsets_of_a_deleted_topic_go_in_pieces(groups: int, partitions: int) -> None:
    bench = GroupsBench()
    for number in range(groups):
        asked = [
            OffsetCommitRequest.Topic.Partition(partition_index=index, committed_offset=1)
            for index in range(partitions)
        ]
        topics = [OffsetCommitRequest.Topic(name="t", topic_id=ID, partitions=asked)]
        bench.ask(commits.commit, OffsetCommitRequest(group_id=f"g{number}", topics=topics))
    topic_deleted(bench, "t", ID)
    gone = sum(not kept for kept in bench.groups.offsets.by_group.values())
    assert 0 < gone <= groups
    new = request(7)  # a later topic of the name, while the old one is being forgotten
    new.topics[0].topic_id = OTHER_ID
    bench.ask(commits.commit, new)
    bench.pass_ms(1)
    assert fetch(bench) == 7
    assert sum(len(kept) for kept in bench.groups.offsets.by_group.values()) == 1
    assert bench.groups.deleted_topics == {}


def test_offsets_of_a_deleted_topic_that_cannot_be_ended_now_are_ended_later() -> None:
    """The disk is full. Those of a later topic of the name stay."""
    bench = GroupsBench()
    commit(bench, 1)
    commit(bench, 1, partition=1)
    bench.most_bytes = 0
    topic_deleted(bench, "t", ID)
    bench.pass_ms(5 * commits.UNWRITTEN_PAUSE_MS)
    assert (fetch(bench), fetch(bench, partition=1)) == (1, 1)
    bench.most_bytes = 1 << 20
    new = request(7)
    new.topics[0].topic_id = OTHER_ID
    bench.ask(commits.commit, new)
    bench.pass_ms(commits.UNWRITTEN_PAUSE_MS)
    assert (fetch(bench), fetch(bench, partition=1)) == (7, -1)
    assert bench.groups.deleted_topics == {}
    assert commits.DELETION_ALARM not in bench.groups.timers


def test_offsets_of_topics_that_are_gone_are_found_after_a_load() -> None:
    """The node was killed after the deletion, before their end was written. A member subscribes to the name, the group is in
    a rebalance: that keeps no offset of what does not exist."""
    bench = ClassicBench(offsets_retention_check_interval_ms=1_000)
    begun(bench)
    commit(bench, 1)
    commit(bench, 2, partition=1)
    commit(bench, 3, partition=2, version=4, retention_time_ms=WEEK_MS)  # written without an id
    in_transaction(bench, 9, producer_id=7)
    bench.join(bench.named(), speaks=subscribed("t"))
    bench.pass_ms(1_000)
    assert [fetch(bench, partition=index) for index in range(3)] == [1, 2, 3]
    bench.image = Image()
    bench.pass_ms(1_000)
    assert bench.group.state == "PreparingRebalance"
    assert [fetch(bench, partition=index) for index in range(3)] == [1, -1, 3]
    bench.coordinator.end_transaction(7, committed=True)
    assert fetch(bench) == 9
    bench.pass_ms(1_000)
    assert [fetch(bench, partition=index) for index in range(3)] == [-1, -1, 3]
