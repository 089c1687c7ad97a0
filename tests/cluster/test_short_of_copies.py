"""Brokers leave until fewer are in sync than a topic wants, and come back. The controller is not one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.apart import BROKERS, send, three_brokers
from cluster.loads import read_all
from cluster.nodes import Cluster, eventually
from ottla.wire.errors import Error
from ottla.wire.messages.metadata import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

TOO_FEW = {Error.NOT_ENOUGH_REPLICAS.code, Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND.code}


def values(name: str, count: int) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), number) for number in range(count)]


def described(nodes: Cluster, topic: str) -> Any:
    """The only partition of a topic, with those that may lead it without loss."""
    request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.Topic(name=topic)])
    answer = nodes.ask(lambda line: line.ask(request, DescribeTopicPartitionsResponse, 0))
    return answer.topics[0].partitions[0]


def test_two_of_three_brokers_are_gone(tmp_path: Path) -> None:
    """OPS-04 (in-sync set of one), REP-11: the last one refuses acks=all, and says why; acks=1 goes on. Nothing that was
    acknowledged is lost, nothing that was refused at once is there, and all goes on when the others are back."""
    with three_brokers(tmp_path) as nodes:
        nodes.start()
        nodes.create("alone", 1)
        assert set(send(nodes, "alone", values("before", 50))) == {0}
        leader = nodes.leader("alone")
        gone = [n for n in BROKERS if n != leader]
        for n in gone:
            nodes.members[n].kill()
        nodes.wait_in_sync("alone", {leader})
        refused = send(nodes, "alone", values("refused", 20))
        assert len(refused) == 20 and set(refused) <= TOO_FEW
        assert set(send(nodes, "alone", values("alone", 50), acks="1")) == {0}
        for n in gone:
            nodes.members[n].launch()
        nodes.wait_in_sync("alone", BROKERS)
        assert set(send(nodes, "alone", values("after", 50))) == {0}
        found = list(read_all(nodes.bootstrap, "alone", 0))
    assert set(refused) != {Error.NOT_ENOUGH_REPLICAS.code} or not [v for v in found if v.startswith(b"refused")]
    kept = [value for value in found if not value.startswith(b"refused")]
    assert kept == values("before", 50) + values("alone", 50) + values("after", 50)


def test_an_eligible_one_leads_when_the_last_in_sync_is_lost(tmp_path: Path) -> None:
    """KIP-966, REP-13: who left when no more than the minimum were in sync has all that was acknowledged since, because
    nothing was. The last one is killed, and does not come back: the partition does, with the eligible one, without loss."""
    with three_brokers(tmp_path) as nodes:
        nodes.start()
        nodes.create("eligible", 1)
        assert set(send(nodes, "eligible", values("three", 50))) == {0}
        leader = nodes.leader("eligible")
        first, second = (n for n in BROKERS if n != leader)
        nodes.members[first].stop()
        nodes.wait_in_sync("eligible", {leader, second})
        assert set(send(nodes, "eligible", values("two", 50))) == {0}
        assert described(nodes, "eligible").eligible_leader_replicas == []
        nodes.members[second].stop()
        nodes.wait_in_sync("eligible", {leader})
        eventually(lambda: described(nodes, "eligible").eligible_leader_replicas == [second], "the second is eligible")
        assert set(send(nodes, "eligible", values("one", 5))) <= TOO_FEW
        nodes.members[leader].kill()
        # The first may come back before: it has not all, and must not lead.
        nodes.members[first].start()
        eventually(lambda: described(nodes, "eligible").leader_id == -1, "nobody leads")
        assert second in described(nodes, "eligible").eligible_leader_replicas
        nodes.members[second].start()
        assert nodes.leader("eligible") == second
        nodes.wait_in_sync("eligible", {first, second})
        eventually(lambda: described(nodes, "eligible").eligible_leader_replicas == [], "enough are in sync")
        assert set(send(nodes, "eligible", values("again", 50))) == {0}
        nodes.members[leader].start()
        nodes.wait_in_sync("eligible", BROKERS)
        found = list(read_all(nodes.bootstrap, "eligible", 0))
    assert found == values("three", 50) + values("two", 50) + values("again", 50)
