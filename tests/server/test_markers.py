"""Markers of decided transactions: written to every partition, again and again if need be, and then the end is complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from desk import on_loop
from ottla.coordination.machine import Decision
from ottla.coordination.transactions.states import Marking, State, Transaction, Transactions, to_record
from ottla.log.producers import Marker
from ottla.metadata.controller import delete_topics
from ottla.metadata.topics import CONSUMER_OFFSETS
from ottla.replication.partition import Partition
from ottla.rising import Rising
from ottla.server.markers import Placed, PlacedInGroups
from ottla.server.shard import Shard
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.transactions import DescribeTransactionsRequest
from ottla.wire.records import Batch, ControlType, batches, control_type, iterate
from served import Served, TouchyDisk, batch, serving, until

STATE = "__transaction_state"
ID = 5


def shard_of(served: Served, name: str) -> Shard[Transactions]:
    return served.node.transactions.shard_of(name)


def decide(
    served: Served,
    name: str,
    partitions: Sequence[tuple[str, int]],
    *,
    committed: bool = True,
    producer_id: int = ID,
    epoch: int = 1,
    version: int = 2,
) -> Marking:
    """What the coordinator does with an EndTxn: the outcome is written down, and the markers are ordered."""
    state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
    transaction = Transaction(
        name, producer_id, epoch, 60_000, state, frozenset(partitions), 1, 1, client_version=version
    )
    marking = transaction.marking()
    shard_of(served, name).carry_out(Decision(records=[to_record(transaction)], orders=[marking]))
    return marking


def state_of(served: Served, name: str) -> State:
    return shard_of(served, name).state.by_id[name].state


def open_transaction(served: Served, topic: str, epoch: int = 0) -> None:
    data = batch(b"v", producer_id=ID, producer_epoch=epoch, base_sequence=0, transactional=True)
    served.append_in_transaction(topic, data)


async def markers(partition: Partition) -> list[tuple[int, int, bool]]:
    """Producer id, epoch and whether it is a commit, of each marker in the log."""
    partition.come_to_rest()
    log = partition.log
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        data = (await log.read(offset, 1 << 20, log.end_offset)).read()
        for at, head in batches(data):
            offset = head.next_offset
            found += [_marker(head, data[at : at + head.size])] if head.is_control else []
    return found


def _marker(head: Batch, data: bytes) -> tuple[int, int, bool]:
    record = next(iterate(data))
    return head.producer_id, head.producer_epoch, control_type(record.key) == ControlType.COMMIT


@on_loop
async def test_what_another_broker_says_does_not_exist_may_exist_all_the_same(tmp_path: Path) -> None:
    """It says so of any partition that it does not have. Only our own picture tells that there is nothing left to end."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        refused = KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION)
        assert not served.node.markers._is_over(("t", 0), refused)
        assert served.node.markers._is_over(("t", 1), refused) and served.node.markers._is_over(("u", 0), refused)


@on_loop
async def test_a_marker_counts_when_it_is_as_safe_as_the_partition_promises() -> None:
    """Above the watermark by now, but too few have it; or known to a machine that was dropped since."""
    partition: Any = SimpleNamespace(high_watermark=Rising(5), is_short_of_replicas=True)
    placed = Placed(partition)
    placed.end = 3
    with pytest.raises(KafkaError) as refused:
        await placed.is_safe()
    assert refused.value.error is Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    partition.is_short_of_replicas = False
    await placed.is_safe()
    shard: Any = SimpleNamespace(partition=partition, machine=object(), append_marker=lambda _: 3)
    in_groups = PlacedInGroups(shard, Marker(ID, 1, 0, True))
    await in_groups.is_safe()
    shard.machine = None
    with pytest.raises(KafkaError) as refused:
        await in_groups.is_safe()
    assert refused.value.error is Error.NOT_LEADER_OR_FOLLOWER


@on_loop
async def test_every_partition_gets_its_marker_and_then_the_end_is_complete(tmp_path: Path) -> None:
    """TXN-03, TXN-07: in all topics, with the epoch of the order, and not complete before they are there."""
    async with serving(tmp_path) as served:
        for name, count in ((STATE, 2), ("a", 2), ("b", 1)):
            await served.topic(name, count)
        open_transaction(served, "a")
        open_transaction(served, "b")
        places = [("a", 0), ("a", 1), ("b", 0)]
        decide(served, "x", places)
        assert state_of(served, "x") is State.PREPARE_COMMIT
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        for place in places:
            assert await markers(served.partition(*place)) == [(ID, 1, True)]
        assert served.partition("a").bound(1) == served.partition("a").log.end_offset == 2
        decide(served, "x", places[:1], committed=False, epoch=2)
        await until(lambda: state_of(served, "x") is State.COMPLETE_ABORT)
        assert (await markers(served.partition("a")))[1:] == [(ID, 2, False)]


@on_loop
async def test_a_topic_that_is_gone_has_nothing_to_end(tmp_path: Path) -> None:
    """As in Apache: a transaction does not hang because one of its topics was deleted."""
    async with serving(tmp_path) as served:
        for name in (STATE, "stays", "goes"):
            await served.topic(name)
        open_transaction(served, "goes")
        await served.node.controller.propose(lambda image: delete_topics(image, ["goes"]))
        decide(served, "x", [("goes", 0), ("stays", 0)])
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        assert await markers(served.partition("stays")) == [(ID, 1, True)]


@on_loop
async def test_what_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    """TXN-07: the disk of one topic is full. The end is not complete until its marker is there, and there is only one."""
    async with serving(tmp_path, disk=(disk := TouchyDisk())) as served:
        for name in (STATE, "t"):
            await served.topic(name)
        open_transaction(served, "t")
        served.partition("t").come_to_rest()
        marking = decide(served, "x", [("t", 0)])
        served.partition(STATE).come_to_rest()
        disk.full = True
        await until(lambda: served.partition("t").traffic.produces > 1 and not served.partition("t")._dirty)
        assert state_of(served, "x") is State.PREPARE_COMMIT
        assert served.partition("t").bound(1) == 0
        disk.full = False
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        assert await markers(served.partition("t")) == [(ID, marking.epoch, True)]


@on_loop
async def test_who_looks_meanwhile_sees_what_still_lacks_its_marker(tmp_path: Path) -> None:
    """KIP-664: DescribeTransactions names these partitions alone while the end is prepared."""
    async with serving(tmp_path) as served:
        for name in (STATE, "a", "b"):
            await served.topic(name)
        short = served.partition("b")
        short.is_short_of_replicas = True
        decide(served, "x", [("a", 0), ("b", 0)])
        client = await served.connect()

        async def topics() -> list[str]:
            (told,) = (await client.call(DescribeTransactionsRequest(transactional_ids=["x"]), 0)).transaction_states
            return [topic.topic for topic in told.topics]

        await until(lambda: shard_of(served, "x").state.unmarked)
        assert state_of(served, "x") is State.PREPARE_COMMIT and await topics() == ["b"]
        short.is_short_of_replicas = False
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        assert await topics() == []


@on_loop
async def test_a_later_epoch_has_left_nothing_to_end(tmp_path: Path) -> None:
    """Records of the coordinator may be lost where those of the partition are not: an old end must not wait for ever."""
    async with serving(tmp_path) as served:
        for name in (STATE, "t"):
            await served.topic(name)
        open_transaction(served, "t", epoch=9)
        decide(served, "x", [("t", 0)], epoch=3)
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        assert await markers(served.partition("t")) == []
        assert served.partition("t").bound(1) == 0, "the transaction of the later epoch is open"


@on_loop
async def test_an_older_coordinator_leaves_the_transaction_to_the_later_one(tmp_path: Path) -> None:
    """TRAP-62: fenced by the epoch of another one's marker, it neither writes nor says that all is done."""
    async with serving(tmp_path) as served:
        for name in (STATE, "t", "u"):
            await served.topic(name)
        node = served.node
        node.markers.place(Marker(ID, 1, 99, True, 2), "t", 0)
        decide(served, "x", [("t", 0), ("u", 0)], epoch=2)
        shard = shard_of(served, "x")
        await until(lambda: not shard._errands)
        assert state_of(served, "x") is State.PREPARE_COMMIT
        assert await markers(served.partition("t")) == [(ID, 1, True)]
        assert await markers(served.partition("u")) == []


@on_loop
async def test_a_start_goes_on_with_ends_that_were_prepared(tmp_path: Path) -> None:
    """TXN-07: killed between the decision and its markers, or between these and COMPLETE: the next start does the rest."""
    async with serving(tmp_path) as served:
        for name in (STATE, "t", "u"):
            await served.topic(name)
        open_transaction(served, "t")
        open_transaction(served, "u")
        marking = decide(served, "x", [("t", 0), ("u", 0)])
        served.node.markers.place(Marker(ID, 1, 0, True, 2), "u", 0)
        shard_of(served, "x")._forget(None)  # type: ignore[arg-type]
        for name in (STATE, "t", "u"):
            served.partition(name).come_to_rest()
    async with serving(tmp_path) as served:
        await until(lambda: shard_of(served, "x").machine is not None)
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        assert await markers(served.partition("t")) == [(ID, marking.epoch, True)]
        assert await markers(served.partition("u")) == [(ID, marking.epoch, True)] * 2
        assert [served.partition(name).bound(1) for name in ("t", "u")] == [2, 3]


@on_loop
async def test_markers_of_many_transactions_are_written_together(tmp_path: Path) -> None:
    """A thousand transactions end in one turn: one write for each partition."""
    async with serving(tmp_path) as served:
        for name, count in ((STATE, 1), ("t", 3)):
            await served.topic(name, count)
        partition, count, ends = served.partition("t"), 1000, list[int]()
        for number in range(count):
            decide(served, f"x{number}", [("t", 0), ("t", 1), ("t", 2)], producer_id=number)
        shard = shard_of(served, "x0")
        partition.high_watermark.watch(lambda: ends.append(partition.log.end_offset))
        await until(lambda: all(each.state is State.COMPLETE_COMMIT for each in shard.state.by_id.values()))
        assert len(shard.state.by_id) == count
        assert ends == [count], "all of them with one write"


@on_loop
async def test_decided_transactions_are_forgotten_though_nobody_reads(tmp_path: Path) -> None:
    """TRAP-60: they count until their marker is safe, and not a moment longer: nobody reads `__consumer_offsets`, say."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        partition = served.partition("t")
        for number in range(20):
            data = batch(b"v", producer_id=number, producer_epoch=0, base_sequence=0, transactional=True)
            served.append_in_transaction("t", data)
            await served.node.markers.place(Marker(number, 0, 0, True), "t", 0).is_safe()
        assert partition.log.end_offset == 40
        assert len(partition.log.producers.completed) <= 1


@on_loop
async def test_partitions_with_a_late_transaction_are_counted(tmp_path: Path) -> None:
    """PartitionsWithLateTransactionsCount: open for longer than the longest timeout and five minutes, by its last batch."""
    async with serving(tmp_path, {"transaction.max.timeout.ms": "60000"}) as served:
        await served.topic("t")
        node = served.node

        def begin(producer_id: int, ago_ms: int) -> None:
            producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            now_ms = node.world.now_ms()
            served.append_in_transaction("t", batch(b"v", timestamp=now_ms - ago_ms, transactional=True, **producer))
            served.partition("t").come_to_rest()

        begin(1, 6 * 60_000 - 30_000)
        assert node.measures.late_transactions.read() == 0
        await node.markers.place(Marker(1, 0, 0, True), "t", 0).is_safe()
        begin(2, 6 * 60_000 + 1)
        begin(3, 0)
        assert node.measures.late_transactions.read() == 1
        await node.markers.place(Marker(2, 0, 0, True), "t", 0).is_safe()
        assert node.measures.late_transactions.read() == 0


@on_loop
async def test_a_marker_that_groups_lost_while_another_was_waited_for_is_written_again(tmp_path: Path) -> None:
    """The disk is full for one write of both. Nobody else writes to the offsets: who waits for what was lost there, waits for
    ever."""
    async with serving(tmp_path, disk=(disk := TouchyDisk())) as served:
        for name in (STATE, CONSUMER_OFFSETS, "Orders"):
            await served.topic(name)
        open_transaction(served, "Orders")
        served.partition("Orders").come_to_rest()
        decide(served, "x", [(CONSUMER_OFFSETS, 0), ("Orders", 0)])
        served.partition(STATE).come_to_rest()
        disk.full = True
        await until(lambda: served.partition("Orders").traffic.produces > 1 and not served.partition("Orders")._dirty)
        disk.full = False
        await until(lambda: state_of(served, "x") is State.COMPLETE_COMMIT)
        for name in (CONSUMER_OFFSETS, "Orders"):
            assert await markers(served.partition(name)) == [(ID, 1, True)]
