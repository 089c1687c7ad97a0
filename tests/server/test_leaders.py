"""KIP-951: who came to the wrong broker is told where to go, by the listener that he came in on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from desk import on_loop
from ottla.metadata import controller
from ottla.metadata.controller import NewTopic, Registration
from ottla.metadata.image import Endpoint
from ottla.wire.errors import Error
from served import Served, batch, fetch_request, produce_request, serving

WRONG = Error.NOT_LEADER_OR_FOLLOWER.code


@asynccontextmanager
async def beside_another(path: Path) -> AsyncIterator[tuple[Served, bytes]]:
    """A node, and the id of a topic whose first partition is here, the second with another broker, and the third with
    one that clients of this listener cannot reach."""
    async with serving(path) as served:
        active, rng = served.node.controller, served.node.world.random
        for broker_id, listener in ((2, "PLAINTEXT"), (3, "INSIDE")):
            who = Registration(
                id=broker_id,
                incarnation=bytes([broker_id] * 16),
                endpoints=[Endpoint(listener, "elsewhere", 9000 + broker_id, 0)],
                directories=(bytes([broker_id] * 16),),
                rack=f"rack-{broker_id}",
            )
            await active.propose(lambda image, who=who: controller.register_broker(image, who, active.rules))
            await active.propose(lambda image, n=broker_id: controller.unfence(image, n, active.rules))
        new = NewTopic("t", -1, -1, assignments=[(0, [1]), (1, [2]), (2, [3])])
        made = await active.propose(lambda image: controller.create_topics(image, [new], active.rules, rng))
        yield served, made["t"].id  # type: ignore[union-attr]


@on_loop
async def test_producers_are_told(tmp_path: Path) -> None:
    """PRD-01: records go to the leader alone."""
    async with beside_another(tmp_path) as (served, topic_id):
        client = await served.connect()
        for version in (9, 10, 12, 13):
            topic = topic_id if version >= 13 else "t"
            wanted = produce_request(topic, dict.fromkeys(range(4), batch(b"x")))
            answer = await client.call(wanted, version)
            here, elsewhere, unreachable, missing = answer.responses[0].partition_responses
            unknown = Error.UNKNOWN_TOPIC_OR_PARTITION.code
            assert [p.error_code for p in (here, elsewhere, unreachable, missing)] == [0, WRONG, WRONG, unknown]
            leaders = [
                (p.current_leader.leader_id, p.current_leader.leader_epoch) for p in (here, elsewhere, unreachable)
            ]
            places = [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]
            told = version >= 10
            assert leaders == ([(-1, -1), (2, 0), (3, 0)] if told else [(-1, -1)] * 3)
            assert places == ([(2, "elsewhere", 9002, "rack-2")] if told else [])


@on_loop
async def test_readers_are_told(tmp_path: Path) -> None:
    async with beside_another(tmp_path) as (served, topic_id):
        client = await served.connect()
        for version in (12, 15, 16, 18):
            topic = topic_id if version >= 13 else "t"
            answer = await client.call(fetch_request(topic, dict.fromkeys(range(3), 0)), version)
            found = {p.partition_index: p for part in answer.responses for p in part.partitions}
            assert [found[index].error_code for index in range(3)] == [0, WRONG, WRONG]
            leaders = [(found[n].current_leader.leader_id, found[n].current_leader.leader_epoch) for n in range(3)]
            places = [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]
            told = version >= 16
            assert leaders == ([(-1, -1), (2, 0), (3, 0)] if told else [(-1, -1)] * 3)
            assert places == ([(2, "elsewhere", 9002, "rack-2")] if told else [])


@on_loop
async def test_an_old_epoch_is_told_the_new_one(tmp_path: Path) -> None:
    """The reader is right about the broker, but does not know of its new term."""
    async with beside_another(tmp_path) as (served, topic_id):
        active = served.node.controller
        await active.propose(lambda image: controller.fence(image, 1, active.rules))
        await active.propose(lambda image: controller.unfence(image, 1, active.rules))
        epoch = served.node.quorum.image.topics[topic_id].partitions[0].leader_epoch
        client = await served.connect()
        fenced = await client.call(fetch_request(topic_id, {0: 0}, current_leader_epoch=epoch - 1), 16)
        (told,) = fenced.responses[0].partitions
        assert epoch > 0 and told.error_code == Error.FENCED_LEADER_EPOCH.code
        assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (1, epoch)
        assert [node.node_id for node in fenced.node_endpoints] == [1]
