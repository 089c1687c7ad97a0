"""Nodes that are killed, paused, restarted and wiped, while somebody writes and counts."""

from __future__ import annotations

import signal
import time

from cluster.conftest import StartCluster
from cluster.loads import Writer, read_all
from cluster.nodes import Cluster, eventually

PARTITIONS = 3


def test_the_leader_is_killed_under_load(three: Cluster) -> None:
    """REP-07, REP-11, REP-12, REP-14, REP-27, OPS-04 (broker crash): every acknowledged record is read once, in order."""
    three.create("killed", PARTITIONS)
    with Writer(three.bootstrap, "killed", PARTITIONS) as writer:
        writer.wait_for(200)
        leader = three.leader("killed")
        three.members[leader].kill()
        writer.wait_for(200)
        assert three.leader("killed") != leader
        three.members[leader].start()
        three.wait_in_sync("killed")
        writer.wait_for(200)
        writer.finish()
    assert writer.check(three.bootstrap) >= 600 * PARTITIONS


def test_the_active_controller_is_killed_with_what_it_leads(cluster: StartCluster) -> None:
    """REP-12, REP-23, KRF-12: whoever takes over has never heard of the broker that is gone, and finds it out nevertheless,
    long before its session is over."""
    nodes = cluster(settings={"broker.session.timeout.ms": "120000"})
    nodes.create("both", PARTITIONS)
    with Writer(nodes.bootstrap, "both", PARTITIONS) as writer:
        writer.wait_for(100)
        nodes.members[nodes.active_controller()].kill()
        writer.wait_for(100)
        writer.finish()
    writer.check(nodes.bootstrap)


def test_a_broker_dies_before_a_new_controller_has_heard_of_it(cluster: StartCluster) -> None:
    """REP-12, KRF-12: it answered the new controller's knock, and was not due to say anything by itself for a long time."""
    nodes = cluster(settings={"broker.session.timeout.ms": "300000", "broker.heartbeat.interval.ms": "100000"})
    nodes.create("unheard", PARTITIONS)
    with Writer(nodes.bootstrap, "unheard", PARTITIONS) as writer:
        writer.wait_for(50)
        first = nodes.active_controller()
        nodes.members[first].kill()
        writer.wait_for(50)
        nodes.members[first].start()
        nodes.wait_in_sync("unheard")
        unheard = next(n for n in nodes.members if n not in (first, nodes.active_controller()))
        nodes.members[unheard].kill()
        writer.wait_for(50)
        writer.finish()
    writer.check(nodes.bootstrap)


def test_a_follower_that_was_away_catches_up(three: Cluster) -> None:
    """REP-05, REP-06, REP-10: the in-sync set shrinks to two, commits go on, and it grows again; then the one that was away
    can lead."""
    three.create("caught-up", 1)
    leader = three.leader("caught-up")
    follower = next(n for n in three.members if n != leader)
    with Writer(three.bootstrap, "caught-up", 1) as writer:
        writer.wait_for(100)
        three.members[follower].kill()
        three.wait_in_sync("caught-up", set(three.members) - {follower})
        writer.wait_for(500)
        three.members[follower].start()
        three.wait_in_sync("caught-up")
        three.members[leader].kill()
        writer.wait_for(100)
        three.members[leader].start()
        three.wait_in_sync("caught-up")
        writer.finish()
    writer.check(three.bootstrap)


def test_rolling_restart_under_load(three: Cluster) -> None:
    """REP-12, REP-16: each node is stopped in good order and started again; a client that retries sees no error."""
    three.create("rolled", PARTITIONS)
    with Writer(three.bootstrap, "rolled", PARTITIONS) as writer:
        writer.wait_for(100)
        for member in three.members.values():
            assert member.stop(60) in (0, 128 + signal.SIGTERM)  # Java ends with the latter
            writer.wait_for(100)
            member.start()
            three.wait_in_sync("rolled")
        writer.wait_for(100)
        writer.finish()
    writer.check(three.bootstrap)


def test_a_wiped_disk_is_filled_again(cluster: StartCluster) -> None:
    """REP-20: the whole replica comes from the leaders. The node has forgotten whom it voted for, so it only listens to the
    quorum until somebody adds it."""
    nodes = cluster()
    nodes.create("wiped", PARTITIONS)
    with Writer(nodes.bootstrap, "wiped", PARTITIONS) as writer:
        writer.wait_for(300)
        wiped = nodes.leader("wiped")
        nodes.members[wiped].kill()
        nodes.wipe(wiped)
        nodes.members[wiped].start()
        nodes.wait_in_sync("wiped")
        writer.finish()
    writer.check(nodes.bootstrap)
    sizes = [list(map(len, log_bytes(nodes, n, "wiped"))) for n in nodes.members]
    eventually(lambda: len({tuple(log_bytes(nodes, n, "wiped")) for n in nodes.members}) == 1, f"equal logs: {sizes}")
    assert wiped in [int(observer.replica_id) for observer in nodes.quorum_state().observers]


def log_bytes(nodes: Cluster, node_id: int, topic: str) -> list[bytes]:
    """What the log files of a topic hold on one node, by partition."""
    parts = (nodes.members[node_id].directory / f"{topic}-{n}" for n in range(PARTITIONS))
    return [b"".join(path.read_bytes() for path in sorted(part.glob("*.log"))) for part in parts]


def test_a_node_that_is_only_slow_is_not_thrown_out(three: Cluster) -> None:
    """KRF-12: stopped for five seconds, with a session of nine. It does not lead the metadata: whoever does is replaced."""
    three.create("paused", 1)
    paused = next(n for n in three.members if n != three.active_controller())
    other = next(n for n in three.members if n != paused)
    three.members[paused].pause()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        assert three.brokers(other) == {1, 2, 3}
        time.sleep(0.25)
    three.members[paused].resume()
    three.wait_brokers({1, 2, 3})
    three.wait_in_sync("paused")


def test_two_of_three_are_killed_and_come_back(three: Cluster) -> None:
    """OPS-04 (in-sync set of one): below the minimum nothing is acknowledged to acks=all; nothing that was is lost."""
    three.create("minority", 1)
    with Writer(three.bootstrap, "minority", 1) as writer:
        writer.wait_for(200)
        gone = [n for n in three.members if n != three.leader("minority")]
        for n in gone:
            three.members[n].kill()
        for n in gone:
            three.members[n].launch()
        three.wait_ready()
        writer.wait_for(100)
        writer.finish()
    writer.check(three.bootstrap)


def test_all_are_killed_at_once(cluster: StartCluster) -> None:
    """OPS-08: power fails for everybody. With a node left standing records may be in memory only; here all were written."""
    nodes = cluster()
    nodes.create("dark", 1)
    with Writer(nodes.bootstrap, "dark", 1) as writer:
        writer.wait_for(200)
        for member in nodes.members.values():
            member.kill()
        nodes.launch()
        nodes.wait_ready()
        writer.wait_for(100)
        writer.finish()
    writer.check(nodes.bootstrap)
    assert sum(1 for _ in read_all(nodes.bootstrap, "dark", 0)) == writer.count
