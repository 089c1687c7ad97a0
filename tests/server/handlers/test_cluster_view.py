"""What three brokers look like to clients: all numbers here are answers of three brokers of Apache Kafka 4.3.1.

The first broker has a listener that the other two have not. All are up at first; then the third falls silent.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from desk import Desk, on_loop
from ottla.metadata import controller
from ottla.metadata.controller import NewTopic, Registration, Rules
from ottla.metadata.image import Endpoint
from ottla.server.coordinators import partition_of
from ottla.server.handlers.cluster import describe_cluster
from ottla.server.handlers.finding import find_coordinator
from ottla.server.handlers.metadata import describe_topic_partitions, metadata
from ottla.wire.codec import decode, encode
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeClusterRequest
from ottla.wire.messages.groups import FindCoordinatorRequest
from ottla.wire.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest, MetadataResponse

T3 = [(0, [1, 2, 3]), (1, [2, 3, 1]), (2, [3, 1, 2])]
T1 = [(0, [1]), (1, [2]), (2, [3])]
NO_LEADER, NO_LISTENER, NO_REPLICA = 5, 72, 9

# error, leader, leader's epoch, replicas, in sync, offline
Row = tuple[int, int, int, list[int], list[int], list[int]]
ALL_UP: dict[str, list[Row]] = {
    "t3": [
        (0, 1, 0, [1, 2, 3], [1, 2, 3], []),
        (0, 2, 0, [2, 3, 1], [2, 3, 1], []),
        (0, 3, 0, [3, 1, 2], [3, 1, 2], []),
    ],
    "t1": [(0, 1, 0, [1], [1], []), (0, 2, 0, [2], [2], []), (0, 3, 0, [3], [3], [])],
}
ALL_UP_FROM_INSIDE: dict[str, list[Row]] = {
    "t3": [
        (0, 1, 0, [1, 2, 3], [1, 2, 3], [2, 3]),
        (NO_LISTENER, -1, 0, [2, 3, 1], [2, 3, 1], [2, 3]),
        (NO_LISTENER, -1, 0, [3, 1, 2], [3, 1, 2], [3, 2]),
    ],
    "t1": [(0, 1, 0, [1], [1], []), (NO_LISTENER, -1, 0, [2], [2], [2]), (NO_LISTENER, -1, 0, [3], [3], [3])],
}
OLDEST_FROM_INSIDE: dict[str, list[Row]] = {
    "t3": [
        (NO_REPLICA, 1, -1, [1], [1], []),
        (NO_LEADER, -1, -1, [1], [1], []),
        (NO_LEADER, -1, -1, [1], [1], []),
    ],
    "t1": [(0, 1, -1, [1], [1], []), (NO_LEADER, -1, -1, [], [], []), (NO_LEADER, -1, -1, [], [], [])],
}
ONE_DOWN: dict[str, list[Row]] = {
    "t3": [
        (0, 1, 0, [1, 2, 3], [1, 2], [3]),
        (0, 2, 0, [2, 3, 1], [2, 1], [3]),
        (0, 1, 1, [3, 1, 2], [1, 2], [3]),
    ],
    "t1": [(0, 1, 0, [1], [1], []), (0, 2, 0, [2], [2], []), (NO_LEADER, -1, 1, [3], [], [3])],
}


@asynccontextmanager
async def three(path: Path) -> AsyncIterator[Desk]:
    async with Desk(path, broker_rack="r1") as desk:
        propose, rules, rng = desk.controller.propose, Rules(), desk.world.random
        for n in (2, 3):
            who = Registration(
                n, bytes([n] * 16), [Endpoint("PLAINTEXT", f"b{n}", 9092, 0)], (bytes([n] * 16),), f"r{n}"
            )
            await propose(lambda image, who=who: controller.register_broker(image, who, rules))
            await propose(lambda image, n=n: controller.unfence(image, n, rules))
        new = [NewTopic("t3", -1, -1, assignments=T3), NewTopic("t1", -1, -1, assignments=T1)]
        new.append(NewTopic("__consumer_offsets", -1, -1, assignments=T1))
        await propose(lambda image: controller.create_topics(image, new, rules, rng))
        yield desk


async def lose_the_third(desk: Desk) -> None:
    await desk.controller.propose(lambda image: controller.fence(image, 3, Rules()))


async def ask(desk: Desk, version: int, listener: str = "PLAINTEXT", leader_id: int = 1) -> Any:
    asked, ctx = (
        MetadataRequest(topics=[MetadataRequest.Topic(name=name) for name in ("t3", "t1")]),
        desk.ctx(version, listener),
    )
    ctx.node = copy.copy(ctx.node)
    ctx.node.quorum = SimpleNamespace(image=desk.quorum.image, leader_id=leader_id)
    response = await metadata(asked, ctx)
    return decode(MetadataResponse, encode(response, version), version)


def rows(answer: Any) -> dict[str, list[Row]]:
    return {
        topic.name: [
            (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
            for p in topic.partitions
        ]
        for topic in answer.topics
    }


def without_epochs(told: dict[str, list[Row]]) -> dict[str, list[Row]]:
    return {name: [(e, leader, -1, *rest) for e, leader, _, *rest in each] for name, each in told.items()}  # type: ignore[misc]


@on_loop
async def test_metadata_while_all_are_up(tmp_path: Path) -> None:
    async with three(tmp_path) as desk:
        answer = await ask(desk, 13)
        assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (1, "localhost", 9092, "r1"),
            (2, "b2", 9092, "r2"),
            (3, "b3", 9092, "r3"),
        ]
        assert rows(answer) == ALL_UP
        assert rows(await ask(desk, 5)) == without_epochs(ALL_UP)
        inside = await ask(desk, 13, "INSIDE")
        assert [(b.node_id, b.host, b.port) for b in inside.brokers] == [(1, "inside", 9094)]
        assert rows(inside) == ALL_UP_FROM_INSIDE
        assert rows(await ask(desk, 0, "INSIDE")) == OLDEST_FROM_INSIDE


@on_loop
async def test_metadata_while_one_is_down(tmp_path: Path) -> None:
    async with three(tmp_path) as desk:
        await lose_the_third(desk)
        answer = await ask(desk, 13)
        assert [b.node_id for b in answer.brokers] == [1, 2]
        assert rows(answer) == ONE_DOWN
        oldest = rows(await ask(desk, 0))
        assert oldest["t3"][0] == (NO_REPLICA, 1, -1, [1, 2], [1, 2], [])
        assert oldest["t1"][2] == (NO_LEADER, -1, -1, [], [], [])


@on_loop
async def test_partitions_described(tmp_path: Path) -> None:
    async with three(tmp_path) as desk:
        asked = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.Topic(name="t1")], response_partition_limit=100
        )

        async def told(listener: str) -> list[Any]:
            (topic,) = (await describe_topic_partitions(asked, desk.ctx(0, listener))).topics
            return [(p.error_code, p.leader_id, p.leader_epoch, p.offline_replicas) for p in topic.partitions]

        assert await told("PLAINTEXT") == [(0, 1, 0, []), (0, 2, 0, []), (0, 3, 0, [])]
        assert await told("INSIDE") == [(0, 1, 0, []), (0, -1, 0, [2]), (0, -1, 0, [3])]
        await lose_the_third(desk)
        assert await told("PLAINTEXT") == [(0, 1, 0, []), (0, 2, 0, []), (0, -1, 1, [3])]


@on_loop
async def test_the_cluster_described(tmp_path: Path) -> None:
    async with three(tmp_path) as desk:
        await lose_the_third(desk)

        async def told(listener: str, fenced: bool) -> list[Any]:
            answer = await describe_cluster(
                DescribeClusterRequest(include_fenced_brokers=fenced), desk.ctx(2, listener)
            )
            return [(b.broker_id, b.port, b.rack, b.is_fenced) for b in answer.brokers]

        alive = [(1, 9092, "r1", False), (2, 9092, "r2", False)]
        assert await told("PLAINTEXT", False) == alive
        assert await told("PLAINTEXT", True) == [*alive, (3, 9092, "r3", True)]
        assert await told("INSIDE", True) == [(1, 9094, "r1", False)]


@on_loop
async def test_who_is_told_to_be_the_controller(tmp_path: Path) -> None:
    """Any broker will do, because each of them passes on what is meant for the controller; the best is the controller."""
    async with three(tmp_path) as desk:
        assert {(await ask(desk, 13)).controller_id for _ in range(20)} == {1}
        assert {(await ask(desk, 13, leader_id=7)).controller_id for _ in range(60)} == {1, 2, 3}
        assert {(await ask(desk, 13, "INSIDE", leader_id=7)).controller_id for _ in range(20)} == {1}
        assert {(await ask(desk, 13, leader_id=2)).controller_id for _ in range(20)} == {2}


@on_loop
async def test_coordinators_are_where_their_partitions_are_led(tmp_path: Path) -> None:
    async with three(tmp_path) as desk:
        keys = [f"g{n}" for n in range(12)]
        places = {1: (1, "localhost", 9092), 2: (2, "b2", 9092), 3: (3, "b3", 9092)}
        nowhere = (-1, "", -1, Error.COORDINATOR_NOT_AVAILABLE.code)

        async def told(listener: str = "PLAINTEXT") -> list[Any]:
            request = FindCoordinatorRequest(coordinator_keys=keys)
            found = (await find_coordinator(request, desk.ctx(4, listener))).coordinators
            return [(c.node_id, c.host, c.port, c.error_code) for c in found]

        leaders = [partition_of(key, 3) + 1 for key in keys]
        assert set(leaders) == {1, 2, 3}
        assert await told() == [(*places[leader], 0) for leader in leaders]
        inside = (1, "inside", 9094, 0)
        assert await told("INSIDE") == [inside if leader == 1 else nowhere for leader in leaders]
        await lose_the_third(desk)
        assert await told() == [(*places[leader], 0) if leader < 3 else nowhere for leader in leaders]
