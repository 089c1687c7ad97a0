"""Between brokers: markers that are brought to the leaders of partitions, and coordinators that are asked across the network.

One broker runs, and is asked over its own listener by somebody who takes it for another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.coordination.machine import Decision
from ottla.coordination.transactions.states import State, Transaction, to_record
from ottla.log.producers import Guard, Marker
from ottla.metadata.image import Delta
from ottla.server import verifying
from ottla.server.couriers import PLACES_MAX, Courier
from ottla.server.node import Node
from ottla.server.peers import Line
from ottla.server.verifying import Entrant, Manner
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import AddPartitionsToTxnResponse, WriteTxnMarkersRequest
from ottla.wire.schema import Message
from served import Served, batch, serving, until

STATE, NAME, ID, OTHER = "__transaction_state", "x", 5, 7


class Counted:
    """A line that remembers what was asked on it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.asked: list[Any] = []

    async def ask(self, request: Message, timeout_s: float) -> Any:
        self.asked.append(request)
        return await self._line.ask(request, timeout_s)


class Elsewhere:
    """A node as the real one is, but that knows of a broker 7, which coordinates all transactions."""

    def __init__(self, node: Node, port: int) -> None:
        self._node = node
        self.transactions = self.peers = self
        self.to_other: Any = Counted(node.peers.line_to("other", "127.0.0.1", port))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def line(self, _purpose: str, _broker_id: int, *, concurrent: bool = False) -> Any:
        return self.to_other

    def leader_of(self, _transactional_id: str) -> int:
        return OTHER

    def shard_here(self, _transactional_id: str) -> None:
        return None


@contextlib.asynccontextmanager
async def two(path: Path) -> AsyncIterator[tuple[Served, Any]]:
    async with serving(path, {"request.timeout.ms": "5000"}) as served:
        await served.topic(STATE)
        await served.topic("t", 3)
        yield served, Elsewhere(served.node, served.port)


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[int]:
    """The port of somebody who accepts connections and says nothing."""
    held: list[asyncio.StreamWriter] = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    for writer in held:
        writer.close()
    server.close()


def open_transactions(served: Served, *producer_ids: int) -> None:
    for producer_id in producer_ids:
        data = batch(b"v", producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        served.append_in_transaction("t", data)


def marker(producer_id: int = ID, epoch: int = 1, committed: bool = True) -> Marker:
    return Marker(producer_id, epoch, 0, committed, 2)


# --- couriers


@on_loop
async def test_markers_that_end_together_travel_together(tmp_path: Path) -> None:
    """TXN-03: one request is under way; what comes meanwhile goes with the next one, but never two of one producer."""
    async with two(tmp_path) as (served, node):
        open_transactions(served, 1, 2, 3)
        courier = Courier(node, OTHER)
        receipts = [courier.bring(marker(each), [("t", 0)]) for each in (1, 2, 3, 3)]
        assert [await receipt for receipt in receipts] == [{("t", 0): 0}] * 4
        asked = [[each.producer_id for each in request.markers] for request in node.to_other.asked]
        assert asked == [[1, 2, 3], [3]]
        assert not served.partition("t").log.producers.ongoing
        assert await courier.bring(marker(1, 2), [("t", 0)]) == {("t", 0): 0}


@on_loop
async def test_however_many_markers_there_are_the_other_broker_takes_them(tmp_path: Path) -> None:
    """TXN-03, TXN-07: a broker was away, and thousands of transactions wait for it. All in one request would be more than a
    broker takes of anybody (`MEMORY_FREE`): it closes the connection, and they would be tried again together for ever."""
    async with two(tmp_path) as (_, node):
        courier = Courier(node, OTHER)
        receipts = [courier.bring(marker(each), [("t", 0)]) for each in range(8000)]
        assert all([await receipt == {("t", 0): 0} for receipt in receipts])
        assert [len(request.markers) for request in node.to_other.asked] == [PLACES_MAX] * (8000 // PLACES_MAX)


@on_loop
async def test_markers_of_one_transaction_travel_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TXN-03: one after the other, since an answer names only the producer."""
    monkeypatch.setattr("ottla.server.couriers.PLACES_MAX", 2)
    async with two(tmp_path) as (served, node):
        markers: Any = served.node.markers
        markers._leader_of = lambda _name, _index: OTHER
        markers._couriers[OTHER] = Courier(node, OTHER)
        outcome = await markers._write(marker(), [("t", 0), ("t", 1), ("u", 0), ("t", 2), ("v", 0)])
        asked = [[topic.name for topic in request.markers[0].topics] for request in node.to_other.asked]
        assert asked == [["t"], ["u", "t"], ["v"]]
        assert outcome.left == []  # the topics that are not there have no need of it
        assert not served.partition("t", 2).log.producers.ongoing and served.partition("t", 2).log.end_offset == 1


@on_loop
async def test_what_is_refused_is_told_by_place(tmp_path: Path) -> None:
    async with two(tmp_path) as (served, node):
        open_transactions(served, ID)
        places = [("t", 0), ("t", 2), ("u", 0)]
        told = await Courier(node, OTHER).bring(marker(), places)
        assert told == {("t", 0): 0, ("t", 2): 0, ("u", 0): Error.UNKNOWN_TOPIC_OR_PARTITION.code}
        request: WriteTxnMarkersRequest = node.to_other.asked[0]
        (only,) = request.markers
        assert (only.producer_epoch, only.transaction_result, only.transaction_version) == (1, True, 2)


@on_loop
async def test_nobody_knows_what_became_of_markers_whose_line_was_lost(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, node):
        async with silent() as port:
            pass
        node.to_other = Counted(_line(node, port))
        courier = Courier(node, OTHER)
        receipts = [courier.bring(marker(each), [("t", 0)]) for each in (1, 2)]
        assert [await receipt for receipt in receipts] == [{}, {}]


@on_loop
async def test_a_broker_that_is_thought_dead_is_not_waited_for(tmp_path: Path) -> None:
    """TXN-07: it may be only paused; but others lead what it led, and the markers have to go there."""
    async with two(tmp_path) as (_, node), silent() as port:
        node.to_other = Counted(_line(node, port))
        courier = Courier(node, OTHER)
        first = courier.bring(marker(1), [("t", 0)])
        await until(lambda: node.to_other.asked)
        second = courier.bring(marker(2), [("t", 0)])
        courier.give_up()
        assert [await first, await second] == [{}, {}]
        assert len(node.to_other.asked) == 1


@on_loop
async def test_markers_are_tried_again_as_soon_as_another_broker_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TXN-07: and not after the pause."""
    monkeypatch.setattr("ottla.server.markers.AGAIN_S", 3600.0)
    async with two(tmp_path) as (served, _):
        real = served.node
        led_by = {"leader": OTHER}
        markers: Any = real.markers
        markers._leader_of = lambda _name, _index: led_by["leader"]
        open_transactions(served, ID)
        ending = Transaction(NAME, ID, 1, 60_000, State.PREPARE_COMMIT, frozenset([("t", 0)]), 1, 1, client_version=2)
        shard = real.transactions.shard_of(NAME)
        shard.carry_out(Decision(records=[to_record(ending)], orders=[ending.marking()]))
        await until(lambda: OTHER in markers._couriers)
        led_by["leader"] = real.config.node_id
        delta = Delta(partitions={(b"", 0): real.quorum.image.topic("t").partitions[0]})  # type: ignore[union-attr]
        markers.follow(real.quorum.image, delta)
        await until(lambda: shard.state.by_id[NAME].state is State.COMPLETE_COMMIT)


def _line(node: Any, port: int) -> Line:
    line: Line = node._node.peers.line_to("gone", "127.0.0.1", port)
    return line


# --- verifying


def know(served: Served, state: State, *places: tuple[str, int]) -> None:
    known = Transaction(NAME, ID, 0, 60_000, state, frozenset(places), 1, 1)
    served.node.transactions.shard_of(NAME).carry_out(Decision(records=[to_record(known)]))


async def verdicts(node: Any, manner: Manner, *indexes: int, name: str = NAME) -> list[Any]:
    found = await verifying.admit(node, Entrant(name, ID, 0, manner), {("t", index): 0 for index in indexes})
    return [each.error if isinstance(each, KafkaError) else each for each in found.values()]


@on_loop
async def test_another_broker_adds_partitions_for_us(tmp_path: Path) -> None:
    """TXN-07, KIP-890: with one question, and what it adds is committed when it answers."""
    async with two(tmp_path) as (served, node):
        know(served, State.EMPTY)
        given = await verdicts(node, Manner.ADDS, 0, 1)
        assert [type(each) for each in given] == [Guard, Guard]
        known = served.node.transactions.shard_of(NAME).state.by_id[NAME]
        assert (known.state, known.partitions) == (State.ONGOING, {("t", 0), ("t", 1)})
        assert len(node.to_other.asked) == 1


@pytest.mark.parametrize(
    ("manner", "error"), [(Manner.OLD, Error.INVALID_TXN_STATE), (Manner.ABORTS, Error.TRANSACTION_ABORTABLE)]
)
def test_another_broker_knows_what_was_added(tmp_path: Path, manner: Manner, error: Error) -> None:
    """TXN-07: a partition that the client never added is not entered; nothing is added by asking."""

    @on_loop
    async def check() -> None:
        async with two(tmp_path) as (served, node):
            know(served, State.ONGOING, ("t", 0))
            assert type((await verdicts(node, manner, 0))[0]) is Guard
            assert (await verdicts(node, manner, 0, 1))[1] is error
            assert served.node.transactions.shard_of(NAME).state.by_id[NAME].partitions == {("t", 0)}

    check()


@on_loop
async def test_what_a_coordinator_elsewhere_refuses_is_told_to_the_producer(tmp_path: Path) -> None:
    async with two(tmp_path) as (served, node):
        assert await verdicts(node, Manner.ADDS, 0, name="unknown") == [Error.INVALID_PRODUCER_ID_MAPPING]
        know(served, State.EMPTY)
        entrant = Entrant(NAME, ID, -1, Manner.ADDS)
        found = await verifying.admit(node, entrant, {("t", 0): 0})
        assert [each.error for each in found.values() if isinstance(each, KafkaError)] == [Error.INVALID_PRODUCER_EPOCH]


@on_loop
async def test_a_coordinator_that_does_not_answer_admits_nothing(tmp_path: Path) -> None:
    """TXN-07: the producer is told to come back."""
    async with two(tmp_path) as (_, node):
        async with silent() as port:
            pass
        node.to_other = Counted(_line(node, port))
        assert await verdicts(node, Manner.ADDS, 0, 1) == [Error.NETWORK_EXCEPTION] * 2
        assert verifying.for_producer(Error.NETWORK_EXCEPTION, Manner.ADDS).error is Error.NOT_ENOUGH_REPLICAS


@on_loop
async def test_what_the_coordinator_does_not_speak_of_is_not_admitted(tmp_path: Path) -> None:
    """A batch that nobody vouches for could never be taken back."""

    class Silent:
        async def ask(self, _request: Message, _timeout_s: float) -> Any:
            return AddPartitionsToTxnResponse()

    async with two(tmp_path) as (_, node):
        node.to_other = Silent()
        assert await verdicts(node, Manner.ADDS, 0) == [Error.NETWORK_EXCEPTION]
