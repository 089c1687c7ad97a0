"""What a node tells of the quorum, of the brokers and of its copies, read when somebody looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ottla.metadata.image import Broker
from ottla.replication.follower import Fetcher

if TYPE_CHECKING:
    from ottla.server.node import Node

Labelled = tuple[tuple[str], float]


def declare_cluster_readings(node: Node) -> None:
    measures, quorum, in_sync = node.measures, node.quorum, node.replicas.in_sync
    measures.quorum_leader.read = lambda: quorum.leader_id
    measures.quorum_role.read = lambda: [((_role(node),), 1)]
    measures.quorum_voters.read = lambda: len(quorum.voters.voters)
    measures.quorum_observers.read = lambda: len(_progress(node)[1])
    measures.quorum_watermark.read = lambda: quorum.consensus.replica.high_watermark
    measures.quorum_lag.read = lambda: list(_lags(node))
    measures.brokers.read = lambda: [((state,), count) for state, count in _standing(node).items()]
    measures.replica_fetches.read = _of_each(node, lambda fetcher: fetcher.fetches)
    measures.replica_bytes.read = _of_each(node, lambda fetcher: fetcher.bytes_in)
    measures.replica_lag.read = _of_each(node, lambda it: max((each.lag for each in it.followed.values()), default=0))
    measures.replica_failing.read = _of_each(node, lambda it: sum(each.failures > 0 for each in it.followed.values()))
    measures.isr_expanded.read = lambda: in_sync.expanded
    measures.isr_shrunk.read = lambda: in_sync.shrunk
    measures.isr_failed.read = lambda: in_sync.failed


def _role(node: Node) -> str:
    """As Apache Kafka names the state of a replica; who does not vote observes, whatever else it is."""
    replica = node.quorum.consensus.replica
    return type(replica.role).__name__.lower() if replica.is_voter else "observer"


def _progress(node: Node) -> tuple[dict[int, int], dict[int, int]]:
    """Up to where voters and observers have the metadata, by their ids; nobody but the leader knows that."""
    consensus = node.quorum.consensus
    voters, observers = consensus.replica.progress(consensus.now_ms())
    return {key.id: it.end for key, it in voters.items()}, {key.id: it.end for key, it in observers.items()}


def _lags(node: Node) -> Iterator[Labelled]:
    voters, observers = _progress(node)
    for node_id, end in {**observers, **voters}.items():
        if node_id != node.config.node_id:
            yield (str(node_id),), max(node.quorum.store.end_offset - max(end, 0), 0)


def _standing(node: Node) -> dict[str, int]:
    counts = Counter(_state(broker) for broker in node.quorum.image.brokers.values())
    return {state: counts[state] for state in ("active", "fenced", "stopping")}


def _state(broker: Broker) -> str:
    return "fenced" if broker.fenced else "stopping" if broker.in_controlled_shutdown else "active"


def _of_each(node: Node, number: Callable[[Fetcher], float]) -> Callable[[], list[Labelled]]:
    fetchers = node.replicas.fetchers.by_leader
    return lambda: [((str(leader),), number(fetcher)) for leader, fetcher in sorted(fetchers.items())]
