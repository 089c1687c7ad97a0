"""Consumers read from the broker of their own rack (KIP-392), and from another when it is gone. All of a rack may be gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from cluster.apart import ANSWER_SECONDS, BROKERS, Counted, send, three_brokers
from cluster.conftest import KIND
from cluster.loads import Writer
from cluster.nodes import ApacheMember, Cluster, eventually

SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
SENT = 'ottla_topic_bytes_out_total{topic="near"}'


def start_in_racks(nodes: Cluster, racks: Iterable[Iterable[int]]) -> None:
    nodes.format()
    for number, rack in enumerate(racks):
        for n in rack:
            with nodes.members[n].properties.open("a") as file:
                file.write(f"broker.rack=rack-{number}\n")
    nodes.launch()
    nodes.wait_ready()


def values(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_a_consumer_reads_in_its_rack_and_elsewhere_when_that_is_gone(tmp_path: Path) -> None:
    """KIP-392, REP-03, GRP-25: what it reads the follower of its rack has sent, and not the leader. When that follower is
    killed the consumer goes on with the leader, and gets every record once and in order."""
    if KIND is ApacheMember:
        pytest.skip("what each node has sent is read from our own numbers")
    with three_brokers(tmp_path, SELECTOR, Counted) as nodes:
        start_in_racks(nodes, [[n] for n in BROKERS])
        nodes.create("near", 1)
        leader = nodes.leader("near")
        near = next(n for n in BROKERS if n != leader)
        consumer = Consumer(
            {
                "bootstrap.servers": nodes.bootstrap,
                "group.id": "near",
                "client.rack": f"rack-{BROKERS.index(near)}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        found: list[bytes] = []

        def reads(until: int) -> None:
            def more() -> bool:
                batch = consumer.consume(1000, 0.2)
                found.extend(message.value() or b"" for message in batch if message.error() is None)
                return len(found) >= until

            eventually(more, f"{until} records are read", ANSWER_SECONDS)

        def sent_by(n: int) -> float:
            member = nodes.members[n]
            assert isinstance(member, Counted)
            return member.numbers().get(SENT, 0.0)

        try:
            consumer.assign([TopicPartition("near", 0, 0)])
            assert set(send(nodes, "near", values(0, 100))) == {0}
            reads(100)
            eventually(lambda: sent_by(near) > 0, "the follower of the rack has sent something")
            before = {n: sent_by(n) for n in BROKERS}
            assert set(send(nodes, "near", values(100, 100))) == {0}
            reads(200)
            assert sent_by(near) > before[near] and sent_by(near) > sent_by(leader)
            nodes.members[near].kill()
            assert set(send(nodes, "near", values(200, 100))) == {0}
            reads(300)
        finally:
            consumer.close()
    assert found == values(0, 300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rack_is_killed(tmp_path: Path) -> None:
    """OPS-08 (a zone fails): three racks of a voter and another broker. All in the rack of the active controller are killed,
    twice; every acknowledged record is read once, in order. In tests/sim/test_cluster_racks.py they lose their power."""
    racks, partitions = [{1, 4}, {2, 5}, {3, 6}], 6
    roles = {n: "broker,controller" if n <= 3 else "broker" for n in range(1, 7)}
    with Cluster(tmp_path, len(roles), roles=roles, kinds=dict.fromkeys(roles, KIND)) as nodes:
        start_in_racks(nodes, racks)
        nodes.create("zones", partitions)
        placed = [set(part.replica_nodes) for part in nodes.partitions("zones")]
        assert all(len(replicas & rack) == 1 for replicas in placed for rack in racks)
        with Writer(nodes.bootstrap, "zones", partitions) as writer:
            writer.wait_for(100)
            for _ in range(2):
                gone = next(rack for rack in racks if nodes.active_controller() in rack)
                for n in gone:
                    nodes.members[n].kill()
                writer.wait_for(100)
                eventually(lambda gone=gone: are_without(nodes, "zones", gone), "others lead, and are in sync")
                for n in gone:
                    nodes.members[n].launch()
                nodes.wait_ready()
                eventually(lambda: are_whole(nodes, "zones"), "all replicas are in sync again")
            writer.wait_for(100)
            writer.finish()
        writer.check(nodes.bootstrap)


def are_without(nodes: Cluster, topic: str, gone: set[int]) -> bool:
    return all(part.leader_id > 0 and gone.isdisjoint(part.isr_nodes) for part in nodes.partitions(topic))


def are_whole(nodes: Cluster, topic: str) -> bool:
    return all(set(part.isr_nodes) == set(part.replica_nodes) for part in nodes.partitions(topic))
