"""Markers for partitions that other brokers lead, brought there by WriteTxnMarkers.

There is one courier for each broker. It has one request under way; what it is given meanwhile goes with the next ones, so
that many transactions that end together cost few requests. An answer names producers, not transactions: two markers of one
producer never travel together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ottla.log.producers import Marker
from ottla.wire.errors import KafkaError
from ottla.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from ottla.server.node import Node

# A broker takes only so much in one request, and closes the connection otherwise (`MEMORY_FREE`, `PLAIN_BYTES_MAX`): markers
# that are too many together would be tried again, together, for ever. Fewer also leave the others there their turn.
PLACES_MAX = 1000

Place = tuple[str, int]
Codes = dict[Place, int]
Load = WriteTxnMarkersRequest.Marker


class Parcel(NamedTuple):
    marker: Marker
    places: list[Place]
    receipt: asyncio.Future[Codes]


class Courier:
    def __init__(self, node: Node, broker_id: int) -> None:
        self._node = node
        self._line = node.peers.line("markers", broker_id)
        self._waiting: deque[Parcel] = deque()
        self._load: dict[int, Parcel] = {}
        self._is_out = False

    def bring(self, marker: Marker, places: list[Place]) -> asyncio.Future[Codes]:
        """Error codes by place. Places that nobody answered for are missing."""
        receipt: asyncio.Future[Codes] = self._node.loop.create_future()
        self._waiting.append(Parcel(marker, places, receipt))
        if not self._is_out:
            self._is_out = True
            self._node.spawn(self._go())
        return receipt

    def give_up(self) -> None:
        """The broker is thought dead: nobody knows what became of what is under way, and the rest is not sent."""
        parcels = [*self._load.values(), *self._waiting]
        self._waiting.clear()
        for parcel in parcels:
            _sign(parcel, {})

    async def _go(self) -> None:
        try:
            while self._waiting:
                self._load = self._next_load()
                await self._deliver(self._load)
        finally:
            self._load = {}
            self._is_out = False

    def _next_load(self) -> dict[int, Parcel]:
        """By producer."""
        load: dict[int, Parcel] = {}
        left = PLACES_MAX
        for parcel in list(self._waiting):
            if parcel.marker.producer_id in load:
                continue
            left -= len(parcel.places)
            if left < 0 and load:
                break
            load[parcel.marker.producer_id] = parcel
            self._waiting.remove(parcel)
        return load

    async def _deliver(self, load: dict[int, Parcel]) -> None:
        request = WriteTxnMarkersRequest(markers=[_packed(parcel) for parcel in load.values()])
        try:
            answer = await self._line.ask(request, self._node.config["request.timeout.ms"] / 1000)
            told = _unpacked(answer)
        except (OSError, KafkaError):
            told = {}
        for producer_id, parcel in load.items():
            _sign(parcel, told.get(producer_id, {}))


def portions(places: list[Place]) -> Iterator[list[Place]]:
    """As many as go into one request."""
    return (places[first : first + PLACES_MAX] for first in range(0, len(places), PLACES_MAX))


def _sign(parcel: Parcel, codes: Codes) -> None:
    if not parcel.receipt.done():
        parcel.receipt.set_result(codes)


def _packed(parcel: Parcel) -> Load:
    topics: dict[str, Load.Topic] = {}
    for name, index in parcel.places:
        topics.setdefault(name, Load.Topic(name=name, partition_indexes=[])).partition_indexes.append(index)
    marker = parcel.marker
    return Load(
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        transaction_result=marker.committed,
        topics=list(topics.values()),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _unpacked(answer: WriteTxnMarkersResponse) -> dict[int, Codes]:
    return {
        each.producer_id: {
            (topic.name, partition.partition_index): partition.error_code
            for topic in each.topics
            for partition in topic.partitions
        }
        for each in answer.markers
    }
