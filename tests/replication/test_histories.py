"""Leaders change, brokers die and come back: logs that went apart become one again, and what was committed stays."""

from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.log import flushing
from ottla.log.producers import Origin
from ottla.metadata import records as r
from ottla.sim.disk import Loss, SimDisk
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.offsets import DeleteRecordsRequest
from ottla.wire.records import Record, build, iterate

sys.path.insert(0, str(Path(__file__).parent))
from replica_sets import NOW_MS, TOPIC, Broker, Cluster, Owner, until
from test_copies import played, three


async def pair(**settings: Any) -> Cluster:
    cluster = Cluster(**settings)
    await cluster.start(1, 2)
    cluster.create([1, 2])
    await cluster.tell()
    return cluster


async def values(broker: Broker) -> list[bytes]:
    return [bytes(record.value or b"") for _, data in await broker.records() for record in iterate(data)]


async def agree(cluster: Cluster) -> list[bytes]:
    """Wait until all logs are the leader's, byte by byte; what is in them."""
    for _ in range(1000):
        contents = [await broker.records() for broker in cluster.brokers.values()]
        if all(found == contents[0] for found in contents):
            break
        await asyncio.sleep(0.01)
    assert all(found == contents[0] for found in contents)
    epochs = [broker.partition.log.epochs.entries for broker in cluster.brokers.values()]
    assert all(found == epochs[0] for found in epochs)
    return await values(cluster.leader)


@played
async def test_a_follower_that_starts_again_keeps_what_lies_above_its_watermark() -> None:
    """KIP-101: it may be committed, although the follower has not heard of that when its leader dies."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    await until(lambda: cluster.brokers[2].partition.high_watermark.value == 1)
    await cluster.brokers[2].directories.checkpoint(cluster.brokers[2].replicas.watermarks())
    await cluster.brokers[1].write(b"b")
    cluster.kill(2)
    cluster.kill(1)
    await cluster.start(2)
    await cluster.brokers[2].see()
    assert cluster.brokers[2].partition.high_watermark.value == 1, "it never heard of the second"
    await cluster.elect(2, 2)
    assert await values(cluster.brokers[2]) == [b"a", b"b"]
    assert cluster.brokers[2].partition.high_watermark.value == 2


@played
async def test_an_old_leader_gives_up_what_others_have_overwritten() -> None:
    """KIP-101, REP-14: the same offset with other records is found by the epoch."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    cluster.cut.add((1, 2))
    cluster.brokers[1].produce(b"b1", b"b2")
    await asyncio.sleep(0.01)
    cluster.kill(1)
    await cluster.elect(2, 2)
    await cluster.brokers[2].write(b"c")
    cluster.cut.clear()
    await cluster.start(1)
    await cluster.tell()
    assert await agree(cluster) == [b"a", b"c"]
    await until(lambda: cluster.assignment.isr == (2, 1))


@played
async def test_epochs_that_nobody_else_knows_of_are_skipped() -> None:
    """KIP-279: two leaders in quick succession, each with records that the other never had."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    cluster.cut.add((1, 2))
    cluster.brokers[1].produce(b"x")  # epoch 0, not copied
    await asyncio.sleep(0.01)
    cluster.change(leader=2, isr=[2])
    await cluster.brokers[2].see()
    cluster.brokers[2].produce(b"y")
    cluster.brokers[2].produce(b"y")  # epoch 1, not copied
    await asyncio.sleep(0.01)
    cluster.change(leader=1, isr=[1])
    await cluster.brokers[1].see()
    cluster.brokers[1].produce(b"z")  # epoch 2, behind records of epoch 0
    await asyncio.sleep(0.01)
    cluster.cut.clear()
    await cluster.tell()
    assert await agree(cluster) == [b"a", b"x", b"z"]


@played
async def test_an_epoch_that_the_leader_names_and_we_never_had() -> None:
    """KIP-279: back to the epoch before it, and ask again."""
    cluster = await three()
    await cluster.brokers[1].write(b"a")
    cluster.cut |= {(1, 2), (1, 3), (2, 3)}
    for epoch, leader in enumerate((1, 2, 1, 2, 3, 2), 1):
        cluster.change(leader=leader, isr=[leader])
        await cluster.brokers[leader].see()
        cluster.brokers[leader].produce(b"%d by %d" % (epoch, leader))
        await asyncio.sleep(0.01)
    cluster.cut.clear()
    await cluster.tell()
    assert await agree(cluster) == [b"a", b"2 by 2", b"4 by 2", b"6 by 2"]


@played
async def test_an_epoch_without_records_is_forgotten() -> None:
    """TRAP-14: truncation drops what contradicts, also where no record is cut."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    cluster.cut.add((1, 2))
    for leader in (2, 1, 2):
        cluster.change(leader=leader, isr=[leader])
        await cluster.brokers[leader].see()
    assert cluster.brokers[1].partition.log.epochs.latest == 2
    cluster.cut.clear()
    await cluster.tell()
    await until(lambda: cluster.assignment.isr == (2, 1))
    await cluster.brokers[2].write(b"b")
    assert await agree(cluster) == [b"a", b"b"]


@played
async def test_an_unclean_election_cuts_below_the_watermark_and_is_told() -> None:
    """REP-13: whoever waited for what is gone does not wait for ever, and the watermark falls with the log."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    cluster.cut.add((1, 2))
    await cluster.elect(1, 1)
    await cluster.brokers[1].write(b"b", b"c")
    old = cluster.brokers[1].partition.high_watermark
    assert old.value == 3
    cluster.change(leader=2, isr=[2])
    cluster.cut.clear()
    await cluster.tell()
    await until(lambda: cluster.brokers[1].partition.log.end_offset == 1)
    assert old.closed and cluster.brokers[1].partition.high_watermark.value == 1
    await cluster.brokers[2].write(b"d")
    assert await agree(cluster) == [b"a", b"d"]


@played
async def test_a_follower_with_nothing_that_the_leader_still_has_begins_anew() -> None:
    """TRAP-24: its end lies below the leader's start."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    cluster.cut.add((1, 2))
    await cluster.elect(1, 1)
    for number in range(5):
        await cluster.brokers[1].write(b"%d" % number)
    cluster.brokers[1].replicas.delete_records(TOPIC, 0, 4)
    cluster.cut.clear()
    await until(lambda: cluster.assignment.isr == (1, 2))
    log = cluster.brokers[2].partition.log
    assert (log.start_offset, log.end_offset) == (4, 6)
    assert await agree(cluster) == [b"3", b"4"]


@played
async def test_deleted_records_are_deleted_at_followers() -> None:
    """DeleteRecords answers when they are gone everywhere, or says that they are not yet."""
    cluster = await pair()
    for number in range(5):
        await cluster.brokers[1].write(b"%d" % number)
    part = DeleteRecordsRequest.Topic.Partition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[DeleteRecordsRequest.Topic(name=TOPIC, partitions=[part])], timeout_ms=900)
    answer = (await cluster.brokers[1].answer(request)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 3)
    assert cluster.brokers[2].partition.log.start_offset == 3
    cluster.cut.add((1, 2))
    part.offset = 4
    answer = (await cluster.brokers[1].answer(request)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (Error.REQUEST_TIMED_OUT.code, -1)
    cluster.fence(2)
    await cluster.brokers[1].see()
    answer = (await cluster.brokers[1].answer(request)).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 4), "the dead do not count"


@played
async def test_a_topic_of_the_same_name_is_another_topic() -> None:
    """Whoever hears of it first: records of the one are never copied into the other."""
    cluster = await pair()
    await cluster.brokers[1].write(b"old")
    new_id = b"n" * 16
    cluster.replay(r.RemoveTopicRecord(topic_id=cluster.image.topic(TOPIC).id))  # type: ignore[union-attr]
    cluster.create([1, 2], topic_id=new_id)
    await cluster.brokers[1].see()
    waiting = asyncio.ensure_future(cluster.brokers[1].write(b"new"))
    await asyncio.sleep(5)
    assert await values(cluster.brokers[2]) == [b"old"] and not waiting.done()
    await cluster.brokers[2].see()
    assert await waiting == 0
    assert await agree(cluster) == [b"new"]
    cluster.replay(r.RemoveTopicRecord(topic_id=new_id))
    cluster.create([1, 2], topic_id=b"l" * 16)
    await cluster.brokers[2].see()
    await asyncio.sleep(5)
    assert await values(cluster.brokers[2]) == []
    await cluster.brokers[1].see()
    await cluster.brokers[1].write(b"last")
    assert await agree(cluster) == [b"last"]


@played
async def test_watermarks_survive_a_stop() -> None:
    cluster = await pair()
    await cluster.brokers[1].write(b"a", b"b")
    await until(lambda: cluster.brokers[2].partition.high_watermark.value == 2)
    for broker in (2, 1):
        await cluster.brokers[broker].stop()
        cluster.kill(broker)
    await cluster.start(2)
    await cluster.brokers[2].see()
    assert cluster.brokers[2].partition.high_watermark.value == 2
    cluster.kill(2, Loss.LOST)
    assert cluster.disks[2].read("/d/replication-offset-checkpoint").split() == [b"0", b"1", b"t", b"0", b"2"]


@played
async def test_a_replica_that_moved_elsewhere_is_deleted() -> None:
    """And a follower of it is told that nobody leads here any more."""
    cluster = await three()
    await cluster.brokers[1].write(b"a")
    mark = cluster.brokers[1].partition.high_watermark
    cluster.change(replicas=[2, 3], isr=[2, 3], leader=2)
    await cluster.tell()
    assert mark.closed
    with pytest.raises(KafkaError) as gone:
        assert cluster.brokers[1].partition
    assert gone.value.error is Error.NOT_LEADER_OR_FOLLOWER
    assert not cluster.brokers[1].directories.all[0].logs
    await cluster.brokers[2].write(b"b")
    assert cluster.brokers[3].partition.log.end_offset == 2


@played
async def test_a_replica_that_comes_here_is_copied_from_its_start() -> None:
    """REP-20: and joins when it has everything."""
    cluster = Cluster()
    await cluster.start(1, 2)
    cluster.create([1])
    await cluster.tell()
    for number in range(20):
        await cluster.brokers[1].write(b"%d" % number)
    assert cluster.brokers[1].partition.acknowledges_on_write
    cluster.change(replicas=[1, 2], adding_replicas=[2])
    await cluster.tell()
    await until(lambda: 2 in cluster.assignment.isr)
    assert len(await agree(cluster)) == 20
    assert not cluster.brokers[1].partition.acknowledges_on_write
    assert await cluster.brokers[1].write(b"more") == 20


@played
async def test_a_partition_in_trouble_does_not_hold_up_the_others() -> None:
    cluster = Cluster()
    await cluster.start(1, 2)
    cluster.create([1, 2], count=3)
    await cluster.tell()
    bad = cluster.brokers[2].replicas.find(TOPIC, 1)
    bad.log.failed = OSError("a bad disk")
    for index in range(3):
        cluster.brokers[1].produce(b"v", index=index)
    good = [cluster.brokers[2].replicas.find(TOPIC, index) for index in (0, 2)]
    await until(lambda: all(partition.log.end_offset == 1 for partition in good), 0.3)
    before = cluster.brokers[2].replicas.fetchers.by_leader[1].fetches
    await asyncio.sleep(10)
    assert cluster.brokers[2].replicas.fetchers.by_leader[1].fetches - before < 60, "it does not ask without pause"
    bad.log.failed = None
    await until(lambda: bad.log.end_offset == 1)


@played
async def test_a_partition_that_the_leader_opens_while_it_is_asked_for() -> None:
    """The follower has heard of it first, and its fetch waits for others meanwhile: what it said counts when the log is there.
    Otherwise it would never say it again, and be out of sync for ever (found by seeds 92 and 2083 of the cluster)."""
    cluster = Cluster()
    await cluster.start(1, 2)
    cluster.create([1, 2])
    await cluster.tell()
    leader, follower = cluster.brokers[1], cluster.brokers[2]
    await until(lambda: follower.replicas.fetchers.by_leader[1].fetches > 1)
    record = {"topic_id": cluster.image.topic(TOPIC).id, "replicas": [1, 2], "isr": [1, 2], "leader": 1}  # type: ignore[union-attr]
    cluster.replay(r.PartitionRecord(partition_id=1, leader_epoch=0, partition_epoch=0, **record))  # type: ignore[arg-type]
    state = FetchRequest.ReplicaState(replica_id=2, replica_epoch=follower.epoch)
    asked = [FetchRequest.Topic.Partition(partition=index, partition_max_bytes=1000) for index in (0, 1)]
    topics = [FetchRequest.Topic(topic_id=record["topic_id"], partitions=asked)]
    fetch = FetchRequest(replica_id=2, replica_state=state, max_wait_ms=500, min_bytes=1, topics=topics)
    waiting = asyncio.ensure_future(leader.answer(fetch))
    await asyncio.sleep(0.1)
    await leader.see()
    await waiting
    leadership = leader.replicas.find(TOPIC, 1).leadership
    assert leadership is not None and leadership.followers[2].end == 0


@played
async def test_damage_on_the_way_is_not_written_down() -> None:
    """A batch that fails its CRC is asked for again; what came before it stays."""
    cluster = await pair()
    leader = cluster.brokers[1]
    damaged: list[Any] = []

    async def answer(request: Any, version: int = 0) -> Any:
        response = await Broker.answer(leader, request, version)
        for topic in response.responses:
            for part in topic.partitions:
                if len(part.records) and len(damaged) < 2:
                    part.records = part.records[:-1] + b"?"
                    damaged.append(part)
        return response

    leader.answer = answer  # type: ignore[method-assign]
    await asyncio.sleep(1)  # a fetch that waits was asked before
    leader.produce(b"a")
    leader.produce(b"b")
    await until(lambda: cluster.brokers[2].partition.log.end_offset == 2)
    assert len(damaged) == 2
    assert await agree(cluster) == [b"a", b"b"]


@played
async def test_batches_of_a_leadership_that_we_have_not_heard_of_are_left() -> None:
    """TRAP-47, KAFKA-18723."""
    cluster = await pair()
    await cluster.brokers[1].write(b"a")
    follower = cluster.brokers[2].partition
    data = build([Record(timestamp=NOW_MS, value=b"later")], leader_epoch=5, base_offset=1)
    fetcher = cluster.brokers[2].replicas.fetchers.by_leader[1]
    (followed,) = fetcher.followed.values()
    told = FetchResponse.Topic.Partition(partition_index=0, high_watermark=1, log_start_offset=0, records=data)
    fetcher._take(followed, told)
    assert follower.log.end_offset == 1


@played
async def test_what_must_be_synced_is_synced_before_it_is_claimed() -> None:
    """TRAP-49: after a power cut of the whole cluster nothing acknowledged is missing."""
    cluster = await pair(topic={"flush.messages": "1"})
    await cluster.brokers[1].write(b"a")
    await cluster.brokers[1].write(b"b")
    for broker in (1, 2):
        cluster.kill(broker, Loss.LOST)
    await cluster.start(1, 2)
    await cluster.brokers[2].see()
    assert await values(cluster.brokers[2]) == [b"a", b"b"]


class HeldBack(SimDisk):
    """A disk whose syncs wait until they may, and then fail as often as they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self.failures = 0

    async def away(self, call: Any, *args: Any) -> Any:
        if call is flushing.sync:
            await self.may_sync.wait()
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "no descriptor is left")
        return await super().away(call, *args)


async def pair_of_which_one_syncs_late() -> tuple[Cluster, HeldBack]:
    cluster = Cluster(topic={"flush.messages": "1"})
    cluster.disks[1] = disk = HeldBack()
    disk.may_sync.set()
    await cluster.start(1, 2)
    cluster.create([1, 2])
    await cluster.tell()
    return cluster, disk


def claimed(cluster: Cluster, leader: int, follower: int) -> int:
    leadership = cluster.brokers[leader].partition.leadership
    assert leadership is not None
    return leadership.followers[follower].end


@played
async def test_a_leader_that_has_to_follow_claims_only_what_is_synced() -> None:
    """TRAP-49: what it wrote as a leader may be on its way to the disk still."""
    cluster, disk = await pair_of_which_one_syncs_late()
    disk.may_sync.clear()
    cluster.brokers[1].produce(b"a")
    await until(lambda: cluster.brokers[2].partition.log.end_offset == 1)
    await cluster.elect(2)
    await asyncio.sleep(1)
    assert cluster.brokers[1].partition.log.synced_end == 0 and claimed(cluster, 2, 1) < 1
    disk.may_sync.set()
    await until(lambda: cluster.brokers[2].partition.high_watermark.value == 1)
    assert cluster.brokers[1].partition.log.synced_end == 1


@played
async def test_a_follower_whose_sync_failed_does_not_claim_it_later() -> None:
    """TRAP-49."""
    cluster, disk = await pair_of_which_one_syncs_late()
    await cluster.elect(2)
    disk.failures = 2
    written = asyncio.ensure_future(cluster.brokers[2].write(b"a"))
    follower = cluster.brokers[1].partition.log
    while not written.done():
        assert claimed(cluster, 2, 1) <= follower.synced_end
        await asyncio.sleep(0.001)
    assert disk.failures == 0 and follower.synced_end == 1


@played
async def test_producers_are_known_to_the_next_leader() -> None:
    """A batch that its producer sends again, to another leader, is not written twice."""
    cluster = await pair()
    data = build([Record(timestamp=NOW_MS, value=b"once")], producer_id=9, producer_epoch=0, base_sequence=0)

    async def send(broker: int) -> Any:
        partition = cluster.brokers[broker].partition
        appended = partition.append(memoryview(bytearray(data)), NOW_MS, Origin.CLIENT, Owner())
        await partition.acknowledged(appended.last_offset + 1, 10.0)
        return appended

    assert not (await send(1)).duplicate
    cluster.kill(1)
    await cluster.elect(2, 2)
    again = await send(2)
    assert again.duplicate and again.first_offset == 0
    assert await values(cluster.brokers[2]) == [b"once"]


@played
async def test_a_throttled_replica_comes_slowly_and_one_in_sync_does_not() -> None:
    await brings_a_replica_slowly("follower")


@played
async def test_a_leader_that_is_throttled_gives_slowly_and_to_one_in_sync_does_not() -> None:
    await brings_a_replica_slowly("leader")


async def brings_a_replica_slowly(side: str) -> None:
    """Whichever of the two was told to keep to a rate."""
    cluster = Cluster(
        topic={f"{side}.replication.throttled.replicas": "*"},
        replica_fetch_max_bytes=400,
        **{f"{side}_replication_throttled_rate": 100},
    )
    await cluster.start(1, 2)
    cluster.create([1, 2], isr=[1])
    cluster.cut.add((1, 2))
    await cluster.tell()
    for number in range(30):
        await cluster.brokers[1].write(b"%100d" % number)
    cluster.cut.clear()
    loop = asyncio.get_running_loop()
    began, size = loop.time(), cluster.brokers[1].partition.log.size
    await until(lambda: cluster.assignment.isr == (1, 2), 200)
    assert loop.time() - began > (size - 2000) / 100
    began = loop.time()
    for number in range(30):
        await cluster.brokers[1].write(b"%100d" % number)
    assert loop.time() - began < 5
