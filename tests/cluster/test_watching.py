"""Apache Kafka's own tools look at the cluster while nodes of it go and come."""

from __future__ import annotations

import re

import pytest

from apache.tools import ApacheTools
from cluster.nodes import Cluster, eventually

pytestmark = pytest.mark.apache


def described(tools: ApacheTools, nodes: Cluster, topic: str) -> list[tuple[int, int, set[int], set[int]]]:
    """What kafka-topics.sh --describe says: partition, leader, replicas, in-sync replicas."""
    bootstrap = ",".join(member.address for member in nodes.running)
    ran = tools.run("kafka-topics", "--bootstrap-server", bootstrap, "--describe", "--topic", topic)
    assert ran.code == 0, ran
    rows = re.findall(r"Partition: (\d+)\tLeader: (\S+)\tReplicas: (\S+)\tIsr: (\S*)", ran.out)
    return [(int(n), int(leader), _ids(replicas), _ids(isr)) for n, leader, replicas, isr in rows]


def _ids(text: str) -> set[int]:
    return {int(part) for part in text.split(",") if part}


def test_six_partitions_on_three_brokers_and_one_is_killed(three: Cluster, tools: ApacheTools) -> None:
    """REP-01, REP-02, REP-04, REP-22, REP-26: two leaders on each of three nodes; one is killed, and each of its partitions
    has another leader and two in sync; it comes back, and there are three again."""
    bootstrap = three.members[1].address
    words = ["--create", "--topic", "exercise", "--partitions", "6", "--replication-factor", "3"]
    assert tools.run("kafka-topics", "--bootstrap-server", bootstrap, *words).code == 0
    three.wait_in_sync("exercise")
    rows = described(tools, three, "exercise")
    assert sorted(leader for _, leader, _, _ in rows) == [1, 1, 2, 2, 3, 3]
    assert all(replicas == isr == {1, 2, 3} for _, _, replicas, isr in rows)
    three.members[3].kill()
    three.wait_in_sync("exercise", {1, 2})
    rows = described(tools, three, "exercise")
    assert [leader in (1, 2) for _, leader, _, _ in rows] == [True] * 6
    assert all(replicas == {1, 2, 3} and isr == {1, 2} for _, _, replicas, isr in rows)
    three.members[3].start()
    three.wait_in_sync("exercise")
    assert all(isr == {1, 2, 3} for _, _, _, isr in described(tools, three, "exercise"))


def test_leaders_return_where_they_belong(three: Cluster, tools: ApacheTools) -> None:
    """REP-15: by kafka-leader-election.sh, to the first replica of each partition."""
    three.create("preferred", 6)
    three.wait_brokers({1, 2, 3})
    three.wait_in_sync("preferred")
    ran = tools.run(
        "kafka-leader-election",
        *("--bootstrap-server", three.members[1].address),
        *("--election-type", "PREFERRED", "--all-topic-partitions"),
    )
    assert ran.code == 0, ran
    eventually(
        lambda: all(part.leader_id == part.replica_nodes[0] for part in three.partitions("preferred")),
        "each is led by its first replica",
    )


def test_who_keeps_the_metadata(three: Cluster, tools: ApacheTools) -> None:
    """KRF-04, KRF-20: kafka-metadata-quorum.sh names the leader that the nodes name, and three voters."""
    where = ("--bootstrap-server", three.members[1].address)
    status = tools.run("kafka-metadata-quorum", *where, "describe", "--status")
    assert status.code == 0, status
    leader = re.search(r"LeaderId:\s+(\d+)", status.out)
    assert leader is not None and int(leader[1]) == three.active_controller()
    replicas = tools.run("kafka-metadata-quorum", *where, "describe", "--replication")
    roles = re.findall(r"^(\d+)\s.*\s(Leader|Follower|Observer)\s*$", replicas.out, re.MULTILINE)
    assert sorted(role for _, role in roles) == ["Follower", "Follower", "Leader"], replicas.out


def test_brokers_and_their_versions(three: Cluster, tools: ApacheTools) -> None:
    """KRF-16: every broker is listed."""
    ran = tools.run("kafka-broker-api-versions", "--bootstrap-server", three.members[2].address)
    assert sorted(map(int, re.findall(r"\(id: (\d+) rack", ran.out))) == [1, 2, 3], ran


def test_replicas_move(three: Cluster, tools: ApacheTools, tmp_path_factory: pytest.TempPathFactory) -> None:
    """KRF-02: kafka-reassign-partitions.sh moves a partition with one copy to another node, with what it holds."""
    three.create("moved", 1, copies=1)
    home = three.leader("moved")
    other = next(n for n in three.members if n != home)
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    plan.write_text(f'{{"version":1,"partitions":[{{"topic":"moved","partition":0,"replicas":[{other}]}}]}}')
    words = ["--bootstrap-server", three.members[1].address, "--reassignment-json-file", str(plan)]
    assert tools.run("kafka-reassign-partitions", *words, "--execute").code == 0
    eventually(lambda: [int(n) for n in three.partitions("moved")[0].isr_nodes] == [other], "it has moved")
    ran = tools.run("kafka-reassign-partitions", *words, "--verify")
    assert "is completed" in ran.out, ran
