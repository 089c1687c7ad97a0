"""A short fixed story about transactions whose process is killed at a chosen disk call: init, produce, offsets, commit; the
same with an abort; and once more.

A first transaction, of another producer, made the internal topics before. Whatever fails is begun anew, as an application does
it, until all were done. Then everything is looked at, before and after one more restart.
"""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.producer import Producer
from ottla.client.transactions import Abortable
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop
from ottla.sim.transaction_checks import Attempt, End
from ottla.wire.errors import KafkaError
from sim.stage import Calls, Story, perform
from sim.topics import NODE
from sim.transacting import COPIES, GROUP, INPUTS
from sim.transaction_play import TransactionPlay

PATIENCE_S = 20.0


class CutTransactions(TransactionPlay):
    """With a loss, the power goes as well: then the node syncs before it acknowledges, and nothing may be missing."""

    def __init__(self, call: int, loss: Loss | None, generation: int, turn: int) -> None:
        super().__init__(f"transactions/{call}/{loss}/{generation}/{turn}", 0, generation)
        self.call, self.loss = call, loss
        # One who asks again goes on with its transaction; one who does not is replaced, and what it left is aborted.
        self.asks_again = (call + turn) % 2 == 0
        self.calls = self.copied = 0

    def begin(self, loop: SimLoop) -> None:
        super().begin(loop)
        self.actors, self.watchers = [], []
        self.is_durable = self.loss is not None
        flushes = "1" if self.is_durable else str(2**63 - 1)
        self.machine.settings = {**self.machine.settings, "log.flush.interval.messages": flushes}

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", self.prepare())
        await self.cluster.client("first", self.until_done("first", True))
        before, calls = self.machine.disk.calls, Calls(self)
        self.cluster.kill_at_call(NODE, self.call, self.loss)
        keeper = loop.create_task(calls.keep_looking())
        for commits in (True, False, True):
            await self.cluster.client("teller", self.until_done("teller", commits))
        self.machine.disk.stop_at = None
        self.calls = max(calls.first.calls, calls.count) - before
        for _ in range(2):
            await self.cluster.client("judge", self.stabilise())
            await self.cluster.client("judge", self.close_books())
            self.cluster.kill(NODE)
            calls.look()
            await self.until_ready()
        keeper.cancel()
        await asyncio.wait([keeper])
        return self.told()

    async def until_done(self, name: str, commits: bool) -> None:
        """Over and over, until one transaction ended as it should."""
        while True:
            with self.client(name) as cluster:
                attempt = self.accounts.begin(name)
                producer = Producer(
                    cluster, transactional_id=name, delivery_s=PATIENCE_S, transaction_timeout_ms=5000, linger_ms=0
                )
                try:
                    await producer.init()
                    await self.transact(cluster, producer, attempt, commits)
                    await producer.close()
                    return
                except (KafkaError, OSError):
                    await asyncio.sleep(0.05)

    async def transact(self, cluster: Cluster, producer: Producer, attempt: Attempt, commits: bool) -> None:
        """Two inputs, a copy of what should be the next one, and the position behind it."""
        self.copied = (await cluster.retrying(lambda: self.committed(cluster))).get(INPUTS[0], 0)
        producer.begin()
        try:
            for where in (*INPUTS, COPIES[0]):
                await self.send(producer, attempt, where)
            attempt.offsets[INPUTS[0]] = self.copied + 1
            await producer.send_offsets({INPUTS[0]: Committed(self.copied + 1)}, GROUP)
            producer._tx.patience_s = PATIENCE_S if self.asks_again else 0.0
            if commits:
                self.accounts.asks_to_commit(attempt)
                await producer.commit()
                self.accounts.ends(attempt, End.COMMITTED)
                self.accounts.committed_offsets(attempt)
                return
        except Abortable:
            await producer.abort()
            self.accounts.ends(attempt, End.ABORTED)
            raise
        await producer.abort()
        self.accounts.ends(attempt, End.ABORTED)

    async def send(self, producer: Producer, attempt: Attempt, where: TopicPartition) -> None:
        value = f"{attempt.name}/{where.topic}/{where.partition}".encode()
        if where in COPIES:
            self.accounts.copies(value, INPUTS[0], self.copied)
        self.accounts.sends(attempt, where, value)
        await producer.post(where.topic, value, partition=where.partition)


def cut_at(call: int, loss: Loss | None, generation: int = 2, turn: int = 0) -> tuple[Story, int]:
    """The script with a cut at one call, and how many disk calls there are to cut at. In another turn the order of what is
    done at the same time is another."""
    script = CutTransactions(call, loss, generation, turn)
    return perform(script), script.calls
