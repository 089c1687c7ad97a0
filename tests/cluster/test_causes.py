"""Why a follower left the in-sync set: each cause shows in its own way (docs/metrics.md says where to look)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.apart import BROKERS, Counted, three_brokers
from cluster.conftest import KIND
from cluster.loads import Writer
from cluster.network import Network
from cluster.nodes import ApacheMember, Cluster, eventually
from operations.tracing import needs_strace, traced

LAG = {"replica.lag.time.max.ms": "2000", "replica.socket.timeout.ms": "1000"}
DELAY_US = 4_000_000


def longer_than(member: Counted, name: str, seconds: float) -> float:
    """How many observations of a histogram were longer than one of its bounds."""
    numbers = member.numbers()
    inside = {sample: value for sample, value in numbers.items() if sample.startswith(f"{name}_bucket")}
    bounds = {float(sample.partition('le="')[2].rstrip('"}').replace("Inf", "inf")): n for sample, n in inside.items()}
    return numbers[f"{name}_count"] - bounds[seconds]


def fetches(member: Counted, leader: int) -> float:
    return member.numbers()[f'ottla_replica_fetches_total{{leader="{leader}"}}']


def slow_disk(nodes: Cluster, follower: Counted, leader: int) -> None:
    before = longer_than(follower, "ottla_fsync_seconds", 2.5)
    file = str(follower.directory / "watched-0" / "00000000000000000000.log")
    slow = ("-P", file, "-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:delay_exit={DELAY_US}")
    with traced(follower, *slow):
        nodes.wait_in_sync("watched", set(BROKERS) - {follower.node_id})
        eventually(lambda: longer_than(follower, "ottla_fsync_seconds", 2.5) > before, "long fsyncs are counted")


def pause(nodes: Cluster, follower: Counted, leader: int) -> None:
    before = longer_than(follower, "ottla_loop_stall_seconds", 1.0)
    follower.pause()
    nodes.wait_in_sync("watched", set(BROKERS) - {follower.node_id})
    follower.resume()
    eventually(lambda: longer_than(follower, "ottla_loop_stall_seconds", 1.0) > before, "the stall is counted")


def cut(nodes: Cluster, network: Network, follower: Counted, leader: int) -> None:
    """Between the two alone: the controller hears of both, so nobody is fenced."""
    told = follower.log_text().count(f"broker {leader} was not reached")
    network.cut((leader, follower.node_id), (follower.node_id, leader))
    nodes.wait_in_sync("watched", set(BROKERS) - {follower.node_id})
    eventually(
        lambda: follower.log_text().count(f"broker {leader} was not reached") > told, "it says whom it cannot reach"
    )
    stood = fetches(follower, leader)
    assert nodes.brokers() == set(BROKERS) and fetches(follower, leader) == stood
    network.heal()
    eventually(lambda: fetches(follower, leader) > stood, "it copies again")


@pytest.mark.slow
def test_causes_are_told_apart(tmp_path: Path) -> None:
    """OPS-03, REP-05, REP-06: a slow disk shows in the durations of fsyncs, a pause in stalls of the loop, and a cut network
    in fetches that stand still while the log names who is not reached. Each time the leader counts a set that shrank."""
    if KIND is ApacheMember:
        pytest.skip("these are our own numbers")
    needs_strace()
    with three_brokers(tmp_path, LAG, Counted) as nodes, Network(nodes) as network:
        nodes.start()
        nodes.create("watched", 1, configs={"flush.messages": "1"})
        with Writer(nodes.bootstrap, "watched", 1, per_second=100) as writer:
            writer.wait_for(20)
            leader = nodes.leader("watched")
            follower, leading = nodes.members[next(n for n in BROKERS if n != leader)], nodes.members[leader]
            assert isinstance(follower, Counted) and isinstance(leading, Counted)
            for number, cause in enumerate((slow_disk, pause, cut)):
                words = (network, follower) if cause is cut else (follower,)
                cause(nodes, *words, leader)  # type: ignore[operator]
                nodes.wait_in_sync("watched", BROKERS)
                assert nodes.leader("watched") == leader
                eventually(
                    lambda least=number: leading.numbers()["ottla_isr_shrinks_total"] > least, "the leader counts it"
                )
            writer.wait_for(20)
            writer.finish()
        writer.check(nodes.bootstrap)
