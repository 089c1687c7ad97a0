"""Three nodes of ours beside three of Apache Kafka 4.3.1: what only a cluster can answer, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from apache import kafka
from cluster.nodes import eventually
from compat.chosen_quorum import EVERYTHING, OF_ADMINISTRATORS, differences
from compat.controllers import Door, Side, compare, plain, two_clusters
from compat.peers import asking, difference

pytestmark = [pytest.mark.apache, pytest.mark.slow]

SHARE = {"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1"}
PREFERRED, UNCLEAN = 0, 1
MOVES = 46


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    settings = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "60000", **SHARE}
    with two_clusters(tmp_path_factory.mktemp("same"), 3, settings) as pair:
        yield pair


def asked_first(sides: tuple[Side, Side], *, leading: bool) -> tuple[Door, Door]:
    """The controllers that lead, or others, which then come first where requests name nodes."""
    for side in sides:
        side.learn()
        if not leading:
            side.order = [*side.order[1:2], side.order[0], *side.order[2:]]
    ours, theirs = (side.controllers[side.order[0]] for side in sides)
    return ours, theirs


def test_the_controller_that_leads(sides: tuple[Side, Side]) -> None:
    assert differences(EVERYTHING, asked_first(sides, leading=True)) == ""


def test_controllers_that_do_not_lead(sides: tuple[Side, Side]) -> None:
    doors = asked_first(sides, leading=False)
    assert differences({key: of for key, of in EVERYTHING.items() if key != MOVES}, doors) == ""
    moves = asking(MOVES, 0, topics=None)
    assert [door.ask(moves).error_code for door in doors] == [41, 0]  # docs/compatibility.md has why


def test_a_broker_that_passes_on(sides: tuple[Side, Side]) -> None:
    asked_first(sides, leading=False)
    ours, theirs = (side.brokers[side.order[0]] for side in sides)
    chosen = {
        key: of for key, of in OF_ADMINISTRATORS.items() if key != 60
    }  # any broker may be told to be the controller
    assert differences(chosen, (ours, theirs)) == ""


class Script:
    """The same steps on both clusters, and after each of them the same state."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self.sides = sides
        self.found: list[str] = []
        for side in sides:
            side.learn()
            side.order = []  # who leads is the same on both, and called by its name

    def ask(self, key: int, version: int, **said: Any) -> None:
        request = asking(key, version, **said)
        text, _ = compare(request, (self.sides[0].brokers[2], self.sides[1].brokers[2]), of_quorum=False)
        if text:
            self.found.append(f"{request}: {text}")

    def settle(self, *wanted: list[int]) -> None:
        """Until every broker of both says that partitions are on these, all in sync and none on its way; then the rest is
        compared: leaders, epochs, eligible ones."""
        for side in self.sides:
            for broker in side.brokers.values():
                eventually(lambda of=broker: self._is_settled(of, wanted), f"{wanted} on {broker.address}")
        ours, theirs = (plain(self._described(side.brokers[1]), side, of_quorum=False) for side in self.sides)
        for part in theirs["topics"][0]["partitions"]:  # docs/compatibility.md has why
            part["eligible_leader_replicas"] = [
                r for r in part["eligible_leader_replicas"] if r in part["replica_nodes"]
            ]
        if text := difference(ours, theirs):
            self.found.append(f"{wanted}: {text}")

    def _is_settled(self, broker: Door, wanted: tuple[list[int], ...]) -> bool:
        described = self._described(broker).topics[0].partitions
        parts = sorted(described, key=lambda part: int(part.partition_index))
        moving = broker.ask(asking(MOVES, 0, topics=None)).topics
        placed = [list(part.replica_nodes) for part in parts]
        return not moving and placed == list(wanted) and all(set(p.isr_nodes) == set(p.replica_nodes) for p in parts)

    def _described(self, broker: Door) -> Any:
        return broker.ask(asking(75, 0, topics=[{"name": "t1"}], response_partition_limit=100))

    def reassign(self, *replicas: list[int] | None, **more: Any) -> None:
        parts = [{"partition_index": n, "replicas": of} for n, of in enumerate(replicas)]
        self.ask(45, 1, topics=[{"name": "t1", "partitions": parts}], timeout=30_000, **more)

    def elect(self, kind: int, *indexes: int) -> None:
        self.ask(43, 2, election_type=kind, topic_partitions=[{"topic": "t1", "partitions": indexes}], timeout=30_000)

    def create(self, *replicas: list[int], name: str = "t1", **more: Any) -> None:
        placed = [{"partition_index": n, "broker_ids": of} for n, of in enumerate(replicas)]
        size = {"num_partitions": -1, "replication_factor": -1, "assignments": placed, **more}
        self.ask(19, 7, topics=[{"name": name, **size}], timeout=30_000)


def test_topics_move_and_leaders_change(sides: tuple[Side, Side]) -> None:
    script = Script(sides)
    script.create([1, 2, 9], name="t2")
    script.create([1, 1], name="t2")
    script.create([1, 2], [3], name="t2")
    script.create(name="t2", num_partitions=1, replication_factor=4)
    script.create([1, 2], [2, 3])
    script.settle([1, 2], [2, 3])
    script.create([1, 2])
    script.elect(PREFERRED, 0, 1, 2)
    script.elect(UNCLEAN, 0, 1, 2)
    script.elect(7, 0)
    script.reassign(None, [1, 2, 9], [])
    script.reassign([2, 2], [-1])
    script.reassign([3, 2, 1], [1], allow_replication_factor_change=False)
    script.settle([1, 2], [2, 3])
    script.reassign([2, 3], [3, 1])
    script.settle([2, 3], [3, 1])
    script.elect(PREFERRED, 0, 1)
    script.settle([2, 3], [3, 1])
    script.reassign([3, 2, 1], [1, 3])
    script.settle([3, 2, 1], [1, 3])
    script.elect(PREFERRED, 0, 1)
    script.reassign([1], [2])
    script.settle([1], [2])
    script.reassign(None, None)
    script.ask(64, 0, broker_id=4)
    script.ask(
        MOVES, 0, topics=[{"name": "t1", "partition_indexes": [0, 1, 7]}, {"name": "t9", "partition_indexes": [0]}]
    )
    script.ask(37, 3, topics=[{"name": "t1", "count": 3, "assignments": [{"broker_ids": [3]}]}])
    script.settle([1], [2], [3])
    assert not script.found, "\n".join(script.found)
