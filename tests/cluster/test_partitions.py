"""Nodes that cannot hear each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.conftest import KIND
from cluster.loads import Writer
from cluster.network import Network
from cluster.nodes import STATIC, Cluster, eventually

# Sooner than by default, because a test waits for it.
IMPATIENT = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Network]]:
    directory: Path = tmp_path_factory.mktemp("parted")
    made = Cluster(directory, quorum=STATIC, settings=IMPATIENT, kinds=dict.fromkeys((1, 2, 3), KIND))
    with Network(made) as network, made:
        made.start()
        yield made, network


def test_a_leader_is_cut_off_and_comes_back(parted: tuple[Cluster, Network]) -> None:
    """REP-14, REP-17, OPS-05 (broker unreachable): alone it acknowledges nothing; the others lead on, and it follows them
    when the road is open again."""
    nodes, network = parted
    nodes.create("parted", 1)
    with Writer(nodes.bootstrap, "parted", 1) as writer:
        writer.wait_for(200)
        leader = nodes.leader("parted")
        others = {1, 2, 3} - {leader}
        network.isolate(leader)
        eventually(lambda: int(nodes.partitions("parted", min(others))[0].leader_id) in others, "another leads")
        writer.wait_for(100)
        network.heal()
        nodes.wait_brokers({1, 2, 3})
        nodes.wait_in_sync("parted")
        writer.wait_for(100)
        writer.finish()
    writer.check(nodes.bootstrap)


def test_an_active_controller_that_is_not_heard(parted: tuple[Cluster, Network]) -> None:
    """KRF-01, KRF-18: it hears the others but reaches nobody, so another takes over, and it gives way."""
    nodes, network = parted
    before, epoch = nodes.active_controller(), int(nodes.quorum_state().leader_epoch)
    others = sorted({1, 2, 3} - {before})
    network.cut(*((before, n) for n in others))

    def is_replaced() -> bool:
        state = nodes.quorum_state(others[0])
        return int(state.leader_epoch) > epoch and int(state.leader_id) in others

    eventually(is_replaced, "another leads the metadata")
    network.heal()
    nodes.wait_brokers({1, 2, 3})
    nodes.create("after-the-silence", 1)
