"""How the coordinator divides partitions among the members of a consumer group (KIP-848).

An assignor is a plain function from what is so to what is to be: the members with the topics they subscribe to and their
present targets, and how many partitions each topic has. It gives every member its new target. Every partition of a topic
that somebody subscribes to gets exactly one owner, who subscribes to it.

`uniform` spreads partitions evenly and moves as few as possible. When all members subscribe to the same topics, sizes differ
by one at most. When they do not, it goes on until no partition can move from a member to another one, that subscribes to
it too, and has at least two fewer.
`range` gives each member consecutive partitions of each topic, in the order of instance ids (static members come first) and
member ids. Topics with equal partition counts and equal subscribers are divided at the same places, so that joins find their
keys; it does not care where partitions were.

Racks play no part, as in Apache Kafka 4.3.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from ottla.coordination.consumer_member import Target

UNIFORM, RANGE = "uniform", "range"

Partition = tuple[bytes, int]
Owners = dict[Partition, str]


class Candidate(NamedTuple):
    """A member, for whom an assignor looks for partitions."""

    instance_id: str | None
    topics: Set[bytes]  # ids of the topics that it subscribes to; all of them exist
    target: Target  # what it was to have so far


Candidates = Mapping[str, Candidate]
Counts = Mapping[bytes, int]
Targets = dict[str, dict[bytes, frozenset[int]]]


def uniform(members: Candidates, partitions: Counts) -> Targets:
    alike = len({frozenset(member.topics) for member in members.values()}) == 1
    owners = _kept(members, partitions)
    if alike:
        _fill_to_quota(owners, members, partitions)
    else:
        _spread(owners, members, partitions)
    return _targets(owners, members)


def range_(members: Candidates, partitions: Counts) -> Targets:
    in_order = sorted(members, key=lambda m: _rank(m, members[m].instance_id))
    subscribers: dict[bytes, list[str]] = {}
    for member_id in in_order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    targets: Targets = {member_id: {} for member_id in members}
    for topic_id in sorted(subscribers):
        for member_id, part in _ranges(subscribers[topic_id], partitions[topic_id]):
            targets[member_id][topic_id] = part
    return targets


def _rank(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (True, member_id) if instance_id is None else (False, instance_id)


def _ranges(member_ids: list[str], count: int) -> list[tuple[str, frozenset[int]]]:
    """Consecutive partitions for each; the first ones get one more when it does not come out even."""
    each, more = divmod(count, len(member_ids))
    parts, start = [], 0
    for position, member_id in enumerate(member_ids):
        end = start + each + (position < more)
        if end > start:
            parts.append((member_id, frozenset(range(start, end))))
        start = end
    return parts


# --- uniform


def _kept(members: Candidates, partitions: Counts) -> Owners:
    """What members have already, as far as it exists and they still subscribe to it; each partition once."""
    owners: Owners = {}
    for member_id in sorted(members):
        member = members[member_id]
        for topic_id in sorted(member.target):
            if topic_id in member.topics:
                for index in sorted(member.target[topic_id]):
                    if index < partitions[topic_id]:
                        owners.setdefault((topic_id, index), member_id)
    return owners


def _fill_to_quota(owners: Owners, members: Candidates, partitions: Counts) -> None:
    """All subscribe to the same: each gets its share, and the ones that have most already get the odd ones."""
    wanted = _all_partitions(next(iter(members.values())).topics, partitions)
    kept: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition, member_id in owners.items():
        kept[member_id].append(partition)
    each, more = divmod(len(wanted), len(members))
    # Whoever keeps more than its share loses the excess, so the larger shares go to those who have more.
    by_size = sorted(members, key=lambda m: (-len(kept[m]), m))
    share = {member_id: each + (position < more) for position, member_id in enumerate(by_size)}
    for member_id, own in kept.items():
        for partition in own[share[member_id] :]:
            del owners[partition]
    free = iter([partition for partition in wanted if partition not in owners])
    for member_id in by_size:
        for _ in range(share[member_id] - len(kept[member_id])):
            owners[next(free)] = member_id


def _all_partitions(topics: Set[bytes], partitions: Counts) -> list[Partition]:
    return [(topic_id, index) for topic_id in sorted(topics) for index in range(partitions[topic_id])]


def _spread(owners: Owners, members: Candidates, partitions: Counts) -> None:
    """Members subscribe to different topics: free partitions go to whoever has least, then the difference is evened out."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    load = dict.fromkeys(members, 0)
    for member_id in owners.values():
        load[member_id] += 1
    # Topics with few subscribers first: the others can make up for it.
    order = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
    for topic_id in order:
        _hand_out(topic_id, owners, subscribers[topic_id], load, partitions)
    while sum(_even_out(topic_id, owners, subscribers[topic_id], load, partitions) for topic_id in order):
        pass


def _hand_out(topic_id: bytes, owners: Owners, among: list[str], load: dict[str, int], partitions: Counts) -> None:
    poorest = [(load[member_id], member_id) for member_id in among]
    heapq.heapify(poorest)
    for index in range(partitions[topic_id]):
        if (topic_id, index) not in owners:
            size, member_id = poorest[0]
            owners[topic_id, index] = member_id
            load[member_id] = size + 1
            heapq.heapreplace(poorest, (size + 1, member_id))


def _even_out(topic_id: bytes, owners: Owners, among: list[str], load: dict[str, int], partitions: Counts) -> bool:
    """Move partitions of one topic from members with much to members with little. Each move brings two loads closer
    together, so this comes to an end."""
    own: dict[str, list[int]] = {}
    for index in range(partitions[topic_id]):
        own.setdefault(owners[topic_id, index], []).append(index)
    has_moved = False
    while own:
        least = min(among, key=lambda m: (load[m], m))
        most = max(own, key=lambda m: (load[m], m))
        if load[most] - load[least] < 2:
            break
        index = own[most].pop()
        if not own[most]:
            del own[most]
        owners[topic_id, index] = least
        own.setdefault(least, []).append(index)
        load[most] -= 1
        load[least] += 1
        has_moved = True
    return has_moved


def _targets(owners: Owners, members: Candidates) -> Targets:
    found: dict[str, dict[bytes, list[int]]] = {member_id: {} for member_id in members}
    for (topic_id, index), member_id in sorted(owners.items()):
        found[member_id].setdefault(topic_id, []).append(index)
    return {
        member_id: {topic_id: frozenset(those) for topic_id, those in topics.items()}
        for member_id, topics in found.items()
    }


ASSIGNORS: dict[str, Callable[[Candidates, Counts], Targets]] = {UNIFORM: uniform, RANGE: range_}
# Apache Kafka takes class names in `group.consumer.assignors` as well.
CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UNIFORM,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RANGE,
}


def named(setting: list[str]) -> list[str]:
    """The assignors of `group.consumer.assignors`, the default one first. Classes that users wrote cannot be loaded here."""
    names = [CLASSES.get(name, name) for name in setting]
    return [name for name in names if name in ASSIGNORS] or [UNIFORM]
