"""Any order of writes, elections, deaths, cuts and late news: what was shown or acknowledged never changes.

Three replicas. The controller does what a real one does: whoever dies is fenced and leaves the in-sync set, a leader is chosen
from those in sync, the last of them stays in the set. Brokers hear of it late, so that old leaders write on. A machine that
dies loses what it had not synced, unless it is the last one in sync: then only its process dies.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.replication.leadership import Leadership
from ottla.replication.partition import Partition
from ottla.sim.disk import Loss
from ottla.sim.loop import run
from ottla.wire.errors import KafkaError

sys.path.insert(0, str(Path(__file__).parent))
from replica_sets import Broker, Cluster, until

IDS = (1, 2, 3)
SPREADS_S = 0.04
SEEDS = 100
number = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 3)),
    st.tuples(st.just("write"), st.integers(1, 3)),
    st.tuples(st.just("elect"), number),
    st.tuples(st.just("elect"), number),
    st.tuples(st.just("die"), number, st.sampled_from([None, *Loss])),
    st.tuples(st.just("come_back"), number),
    st.tuples(st.just("cut"), number),
    st.tuples(st.just("heal")),
    st.tuples(st.just("lose"), st.sampled_from([0.0, 0.3])),
    st.tuples(st.just("judge")),
    st.tuples(st.just("wait"), st.sampled_from([0.002, 0.01, 0.05, 0.3])),
)
Step = tuple[Any, ...]


class Play:
    """One schedule, and what was seen of the partition while it was played."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            replica_lag_time_max_ms=100,
            replica_fetch_wait_max_ms=50,
            replica_fetch_backoff_ms=40,
            replica_fetch_max_bytes=1,  # one batch in an answer, so that there is time to be behind
        )
        self.cluster.controller_s = 0.03
        self.cluster.after = self.news
        self.committed: dict[int, bytes] = {}
        self.acknowledged: dict[int, list[bytes]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.number = 0

    async def run(self, steps: list[Step]) -> None:
        cluster = self.cluster
        await cluster.start(*IDS)
        cluster.create(list(IDS))
        await cluster.tell()
        for name, *arguments in steps:
            await getattr(self, name)(*arguments)
            await self.look()
        await self.come_together()

    def begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def news(self) -> None:
        """The picture changed: each broker hears of it, sooner or later."""
        for broker_id in list(self.cluster.brokers):
            self.begin(self._hear(broker_id, self.cluster.rng.random() * SPREADS_S))

    async def _hear(self, broker_id: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if broker_id in self.cluster.brokers:
            await self.cluster.brokers[broker_id].see()

    # --- steps

    async def write(self, count: int) -> None:
        """To everybody who believes to lead."""
        for broker_id, each in list(self.cluster.brokers.items()):
            if each.partition.leader == broker_id:
                self.begin(self._write(each, count))
        await asyncio.sleep(0)

    async def _write(self, broker: Broker, count: int) -> None:
        self.number += 1
        values = [b"%d.%d by %d" % (self.number, part, broker.id) for part in range(count)]
        try:
            offset = await broker.write(*values, seconds=5.0)
        except (KafkaError, TimeoutError, OSError):
            return
        self.acknowledged[offset] = values

    async def elect(self, which: int) -> None:
        able = [each for each in self.cluster.assignment.isr if each in self.cluster.brokers]
        if able:
            self.cluster.change(leader=able[which % len(able)])
            await self.news()

    async def die(self, which: int, loss: Loss | None) -> None:
        cluster, now = self.cluster, self.cluster.assignment
        broker_id = IDS[which]
        if broker_id not in cluster.brokers:
            return
        left = [each for each in now.isr if each != broker_id]
        cluster.kill(broker_id, None if not left else loss)
        cluster.fence(broker_id)
        alive = [each for each in left if each in cluster.brokers]
        if now.leader == broker_id:
            cluster.change(leader=alive[0] if alive else -1, isr=left or [broker_id])
        elif broker_id in now.isr:
            cluster.change(isr=left or [broker_id])
        await self.news()

    async def come_back(self, which: int) -> None:
        cluster, broker_id = self.cluster, IDS[which]
        if broker_id in cluster.brokers:
            return
        await cluster.start(broker_id)
        if cluster.assignment.leader < 0 and broker_id in cluster.assignment.isr:
            cluster.change(leader=broker_id)
        await cluster.brokers[broker_id].see()
        await self.news()

    async def cut(self, which: int) -> None:
        """One broker is alone."""
        self.cluster.cut |= {(IDS[which], other) for other in IDS if other != IDS[which]}

    async def heal(self) -> None:
        self.cluster.cut.clear()

    async def lose(self, chance: float) -> None:
        self.cluster.lost = chance

    async def judge(self) -> None:
        for each in self.cluster.brokers.values():
            each.replicas._looked_at = asyncio.get_running_loop().time()
            each.replicas.look_for_laggards()

    async def wait(self, how_long: float) -> None:
        await asyncio.sleep(how_long)

    # --- what must hold

    async def look(self) -> None:
        """What anybody shows is what everybody showed before at the same place."""
        for each in list(self.cluster.brokers.values()):
            mark = each.partition.high_watermark.value
            for offset, data in await each.records(upto=mark):
                seen = self.committed.setdefault(offset, data)
                assert seen == data, f"{each.id} shows other records at {offset}"
        self.check_acknowledged()

    def check_acknowledged(self) -> None:
        for offset, values in self.acknowledged.items():
            found = self.committed.get(offset)
            assert found is None or all(value in found for value in values), f"{values} at {offset} were replaced"

    async def come_together(self) -> None:
        cluster = self.cluster
        cluster.cut.clear()
        cluster.lost = 0.0
        cluster.after = cluster.tell
        for which in range(len(IDS)):
            await self.come_back(which)
        await cluster.tell()
        await until(lambda: set(cluster.assignment.isr) == set(IDS), 10)
        await asyncio.gather(*self.tasks)
        await cluster.tell()
        await cluster.leader.write(b"the last one")
        end = cluster.leader.partition.log.end_offset
        await until(lambda: all(b.partition.high_watermark.value == end for b in cluster.brokers.values()), 10)
        await self.look()
        logs = [await each.records() for each in cluster.brokers.values()]
        assert logs[0] == logs[1] == logs[2]
        there = dict(logs[0])
        assert not self.acknowledged.keys() - there.keys(), "acknowledged records are gone"
        assert not self.committed.keys() - there.keys(), "records that were shown are gone"


def play(steps: list[Step]) -> None:
    async def main(loop: Any) -> None:
        await Play().run(steps)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run("schedule", main)


SCHEDULES = st.lists(STEPS, min_size=5, max_size=40)
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@QUICK
@given(SCHEDULES)
def test_what_was_shown_or_acknowledged_never_changes(steps: list[Step]) -> None:
    """REP-07, REP-12, REP-14, REP-17, TRAP-42, TRAP-43."""
    play(steps)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEDULES)
def test_many_schedules(steps: list[Step]) -> None:
    play(steps)


# --- mistakes, planted to see whether anybody notices


def everybody_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The watermark is the leader's own end."""
    patch.setattr(Leadership, "watermark", lambda self: self.stored.value)


def nothing_is_cut(patch: pytest.MonkeyPatch) -> None:
    """Histories that part are not mended: the follower goes on behind its own end."""

    async def cut(self: Partition, offset: int) -> None:
        await asyncio.sleep(0.1)

    patch.setattr(Partition, "cut", cut)


def any_leadership_will_do(patch: pytest.MonkeyPatch) -> None:
    """Who waits for an offset is content with whatever the next leadership has there."""

    async def acknowledged(self: Partition, offset: int, seconds: float, mark: Any = None) -> None:
        await asyncio.sleep(0.03)  # for another partition, say
        await self.high_watermark.reaches(offset, seconds)

    patch.setattr(Partition, "acknowledged", acknowledged)


MISTAKES = [everybody_is_ignored, nothing_is_cut, any_leadership_will_do]


def schedule(rng: random.Random) -> list[Step]:
    """Steps as above. A mistake is looked for in the same ones every time."""
    steps: list[Step] = []
    for _ in range(rng.randrange(5, 40)):
        which, loss = rng.randrange(3), rng.choice([None, *Loss])
        wait, lost = rng.choice([0.002, 0.01, 0.05, 0.3]), rng.choice([0.0, 0.3])
        often: list[Step] = [("write", which + 1), ("write", which + 1), ("elect", which), ("wait", wait)]
        seldom: list[Step] = [("die", which, loss), ("come_back", which), ("cut", which), ("heal",), ("lose", lost)]
        steps.append(rng.choice([*often, *seldom, ("judge",)]))
    return steps


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_noticed(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that notices nothing proves nothing."""
    mistake(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        for seed in range(SEEDS):
            play(schedule(random.Random(seed)))
