"""What a node tells of its groups, read when somebody looks: how many in which state, and how far they are behind.

How far a group is behind is worked out from its committed offsets and the ends of the partitions that this node leads. A
scrape must not hold up the loop, so it looks at so many offsets and no more; whoever has more asks for each group
(`kafka-consumer-groups.sh --describe`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ottla.coordination.groups import Groups

if TYPE_CHECKING:
    from ottla.server.node import Node

OFFSETS_LOOKED_AT_MAX = 5_000


def declare_group_readings(node: Node) -> None:
    measures = node.measures
    measures.groups.read = lambda: list(_states(node).items())
    measures.group_lag.read = lambda: list(_lags(node).items())
    measures.groups_loading.read = lambda: sum(shard.machine is None for shard in node.groups.all())


def _loaded(node: Node) -> Iterator[Groups]:
    return (shard.machine.state for shard in node.groups.all() if shard.machine is not None)


def _states(node: Node) -> Counter[tuple[str, str]]:
    return Counter((group.kind, group.state) for groups in _loaded(node) for group in groups.by_id.values())


def _lags(node: Node) -> dict[tuple[str, str], int]:
    lags: dict[tuple[str, str], int] = {}
    committed = (
        (group_id, topic, index, commit.offset)
        for groups in _loaded(node)
        for group_id in groups.offsets.by_group
        for topic, index, commit in groups.offsets.all_of(group_id)
    )
    for group_id, topic, index, offset in islice(committed, OFFSETS_LOOKED_AT_MAX):
        hosted = node.replicas.by_name.get(topic)
        if hosted is not None and index in hosted.partitions:
            behind = max(hosted.partitions[index].high_watermark.value - offset, 0)
            lags[group_id, topic] = lags.get((group_id, topic), 0) + behind
    return lags
