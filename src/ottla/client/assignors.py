"""How the leader of a classic group divides partitions among members. No I/O: subscriptions and counts in, a plan out.

`range` gives each member consecutive partitions of each topic, so that partition n of two topics lies with one member.
`roundrobin` deals all partitions like cards. Both are *eager*: everybody gives up everything before the next round.

`cooperative-sticky` starts from what everybody owns and moves as little as balance allows. It is *cooperative*: members
keep reading while the group rebalances, so a partition must not be given to one member before another has let go of it.
A partition that changes hands is therefore left out of this round; who had it sees that it is gone, lets go and joins
again, and the next round gives it away (KIP-429).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.cluster import TopicPartition
from ottla.wire.codec import Malformed
from ottla.wire.messages.subscriptions import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    packed,
    unpacked,
)

Plan = dict[str, list[TopicPartition]]
GENERATION_BYTES = 4


class Subscription(NamedTuple):
    """A member as the leader sees it."""

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None


Members = Mapping[str, Subscription]
Counts = Mapping[str, int]


class Assignor(NamedTuple):
    name: str
    assign: Callable[[Members, Counts], Plan]
    is_cooperative: bool = False


def range_assign(members: Members, counts: Counts) -> Plan:
    plan: Plan = {member: [] for member in members}
    for topic in sorted(counts):
        takers = [member for member in _in_order(members) if topic in members[member].topics]
        if not takers:
            continue
        each, more = divmod(counts[topic], len(takers))
        start = 0
        for i, member in enumerate(takers):
            end = start + each + (i < more)
            plan[member] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return plan


def round_robin_assign(members: Members, counts: Counts) -> Plan:
    plan: Plan = {member: [] for member in members}
    ring = _in_order(members)
    turn = 0
    for topic in sorted(counts):
        if not any(topic in members[member].topics for member in ring):
            continue
        for partition in range(counts[topic]):
            while topic not in members[ring[turn % len(ring)]].topics:
                turn += 1
            plan[ring[turn % len(ring)]].append(TopicPartition(topic, partition))
            turn += 1
    return plan


def cooperative_sticky_assign(members: Members, counts: Counts) -> Plan:
    owners = _owners(members, counts)
    plan: Plan = {member: [] for member in _in_order(members)}
    for where, owner in owners.items():
        plan[owner].append(where)
    _deal_out(plan, [where for where in _partitions(counts) if where not in owners], members)
    _even_out(plan, members)
    return {member: sorted(w for w in got if owners.get(w, member) == member) for member, got in plan.items()}


def _in_order(members: Members) -> list[str]:
    """As Java's client sorts members: static ones first, by instance; the others by id."""
    return sorted(members, key=lambda member: _rank(member, members[member].instance_id))


def _rank(member: str, instance: str | None) -> tuple[bool, str]:
    return (True, member) if instance is None else (False, instance)


def _partitions(counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic in sorted(counts) for partition in range(counts[topic])]


def _owners(members: Members, counts: Counts) -> dict[TopicPartition, str]:
    """Who owns what. Of two who claim a partition, the one of the later generation is right; of the same one, neither."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member in _in_order(members):
        subscription = members[member]
        for where in subscription.owned:
            if where.topic in subscription.topics and where.partition < counts.get(where.topic, 0):
                claims.setdefault(where, []).append((subscription.generation, member))
    owners: dict[TopicPartition, str] = {}
    for where in sorted(claims):
        latest = max(generation for generation, _ in claims[where])
        claimants = [member for generation, member in claims[where] if generation == latest]
        if len(claimants) == 1:
            owners[where] = claimants[0]
    return owners


def _deal_out(plan: Plan, free: list[TopicPartition], members: Members) -> None:
    for where in free:
        takers = [member for member in plan if where.topic in members[member].topics]
        if takers:
            plan[min(takers, key=lambda member: len(plan[member]))].append(where)


def _even_out(plan: Plan, members: Members) -> None:
    """Move partitions, one at a time, from who has most to who has least, while that makes a difference of two."""
    moved = True
    while moved:
        moved = any(_relieve(plan, members, member) for member in sorted(plan, key=lambda m: -len(plan[m])))


def _relieve(plan: Plan, members: Members, giver: str) -> bool:
    for where in reversed(plan[giver]):
        takers = [member for member in plan if where.topic in members[member].topics]
        taker = min(takers, key=lambda member: len(plan[member]), default=giver)
        if len(plan[giver]) - len(plan[taker]) >= 2:
            plan[giver].remove(where)
            plan[taker].append(where)
            return True
    return False


RANGE = Assignor("range", range_assign)
ROUND_ROBIN = Assignor("roundrobin", round_robin_assign)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", cooperative_sticky_assign, is_cooperative=True)
ASSIGNORS = {assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, COOPERATIVE_STICKY)}


def packed_subscription(subscription: Subscription) -> bytes:
    """The generation also goes where clients look for it that read the first versions only."""
    return packed(
        ConsumerProtocolSubscription(
            topics=list(subscription.topics),
            user_data=subscription.generation.to_bytes(GENERATION_BYTES, "big", signed=True),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in grouped(subscription.owned).items()
            ],
            generation_id=subscription.generation,
        )
    )


def read_subscription(data: bytes, instance_id: str | None) -> Subscription:
    said = unpacked(ConsumerProtocolSubscription, data) if data else ConsumerProtocolSubscription()
    owned = [TopicPartition(part.topic, p) for part in said.owned_partitions for p in part.partitions]
    generation = said.generation_id
    if generation < 0 and said.user_data is not None and len(said.user_data) == GENERATION_BYTES:
        generation = int.from_bytes(said.user_data, "big", signed=True)
    return Subscription(said.topics, owned, generation, instance_id)


def packed_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    parts = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in grouped(partitions).items()
    ]
    return packed(ConsumerProtocolAssignment(assigned_partitions=parts))


def read_assignment(data: bytes) -> list[TopicPartition]:
    """What a member was given; nothing when it is not written in the way of consumers."""
    try:
        parts = unpacked(ConsumerProtocolAssignment, data).assigned_partitions
    except Malformed:
        return []
    return [TopicPartition(part.topic, number) for part in parts for number in part.partitions]


def grouped(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    return topics
