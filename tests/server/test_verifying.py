"""Batches in transactions at the leader of a partition: admitted by the coordinator before the first of them gets in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.coordination.machine import Decision
from ottla.coordination.transactions.states import State, Transaction, to_record
from ottla.log.producers import Marker
from ottla.server import verifying
from ottla.server.verifying import Entrant, Manner
from ottla.wire.errors import Error
from ottla.wire.messages.produce import ProduceResponse
from served import Client, Served, batch, change, produce_request, serving, until

STATE = "__transaction_state"
ID, NAME = 5, "x"
Place = tuple[str, int]


def sent(sequence: int = 0, epoch: int = 0, producer_id: int = ID, **more: Any) -> bytes:
    return batch(
        b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True, **more
    )


async def prepare(served: Served, topics: Iterable[tuple[str, int]] = (("t", 2),), **configs: str) -> Client:
    await served.topic(STATE)
    for name, partitions in topics:
        await served.topic(name, partitions, **configs)
    return await served.connect()


def know(served: Served, state: State, places: Iterable[Place] = (), epoch: int = 0) -> None:
    """The coordinator has this of the transactional id."""
    known = Transaction(NAME, ID, epoch, 60_000, state, frozenset(places), 1, 1)
    served.node.transactions.shard_of(NAME).carry_out(Decision(records=[to_record(known)]))


def known(served: Served) -> Transaction:
    return served.node.transactions.shard_of(NAME).state.by_id[NAME]


async def produce(client: Client, data: bytes, version: int, index: int = 0, topic: str = "t") -> Any:
    return await client.produce(topic, data, index, version=version, transactional_id=NAME)


def codes(response: ProduceResponse) -> dict[int, int]:
    return {part.index: part.error_code for topic in response.responses for part in topic.partition_responses}


# -- generation 2


@on_loop
async def test_a_partition_is_added_with_the_first_batch_and_nobody_is_asked_again(tmp_path: Path) -> None:
    """KIP-890: Produce 12 adds by itself; while the transaction is open here, its coordinator hears nothing more."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.EMPTY)
        answer = await produce(client, sent(), 12)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert (known(served).state, known(served).partitions) == (State.ONGOING, {("t", 0)})
        end = served.partition(STATE).log.end_offset
        assert (await produce(client, sent(1), 12)).base_offset == 1
        assert served.partition(STATE).log.end_offset == end
        assert (await produce(client, sent(), 12, index=1)).error_code == 0
        assert known(served).partitions == {("t", 0), ("t", 1)}
        assert served.partition("t").bound(1) == 0


@on_loop
async def test_all_partitions_of_a_request_are_added_with_one_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await prepare(served, [("t", 3)])
        know(served, State.EMPTY)
        end = served.partition(STATE).log.staged_end
        request = produce_request("t", {index: sent() for index in range(3)}, transactional_id=NAME)
        assert codes(await client.call(request, 12)) == {0: 0, 1: 0, 2: 0}
        assert served.partition(STATE).log.end_offset == end + 1
        assert len(known(served).partitions) == 3


@on_loop
async def test_topics_by_id_and_topics_that_are_looked_into_are_added_as_well(tmp_path: Path) -> None:
    """KIP-516: Produce 13 names topics by their ids. A compacted topic is looked into before the append."""
    async with serving(tmp_path) as served:
        client = await prepare(served, [("t", 1)], cleanup_policy="compact")
        know(served, State.EMPTY)
        topic_id = served.node.replicas.by_name["t"].id
        request = produce_request(topic_id, {0: sent()}, transactional_id=NAME)
        assert codes(await client.call(request, 13)) == {0: 0}
        assert known(served).partitions == {("t", 0)}


@on_loop
async def test_the_next_transaction_waits_for_the_end_of_the_last_one(tmp_path: Path) -> None:
    """TRAP-64: a producer that ended a transaction may go on at once; the broker waits for it."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.PREPARE_COMMIT, [("t", 1)], epoch=1)
        marking = known(served).marking()
        client.send(produce_request("t", {0: sent(epoch=1)}, transactional_id=NAME), 12)
        shard = served.node.transactions.shard_of(NAME)
        await until(lambda: shard.state.waiting)
        shard.carry_out(Decision(orders=[marking]))
        assert codes(await client.receive()) == {0: 0}
        assert (known(served).state, known(served).partitions) == (State.ONGOING, {("t", 0)})


@on_loop
async def test_an_end_that_does_not_come_is_told_by_generation(tmp_path: Path) -> None:
    """TRAP-64: after 100 ms a producer of generation 2 is told 51; to an older one it is want of replicas, and at once."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.PREPARE_COMMIT, [("t", 1)])
        began = served.node.loop.time()
        old = await produce(client, sent(), 11)
        new = await produce(client, sent(), 12)
        assert (new.error_code, new.error_message) == (Error.CONCURRENT_TRANSACTIONS.code, None)
        assert served.node.loop.time() - began >= 0.1
        assert old.error_code == Error.NOT_ENOUGH_REPLICAS.code
        assert old.error_message.endswith("Underlying error: CONCURRENT_TRANSACTIONS")
        assert served.partition("t").log.end_offset == 0


# -- generation 1


@pytest.mark.parametrize(
    ("version", "error", "message"),
    [
        (9, Error.INVALID_TXN_STATE, "Partition was not added to the transaction"),
        (10, Error.INVALID_TXN_STATE, "Partition was not added to the transaction"),
        (11, Error.TRANSACTION_ABORTABLE, None),
    ],
)
@on_loop
async def test_a_partition_that_was_not_added_is_refused(
    tmp_path: Path, version: int, error: Error, message: str | None
) -> None:
    """TRAP-67, KIP-890: clients before version 11 do not know TRANSACTION_ABORTABLE."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0)])
        request = produce_request("t", {0: sent(), 1: sent()}, transactional_id=NAME)
        answer = await client.call(request, version)
        assert codes(answer) == {0: 0, 1: error.code}
        refused = answer.responses[0].partition_responses[1]
        assert (refused.error_message, refused.log_start_offset, refused.base_offset) == (message, -1, -1)
        assert known(served).partitions == {("t", 0)}, "generation 1 adds nothing by itself"
        assert [served.partition("t", index).log.end_offset for index in (0, 1)] == [1, 0]


@on_loop
async def test_nobody_is_asked_where_verification_is_off(tmp_path: Path) -> None:
    """transaction.partition.verification.enable, which is for generation 1 alone: generation 2 has to add all the same."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING)
        await change(client, "1", transaction_partition_verification_enable="false")
        assert (await produce(client, sent(), 11)).error_code == 0
        assert not known(served).partitions
        assert (await produce(client, sent(), 12, index=1)).error_code == 0
        assert known(served).partitions == {("t", 1)}


# -- refusals of both


@pytest.mark.parametrize("version", [9, 12])
@on_loop
async def test_a_coordinator_that_is_not_ready_is_want_of_replicas(tmp_path: Path, version: int) -> None:
    """Older producers would give up for what a coordinator says, but for want of replicas they try again."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        answer = await produce(client, sent(), version)
        assert answer.error_code == Error.NOT_ENOUGH_REPLICAS.code
        assert answer.error_message == (
            "Unable to verify the partition has been added to the transaction. Underlying error: COORDINATOR_NOT_AVAILABLE"
        )
        assert served.partition("t").log.end_offset == 0


@pytest.mark.parametrize("version", [9, 12])
@on_loop
async def test_strangers_and_zombies_do_not_get_in(tmp_path: Path, version: int) -> None:
    """TRAP-63, TXN-08: at a partition a fenced epoch is 47; an id of another producer is 49."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0)], epoch=4)
        assert (await produce(client, sent(epoch=3), version)).error_code == Error.INVALID_PRODUCER_EPOCH.code
        stranger = await produce(client, sent(epoch=4, producer_id=6), version)
        assert stranger.error_code == Error.INVALID_PRODUCER_ID_MAPPING.code
        assert (await produce(client, sent(epoch=4), version)).error_code == 0
        assert (await produce(client, sent(epoch=3), version)).error_code == Error.INVALID_PRODUCER_EPOCH.code
        assert served.partition("t").log.end_offset == 1


@on_loop
async def test_one_request_is_of_one_producer(tmp_path: Path) -> None:
    """As Apache 4.3.1: nothing of it is appended."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0), ("t", 1)])
        request = produce_request("t", {0: sent(), 1: sent(producer_id=6)}, transactional_id=NAME)
        answer = await client.call(request, 9)
        assert codes(answer) == {0: Error.INVALID_PRODUCER_ID_MAPPING.code, 1: Error.INVALID_PRODUCER_ID_MAPPING.code}
        told = answer.responses[0].partition_responses[0].error_message
        assert told == "Transactional records contained more than one producer ID"
        assert served.partition("t").log.end_offset == 0


@on_loop
async def test_acks_that_do_not_exist_are_told_to_those_who_were_admitted(tmp_path: Path) -> None:
    """As Apache 4.3.1, which asks the coordinator first."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0)])
        request = produce_request("t", {0: sent(), 1: sent()}, 2, transactional_id=NAME)
        answer = await client.call(request, 9)
        assert codes(answer) == {0: Error.INVALID_REQUIRED_ACKS.code, 1: Error.INVALID_TXN_STATE.code}
        assert [served.partition("t", index).log.end_offset for index in (0, 1)] == [0, 0]


@on_loop
async def test_without_acks_a_refusal_costs_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING)
        client.send(produce_request("t", {0: sent()}, 0, transactional_id=NAME), 11)
        assert await client.is_cut()


# -- answers at once


@pytest.mark.parametrize("version", [9, 12])
@on_loop
async def test_what_is_added_and_committed_needs_no_wait(tmp_path: Path, version: int) -> None:
    """KIP-890, TXN-01: a client of generation 1 has heard that its partitions were added before it sends."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0), ("t", 1)])
        await served.node.transactions.shard_of(NAME).committed()

        async def nobody_asks(*_: Any) -> Any:
            raise AssertionError("the answer was at hand")

        served.node.transactions.ask = nobody_asks  # type: ignore[method-assign]
        assert [(await produce(client, sent(), version, index)).error_code for index in (0, 1)] == [0, 0]


@pytest.mark.parametrize("manner", list(Manner))
@on_loop
async def test_what_may_yet_be_lost_admits_nobody(tmp_path: Path, manner: Manner) -> None:
    """KIP-890: a coordinator that loses the record would not end what was let in by it."""
    async with serving(tmp_path) as served:
        await prepare(served)
        node, entrant = served.node, Entrant(NAME, ID, 0, manner)
        verdicts = verifying.guard(node, entrant, {("t", 0): 0})
        know(served, State.ONGOING, [("t", 0)])  # staged, not even written
        assert verifying.must_wait(node, entrant, verdicts)
        await node.transactions.shard_of(NAME).committed()
        assert not verifying.must_wait(node, entrant, verdicts)
        assert verifying.must_wait(node, entrant._replace(transactional_id=""), verdicts)
        node.transactions.shard_of(NAME).machine = None  # it is loading
        assert verifying.must_wait(node, entrant, verdicts)


# -- what happens while the coordinator is asked


def delaying(served: Served, before_the_answer: Callable[[], Awaitable[None]]) -> None:
    """The coordinator's answer is on its way while something else happens: what it knows is not committed."""
    served.node.transactions.shard_of(NAME).state.written_at[NAME] = 1 << 60
    ask = served.node.transactions.ask

    async def late(*args: Any, **more: Any) -> Any:
        answer = await ask(*args, **more)
        await before_the_answer()
        return answer

    served.node.transactions.ask = late  # type: ignore[method-assign]


@pytest.mark.parametrize(("version", "epoch"), [(11, 0), (12, 1)])
@on_loop
async def test_an_abort_between_admission_and_append_is_noticed(tmp_path: Path, version: int, epoch: int) -> None:
    """KIP-890: the batch would have begun a transaction that nobody ends."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.ONGOING, [("t", 0)])

        async def abort() -> None:
            served.node.markers.place(Marker(ID, epoch, 0, False, 2 if epoch else 1), "t", 0)

        delaying(served, abort)
        answer = await produce(client, sent(), version)
        expected = Error.INVALID_PRODUCER_EPOCH if epoch else Error.INVALID_TXN_STATE
        assert answer.error_code == expected.code
        partition = served.partition("t")
        assert partition.bound(1) == partition.log.end_offset == 1, "nothing but the marker"


@on_loop
async def test_what_comes_behind_a_batch_that_waits_stays_behind_it(tmp_path: Path) -> None:
    """IDM-02: five batches are under way on one connection, the first has to wait for its admission."""
    async with serving(tmp_path) as served:
        client = await prepare(served)
        know(served, State.EMPTY)
        gate: asyncio.Future[None] = served.node.loop.create_future()
        delaying(served, lambda: gate)
        for number in range(5):
            client.send(produce_request("t", {0: sent(number)}, transactional_id=NAME), 12)
        await until(lambda: known(served).partitions)
        gate.set_result(None)
        answers = [(await client.receive()).responses[0].partition_responses[0] for _ in range(5)]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, n) for n in range(5)]


@on_loop
async def test_offsets_of_groups_are_admitted_the_same_way(tmp_path: Path) -> None:
    """What TxnOffsetCommit asks; its words for a refusal are the coordinator's own."""
    async with serving(tmp_path) as served:
        await prepare(served)
        know(served, State.ONGOING, [("t", 0)])
        node, wanted = served.node, {("t", 1): -1}
        for manner, error in ((Manner.OLD, Error.INVALID_TXN_STATE), (Manner.ABORTS, Error.TRANSACTION_ABORTABLE)):
            verdict = (await verifying.admit(node, Entrant(NAME, ID, 0, manner), wanted))["t", 1]
            assert getattr(verdict, "error", None) is error
        guard = (await verifying.admit(node, Entrant(NAME, ID, 0, Manner.ADDS), wanted))["t", 1]
        assert guard is served.partition("t", 1).log.producers.guards[ID]
        gone = (await verifying.admit(node, Entrant("?" * 9, ID, 0, Manner.ADDS), wanted))["t", 1]
        assert getattr(gone, "error", None) is Error.INVALID_PRODUCER_ID_MAPPING
