"""Where groups and transactional ids are coordinated in a cluster, and how to take that away from a broker."""

from __future__ import annotations

from cluster.nodes import Cluster, eventually
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetFetchRequest, OffsetFetchResponse
from ottla.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.placement import ElectLeadersRequest, ElectLeadersResponse

GROUP, TRANSACTION = range(2)
INTERNAL = ("__consumer_offsets", "__transaction_state")


def coordinator_of(nodes: Cluster, name: str, kind: int = GROUP) -> int:
    """The running broker that coordinates a group or a transactional id."""
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])

    def coordinator() -> int:
        found = nodes.ask(lambda line: line.ask(request, FindCoordinatorResponse, 4)).coordinators[0]
        return int(found.node_id) if found.node_id in {member.node_id for member in nodes.running} else 0

    return int(eventually(coordinator, f"{name} has a coordinator"))


def committed(nodes: Cluster, group: str, topic: str, partitions: int) -> list[int]:
    """The offsets of a group as its coordinator knows them, without those of transactions that are not decided."""
    wanted = OffsetFetchRequest.Group.Topic(name=topic, partition_indexes=list(range(partitions)))
    asked = OffsetFetchRequest.Group(group_id=group, topics=[wanted])
    request = OffsetFetchRequest(groups=[asked], require_stable=True)

    def offsets() -> list[int]:
        coordinator = coordinator_of(nodes, group)
        answer = nodes.ask(lambda line: line.ask(request, OffsetFetchResponse, 8), coordinator).groups[0]
        parts = answer.topics[0].partitions if not answer.error_code else []
        if not parts or any(part.error_code for part in parts):
            return []
        return [int(part.committed_offset) for part in sorted(parts, key=lambda part: int(part.partition_index))]

    found: list[int] = eventually(offsets, f"the offsets of {group}")
    return found


def give_back(nodes: Cluster) -> None:
    """Preferred leaders lead again: coordinators move between brokers that live."""
    request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=10_000)
    answer = nodes.ask(lambda line: line.ask(request, ElectLeadersResponse, 2))
    assert answer.error_code in (0, Error.REQUEST_TIMED_OUT.code), answer
