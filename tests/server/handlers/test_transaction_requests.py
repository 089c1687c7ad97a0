"""The requests of transactional producers, and of those who look after them, over a socket."""

from __future__ import annotations

import asyncio
from errno import EMFILE
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.log.directories import Directories
from ottla.metadata.topics import TRANSACTION_STATE
from ottla.server.handlers.finding import TRANSACTION
from ottla.wire.errors import Error
from ottla.wire.messages.groups import FindCoordinatorRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicPartitions,
)
from served import Client, Served, batch, serving

ID = "payments"
SMALL = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "4"}
TWO_PHASES = {**SMALL, "transaction.two.phase.commit.enable": "true"}
BY_CODE = {error.code: error for error in Error}
Identity = tuple[int, int]


async def coordinated(served: Served) -> Client:
    """A client that has looked for its coordinator, which makes the topic; and topic `t` with two partitions."""
    await served.topic("t", partitions=2)
    client = await served.connect()
    await client.call(FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[ID]), 4)
    return client


async def back_again(served: Served) -> Client:
    """A client after a restart, once the coordinator has read its topic."""
    client = await served.connect()
    while (await state_of(client)).error_code == Error.COORDINATOR_LOAD_IN_PROGRESS.code:
        await asyncio.sleep(0.01)
    return client


async def init(client: Client, version: int = 5, **fields: Any) -> Any:
    request = InitProducerIdRequest(**{"transactional_id": ID, "transaction_timeout_ms": 60_000, **fields})
    return await client.call(request, version)


async def initialised(client: Client, version: int = 5) -> Identity:
    told = await init(client, version)
    assert told.error_code == 0
    return told.producer_id, told.producer_epoch


async def add(
    client: Client, producer: Identity, *indexes: int, topic: str = "t", version: int = 3
) -> dict[int, Error]:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[TopicPartitions(name=topic, partitions=list(indexes))],
    )
    (told,) = (await client.call(request, version)).results_by_topic_v3_and_below
    return {each.partition_index: BY_CODE[each.partition_error_code] for each in told.results_by_partition}


async def end(client: Client, producer: Identity, committed: bool = True, version: int = 5) -> Any:
    request = EndTxnRequest(
        transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    return await client.call(request, version)


async def state_of(client: Client) -> Any:
    (told,) = (await client.call(DescribeTransactionsRequest(transactional_ids=[ID]), 0)).transaction_states
    return told


@on_loop
async def test_a_transaction_of_generation_1(tmp_path: Path) -> None:
    """TXN-07: everything is in the topic, and there after a restart; the next one begins as soon as the last is complete."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        for committed in (True, False, True):
            assert await add(client, producer, 0, 1) == {0: Error.NONE, 1: Error.NONE}
            assert (await end(client, producer, committed, version=3)).error_code == 0
        assert await add(client, producer, 1) == {1: Error.NONE}
        before = await state_of(client)
    async with serving(tmp_path, SMALL) as served:
        client = await back_again(served)
        assert await state_of(client) == before
        assert (before.transaction_state, [each.partitions for each in before.topics]) == ("Ongoing", [[1]])
        assert (await end(client, producer, version=3)).error_code == 0


@on_loop
async def test_a_transaction_of_generation_2(tmp_path: Path) -> None:
    """TRAP-65: every end brings a new epoch; said again, it brings the same."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        assert await add(client, producer, 0) == {0: Error.NONE}
        told = await end(client, producer)
        assert (told.error_code, told.producer_id, told.producer_epoch) == (0, producer[0], producer[1] + 1)
        assert await end(client, producer) == told
        assert await add(client, producer, 0) == {0: Error.PRODUCER_FENCED}
        assert await add(client, (told.producer_id, told.producer_epoch), 0) == {0: Error.NONE}


@on_loop
async def test_what_a_transaction_wrote_is_seen_when_it_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        await add(client, producer, 0)
        data = batch(b"v", producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
        assert (await client.produce("t", data, transactional_id=ID)).error_code == 0
        assert (await client.list_offsets("t", -1, isolation_level=1)).offset == 0
        await end(client, producer)
        await init(client)  # waits until the end is complete
        assert (await client.list_offsets("t", -1, isolation_level=1)).offset == 2


@on_loop
async def test_a_second_producer_fences_the_first(tmp_path: Path) -> None:
    """TXN-08: by the words that each version knows (TRAP-63); its open transaction is aborted meanwhile (TRAP-66)."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        first = await initialised(client)
        await add(client, first, 0)
        second = await initialised(client)
        assert second == (first[0], first[1] + 2)
        assert await add(client, first, 0, version=1) == {0: Error.INVALID_PRODUCER_EPOCH}
        assert await add(client, first, 0, version=2) == {0: Error.PRODUCER_FENCED}
        for version, error in (
            (1, Error.INVALID_PRODUCER_EPOCH),
            (3, Error.PRODUCER_FENCED),
            (5, Error.PRODUCER_FENCED),
        ):
            assert (await end(client, first, version=version)).error_code == error.code
        again = {"producer_id": first[0], "producer_epoch": first[1]}
        assert (await init(client, 3, **again)).error_code == Error.INVALID_PRODUCER_EPOCH.code
        assert (await init(client, 4, **again)).error_code == Error.PRODUCER_FENCED.code


@on_loop
async def test_one_partition_that_is_missing_keeps_all_out(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        left, unknown = Error.OPERATION_NOT_ATTEMPTED, Error.UNKNOWN_TOPIC_OR_PARTITION
        assert await add(client, producer, 0, 2, -1) == {0: left, 2: unknown, -1: unknown}
        assert await add(client, producer, 0, topic="gone") == {0: unknown}
        assert (await state_of(client)).transaction_state == "Empty"


def of_broker(name: str, producer: Identity, *indexes: int, verify_only: bool) -> AddPartitionsToTxnRequest.Transaction:
    return AddPartitionsToTxnRequest.Transaction(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=verify_only,
        topics=[TopicPartitions(name="t", partitions=list(indexes))],
    )


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_many_transactions_in_one_request(tmp_path: Path, version: int) -> None:
    """KIP-890: brokers add and verify for many producers; TRAP-67 for what is not in there."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        told = await init(client, transactional_id="other")
        other, producer = (told.producer_id, told.producer_epoch), await initialised(client)
        wanted = [
            of_broker(ID, producer, 0, verify_only=False),
            of_broker("other", other, 0, verify_only=True),
            of_broker("nobody", (1, 0), 1, verify_only=True),
            of_broker("", (1, 0), 1, verify_only=True),
        ]
        answer = await client.call(AddPartitionsToTxnRequest(transactions=wanted), version)
        told = {
            each.transactional_id: BY_CODE[each.topic_results[0].results_by_partition[0].partition_error_code]
            for each in answer.results_by_transaction
        }
        assert told == {
            ID: Error.NONE,
            "other": Error.TRANSACTION_ABORTABLE,
            "nobody": Error.INVALID_PRODUCER_ID_MAPPING,
            "": Error.INVALID_REQUEST,
        }


@on_loop
async def test_a_transaction_that_a_request_names_twice(tmp_path: Path) -> None:
    """TXN-04: each is answered for its own partitions, and all that are said to be in there are."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        wanted = [of_broker(ID, producer, index, verify_only=False) for index in (0, 1)]
        answer = await client.call(AddPartitionsToTxnRequest(transactions=wanted), 5)
        added = [each.topic_results[0].results_by_partition[0] for each in answer.results_by_transaction]
        assert [(each.partition_index, each.partition_error_code) for each in added] == [(0, 0), (1, 0)]
        assert [each.partitions for each in (await state_of(client)).topics] == [[0, 1]]


@on_loop
async def test_offsets_of_a_group_belong_to_a_transaction(tmp_path: Path) -> None:
    """The partition is that of the group, whether the topic is there yet or not."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer_id, epoch = await initialised(client)
        request = AddOffsetsToTxnRequest(
            transactional_id=ID, producer_id=producer_id, producer_epoch=epoch, group_id="group"
        )
        for version in range(5):
            assert (await client.call(request, version)).error_code == 0
        (topic,) = (await state_of(client)).topics
        assert (topic.topic, topic.partitions) == ("__consumer_offsets", [98629247 % 4])
        request.producer_epoch = 9
        assert (await client.call(request, 1)).error_code == Error.INVALID_PRODUCER_EPOCH.code
        assert (await client.call(request, 2)).error_code == Error.PRODUCER_FENCED.code
        request.transactional_id = ""
        assert (await client.call(request, 2)).error_code == Error.INVALID_REQUEST.code


@on_loop
async def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    """Also where nothing is coordinated; a timeout beyond what is allowed is 50."""
    async with serving(tmp_path, SMALL) as served:
        client = await served.connect()
        assert (await init(client)).error_code == Error.NOT_COORDINATOR.code
        assert (await end(client, (1, 0))).error_code == Error.NOT_COORDINATOR.code
        assert (await init(client, transactional_id="")).error_code == Error.INVALID_REQUEST.code
        over = await init(client, transaction_timeout_ms=900_001)
        assert (over.error_code, over.producer_id, over.producer_epoch) == (
            Error.INVALID_TRANSACTION_TIMEOUT.code,
            -1,
            -1,
        )
        empty = EndTxnRequest(producer_id=1, producer_epoch=0)
        assert (await client.call(empty, 5)).error_code == Error.INVALID_REQUEST.code
        assert (await client.call(ListTransactionsRequest(), 2)).transaction_states == []


@on_loop
async def test_looking_at_transactions(tmp_path: Path) -> None:
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        producer = await initialised(client)
        await init(client, transactional_id="other")
        await add(client, producer, 0)
        asked = DescribeTransactionsRequest(transactional_ids=[ID, "nobody", ""])
        told = (await client.call(asked, 0)).transaction_states
        assert [BY_CODE[each.error_code] for each in told] == [
            Error.NONE,
            Error.TRANSACTIONAL_ID_NOT_FOUND,
            Error.INVALID_REQUEST,
        ]
        every = (await client.call(ListTransactionsRequest(), 0)).transaction_states
        assert {(each.transactional_id, each.transaction_state) for each in every} == {
            (ID, "Ongoing"),
            ("other", "Empty"),
        }
        some = await client.call(
            ListTransactionsRequest(state_filters=["Ongoing", "Odd"], transactional_id_pattern="p.*"), 2
        )
        assert [(each.transactional_id, each.producer_id) for each in some.transaction_states] == [(ID, producer[0])]
        assert some.unknown_state_filters == ["Odd"]
        wrong = await client.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
        assert wrong.error_code == Error.INVALID_REGULAR_EXPRESSION.code


@on_loop
async def test_two_phases_with_a_crash_between_them(tmp_path: Path) -> None:
    """KIP-939: the transaction waits for who comes back, across a restart of the broker; only that one may end it."""
    async with serving(tmp_path, TWO_PHASES) as served:
        client = await coordinated(served)
        told = await init(client, 6, enable_2pc=True, transaction_timeout_ms=0)
        left = told.producer_id, told.producer_epoch
        await add(client, left, 0)
    async with serving(tmp_path, TWO_PHASES) as served:
        client = await back_again(served)
        back = await init(client, 6, enable_2pc=True, keep_prepared_txn=True)
        assert (back.ongoing_txn_producer_id, back.ongoing_txn_producer_epoch) == left
        assert (await end(client, left)).error_code == Error.PRODUCER_FENCED.code
        assert (await end(client, (back.producer_id, back.producer_epoch))).error_code == 0


@on_loop
async def test_a_coordinator_whose_log_is_opened_late_goes_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TXN-07: what it had decided before, the rest of the cluster waits for."""
    async with serving(tmp_path, SMALL) as served:
        client = await coordinated(served)
        who = await initialised(client)
        await add(client, who)
    opened, is_out = Directories.log, True

    async def log(self: Directories, topic: str, *args: Any) -> Any:
        if is_out and topic == TRANSACTION_STATE:
            raise OSError(EMFILE, "too many open files")
        return await opened(self, topic, *args)

    monkeypatch.setattr(Directories, "log", log)
    async with serving(tmp_path, SMALL) as served:
        client = await served.connect()
        assert (await state_of(client)).error_code == Error.NOT_COORDINATOR.code
        is_out = False
        await served.node.upkeep.find_room()
        assert (await state_of(await back_again(served))).transaction_state == "Ongoing"


def test_the_journal_says_why_a_producer_was_shut_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its client only hears that it is fenced; whoever looks after the node must be able to tell who did it."""

    async def play() -> None:
        async with serving(tmp_path, SMALL) as served:
            client = await coordinated(served)
            told = await init(client, transaction_timeout_ms=1)
            assert await add(client, (told.producer_id, told.producer_epoch), 0) == {0: Error.NONE}
            while (await state_of(client)).transaction_state != "CompleteAbort":
                await asyncio.sleep(0.01)
            producer = await initialised(client)
            assert await add(client, producer, 0) == {0: Error.NONE}
            await initialised(client)

    caplog.set_level("INFO", "ottla.coordination")
    asyncio.run(play())
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith(ID)]
    assert ["took longer than 1 ms" in line for line in lines] == [True, False]
    assert "begins anew under this id" in lines[1]


@on_loop
async def test_an_id_that_nobody_uses_is_forgotten_and_one_with_a_transaction_is_not(tmp_path: Path) -> None:
    """transactional.id.expiration.ms: whoever comes back with its old producer id is sent to begin anew."""
    often = {"transaction.remove.expired.transaction.cleanup.interval.ms": "20"}
    soon = {**SMALL, **often, "transaction.state.log.num.partitions": "1", "transactional.id.expiration.ms": "1"}
    async with serving(tmp_path, soon) as served:
        client = await coordinated(served)

        async def states() -> dict[str, str]:
            listed = await client.call(ListTransactionsRequest(), 2)
            return {each.transactional_id: each.transaction_state for each in listed.transaction_states}

        open_one = await initialised(client)
        while (await add(client, open_one, 0))[0] is not Error.NONE:  # it was faster
            open_one = await initialised(client)
        idle = await init(client, transactional_id="idle")
        while (found := await states()) != {ID: "Ongoing"}:
            assert found[ID] == "Ongoing"
            await asyncio.sleep(0.01)
        late = EndTxnRequest(transactional_id="idle", producer_id=idle.producer_id, producer_epoch=0, committed=True)
        assert (await client.call(late, 5)).error_code == Error.INVALID_PRODUCER_ID_MAPPING.code
        assert (await end(client, open_one)).error_code == 0
