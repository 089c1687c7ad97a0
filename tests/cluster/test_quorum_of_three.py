"""Three controllers: one leads, the others take over, and a majority is enough, no less."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.conftest import KIND, StartCluster
from cluster.loads import Writer
from cluster.nodes import DYNAMIC, STATIC, Cluster, eventually
from operations.speaking import Line
from ottla.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse


@pytest.mark.parametrize("quorum", [DYNAMIC, STATIC])
def test_start_stop_and_start_again(cluster: StartCluster, quorum: str) -> None:
    """KRF-01, KRF-03, KRF-05, KRF-07: combined nodes, with voters known from the format or from the settings."""
    nodes = cluster(quorum)
    nodes.create("kept", 3)
    state = nodes.quorum_state()
    assert sorted(int(voter.replica_id) for voter in state.current_voters) == [1, 2, 3]
    nodes.stop()
    nodes.launch()
    nodes.wait_ready()
    assert len(nodes.partitions("kept")) == 3
    assert int(nodes.quorum_state().leader_epoch) > int(state.leader_epoch)


def test_the_active_controller_is_killed(three: Cluster) -> None:
    """KRF-04, KRF-09, KRF-11, OPS-04 (controller failure): a standby takes over, and everybody learns what it decides."""
    before, epoch = three.active_controller(), int(three.quorum_state().leader_epoch)
    three.members[before].kill()
    assert three.active_controller() != before
    assert int(three.quorum_state().leader_epoch) > epoch
    three.create("made-by-the-next", 2, copies=2)
    three.members[before].start()
    three.wait_brokers({1, 2, 3})
    assert len(eventually(lambda: three.partitions("made-by-the-next", before), "it has caught up")) == 2


def test_topics_that_were_being_created_when_the_controller_was_killed(three: Cluster) -> None:
    """KRF-02, KRF-18: each is there as a whole or not at all, and all nodes agree."""
    killed = three.active_controller()
    other = next(n for n in three.members if n != killed)
    with Line(three.members[other].address) as line:
        for n in range(20):
            topic = CreateTopicsRequest.Topic(name=f"half-{n}", num_partitions=4, replication_factor=3)
            line.say(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 5)
        three.members[killed].kill()
    three.active_controller()
    three.members[killed].start()
    three.wait_brokers({1, 2, 3})
    three.create("half-0", 4)
    eventually(lambda: len({tuple(_halves(three, n)) for n in three.members}) == 1, "all nodes agree")
    assert all(count == 4 for _, count in _halves(three, 1))


def _halves(nodes: Cluster, of: int) -> list[tuple[str, int]]:
    topics = nodes.ask(lambda line: line.metadata(), of).topics
    return sorted((str(topic.name), len(topic.partitions)) for topic in topics if topic.name.startswith("half-"))


def test_without_a_majority_nothing_is_decided(three: Cluster) -> None:
    """KRF-18, OPS-04 (metadata quorum loss): no topic is made while two of three are gone, and everything is when they are
    back."""
    for n in (2, 3):
        three.members[n].kill()
    asked = CreateTopicsRequest.Topic(name="lonely", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[asked], timeout_ms=1000)
    try:
        answer = three.ask(lambda line: line.ask(request, CreateTopicsResponse, 5), of=1)
        assert answer.topics[0].error_code != 0
    except OSError:
        pass  # nobody to answer for it
    for n in (2, 3):
        three.members[n].launch()
    three.wait_ready()
    three.create("together", 1)


@pytest.mark.parametrize("quorum", [DYNAMIC, STATIC])
def test_roles_apart(tmp_path: Path, quorum: str) -> None:
    """KRF-06, KRF-07, KRF-17: a controller that is no broker, and brokers that only read the metadata."""
    roles = {1: "controller", 2: "broker", 3: "broker"}
    with Cluster(tmp_path, quorum=quorum, roles=roles, kinds=dict.fromkeys(roles, KIND)) as nodes:
        nodes.start()
        nodes.create("apart", 2, copies=2)
        state = nodes.quorum_state()
        assert [int(voter.replica_id) for voter in state.current_voters] == [1]
        assert sorted(int(observer.replica_id) for observer in state.observers) == [2, 3]
        with Writer(nodes.bootstrap, "apart", 2) as writer:
            writer.wait_for(20)
            nodes.members[1].kill()
            writer.wait_for(20)  # brokers go on with what they know
            nodes.members[1].start()
            nodes.create("later", 1, copies=2)
            writer.finish()
        writer.check(nodes.bootstrap)
