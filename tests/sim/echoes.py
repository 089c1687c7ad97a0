"""Requests of earlier transactions that arrive late, or a second time: what a network may do to any request whose sender has
long gone on over another connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connection import REQUEST_SECONDS, Connection, GoOn
from ottla.wire.errors import KafkaError
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TopicPartitions,
    TxnOffsetCommitRequest,
)
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from sim.transaction_play import TransactionPlay

# From these versions on they speak of generation 2.
REPEATED: dict[type[Message], int] = {ProduceRequest: 12, EndTxnRequest: 5, TxnOffsetCommitRequest: 5}


class Said(NamedTuple):
    message: Message
    version: int
    address: str


@contextlib.contextmanager
def overheard() -> Iterator[list[Said]]:
    """All requests of transactions of generation 2, from here to the end of the block."""
    said: list[Said] = []
    usual = Connection.request

    async def request(
        self: Connection,
        message: Message,
        timeout_s: float = REQUEST_SECONDS,
        version: int | None = None,
        go_on: GoOn | None = None,
    ) -> Any:
        if type(message) in REPEATED:
            spoken = self.version_of(type(message)) if version is None else version
            if spoken >= REPEATED[type(message)]:
                said.append(Said(message, spoken, self.address))
        return await usual(self, message, timeout_s, version, go_on)

    Connection.request = request  # type: ignore[method-assign]
    try:
        yield said
    finally:
        Connection.request = usual  # type: ignore[method-assign]


class Echo:
    """Repeats what was said in generation 2, which must be able to stand that at any time."""

    def __init__(self, play: TransactionPlay, said: list[Said]) -> None:
        self.play, self.said = play, said
        self.rng: random.Random = play.loop.chance("echo")

    async def run(self) -> None:
        with self.play.client("echo") as cluster:
            while not self.play.finishing:
                if self.said:
                    await self.repeat(cluster, self.choose())
                await asyncio.sleep(self.rng.expovariate(1 / 0.05))

    def choose(self) -> Said:
        """Mostly something that was said a moment ago: the next transaction may just have begun."""
        back = min(len(self.said), 1 + int(self.rng.expovariate(1 / 8)))
        said = self.said[-back]
        if isinstance(said.message, EndTxnRequest) and self.rng.random() < 0.3:
            return self.adding(said.message, said.address)
        return said

    def adding(self, end: EndTxnRequest, address: str) -> Said:
        """Clients of generation 2 add nothing themselves; one that did would be as late."""
        if self.rng.random() < 0.5:
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=end.transactional_id,
                v3_and_below_producer_id=end.producer_id,
                v3_and_below_producer_epoch=end.producer_epoch,
                v3_and_below_topics=[TopicPartitions(name="other", partitions=[0])],
            )
            return Said(add, 3, address)
        offsets = AddOffsetsToTxnRequest(
            transactional_id=end.transactional_id,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            group_id="copiers",
        )
        return Said(offsets, 4, address)

    async def repeat(self, cluster: Cluster, said: Said) -> None:
        """To whom it was said, whoever is asked such things by now."""
        self.play.story.faults[f"late {type(said.message).__name__}"] += 1
        host, _, port = said.address.rpartition(":")
        with contextlib.suppress(KafkaError, OSError):
            connection = await cluster._connect((host, int(port)))
            await connection.request(said.message, version=said.version)
