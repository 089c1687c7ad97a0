"""Exactly once, on a real node and without Spark: what is committed, skipped, refused, and who is shut out."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, NoTopic, TopicPartition
from ottla.client.commits import Committed, delete, fetch
from ottla.client.consumer import Consumer
from ottla.client.coordinator import Coordinator
from ottla.client.producer import Producer
from ottla.pipeline import committing
from ottla.pipeline.committing import (
    PROGRESS,
    PROGRESS_TOPIC,
    Fenced,
    Marker,
    MicroBatch,
    Outcome,
    Refused,
    Sink,
    SinkError,
    commit_once,
    commit_whole,
    deliver,
    judge,
    read_marker,
)
from ottla.pipeline.spool import Entry
from ottla.wire.records import Record, build

NUMBERS = itertools.count()
LIMIT_S = 60
SINK = Sink("s")


@pytest.mark.parametrize(
    ("marker", "micro_batch", "outcome"),
    [
        (None, MicroBatch("q", 0), Outcome.WRITTEN),
        (Marker("q", 3), MicroBatch("q", 3), Outcome.WRITTEN),
        (Marker("q", 3), MicroBatch("q", 2), Outcome.SKIPPED),
        (None, MicroBatch("q", 1), "marker in topic __ottla_sink_progress is missing"),
        (Marker("q", 3), MicroBatch("q", 1), "an older copy"),
        (Marker("q", 3), MicroBatch("q", 4), "batches between were not written"),
        (Marker("other", 3), MicroBatch("q", 0), "written by query other .up to batch 2.*new checkpoint"),
        (Marker("other", 3), MicroBatch("q", 3), "give each its own sinkId"),
        (Marker("other", 1), MicroBatch("q", 0), "new checkpoint"),
        (Marker("q", 3, "plan"), MicroBatch("q", 2, "plan"), Outcome.SKIPPED),
        (Marker("q", 3), MicroBatch("q", 2, "plan"), Outcome.SKIPPED),
        (Marker("q", 3, "plan"), MicroBatch("q", 2), Outcome.SKIPPED),
        (Marker("q", 3, "plan"), MicroBatch("q", 3, "next"), Outcome.WRITTEN),
        (Marker("q", 3, "plan"), MicroBatch("q", 2, "anew"), "an older copy"),
    ],
)
def test_what_is_to_be_done_with_a_batch(marker, micro_batch, outcome):
    """A missing marker is never taken for "not yet written"; what does not fit is the user's to accept, by the query's id."""
    if isinstance(outcome, Outcome):
        assert judge(marker, micro_batch, SINK) is outcome
        return
    with pytest.raises(Refused, match=outcome) as refused:
        judge(marker, micro_batch, SINK)
    assert f".option('acceptCheckpoint', '{micro_batch.query_id}')" in str(refused.value)
    assert judge(marker, micro_batch, SINK._replace(accept="q")) is Outcome.WRITTEN
    assert judge(marker, micro_batch, SINK._replace(accept="any")) is Outcome.WRITTEN
    with pytest.raises(Refused):
        judge(marker, micro_batch, SINK._replace(accept="a third query"))


def test_what_was_accepted_is_still_skipped_when_it_comes_again():
    assert judge(Marker("q", 3), MicroBatch("q", 2), SINK._replace(accept="q")) is Outcome.SKIPPED


def test_a_transaction_gets_the_time_it_needs():
    assert SINK.timeout_ms(0) == 60_000
    assert SINK.timeout_ms(1 << 30) == 60_000 + (1 << 30) // 10_000
    assert SINK.timeout_ms(1 << 50) == 900_000
    assert SINK._replace(transaction_timeout_ms=1000).timeout_ms(1 << 30) == 1000


class Scene:
    """A topic and a sink of their own, and what can be asked of them."""

    def __init__(self, cluster: Cluster, partitions: int = 2) -> None:
        number = next(NUMBERS)
        self.cluster = cluster
        self.topic = f"committing-{os.getpid()}-{number}"
        self.sink = Sink(f"sink of {self.topic}", delivery_s=20)
        self.partitions = partitions

    def batches(self, *values: str, size: int = 1) -> Iterator[tuple[Entry, bytearray]]:
        for number, value in enumerate(values):
            data = bytearray(build([Record(timestamp=1, value=value.encode())] * size))
            yield Entry(self.topic, number % self.partitions, len(data)), data

    async def commit(self, micro_batch: MicroBatch, *values: str, **changes: Any) -> Outcome:
        return await commit_once(self.cluster, self.sink._replace(**changes), micro_batch, self.batches(*values), 100)

    async def seen(self) -> list[str]:
        """What a reader of committed data gets of all that is written, also where the end of a transaction is under way."""
        places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        ends = await self.cluster.list_offsets(dict.fromkeys(places, LATEST))
        limits = {where: found.offset for where, found in ends.items()}
        consumer = Consumer(self.cluster, dict.fromkeys(places, EARLIEST), ends=limits, read_committed=True)
        return sorted([(record.value or b"").decode() async for record in consumer])

    async def forget_offset(self) -> None:
        """As a broker does by itself when the query has stood still for long."""
        coordinator = Coordinator(self.cluster, self.sink.sink_id)
        try:
            assert await delete(coordinator, [PROGRESS]) == {PROGRESS: None}
            assert await fetch(coordinator, [PROGRESS]) == {}
        finally:
            coordinator.close()


def play(broker: str, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), Cluster(broker, budget_s=20) as cluster:
            scene = Scene(cluster)
            configs = {"retention.ms": "-1"}  # records are from 1970 here, and a slow run must not see them go
            await Admin(cluster).create_topic(scene.topic, partitions=scene.partitions, configs=configs)
            await cluster.partition_count(scene.topic)
            await act(scene)

    asyncio.run(main())


@pytest.fixture(params=["ottla", pytest.param("apache", marks=pytest.mark.slow)])
def kafka(request: pytest.FixtureRequest) -> str:
    """Our node; and Apache Kafka, because the sink is for any broker."""
    if request.param == "ottla":
        return str(request.getfixturevalue("broker"))
    return str(request.getfixturevalue("apache").address)


def test_a_batch_is_written_once_however_often_it_comes(kafka):
    async def act(scene: Scene) -> None:
        assert await scene.commit(MicroBatch("q", 0), "a", "b", "c") is Outcome.WRITTEN
        assert await scene.commit(MicroBatch("q", 0), "a", "b", "other rows") is Outcome.SKIPPED
        assert await scene.commit(MicroBatch("q", 1), "d") is Outcome.WRITTEN
        assert await scene.commit(MicroBatch("q", 1), "d") is Outcome.SKIPPED
        assert await scene.commit(MicroBatch("q", 2)) is Outcome.WRITTEN  # no rows: the marker moves all the same
        assert await scene.commit(MicroBatch("q", 3), "e") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b", "c", "d", "e"]
        assert await read_marker(scene.cluster, scene.sink.sink_id) == Marker("q", 4)

    play(kafka, act)


def test_the_marker_outlives_the_offset_that_says_the_same(kafka):
    """Offsets expire (offsets.retention.minutes) while a query stands still; the topic tells, and others' records in it do
    not confuse."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        await scene.commit(MicroBatch("q", 1), "b")
        await scene.commit(MicroBatch("somebody", 0), sink_id="another sink of " + scene.topic)
        await scene.forget_offset()
        assert await read_marker(scene.cluster, scene.sink.sink_id) == Marker("q", 2)
        assert await scene.commit(MicroBatch("q", 1), "b") is Outcome.SKIPPED
        with pytest.raises(Refused, match="new checkpoint"):
            await scene.commit(MicroBatch("new", 0), "a")
        assert await scene.commit(MicroBatch("q", 2), "c") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b", "c"]

    play(kafka, act)


def test_a_batch_that_was_planned_anew_is_no_repetition(broker):
    """Its number alone would pass for one, and what it has more would never be written. Both places of the marker tell."""

    async def act(scene: Scene) -> None:
        first, anew = MicroBatch("q", 0, "first"), MicroBatch("q", 0, "anew")
        assert await scene.commit(first, "a") is Outcome.WRITTEN
        for forget in (False, True):
            if forget:
                await scene.forget_offset()
            assert await scene.commit(first, "a") is Outcome.SKIPPED
            with pytest.raises(Refused, match="older copy"):
                await scene.commit(anew, "a", "b")
        assert await scene.commit(anew, "b", accept="q") is Outcome.WRITTEN
        assert await scene.commit(anew, "b") is Outcome.SKIPPED
        assert await scene.seen() == ["a", "b"]

    play(broker, act)


def test_the_topic_of_markers_is_compacted_and_never_expires(broker):
    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        settings = {setting.name: setting.value for setting in await Admin(scene.cluster).configs(PROGRESS_TOPIC)}
        assert settings["cleanup.policy"] == "compact"
        assert await scene.cluster.partition_count(PROGRESS_TOPIC) == 1

    play(broker, act)


def test_a_broker_that_does_not_know_of_markers_yet_is_not_believed(broker, monkeypatch):
    """It was cut off from the controller when their topic was made, in the first batch. That was written twice."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        ask = Cluster._ask_about

        async def unaware(cluster: Cluster, topic: str, create: bool) -> None:
            if topic == PROGRESS_TOPIC and not create:
                raise NoTopic(topic)
            await ask(cluster, topic, create)

        monkeypatch.setattr(Cluster, "_ask_about", unaware)
        for micro_batch, outcome in ((MicroBatch("q", 0), Outcome.SKIPPED), (MicroBatch("q", 1), Outcome.WRITTEN)):
            async with Cluster(broker, budget_s=20) as cluster:
                batches = scene.batches("a")
                assert await commit_once(cluster, scene.sink, micro_batch, batches, 100) is outcome
        assert await scene.seen() == ["a", "a"]

    play(broker, act)


def test_an_aborted_marker_does_not_count(broker):
    """The record is in the log, and the transaction it belongs to was given up."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        async with Producer(scene.cluster, transactional_id=scene.sink.sink_id) as producer:
            await producer.init()
            producer.begin()
            wrong = json.dumps({"version": 1, "query": "q", "next_batch": 2})
            await producer.send(PROGRESS_TOPIC, value=wrong.encode(), key=scene.sink.sink_id.encode())
            await producer.abort()
        await scene.forget_offset()
        assert await scene.commit(MicroBatch("q", 1), "b") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b"]

    play(broker, act)


def test_a_marker_behind_the_open_transaction_of_another_sink_is_found(broker):
    """It lies beyond the last stable offset: the scan waits for it instead of taking it for missing."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        async with Producer(scene.cluster, transactional_id=f"another of {scene.topic}") as other:
            await other.init()
            other.begin()
            await other.send(PROGRESS_TOPIC, value=b"{}", key=b"another")
            await scene.commit(MicroBatch("q", 1), "b")
            await scene.forget_offset()
            again = asyncio.ensure_future(scene.commit(MicroBatch("q", 1), "b"))
            assert await asyncio.wait([again], timeout=1) == (set(), {again})
            await other.abort()
            assert await again is Outcome.SKIPPED
        assert await scene.seen() == ["a", "b"]

    play(broker, act)


def test_a_missing_marker_is_an_error(broker):
    async def act(scene: Scene) -> None:
        with pytest.raises(Refused, match="batch 7, but nothing says"):
            await scene.commit(MicroBatch("q", 7), "a")
        assert await scene.seen() == []
        assert await scene.commit(MicroBatch("q", 7), "a", accept="q") is Outcome.WRITTEN
        assert await scene.commit(MicroBatch("q", 7), "a", accept="q") is Outcome.SKIPPED
        assert await scene.commit(MicroBatch("q", 8), "b") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b"]

    play(broker, act)


def test_a_lost_checkpoint_is_refused_until_it_is_accepted(broker):
    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("old", 0), "a")
        with pytest.raises(Refused, match="new checkpoint"):
            await scene.commit(MicroBatch("new", 0), "a")
        assert await scene.seen() == ["a"]
        assert await scene.commit(MicroBatch("new", 0), "a2", accept="new") is Outcome.WRITTEN
        assert await scene.commit(MicroBatch("new", 1), "b") is Outcome.WRITTEN
        with pytest.raises(Refused, match="new checkpoint"):
            await scene.commit(MicroBatch("old", 1), "b")
        assert await scene.seen() == ["a", "a2", "b"]

    play(broker, act)


def test_a_query_that_is_refused_does_not_disturb_the_one_at_work(broker, monkeypatch):
    """It is started under a name that is taken, while the owner of that name is about to commit."""

    async def act(scene: Scene) -> None:
        async def disturbed(producer: Producer) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(Producer, "flush", flush)
                with pytest.raises(Refused, match="give each its own sinkId"):
                    await scene.commit(MicroBatch("newcomer", 0), "x")
            await flush(producer)

        flush = Producer.flush
        await scene.commit(MicroBatch("q", 0), "a")
        monkeypatch.setattr(Producer, "flush", disturbed)
        assert await scene.commit(MicroBatch("q", 1), "b") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b"]

    play(broker, act)


def test_a_marker_is_not_judged_while_a_transaction_is_about_to_change_it(broker, monkeypatch):
    """The end of a transaction is answered when it is decided: the next batch may come before its marker can be seen."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        monkeypatch.setattr(committing, "LOOK_SECONDS", 0.1)
        async with Producer(scene.cluster, transactional_id=f"in place of {scene.topic}") as ending:
            await ending.init()
            ending.begin()
            await ending.send_offsets({PROGRESS: Committed(2, metadata="q")}, scene.sink.sink_id)
            await committing._look_first(scene.cluster, scene.sink, MicroBatch("q", 2))
            await ending.abort()
        with pytest.raises(Refused):
            await committing._look_first(scene.cluster, scene.sink, MicroBatch("q", 2))

    play(broker, act)


def test_an_old_driver_is_shut_out(kafka):
    """It stops in the middle of its transaction; another takes over, does the same batch and the next; then it wakes up."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        half, go_on = asyncio.Event(), asyncio.Event()

        async def zombie() -> Outcome:
            async with Cluster(",".join(f"{host}:{port}" for host, port in scene.cluster.bootstrap)) as own:
                return await commit_once(own, scene.sink, MicroBatch("q", 1), scene.batches("z1", "z2", "z3"), 100)

        async def stopped(producer: Producer, batches: Any) -> None:
            for entry, batch in batches:
                sent = await producer.post_batch(TopicPartition(entry.topic, entry.partition), batch)
                if not go_on.is_set():
                    await sent
                    half.set()
                    await go_on.wait()
            await producer.flush()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ottla.pipeline.committing._post", stopped)
            old = asyncio.ensure_future(zombie())
            await half.wait()
        assert await scene.commit(MicroBatch("q", 1), "b") is Outcome.WRITTEN
        assert await scene.commit(MicroBatch("q", 2), "c") is Outcome.WRITTEN
        go_on.set()
        with pytest.raises(Fenced, match="another query writes with the sinkId"):
            await old
        assert await scene.seen() == ["a", "b", "c"]
        assert await scene.commit(MicroBatch("q", 3), "d") is Outcome.WRITTEN

    play(kafka, act)


def test_a_driver_that_comes_back_late_does_not_write_again(broker):
    """A zombie that had not begun: it takes the id over, and finds that its batch was written, or that it is old."""

    async def act(scene: Scene) -> None:
        await scene.commit(MicroBatch("q", 0), "a")
        assert await scene.commit(MicroBatch("q", 0), "zombie") is Outcome.SKIPPED
        await scene.commit(MicroBatch("q", 1), "b")
        with pytest.raises(Refused, match="older copy"):
            await scene.commit(MicroBatch("q", 0), "zombie")
        assert await scene.commit(MicroBatch("q", 2), "c") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b", "c"]

    play(broker, act)


def test_what_cannot_be_written_leaves_nothing_behind(broker):
    """One of its batches is refused: none is seen, and the next attempt is free."""

    async def act(scene: Scene) -> None:
        await Admin(scene.cluster).alter_configs(scene.topic, put={"max.message.bytes": "500"})
        with pytest.raises(SinkError, match=r"max\.message\.bytes"):
            await scene.commit(MicroBatch("q", 0), "a", "b" * 1000, "c")
        assert await scene.seen() == []
        assert await scene.commit(MicroBatch("q", 0), "a", "b", "c") is Outcome.WRITTEN
        assert await scene.seen() == ["a", "b", "c"]

    play(broker, act)


def test_a_partition_that_is_gone_is_said(broker):
    async def act(scene: Scene) -> None:
        scene.partitions = 3  # a task saw the topic that was there before
        with pytest.raises(SinkError, match="has no partition 2"):
            await scene.commit(MicroBatch("q", 0), "a", "b", "c")
        scene.partitions = 2
        assert await scene.seen() == []

    play(broker, act)


def test_a_write_without_a_name_is_whole_and_can_be_repeated(broker):
    async def act(scene: Scene) -> None:
        for _ in range(2):
            await commit_whole(scene.cluster, scene.sink, scene.batches("a", "b"), 100)
        assert await scene.seen() == ["a", "a", "b", "b"]
        assert await read_marker(scene.cluster, scene.sink.sink_id) is None

    play(broker, act)


def test_without_transactions_it_is_written_at_least_once(broker):
    async def act(scene: Scene) -> None:
        await deliver(scene.cluster, scene.sink, scene.batches("a", "b"))
        assert await scene.seen() == ["a", "b"]
        await Admin(scene.cluster).alter_configs(scene.topic, put={"max.message.bytes": "500"})
        with pytest.raises(SinkError, match="could not be written"):
            await deliver(scene.cluster, scene.sink, scene.batches("c", "d" * 1000))
        assert await scene.seen() == ["a", "b", "c"]

    play(broker, act)


def test_a_timeout_that_the_broker_does_not_allow_is_explained(broker):
    async def act(scene: Scene) -> None:
        with pytest.raises(SinkError, match=r"transaction\.max\.timeout\.ms"):
            await scene.commit(MicroBatch("q", 0), "a", transaction_timeout_ms=10**9)

    play(broker, act)


def test_an_answer_that_got_lost_is_not_called_a_failure(broker, monkeypatch):
    """The commit took effect, and nobody heard of it: the batch comes again, and is skipped."""

    async def act(scene: Scene) -> None:
        async def lost(producer: Producer) -> None:
            await original(producer)
            raise ConnectionError("the coordinator is gone")

        original = Producer.commit
        with monkeypatch.context() as patch:
            patch.setattr(Producer, "commit", lost)
            with pytest.raises(SinkError, match="may not have been written"):
                await scene.commit(MicroBatch("q", 0), "a")
        assert await scene.commit(MicroBatch("q", 0), "a") is Outcome.SKIPPED
        assert await scene.seen() == ["a"]

    play(broker, act)
