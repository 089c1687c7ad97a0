"""The active controller is killed while it decides, under load: what was asked is done or can be asked for again."""

from __future__ import annotations

import time
from typing import Any

from cluster.loads import Writer
from cluster.nodes import Cluster, eventually
from operations.speaking import Line
from ottla.wire.errors import Error
from ottla.wire.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from ottla.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse

TOPICS, PARTITIONS = 20, 5
# How long after the request the controller falls: before it is read, while it is decided and written, and when it is done.
MOMENTS_S = (0.0, 0.03, 0.12)
BROKER = 4
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = {
    "leader.replication.throttled.replicas": "*",
    "follower.replication.throttled.replicas": "*",
}


def creation(names: list[str]) -> CreateTopicsRequest:
    kind = CreateTopicsRequest.Topic
    topics = [kind(name=name, num_partitions=PARTITIONS, replication_factor=3) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=20_000)


def shape(nodes: Cluster, names: list[str], of: int) -> dict[str, tuple[bytes, list[int]]]:
    """The topics that a node knows: their ids, and how many replicas each partition has."""
    found = {topic.name: topic for topic in nodes.ask(lambda line: line.metadata(), of).topics}
    return {
        name: (bytes(found[name].topic_id), [len(part.replica_nodes) for part in found[name].partitions])
        for name in names
        if name in found
    }


def test_while_it_makes_topics(three: Cluster) -> None:
    """KRF-02, KRF-03, KRF-11, OPS-04 (controller failure): a topic is there with all of its partitions or not at all, for
    every node alike; who asks again has it, and nobody who writes meanwhile sees an error."""
    three.create("written", 3)
    with Writer(three.bootstrap, "written", 3) as writer:
        writer.wait_for(50)
        for number, moment_s in enumerate(MOMENTS_S):
            names = [f"made-{number}-{n}" for n in range(TOPICS)]
            active = three.members[three.active_controller()]
            other = next(member for member in three.running if member is not active)
            with Line(other.address) as line:
                line.say(creation(names), 5)
                time.sleep(moment_s)
                active.kill()
            three.active_controller()
            for n in {member.node_id for member in three.running}:
                known = shape(three, names, n)
                assert all(replicas == [3] * PARTITIONS for _, replicas in known.values()), known
            ask_again(three, names)
            active.start()
            whole = eventually(lambda names=names: all_alike(three, names), "every node knows the same topics")
            assert all(replicas == [3] * PARTITIONS for _, replicas in whole.values())
            for name in (names[0], names[-1]):
                three.wait_in_sync(name)
        writer.wait_for(50)
        writer.finish()
    writer.check(three.bootstrap)


def ask_again(nodes: Cluster, names: list[str]) -> None:
    fine = (Error.NONE.code, Error.TOPIC_ALREADY_EXISTS.code)

    def made() -> bool:
        answer = nodes.ask(lambda line: line.ask(creation(names), CreateTopicsResponse, 5))
        return all(topic.error_code in fine for topic in answer.topics)

    eventually(made, "all topics are made")


def all_alike(nodes: Cluster, names: list[str]) -> Any:
    views = [shape(nodes, names, n) for n in nodes.members]
    return views[0] if len(views[0]) == len(names) and all(view == views[0] for view in views) else None


def test_while_it_moves_replicas(three: Cluster) -> None:
    """KRF-02, KRF-11, REP-20: a move that is under way goes on under the next controller; one that was not written down is
    asked for again. Nothing is left of it when it is over, and nothing is lost that was acknowledged."""
    three.create("moved", 3, copies=2, configs=THROTTLED)
    throttle(three, "1")
    with Writer(three.bootstrap, "moved", 3) as writer:
        writer.wait_for(100)
        before = [[int(n) for n in part.replica_nodes] for part in three.partitions("moved")]
        wanted = [[({1, 2, 3} - set(replicas)).pop(), replicas[0]] for replicas in before]
        active = three.members[three.active_controller()]
        reassign(three, wanted)
        assert under_way(three) == {0, 1, 2}, "the throttle keeps them from arriving"
        active.kill()
        assert eventually(lambda: under_way(three), "the next controller goes on") == {0, 1, 2}
        active.start()
        active = three.members[three.active_controller()]
        with Line(next(member for member in three.running if member is not active).address) as line:
            line.say(reassignment(before), 0)  # back again; perhaps nobody reads it any more
            active.kill()
        three.active_controller()
        eventually(lambda: is_taken(three, wanted), "the move is asked for again")
        active.start()
        throttle(three, "1000000000")
        eventually(lambda: not under_way(three), "all have arrived")
        # The controller says that they have; the brokers, one of which has just come back, hear of it a little later.
        eventually(
            lambda: [[int(n) for n in part.replica_nodes] for part in three.partitions("moved")] == wanted,
            "they are where they were to go",
        )
        eventually(
            lambda: all(sorted(part.isr_nodes) == sorted(part.replica_nodes) for part in three.partitions("moved")),
            "all are in sync",
        )
        writer.wait_for(50)
        writer.finish()
    writer.check(three.bootstrap)


def throttle(nodes: Cluster, bytes_per_second: str) -> None:
    kind = IncrementalAlterConfigsRequest.Resource
    configs = [kind.Config(name=name, config_operation=0, value=bytes_per_second) for name in RATES]
    request = IncrementalAlterConfigsRequest(resources=[kind(resource_type=BROKER, resource_name="", configs=configs)])
    answer = nodes.ask(lambda line: line.ask(request, IncrementalAlterConfigsResponse, 1))
    assert [it.error_code for it in answer.responses] == [0]


def reassignment(wanted: list[list[int]]) -> AlterPartitionReassignmentsRequest:
    kind = AlterPartitionReassignmentsRequest.Topic
    parts = [kind.Partition(partition_index=index, replicas=replicas) for index, replicas in enumerate(wanted)]
    return AlterPartitionReassignmentsRequest(topics=[kind(name="moved", partitions=parts)])


def is_taken(nodes: Cluster, wanted: list[list[int]]) -> bool:
    answer = nodes.ask(lambda line: line.ask(reassignment(wanted), AlterPartitionReassignmentsResponse, 0))
    return not answer.error_code and not any(part.error_code for part in answer.responses[0].partitions)


def reassign(nodes: Cluster, wanted: list[list[int]]) -> None:
    assert is_taken(nodes, wanted)


def under_way(nodes: Cluster) -> set[int]:
    answer = nodes.ask(
        lambda line: line.ask(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse, 0)
    )
    if answer.error_code:
        raise ConnectionError(f"no controller answers: {answer.error_code}")
    return {part.partition_index for topic in answer.topics for part in topic.partitions}
