"""TxnOffsetCommit over sockets: offsets that hold once their transaction is committed, in both generations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetFetchRequest
from ottla.wire.messages.groups import FindCoordinatorRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    DescribeProducersRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
)
from served import Client, Served, serving

SMALL = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
UNSTABLE = Error.UNSTABLE_OFFSET_COMMIT.code
LOADING = Error.COORDINATOR_LOAD_IN_PROGRESS.code
TRANSACTION = 1


class Producer:
    """One that only commits offsets of group `g`, as generation 1 or as generation 2."""

    def __init__(self, client: Client, adds: bool) -> None:
        self.client, self.adds = client, adds
        self.id = self.epoch = -1

    async def init(self) -> None:
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        async with asyncio.timeout(60):
            while (answer := await self.client.call(request, 5)).error_code == LOADING:
                await asyncio.sleep(0.01)
        assert answer.error_code == 0
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    @property
    def _who(self) -> dict[str, Any]:
        return {"transactional_id": "x", "producer_id": self.id, "producer_epoch": self.epoch}

    async def begin(self) -> None:
        if self.adds:
            answer = await self.client.call(AddOffsetsToTxnRequest(group_id="g", **self._who), 4)
            assert answer.error_code == 0

    async def commit(self, offset: int, topic: str = "t", partitions: tuple[int, ...] = (0,), **more: Any) -> list[int]:
        kind = TxnOffsetCommitRequest.Topic
        parts = [kind.Partition(partition_index=index, committed_offset=offset) for index in partitions]
        request = TxnOffsetCommitRequest(
            **{"group_id": "g", "topics": [kind(name=topic, partitions=parts)], **self._who, **more}
        )
        answer = await self.client.call(request, 4 if self.adds else 5)
        return [part.error_code for topic in answer.topics for part in topic.partitions]

    async def has_ended(self, committed: bool) -> bool:
        """Whether its coordinator was ready to end the transaction."""
        answer = await self.client.call(EndTxnRequest(committed=committed, **self._who), 4 if self.adds else 5)
        assert answer.error_code in (0, LOADING)
        return bool(answer.error_code == 0)

    async def end(self, committed: bool) -> None:
        answer = await self.client.call(EndTxnRequest(committed=committed, **self._who), 4 if self.adds else 5)
        assert answer.error_code == 0
        if not self.adds:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch


async def fetch(client: Client, stable: bool, partition: int = 0) -> int:
    """The offset, or the error."""
    kind = OffsetFetchRequest.Group
    group = kind(group_id="g", topics=[kind.Topic(name="t", partition_indexes=[partition])])
    found = (await client.call(OffsetFetchRequest(groups=[group], require_stable=stable), 9)).groups[0]
    if found.error_code:
        return int(found.error_code)
    told = found.topics[0].partitions[0]
    return int(told.error_code or told.committed_offset)


async def stable(client: Client) -> int:
    """The offset that a consumer begins at: it asks until there is one that no transaction is about to change."""
    async with asyncio.timeout(60):
        while (found := await fetch(client, stable=True)) in (UNSTABLE, LOADING):
            await asyncio.sleep(0.01)
    return found


async def end_when_loaded(producer: Producer) -> None:
    """Commit, after a restart."""
    async with asyncio.timeout(60):
        while not await producer.has_ended(committed=True):
            await asyncio.sleep(0.01)


async def ready(served: Served, adds: bool) -> Producer:
    client = await served.connect()
    for kind in (0, TRANSACTION):
        found = await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=["g", "x"]), 4)
        assert [each.error_code for each in found.coordinators] == [0, 0]
    producer = Producer(client, adds)
    await producer.init()
    return producer


@pytest.mark.parametrize("adds", [True, False])
@on_loop
async def test_offsets_hold_when_their_transaction_does(tmp_path: Path, adds: bool) -> None:
    """TXN-05, TXN-10, PRT-06: whoever wants stable offsets waits for the end; an abort leaves what was there."""
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = await ready(served, adds)
        client = await served.connect()
        for offset, committed, holds in ((5, True, 5), (6, False, 5), (7, True, 7)):
            before = await fetch(client, stable=False)
            await producer.begin()
            assert await producer.commit(offset) == [0]
            assert await fetch(client, stable=True) == UNSTABLE
            assert await fetch(client, stable=False) == before
            await producer.end(committed)
            assert await stable(client) == holds


@pytest.mark.parametrize("adds", [True, False])
@on_loop
async def test_an_empty_id_is_refused_by_a_coordinator_and_not_before_there_is_one(tmp_path: Path, adds: bool) -> None:
    """TXN-05: who hears that there is no coordinator looks for one, and only then hears that the request makes no sense."""
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = Producer(await served.connect(), adds)
        for kind, error in ((0, Error.COORDINATOR_NOT_AVAILABLE), (TRANSACTION, Error.INVALID_REQUEST)):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
            assert (await producer.client.call(find, 4)).coordinators[0].error_code == 0
            assert await producer.commit(5, transactional_id="") == [error.code]


@on_loop
async def test_a_transaction_that_is_open_outlives_a_restart(tmp_path: Path) -> None:
    """TXN-10, TRAP-53: pending offsets are read back, and the marker decides about them."""
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = await ready(served, adds=False)
        assert await producer.commit(5) == [0]
    async with serving(tmp_path, SMALL) as served:
        producer.client = client = await served.connect()
        async with asyncio.timeout(60):
            while await fetch(client, stable=True) != UNSTABLE:
                await asyncio.sleep(0.01)
        assert await fetch(client, stable=False) == -1
        await end_when_loaded(producer)
        assert await stable(client) == 5


@on_loop
async def test_who_comes_back_with_its_old_id_commits_what_it_left_open(tmp_path: Path) -> None:
    """PRT-18: as Flink's sink does it, whose transactions may take an hour; it finds them by 61 and 66 as well."""
    hour_ms = 3_600_000
    long = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=hour_ms)
    async with serving(tmp_path, SMALL) as served:
        producer = await ready(served, adds=True)
        refused = await producer.client.call(long, 5)
        assert refused.error_code == Error.INVALID_TRANSACTION_TIMEOUT.code
    settings = SMALL | {"transaction.max.timeout.ms": str(hour_ms)}
    async with serving(tmp_path, settings) as served:
        await served.topic("t")
        producer = await ready(served, adds=True)
        assert (await producer.client.call(long, 5)).error_code == 0
        producer.epoch += 1
        await producer.begin()
        assert await producer.commit(5) == [0]
        listed = await producer.client.call(ListTransactionsRequest(), 0)
        assert [each.transaction_state for each in listed.transaction_states] == ["Ongoing"]
    async with serving(tmp_path, settings) as served:
        producer.client = await served.connect()
        place = DescribeProducersRequest.Topic(name="__consumer_offsets", partition_indexes=[0, 1])
        answer = await producer.client.call(DescribeProducersRequest(topics=[place]), 0)
        known = [each for part in answer.topics[0].partitions for each in part.active_producers]
        assert [(each.producer_id, each.producer_epoch) for each in known] == [(producer.id, producer.epoch)]
        assert known[0].current_txn_start_offset >= 0 and known[0].last_sequence == 0
        await end_when_loaded(producer)
        assert await stable(producer.client) == 5


@on_loop
async def test_what_does_not_exist_is_refused_for_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = await ready(served, adds=False)
        unknown = Error.UNKNOWN_TOPIC_OR_PARTITION.code
        assert await producer.commit(5, topic="other") == [unknown]
        assert await producer.commit(5, partitions=(9, 0)) == [unknown, 0]
        assert await producer.commit(5, group_id="") == [Error.INVALID_GROUP_ID.code]
        assert await fetch(producer.client, stable=True) == UNSTABLE


@on_loop
async def test_no_offset_gets_into_a_transaction_that_nobody_knows(tmp_path: Path) -> None:
    """KIP-890: it could never be ended. Nor does one of an earlier transaction get into a later one."""
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = await ready(served, adds=True)
        assert await producer.commit(5) == [Error.TRANSACTION_ABORTABLE.code]
        producer.adds = False
        assert await producer.commit(5, producer_id=producer.id + 1) == [Error.INVALID_PRODUCER_ID_MAPPING.code]
        assert await producer.commit(5, transactional_id="y") == [Error.INVALID_PRODUCER_ID_MAPPING.code]
        old = producer.epoch
        assert await producer.commit(5) == [0]
        await producer.end(committed=True)
        assert await stable(producer.client) == 5
        assert await producer.commit(6, producer_epoch=old) == [Error.INVALID_PRODUCER_EPOCH.code]
        assert await fetch(producer.client, stable=True) == 5


@on_loop
async def test_without_an_offsets_topic_there_is_no_coordinator(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = Producer(await served.connect(), adds=False)
        assert await producer.commit(5, producer_id=1, producer_epoch=0) == [Error.COORDINATOR_NOT_AVAILABLE.code]


@pytest.mark.parametrize("adds", [True, False])
@on_loop
async def test_a_coordinator_of_transactions_that_cannot_be_reached_makes_producers_try_again(
    tmp_path: Path, adds: bool
) -> None:
    """TXN-05: what brokers say to one another is nothing that a producer could make sense of."""
    async with serving(tmp_path, SMALL) as served:
        await served.topic("t")
        producer = await ready(served, adds)
        await producer.begin()
        transactions: Any = served.node.transactions
        transactions.leader_of, transactions.shard_here = lambda _: 7, lambda _: None
        assert await producer.commit(5) == [Error.COORDINATOR_LOAD_IN_PROGRESS.code]
        del transactions.leader_of, transactions.shard_here
        assert await producer.commit(5) == [0]
