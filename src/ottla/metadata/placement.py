"""Where the replicas of new partitions go.

In this order: no two of a partition on one broker; the first, which leads, on a broker that is there; the others in as many
different racks as there are; on brokers that are there rather than on fenced ones; and all of it even. Racks lead in turn, and
within a rack its brokers; followers go where there is least, and next to leaders they are not with yet, so that the
leaderships of a broker that fails go to many.

Brokers on one host share a rack, so copies go to different hosts when there are several. Brokers without a rack are one rack
together. A broker that is about to stop, or that has cordoned all its directories, gets nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ottla.metadata.decisions import Chance
from ottla.metadata.image import Broker, Image
from ottla.wire.errors import Error, KafkaError


class Rack(NamedTuple):
    """The brokers of one rack, each list in the order in which they have their turn."""

    live: list[int]
    fenced: list[int]


def spread(image: Image, count: int, factor: int, rng: Chance) -> list[list[int]]:
    """The replicas of `count` new partitions; the first of each leads."""
    usable = [broker for broker in image.brokers.values() if _is_usable(broker)]
    _check(usable, factor)
    racks = _racks(usable, rng)
    spreading = Spreading(racks, rng.randrange(len(racks)))
    return [spreading.place(factor) for _ in range(count)]


def _is_usable(broker: Broker) -> bool:
    if broker.in_controlled_shutdown:
        return False
    return not broker.directories or broker.cordoned is None or not set(broker.directories) <= set(broker.cordoned)


def _check(usable: list[Broker], factor: int) -> None:
    if all(broker.fenced for broker in usable):
        raise unable(factor, "All brokers are currently fenced, or have all their log directories cordoned.")
    if factor > len(usable):
        raise unable(
            factor,
            f"The target replication factor of {factor} cannot be reached because only {len(usable)} broker(s) are "
            "registered or some brokers have all their log directories cordoned.",
        )


def unable(factor: int, why: str) -> KafkaError:
    return KafkaError(Error.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {factor} time(s): {why}")


def _racks(usable: Iterable[Broker], rng: Chance) -> list[Rack]:
    """Racks by name. Within each the turn begins anywhere."""
    racks: dict[str, Rack] = {}
    for broker in sorted(usable, key=lambda broker: (broker.rack or "", broker.id)):
        rack = racks.setdefault(broker.rack or "", Rack([], []))
        (rack.fenced if broker.fenced else rack.live).append(broker.id)
    return [Rack(_turned(rack.live, rng), _turned(rack.fenced, rng)) for rack in racks.values()]


def _turned(ids: list[int], rng: Chance) -> list[int]:
    start = rng.randrange(len(ids)) if ids else 0
    return ids[start:] + ids[:start]


class Spreading:
    """Places one partition after the other, and remembers what went where."""

    def __init__(self, racks: list[Rack], turn: int) -> None:
        self._racks = racks
        self._leading = [rack for rack in racks if rack.live]
        self._turn = turn
        self._led: Counter[int] = Counter()
        self._held: Counter[int] = Counter()
        self._together: Counter[tuple[int, int]] = Counter()

    def place(self, factor: int) -> list[int]:
        rack = self._leading[self._turn % len(self._leading)]
        self._turn += 1
        leader = min(rack.live, key=self._led.__getitem__)  # of several the first
        replicas, without = [leader], [other for other in self._racks if other is not rack]
        while len(replicas) < factor:
            candidates = _free(without, replicas)
            if not candidates:  # each rack has one: the next round
                without = list(self._racks)
                continue
            follower = self._follower(leader, candidates)
            without.remove(next(rack for rack in without if follower in rack.live or follower in rack.fenced))
            replicas.append(follower)
        self._note(replicas)
        return replicas

    def _follower(self, leader: int, candidates: list[int]) -> int:
        """Who holds least so far; to be with this leader again weighs as much as to hold two more."""

        def weight(broker: int) -> int:
            return self._held[broker] + 2 * self._together[leader, broker]

        return min(candidates, key=weight)

    def _note(self, replicas: list[int]) -> None:
        leader = replicas[0]
        self._led[leader] += 1
        self._held.update(replicas)
        self._together.update((leader, follower) for follower in replicas[1:])


def _free(racks: list[Rack], taken: list[int]) -> list[int]:
    """Who of these racks could hold one more: those that are there, or else the fenced ones."""
    live = [broker for rack in racks for broker in rack.live if broker not in taken]
    return live or [broker for rack in racks for broker in rack.fenced if broker not in taken]
