"""Three nodes on this machine: three copies of everything, two of which must have a record before it is acknowledged.

What a single node is measured by, once more with copies; and what only a cluster can be asked: how long nobody answers after
the leader was killed, and what many partitions cost when they are made, lose a node and start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from apache import kafka
from bench import client, drivers
from bench.drivers import CannotMeasure, Figures
from bench.scenes import PARTITIONS, REQUEST_WARM_UPS, Size, Tally, attempt, costed, rounds
from cluster.nodes import ApacheMember, Cluster, Member
from harness import Node, Server

LINES = frozenset(
    {
        *("cluster-produce-100", "cluster-produce-1k", "cluster-one", "cluster-ack-p50", "cluster-ack-p99"),
        *("cluster-start", "cluster-memory", "cluster-idle-cpu", "cluster-failover", "cluster-failover-worst"),
    }
)
METADATA_LINES = frozenset({"cluster-create", "cluster-failover-leaders", "cluster-restart"})
KILLS, KILLS_QUICK = 20, 2
IDLE_SECONDS = 10.0
NODES = (1, 2, 3)
SECONDS_MAX = 300.0
# Connections, and requests under way on each.
WARMING = (20, 5)


class MeasuredApache(ApacheMember):
    flags = kafka.MEASURED


class Door(Server):
    """All nodes as one server: loads begin at any of them, and pay with the processors and the memory of all."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.directory = cluster.directory

    @property
    def address(self) -> str:
        return self._cluster.bootstrap

    def rss_bytes(self) -> int:
        return sum(member.rss_bytes() for member in self._cluster.running)

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self._cluster.running)

    def must_live(self) -> None:
        for member in self._cluster.members.values():
            member.must_live()


@contextmanager
def three_like(server: Server) -> Iterator[Cluster]:
    """Three nodes of the kind that is measured, formatted and started."""
    kind: type[Member] = Member if isinstance(server, Node) else MeasuredApache
    with Cluster(Path(server.directory).parent / "cluster", kinds=dict.fromkeys(NODES, kind)) as nodes:
        nodes.start()
        yield nodes


def cluster(server: Server, size: Size, tally: Tally) -> None:
    with three_like(server) as nodes:
        door = Door(nodes)
        idle(door, tally, size)
        bulk_loads(door, size, tally)
        one_at_a_time(nodes, size, tally)
        latencies(door, size, tally)
        if tally.wants("cluster-memory"):
            tally.add("cluster-memory", door.rss_bytes() / 1e6)
        failovers(nodes, size, tally)
        starts(nodes, size, tally)


def idle(door: Door, tally: Tally, size: Size) -> None:
    """Of one node, on average, with a topic that nobody uses."""
    if not tally.wants("cluster-idle-cpu"):
        return
    client.make_topic(door, "idle", PARTITIONS)
    time.sleep(3)
    for _ in range(size.repeats):
        before, begun = door.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS if size.repeats > 1 else 2)
        used = (door.cpu_seconds() - before) / (time.monotonic() - begun)
        tally.add("cluster-idle-cpu", 100 * used / len(NODES))


def bulk_loads(door: Door, size: Size, tally: Tally) -> None:
    for name, count, value in (("100", size.messages_100, 100), ("1k", size.messages_1k, 1024)):
        key = f"cluster-produce-{name}"
        if not tally.wants(key):
            continue
        with attempt(tally, key):
            client.make_topic(door, f"bulk-{name}", PARTITIONS)
            for counts in rounds(size):
                figures = costed(door, _bulk(door, f"bulk-{name}", count, value))
                if counts:
                    tally.add_rate(key, figures)


def _bulk(door: Door, topic: str, count: int, value: int) -> Callable[[], Figures]:
    return lambda: drivers.bulk(door, "produce", topic, PARTITIONS, count, value)


def one_at_a_time(nodes: Cluster, size: Size, tally: Tally) -> None:
    """One connection to the leader; the next record is sent when the last one is acknowledged.

    So few requests come that way that a JIT compiler would go on learning for minutes: many connections teach it first."""
    if not tally.wants("cluster-one"):
        return
    with attempt(tally, "cluster-one"):
        nodes.create("one")
        leader = nodes.members[nodes.leader("one")]
        for _ in range(REQUEST_WARM_UPS):
            drivers.raw(leader, "produce", "one", size.seconds, *WARMING, 1, 100)
        for counts in rounds(size):
            figures = costed(Door(nodes), lambda: drivers.raw(leader, "produce", "one", size.seconds, 1, 1, 1, 100))
            if counts:
                tally.add_rate("cluster-one", figures)


def latencies(door: Door, size: Size, tally: Tally) -> None:
    if not tally.wants("cluster-ack-p50", "cluster-ack-p99"):
        return
    with attempt(tally, "cluster-ack-p50"):
        client.make_topic(door, "paced")
        for counts in rounds(size):
            figures = drivers.bulk(door, "ack", "paced", 1000, size.latency_seconds, 100)
            if counts:
                tally.add("cluster-ack-p50", figures["p50_us"])
                tally.add("cluster-ack-p99", figures["p99_us"])


# --- failing over


def failovers(nodes: Cluster, size: Size, tally: Tally) -> None:
    """kill -9 of the leader, until whoever leads then acknowledges a record."""
    if not tally.wants("cluster-failover", "cluster-failover-worst"):
        return
    nodes.create("failing")
    gaps = []
    for _ in range(KILLS if size.repeats > 1 else KILLS_QUICK):
        nodes.wait_in_sync("failing")
        leader = nodes.leader("failing")
        first_ack(nodes, "failing")
        nodes.members[leader].kill()
        gaps.append(first_ack(nodes, "failing"))
        tally.add("cluster-failover", gaps[-1])
        nodes.members[leader].start()
    tally.add("cluster-failover-worst", max(gaps))
    nodes.wait_in_sync("failing")


def first_ack(nodes: Cluster, topic: str) -> float:
    """Ask every node again and again to append a record, until one has done it; for how long that went on."""
    begun = time.monotonic()
    while time.monotonic() < begun + SECONDS_MAX:
        if any(client.is_acknowledged(member, topic) for member in nodes.running):
            return time.monotonic() - begun
        time.sleep(0.005)
    raise CannotMeasure(f"no ack in {SECONDS_MAX} s")


def starts(nodes: Cluster, size: Size, tally: Tally) -> None:
    """From a clean stop of all three."""
    if not tally.wants("cluster-start"):
        return
    nodes.create("first")
    for _ in range(size.repeats):
        nodes.stop()
        begun = time.monotonic()
        nodes.launch()
        first_ack(nodes, "first")
        tally.add("cluster-start", time.monotonic() - begun)
        nodes.wait_ready()


# --- many partitions


def cluster_metadata(server: Server, size: Size, tally: Tally) -> None:
    """Thousands of partitions with three copies each: to make them, to lose a node that leads a third, to start it again."""
    with three_like(server) as nodes:
        topics = [f"many-{n}" for n in range(max(1, size.partitions // 1000))]
        each = size.partitions // len(topics)
        begun = time.monotonic()
        for topic in topics:
            nodes.create(topic, each)
        tally.add("cluster-create", time.monotonic() - begun)
        for topic in topics:
            nodes.wait_in_sync(topic, seconds=SECONDS_MAX)
        nodes.members[3].kill()
        begun = time.monotonic()
        while any(_is_led_by(nodes, topic, 3) for topic in topics):
            time.sleep(0.02)
        tally.add("cluster-failover-leaders", time.monotonic() - begun)
        begun = time.monotonic()
        nodes.members[3].start(SECONDS_MAX)
        for topic in topics:
            nodes.wait_in_sync(topic, seconds=SECONDS_MAX)
        tally.add("cluster-restart", time.monotonic() - begun)


def _is_led_by(nodes: Cluster, topic: str, node_id: int) -> bool:
    return any(part.leader_id in (-1, node_id) for part in nodes.partitions(topic, 1))
