"""Copies of a partition: how far the watermark goes, who is in sync, and what a follower makes of what its leader says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.metadata import records as r
from ottla.sim.loop import run
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.brokers import AlterPartitionResponse
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.offsets import ListOffsetsRequest

sys.path.insert(0, str(Path(__file__).parent))
from replica_sets import TOPIC, Cluster, told, until

Scene = Callable[[], Awaitable[None]]


def played(scene: Scene) -> Callable[[], None]:
    """On a loop with virtual time; its tasks end with it."""

    def test() -> None:
        async def main(loop: Any) -> None:
            await scene()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        run(scene.__name__, main)

    test.__name__, test.__doc__ = scene.__name__, scene.__doc__
    return test


async def three(**settings: Any) -> Cluster:
    cluster = Cluster(**settings)
    await cluster.start(1, 2, 3)
    cluster.create([1, 2, 3])
    await cluster.tell()
    return cluster


def ends(cluster: Cluster) -> list[int]:
    return [broker.partition.log.end_offset for broker in cluster.brokers.values()]


@played
async def test_a_record_is_committed_when_all_in_sync_replicas_have_it() -> None:
    """REP-02, REP-07, REP-08, REP-09: and the followers hear of it without another record."""
    cluster = await three()
    leader = cluster.brokers[1]
    assert await leader.write(b"a", b"b") == 0
    assert ends(cluster) == [2, 2, 2]
    await until(lambda: all(broker.partition.high_watermark.value == 2 for broker in cluster.brokers.values()), 0.4)
    cluster.cut.add((1, 3))
    leader.produce(b"c")
    await until(lambda: ends(cluster)[1] == 3)
    await asyncio.sleep(5)
    assert leader.partition.high_watermark.value == 2, "the third does not have it"
    cluster.cut.clear()
    await until(lambda: leader.partition.high_watermark.value == 3)
    first, second, third = [await broker.records() for broker in cluster.brokers.values()]
    assert first == second == third and len(first) == 2


@played
async def test_a_watermark_that_rises_is_told_to_who_asks_for_nothing() -> None:
    """Its fetch names no partition any more, because it has all there is of each."""
    cluster = await three()
    leader, follower = cluster.brokers[1].partition, cluster.brokers[2].partition
    cluster.cut.add((3, 1))
    cluster.brokers[1].produce(b"a")
    await asyncio.sleep(2)
    assert (follower.log.end_offset, leader.high_watermark.value, follower.high_watermark.value) == (1, 0, 0)
    cluster.cut.clear()
    await until(lambda: leader.high_watermark.value == 1)
    await until(lambda: follower.high_watermark.value == 1, 0.1)


@played
async def test_who_begins_anew_is_told_the_watermark_soon() -> None:
    cluster = await three()
    leader, follower = cluster.brokers[1], cluster.brokers[2]
    await leader.write(b"a")
    state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=follower.epoch)
    asked = FetchRequest.Topic.Partition(fetch_offset=1, high_watermark=0, partition_max_bytes=1000)
    topics = [FetchRequest.Topic(topic_id=leader.partition.topic_id, partitions=[asked])]
    fetch = FetchRequest(
        replica_state=state, max_wait_ms=500, min_bytes=1, max_bytes=1000, session_epoch=0, topics=topics
    )
    async with asyncio.timeout(0.1):
        assert told(await leader.answer(fetch)).high_watermark == 1


@played
async def test_acks_of_the_leader_alone_wait_for_nobody() -> None:
    """REP-24."""
    cluster = await three()
    cluster.cut |= {(1, 2), (1, 3)}
    partition = cluster.brokers[1].partition
    appended = cluster.brokers[1].produce(b"a")
    assert partition.stores_on_write and not partition.acknowledges_on_write
    await partition.acknowledged(appended.last_offset + 1, 1.0, partition.stored)
    with pytest.raises(TimeoutError):
        await partition.acknowledged(appended.last_offset + 1, 1.0)


@played
async def test_what_the_leader_alone_had_acknowledged_is_lost_with_it() -> None:
    """PRD-05: that is what acks=1 means."""
    cluster = await three()
    cluster.cut |= {(1, 2), (1, 3)}
    partition = cluster.brokers[1].partition
    appended = cluster.brokers[1].produce(b"lost")
    await partition.acknowledged(appended.last_offset + 1, 1.0, partition.stored)
    cluster.change(leader=2, isr=[2, 3])
    await cluster.brokers[2].see()
    await cluster.brokers[3].see()
    assert await cluster.brokers[2].write(b"kept") == 0, "the place of the one that is lost"
    await cluster.brokers[1].see()
    cluster.cut.clear()
    await until(lambda: cluster.brokers[1].partition.high_watermark.value == 1)
    copies = [await broker.records() for broker in cluster.brokers.values()]
    assert copies[0] == copies[1] == copies[2] and b"kept" in copies[0][0][1]


@played
async def test_one_in_sync_replica_is_enough_where_no_more_are_wanted() -> None:
    """PRD-07: acks=all means all that are in sync, and that may be the leader alone."""
    cluster = await three(topic={"min.insync.replicas": "1"})
    leader = cluster.brokers[1]
    await leader.write(b"a")
    cluster.cut |= {(1, 2), (1, 3)}
    leader.produce(b"b")
    for _ in range(3):
        await asyncio.sleep(12)
        leader.replicas.look_for_laggards()
    await until(lambda: leader.partition.isr == (1,))
    assert await leader.write(b"c") == 2


@played
async def test_who_lags_leaves_and_comes_back_when_it_has_caught_up() -> None:
    """REP-05, REP-06, REP-10, TRAP-42: until the controller has agreed, the watermark waits for both sets."""
    cluster = await three()
    leader = cluster.brokers[1]
    await leader.write(b"a")
    cluster.cut |= {(1, 3), (2, 3)}
    waiting = asyncio.ensure_future(leader.write(b"b"))
    for _ in range(4):
        await asyncio.sleep(10)
        leader.replicas.look_for_laggards()
    await waiting
    assert cluster.assignment.isr == (1, 2) == leader.partition.isr
    assert await leader.write(b"c") == 2
    cluster.cut.clear()
    await until(lambda: cluster.assignment.isr == (1, 2, 3) == leader.partition.isr)
    assert ends(cluster) == [3, 3, 3]
    (asked,) = [state.broker_epoch for state in last_asked(cluster) if state.broker_id == 3]
    assert asked == cluster.brokers[3].epoch, "KIP-903: the life in which it fetched"


def last_asked(cluster: Cluster) -> Any:
    return cluster.asked[-1].topics[0].partitions[0].new_isr_with_epochs


@played
async def test_who_asks_without_pause_is_caught_up_though_never_at_the_end() -> None:
    """REP-05: what it asks for now was the end when it asked the last time."""
    cluster = await three()
    leader = cluster.brokers[1]

    async def write_for_ever() -> None:
        while True:
            leader.produce(b"x")
            await asyncio.sleep(0.0004)

    writing = asyncio.ensure_future(write_for_ever())
    for _ in range(3):
        await asyncio.sleep(0.1)
        follower = leader.partition.leadership.followers[2]  # type: ignore[union-attr]
        assert asyncio.get_running_loop().time() - follower.caught_up < 0.03
    writing.cancel()


@played
async def test_the_watermark_waits_for_who_is_about_to_join() -> None:
    """TRAP-43: or it could run away from a follower that is nearly there."""
    cluster = await three()
    await cluster.elect(1, 1)
    leader = cluster.brokers[1]
    await until(lambda: set(leader.partition.isr) == {1, 2, 3})
    leadership = leader.partition.leadership
    assert leadership is not None
    await until(lambda: not leadership.proposed)


@played
async def test_who_wants_more_at_once_than_a_limit_leaves_room_for_is_not_kept_waiting() -> None:
    """Whole batches are a little less than the limit, however much there is."""
    cluster = Cluster(replica_fetch_min_bytes=950, replica_fetch_max_bytes=1000)
    await cluster.start(1, 2)
    cluster.create([1, 2], isr=[1])
    await cluster.brokers[1].see()
    for _ in range(20):
        await cluster.brokers[1].write(b"x" * 600)
    await cluster.tell()
    await until(lambda: ends(cluster) == [20, 20], 1.0)


@played
async def test_fewer_in_sync_than_wanted_stop_the_watermark() -> None:
    """TRAP-44, PRD-06: even what the leader alone acknowledged is not shown."""
    cluster = await three(topic={"min.insync.replicas": "2"})
    leader = cluster.brokers[1]
    await leader.write(b"a")
    cluster.cut |= {(1, 2), (1, 3)}
    await asyncio.sleep(20)
    leader.replicas.look_for_laggards()
    assert leader.partition.leadership is not None and not leader.partition.leadership.proposed, (
        "they have all there is"
    )
    leader.produce(b"b")
    for _ in range(3):
        await asyncio.sleep(12)
        leader.replicas.look_for_laggards()
    await until(lambda: leader.partition.isr == (1,))
    assert leader.partition.is_short_of_replicas
    await asyncio.sleep(1)
    assert (leader.partition.log.end_offset, leader.partition.high_watermark.value) == (2, 1)
    cluster.cut.clear()
    await until(lambda: leader.partition.high_watermark.value == 2)
    assert not leader.partition.is_short_of_replicas


@played
async def test_who_is_proposed_counts_until_the_controller_has_answered() -> None:
    """TRAP-43: perhaps it is in sync already, for everybody but the leader, and will lead next."""
    cluster = await three()
    cluster.controller_s = 1e6
    await cluster.elect(1, 1)
    leader = cluster.brokers[1]
    await until(lambda: bool(cluster.asked))
    cluster.cut |= {(1, 2), (1, 3)}
    leader.produce(b"v")
    await asyncio.sleep(100)
    leadership = leader.partition.leadership
    assert leadership is not None and len(leadership.maximal) == 2 and leader.partition.isr == (1,)
    assert (leader.partition.high_watermark.value, leader.partition.is_short_after_append) == (0, False)


@played
async def test_nobody_joins_before_it_has_what_is_committed() -> None:
    """TRAP-42: neither below the watermark nor below where the leader's epoch began."""
    cluster = await three(replica_fetch_max_bytes=1)
    leader = cluster.brokers[1]
    cluster.cut |= {(1, 3), (2, 3)}
    await cluster.elect(1, 1, 2)
    for _ in range(20):
        await leader.write(b"v")
    cluster.cut.clear()
    third = cluster.brokers[3].partition
    await until(lambda: third.log.end_offset >= 5)
    assert third.log.end_offset < 15
    assert not cluster.asked and leader.partition.leadership is not None and not leader.partition.leadership.proposed
    await until(lambda: bool(cluster.asked))
    assert third.log.end_offset >= 20


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        (Error.INELIGIBLE_REPLICA, True),
        (Error.OPERATION_NOT_ATTEMPTED, True),
        (Error.INVALID_UPDATE_VERSION, False),
        (Error.FENCED_LEADER_EPOCH, False),
        (Error.UNKNOWN_TOPIC_ID, False),
        (Error.UNKNOWN_SERVER_ERROR, None),
    ],
)
def test_a_refused_proposal(error: Error, is_over: bool | None) -> None:
    """TRAP-45: back to what is committed, or pending until the picture tells, or asked again."""

    @played
    async def scene() -> None:
        cluster = await three()
        leader = cluster.brokers[1]
        cluster.fence(3)
        await cluster.elect(1, 1, 2)
        await asyncio.sleep(2)
        assert not cluster.asked, "a fenced broker may not join"
        cluster.refusals = [lambda request: refusing(request, error)]
        epoch = cluster.image.brokers[3].epoch
        cluster.replay(r.BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=epoch, fenced=-1))
        await cluster.tell()
        await until(lambda: bool(cluster.asked))
        await asyncio.sleep(0.2)
        leadership = leader.partition.leadership
        assert leadership is not None
        if is_over is False:
            await asyncio.sleep(5)
            assert len(cluster.asked) == 1 and leadership.maximal == {1, 2, 3} and leadership.proposed == (1, 2, 3)
            cluster.change(isr=[1, 2])
            await cluster.tell()
            assert leadership.maximal == {1, 2} or leadership.proposed == (1, 2, 3)
        await until(lambda: set(leader.partition.isr) == {1, 2, 3})

    scene()


def refusing(request: Any, error: Error) -> Any:
    parts = [
        AlterPartitionResponse.Topic.Partition(partition_index=part.partition_index, error_code=error.code)
        for part in request.topics[0].partitions
    ]
    return AlterPartitionResponse(
        topics=[AlterPartitionResponse.Topic(topic_id=request.topics[0].topic_id, partitions=parts)]
    )


@played
async def test_one_request_for_all_partitions_that_want_a_change() -> None:
    cluster = Cluster()
    await cluster.start(1, 2)
    cluster.create([1, 2], count=5, isr=[1])
    await cluster.tell()
    await until(lambda: all(p.isr == (1, 2) for p in cluster.brokers[1].replicas.all()))
    assert sum(len(topic.partitions) for request in cluster.asked for topic in request.topics) == 5
    assert len(cluster.asked) < 5


@played
async def test_who_is_no_replica_is_told_to_come_again() -> None:
    cluster = await three()
    leader = cluster.brokers[1]

    async def fetched(replica_id: int, epoch: int, offset: int = 0, life: int = -1) -> Error:
        part = FetchRequest.Topic.Partition(
            partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1000
        )
        state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=life)
        topics = [FetchRequest.Topic(topic_id=leader.partition.topic_id, partitions=[part])]
        response = await leader.answer(FetchRequest(replica_state=state, topics=topics, max_bytes=1000))
        return Error(told(response).error_code)  # type: ignore[call-arg]

    assert await fetched(9, 0) is Error.UNKNOWN_LEADER_EPOCH
    assert await fetched(9, -1) is Error.NOT_LEADER_OR_FOLLOWER
    assert await fetched(2, 1) is Error.UNKNOWN_LEADER_EPOCH
    assert await fetched(2, 0, life=cluster.brokers[2].epoch - 1) is Error.NOT_LEADER_OR_FOLLOWER, "KIP-903"
    assert await fetched(2, 0, life=cluster.brokers[2].epoch) is Error.NONE
    assert await fetched(2, 0, offset=7) is Error.OFFSET_OUT_OF_RANGE


@played
async def test_consumers_read_in_their_own_rack() -> None:
    """KIP-392, REP-03, GRP-25: the leader sends them to a follower there, and that one gives what it knows to be committed."""
    cluster = Cluster(selector="org.apache.kafka.common.replica.RackAwareReplicaSelector")
    await cluster.start(1, 2, 3, racks={1: "a", 2: "b", 3: "c"})
    cluster.create([1, 2, 3])
    await cluster.tell()
    await cluster.brokers[1].write(b"v")
    await until(lambda: cluster.brokers[2].partition.high_watermark.value == 1)

    async def fetched(broker: int, rack: str, version: int = 18, offset: int = 0) -> Any:
        part = FetchRequest.Topic.Partition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        topics = [FetchRequest.Topic(topic=TOPIC, topic_id=cluster.image.topic(TOPIC).id, partitions=[part])]  # type: ignore[union-attr]
        request = FetchRequest(topics=topics, max_bytes=1000, rack_id=rack, session_epoch=-1)
        return told(await cluster.brokers[broker].answer(request, version))

    for rack, preferred in (("a", -1), ("b", 2), ("c", 3), ("d", -1), ("", -1)):
        answer = await fetched(1, rack)
        assert answer.preferred_read_replica == preferred and bool(answer.records) == (preferred < 0), rack
    there = await fetched(2, "b")
    assert (there.error_code, there.high_watermark) == (0, 1) and there.records
    assert (await fetched(2, "", version=10)).error_code == Error.NOT_LEADER_OR_FOLLOWER.code
    # Only the leader knows where the log ends. Who was sent here goes back to it; who takes us for it would begin anew.
    assert (await fetched(2, "b", offset=9)).error_code == Error.OFFSET_OUT_OF_RANGE.code
    assert (await fetched(2, "", offset=9)).error_code == Error.NOT_LEADER_OR_FOLLOWER.code


@played
async def test_offsets_are_asked_at_the_leader() -> None:
    """TRAP-25: and after an election not before the watermark has passed what came before it."""
    cluster = await three()
    await cluster.brokers[1].write(b"a")

    async def listed(broker: int, timestamp: int = -1, replica_id: int = -1) -> tuple[int, int]:
        part = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsRequest.Topic(name=TOPIC, partitions=[part])]
        response = await cluster.brokers[broker].answer(ListOffsetsRequest(topics=topics, replica_id=replica_id))
        answer = response.topics[0].partitions[0]
        return answer.error_code, answer.offset

    assert await listed(1) == (0, 1)
    assert (await listed(2))[0] == Error.NOT_LEADER_OR_FOLLOWER.code
    cluster.cut.add((1, 3))
    cluster.brokers[1].produce(b"b")
    await until(lambda: cluster.brokers[2].partition.log.end_offset == 2)
    cluster.cut.add((2, 3))
    await cluster.elect(2, 2, 3)
    assert await listed(2) == (Error.OFFSET_NOT_AVAILABLE.code, -1)
    assert await listed(2, replica_id=3) == (0, 2), "a follower asks for the end"
    assert await listed(2, timestamp=-2) == (0, 0)
    cluster.cut.clear()
    await until(lambda: cluster.brokers[2].partition.high_watermark.value == 2)
    assert await listed(2) == (0, 2)


@played
async def test_an_append_that_the_next_leadership_does_not_have_is_not_acknowledged() -> None:
    """Somebody else's record at the same offset must not count for it."""
    cluster = await three()
    cluster.cut |= {(1, 2), (1, 3)}
    old = cluster.brokers[1]
    partition, mark = old.partition, old.partition.high_watermark
    appended = old.produce(b"lost")
    cluster.change(leader=2, isr=[2, 3])
    await cluster.brokers[2].see()
    await cluster.brokers[3].see()
    await cluster.brokers[2].write(b"other")
    await old.see()
    cluster.cut.clear()
    await until(lambda: old.partition.log.end_offset == 1 and old.partition.high_watermark.value == 1)
    with pytest.raises(KafkaError) as refused:
        await partition.acknowledged(appended.last_offset + 1, 1.0, mark)
    assert refused.value.error is Error.NOT_LEADER_OR_FOLLOWER
