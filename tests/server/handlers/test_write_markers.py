"""WriteTxnMarkers, as a coordinator or an operator sends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from desk import on_loop
from ottla.wire.errors import Error
from ottla.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from served import Client, Served, TouchyDisk, batch, serving

ID = 5
Wanted = WriteTxnMarkersRequest.Marker
BY_CODE = {error.code: error for error in Error}


def marker(
    *places: tuple[str, int],
    epoch: int = 0,
    committed: bool = False,
    coordinator: int = 0,
    version: int = 0,
    id: int = ID,
) -> Wanted:
    topics: dict[str, Wanted.Topic] = {}
    for name, index in places:
        topics.setdefault(name, Wanted.Topic(name=name, partition_indexes=[])).partition_indexes.append(index)
    return Wanted(
        producer_id=id,
        producer_epoch=epoch,
        transaction_result=committed,
        topics=list(topics.values()),
        coordinator_epoch=coordinator,
        transaction_version=version,
    )


async def write(client: Client, *markers: Wanted, version: int = 2) -> dict[tuple[int, str, int], Error]:
    answer: WriteTxnMarkersResponse = await client.call(WriteTxnMarkersRequest(markers=list(markers)), version)
    return {
        (each.producer_id, topic.name, part.partition_index): BY_CODE[part.error_code]
        for each in answer.markers
        for topic in each.topics
        for part in topic.partitions
    }


def begin(served: Served, topic: str = "t", epoch: int = 0) -> None:
    data = batch(b"v", producer_id=ID, producer_epoch=epoch, base_sequence=0, transactional=True)
    served.append_in_transaction(topic, data)


@pytest.mark.parametrize("version", [1, 2])
@on_loop
async def test_a_hanging_transaction_is_ended(tmp_path: Path, version: int) -> None:
    """KIP-664: what `kafka-transactions.sh abort` sends, and read_committed goes on."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        begin(served)
        assert (await client.fetch("t", 0, isolation_level=1)).last_stable_offset == 0
        assert await write(client, marker(("t", 0)), version=version) == {(ID, "t", 0): Error.NONE}
        fetched = await client.fetch("t", 0, isolation_level=1)
        assert fetched.last_stable_offset == fetched.high_watermark == 2
        assert [(each.producer_id, each.first_offset) for each in fetched.aborted_transactions] == [(ID, 0)]


@on_loop
async def test_each_marker_is_answered_by_producer_and_partition(tmp_path: Path) -> None:
    """Those of one producer together; what is not here is UNKNOWN_TOPIC_OR_PARTITION and keeps nobody from the rest."""
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        told = await write(
            client,
            marker(("t", 0), ("t", 7), ("nowhere", 0)),
            marker(("t", 1)),
            marker(("t", 0), id=6, committed=True),
            marker(id=7),
        )
        assert told == {
            (ID, "t", 0): Error.NONE,
            (ID, "t", 7): Error.UNKNOWN_TOPIC_OR_PARTITION,
            (ID, "nowhere", 0): Error.UNKNOWN_TOPIC_OR_PARTITION,
            (ID, "t", 1): Error.NONE,
            (6, "t", 0): Error.NONE,
        }
        assert [served.partition("t", index).log.end_offset for index in (0, 1)] == [2, 1]
        assert await write(client) == {}


@on_loop
async def test_stale_markers_are_refused(tmp_path: Path) -> None:
    """TRAP-62: an older epoch, an older coordinator, and in generation 2 (version 2 says so) the same epoch."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        begin(served, epoch=3)
        place = ("t", 0)
        assert await write(client, marker(place, epoch=2)) == {(ID, "t", 0): Error.INVALID_PRODUCER_EPOCH}
        assert await write(client, marker(place, epoch=3, version=2)) == {(ID, "t", 0): Error.INVALID_PRODUCER_EPOCH}
        assert await write(client, marker(place, epoch=4, version=2, coordinator=9)) == {(ID, "t", 0): Error.NONE}
        late = await write(client, marker(place, epoch=5, version=2, coordinator=8))
        assert late == {(ID, "t", 0): Error.TRANSACTION_COORDINATOR_FENCED}
        assert served.partition("t").log.end_offset == 2


@on_loop
async def test_a_marker_without_a_producer_is_no_marker(tmp_path: Path) -> None:
    """As Apache 4.3.1, which cannot make a batch of it: the whole request is refused."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for odd in (marker(("t", 0), ("t", 9), id=-1), marker(("t", 0), ("t", 9), epoch=-1)):
            assert set((await write(client, odd)).values()) == {Error.UNKNOWN_SERVER_ERROR}
        assert served.partition("t").log.end_offset == 0
        assert await write(client, marker(("t", 0), id=-5)) == {(-5, "t", 0): Error.NONE}
        assert not served.partition("t").log.producers.entries, "there is nobody of that number"


@on_loop
async def test_a_marker_of_no_generation_is_refused_for_itself(tmp_path: Path) -> None:
    """As Apache 4.3.1: where it would be written, and nobody else."""
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        assert await write(client, marker(("t", 0), ("t", 9), version=-1), marker(("t", 1), id=6)) == {
            (ID, "t", 0): Error.UNKNOWN_SERVER_ERROR,
            (ID, "t", 9): Error.UNKNOWN_TOPIC_OR_PARTITION,
            (6, "t", 1): Error.NONE,
        }
        assert [served.partition("t", index).log.end_offset for index in (0, 1)] == [0, 1]


@on_loop
async def test_a_marker_that_was_not_written_is_not_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path, disk=(disk := TouchyDisk())) as served:
        await served.topic("t", 2)
        client = await served.connect()
        disk.full = True
        told = await write(client, marker(("t", 0), ("t", 1)))
        assert set(told.values()) == {Error.KAFKA_STORAGE_ERROR}
        disk.full = False


@on_loop
async def test_offsets_that_were_committed_in_the_transaction_hear_of_its_end(tmp_path: Path) -> None:
    """TXN-05: a marker in `__consumer_offsets` goes through the coordinator of the groups there."""
    async with serving(tmp_path, {"offsets.topic.num.partitions": "1"}) as served:
        await served.topic("__consumer_offsets")
        client, ended = await served.connect(), []
        machine = served.node.groups.shards[0].machine
        assert machine is not None
        machine.end_transaction = lambda *told: ended.append(told)  # type: ignore[method-assign]
        assert await write(client, marker(("__consumer_offsets", 0), committed=True)) == {
            (ID, "__consumer_offsets", 0): Error.NONE
        }
        assert ended == [(ID, True)]
