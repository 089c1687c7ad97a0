"""Apache Kafka 4.3.1's own tools, as an operator of three nodes runs them, by way of brokers and of controllers.

With OTTLA_CLUSTER=apache the same commands go to three nodes of Apache Kafka.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from apache.tools import ApacheTools
from cluster.nodes import Cluster, eventually
from harness import HOST
from ottla.wire.ids import uuid_text

pytestmark = pytest.mark.apache

SLOW, FAST = "1000", "1000000000"
WAYS = ["--bootstrap-server", "--bootstrap-controller"]


class Operator:
    """Runs tools with the addresses of those nodes that are there."""

    def __init__(self, nodes: Cluster, tools: ApacheTools, directory: Path) -> None:
        self.nodes, self._tools, self._directory = nodes, tools, directory

    def run(self, tool: str, *words: object, way: str = WAYS[0], code: int = 0) -> str:
        """What it wrote, if it ended as it should."""
        broker = way == WAYS[0]
        ports = [member.reach if broker else member.controller_reach for member in self.nodes.running]
        where = (way, ",".join(f"{HOST}:{port}" for port in ports))
        # The one names its command first, the others the place.
        ran = self._tools.run(tool, *((*words, *where) if tool == "kafka-cluster" else (*where, *words)))
        assert ran.code == code, ran
        return ran.out + ran.err

    def file(self, content: Any) -> Path:
        path = self._directory / "file.json"
        path.write_text(json.dumps(content))
        return path

    def reassign(self, what: str, plan: dict[tuple[str, int], list[int]], *words: str) -> str:
        parts = [{"topic": name, "partition": n, "replicas": to} for (name, n), to in plan.items()]
        file = self.file({"version": 1, "partitions": parts})
        return self.run("kafka-reassign-partitions", what, "--reassignment-json-file", file, *words)

    def rows(self, *words: str) -> set[str]:
        """Which partitions kafka-topics shows."""
        shown = self.run("kafka-topics", "--describe", *words)
        return {f"{topic}-{n}" for topic, n in re.findall(r"Topic: (\S+)\tPartition: (\d+)", shown)}


@pytest.fixture
def operator(three: Cluster, tools: ApacheTools, tmp_path: Path) -> Operator:
    return Operator(three, tools, tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_the_quorum_is_described(operator: Operator, way: str) -> None:
    """CLI-18, CLI-19: who leads, who follows how far behind, and where they are found."""
    leader = operator.nodes.active_controller()
    status = operator.run("kafka-metadata-quorum", "describe", "--status", way=way)
    assert re.search(rf"ClusterId: +{operator.nodes.id}\nLeaderId: +{leader}\n", status)
    voters = json.loads(re.findall(r"CurrentVoters: +(.*)", status)[0])
    assert [voter["id"] for voter in voters] == [1, 2, 3]
    places = [[f"CONTROLLER://{HOST}:{member.controller_reach}"] for member in operator.nodes.members.values()]
    assert [voter["endpoints"] for voter in voters] == places
    rows = operator.run("kafka-metadata-quorum", "describe", "--replication", way=way).splitlines()[1:]
    kinds = {int(row.split("\t")[0]): row.split("\t")[6].strip() for row in rows}
    assert kinds == {n: "Leader" if n == leader else "Follower" for n in (1, 2, 3)}


@pytest.mark.parametrize("way", WAYS)
def test_a_voter_is_removed_and_added(operator: Operator, way: str) -> None:
    """A controller that votes no more observes, and may vote again."""
    state, leader = operator.nodes.quorum_state(), operator.nodes.active_controller()
    gone = next(voter for voter in state.current_voters if voter.replica_id != leader)
    who = ["--controller-id", gone.replica_id, "--controller-directory-id", uuid_text(gone.replica_directory_id)]
    said = operator.run("kafka-metadata-quorum", "remove-controller", *who, way=way)
    assert f"Removed  KRaft controller {gone.replica_id}" in said
    said = operator.run("kafka-metadata-quorum", "remove-controller", *who, way=way, code=1)
    assert "VoterNotFoundException" in said
    eventually(lambda: _ids(operator.nodes.quorum_state().observers) == {gone.replica_id}, "it observes")
    config = ["--command-config", operator.nodes.members[gone.replica_id].properties]
    said = operator.run("kafka-metadata-quorum", *config, "add-controller", way=way)
    assert f"Added controller {gone.replica_id}" in said
    said = operator.run("kafka-metadata-quorum", *config, "add-controller", way=way, code=1)
    assert "DuplicateVoterException" in said
    assert _ids(operator.nodes.quorum_state().current_voters) == {1, 2, 3}


def _ids(states: Any) -> set[int]:
    return {int(state.replica_id) for state in states}


@pytest.mark.parametrize("way", WAYS)
def test_features(operator: Operator, way: str) -> None:
    """Levels are shown, tried and changed."""
    shown = operator.run("kafka-features", "describe", way=way)
    levels = dict(re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", shown))
    assert levels["metadata.version"] == "4.3-IV0"
    assert levels["kraft.version"] == "1"
    said = operator.run("kafka-features", "downgrade", "--feature", "group.version=0", "--dry-run", way=way)
    assert "group.version can be downgraded to 0." in said
    said = operator.run("kafka-features", "upgrade", "--feature", "group.version=9", way=way, code=1)
    assert "Could not upgrade group.version to 9" in said


def test_endpoints_and_a_broker_that_is_gone_for_good(operator: Operator) -> None:
    """One that was killed is fenced; unregistered it is forgotten; started again it is there."""
    nodes = operator.nodes
    listed = operator.run("kafka-cluster", "list-endpoints", way=WAYS[1])
    controllers = [(str(n), str(member.controller_reach)) for n, member in nodes.members.items()]
    assert re.findall(rf"(\d) +{HOST} (\d+) +\S+ +controller", listed) == controllers
    gone = next(n for n in nodes.members if n != nodes.active_controller())
    nodes.members[gone].kill()
    nodes.wait_brokers({1, 2, 3} - {gone})
    assert _states(operator) == {n: "fenced" if n == gone else "unfenced" for n in (1, 2, 3)}
    assert "no longer registered" in operator.run("kafka-cluster", "unregister", "--id", gone)
    assert "BrokerIdNotRegistered" in operator.run("kafka-cluster", "unregister", "--id", gone, code=1)
    eventually(lambda: set(_states(operator)) == {1, 2, 3} - {gone}, "every broker that may be asked has forgotten it")
    nodes.members[gone].start()
    nodes.wait_brokers({1, 2, 3})


def test_a_broker_that_lives_is_unregistered(operator: Operator) -> None:
    """Its process goes on, as a voter; a start registers it anew."""
    nodes = operator.nodes
    out = next(n for n in nodes.members if n != nodes.active_controller())
    operator.run("kafka-cluster", "unregister", "--id", out)
    nodes.wait_brokers({1, 2, 3} - {out})
    epoch = nodes.quorum_state().leader_epoch
    nodes.members[nodes.active_controller()].stop(60)
    assert nodes.active_controller(), "the two that are left are a majority"
    assert nodes.quorum_state().leader_epoch > epoch
    nodes.members[out].kill()  # Apache Kafka would wait forever until it is let go
    nodes.mend()


def _states(operator: Operator) -> dict[int, str]:
    listed = operator.run("kafka-cluster", "list-endpoints", "--include-fenced-brokers")
    return {int(n): state for n, state in re.findall(rf"(\d) +{HOST} \d+ +\S+ +(\w+) +broker", listed)}


def test_partitions_that_lack_something(operator: Operator) -> None:
    """CLI-02: with one node dead, kafka-topics tells under-replicated, unavailable and short partitions apart."""
    nodes, words = operator.nodes, ["--create", "--topic"]
    dead = next(n for n in nodes.members if n != nodes.active_controller())
    a, b = sorted(set(nodes.members) - {dead})
    operator.run("kafka-topics", *words, "lacking", "--replica-assignment", f"{a}:{dead}:{b},{a}:{b}:{dead}")
    operator.run("kafka-topics", *words, "alone", "--replica-assignment", f"{dead},{a}")
    strict = ["--config", "min.insync.replicas=3"]
    operator.run("kafka-topics", *words, "strict", "--replica-assignment", f"{a}:{b}:{dead}", *strict)
    nodes.members[dead].kill()
    nodes.wait_brokers({a, b})
    assert operator.rows("--under-replicated-partitions") >= {"lacking-0", "lacking-1", "alone-0", "strict-0"}
    assert "alone-0" in (unavailable := operator.rows("--unavailable-partitions"))
    assert not unavailable & {"alone-1", "lacking-0", "lacking-1", "strict-0"}
    short, just_enough = operator.rows("--under-min-isr-partitions"), operator.rows("--at-min-isr-partitions")
    assert short >= {"alone-0", "strict-0"} and not short & {"lacking-0", "lacking-1"}
    assert just_enough >= {"lacking-0", "lacking-1"} and not just_enough & {"alone-0", "strict-0"}
    said = operator.run("kafka-leader-election", *_election("preferred", "alone", 0), code=1)
    assert "PreferredLeaderNotAvailableException" in said
    nodes.members[dead].start()
    nodes.wait_in_sync("strict")
    assert "alone-0" not in operator.rows("--unavailable-partitions")


def _election(kind: str, topic: str, partition: int) -> list[object]:
    return ["--election-type", kind, "--topic", topic, "--partition", partition]


def test_leaders_are_chosen_by_hand(operator: Operator) -> None:
    """REP-15: the preferred one, when it is back; one that leads already needs no election."""
    nodes, words = operator.nodes, ["--create", "--topic", "chosen"]
    first = next(n for n in nodes.members if n != nodes.active_controller())
    a, b = sorted(set(nodes.members) - {first})
    operator.run("kafka-topics", *words, "--replica-assignment", f"{first}:{a}:{b}")
    nodes.members[first].kill()
    nodes.wait_in_sync("chosen", {a, b})
    eventually(lambda: nodes.leader("chosen") == a, "the next replica leads")
    nodes.members[first].start()
    nodes.wait_in_sync("chosen")
    said = operator.run("kafka-leader-election", *_election("preferred", "chosen", 0))
    assert "Successfully completed leader election (PREFERRED) for partitions chosen-0" in said
    eventually(lambda: nodes.leader("chosen") == first, "the preferred replica leads")
    said = operator.run("kafka-leader-election", *_election("unclean", "chosen", 0))
    assert "Valid replica already elected for partitions chosen-0" in said


def test_a_leader_that_lacks_records_is_chosen_by_hand(operator: Operator) -> None:
    """REP-13: nobody in sync is left. A replica on its way there leads if it is told to, and what it lacks is lost."""
    nodes = operator.nodes
    gone = next(n for n in nodes.members if n != nodes.active_controller())
    left = next(n for n in nodes.members if n != gone)
    _fill(operator, "lost", gone)
    plan = {("lost", 0): [gone, left]}
    operator.reassign("--execute", plan, "--throttle", SLOW)
    nodes.members[gone].kill()
    eventually(lambda: nodes.partitions("lost")[0].leader_id == -1, "nobody leads")
    assert "could not be elected" in operator.run("kafka-leader-election", *_election("preferred", "lost", 0), code=1)
    said = operator.run("kafka-leader-election", *_election("unclean", "lost", 0))
    assert "Successfully completed leader election (UNCLEAN) for partitions lost-0" in said
    assert nodes.leader("lost") == left
    nodes.members[gone].start()
    nodes.wait_in_sync("lost", {gone, left})
    operator.reassign("--verify", plan)


def test_reassignment_with_a_throttle(operator: Operator) -> None:
    """Begun so slowly that it can be watched, then let go, and the throttle is taken away."""
    _fill(operator, "moved", 1, 2)
    there = operator.file({"version": 1, "topics": [{"topic": "moved"}]})
    words = ["--topics-to-move-json-file", there, "--broker-list", "2,3"]
    proposed = operator.run("kafka-reassign-partitions", "--generate", *words).splitlines()[-1]
    assert {tuple(sorted(part["replicas"])) for part in json.loads(proposed)["partitions"]} == {(2, 3)}
    plan = {("moved", 0): [2, 3]}
    assert "started partition reassignment for moved-0" in operator.reassign("--execute", plan, "--throttle", SLOW)
    assert "moved-0: replicas: 2,3,1. adding: 3. removing: 1." in operator.run("kafka-reassign-partitions", "--list")
    assert "moved-0 is still in progress" in operator.reassign("--verify", plan)
    assert "Adding Replicas: 3\tRemoving Replicas: 1" in operator.run("kafka-topics", "--describe", "--topic", "moved")
    operator.reassign("--execute", plan, "--additional", "--throttle", FAST)
    operator.nodes.wait_in_sync("moved", {2, 3})
    said = operator.reassign("--verify", plan)
    assert "Reassignment of partition moved-0 is completed." in said
    assert "Clearing topic-level throttles on topic moved" in said
    described = ("kafka-topics", "--describe", "--topic", "moved")
    eventually(lambda: "throttled" not in operator.run(*described), "every broker that may be asked knows that")


def test_a_reassignment_is_cancelled(operator: Operator) -> None:
    """What was added is gone, what was to be removed stays."""
    _fill(operator, "stayed", 1, 2)
    plan = {("stayed", 0): [2, 3]}
    operator.reassign("--execute", plan, "--throttle", SLOW)
    assert "Successfully cancelled partition reassignment for: stayed-0" in operator.reassign("--cancel", plan)
    assert "No partition reassignments found." in operator.run("kafka-reassign-partitions", "--list", way=WAYS[1])
    # In the order of the plan, as with Apache Kafka: it does not remember the one before.
    stayed = [[2, 1]]
    eventually(lambda: [list(p.replica_nodes) for p in operator.nodes.partitions("stayed")] == stayed, "it stayed")
    assert "None of the specified partition reassignments are active." in operator.reassign("--cancel", plan)


def _fill(operator: Operator, topic: str, *replicas: int) -> None:
    """Some megabytes in one partition: at the slow pace they would take the better part of an hour."""
    least = ("--config", "min.insync.replicas=1")
    operator.run(
        "kafka-topics", "--create", "--topic", topic, "--replica-assignment", ":".join(map(str, replicas)), *least
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": operator.nodes.bootstrap, "batch.num.messages": 10})
    for _ in range(100):
        producer.produce(topic, bytes(30_000), partition=0)
    assert producer.flush(60) == 0


def test_log_directories_and_versions(operator: Operator) -> None:
    """CLI-15: every broker is asked, or those that are named."""
    operator.nodes.create("placed", 2)

    def placed() -> dict[int, set[str]]:
        shown = operator.run("kafka-log-dirs", "--describe", "--topic-list", "placed", "--broker-list", "2,3")
        brokers = json.loads(shown.splitlines()[-1])["brokers"]
        return {each["broker"]: {part["partition"] for part in each["logDirs"][0]["partitions"]} for each in brokers}

    both = {"placed-0", "placed-1"}
    eventually(lambda: placed() == {2: both, 3: both}, "both brokers have made their logs")
    shown = operator.run("kafka-broker-api-versions")
    assert sorted(re.findall(r"\(id: (\d) rack: null isFenced: false\)", shown)) == ["1", "2", "3"]
