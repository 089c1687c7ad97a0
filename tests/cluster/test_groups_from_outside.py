"""Our own client, our command line and Apache's tools at a cluster whose leaders and coordinators move."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random

import pytest

from apache.tools import ApacheTools
from cluster.coordination import committed, coordinator_of
from cluster.nodes import Cluster, eventually
from ottla.cli.main import main
from ottla.client.cluster import EARLIEST, TopicPartition
from ottla.client.cluster import Cluster as Client
from ottla.client.consumer import Consumed
from ottla.client.group import GroupConsumer
from ottla.client.producer import Producer
from ottla.wire.errors import Error
from ottla.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

PARTITIONS = 6


def ottla(*words: str) -> str:
    """What a command prints; it must not fail."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        code = main(list(words))
    assert code in (0, None), said.getvalue()
    return said.getvalue()


async def collect(member: GroupConsumer, count: int) -> list[Consumed]:
    found: list[Consumed] = []
    while len(found) < count:
        found += await member.fetch()
    return found


async def write(producer: Producer, topic: str, numbers: range) -> None:
    for number in numbers:
        await producer.send(topic, value=b"%d" % number, partition=number % PARTITIONS)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_our_client_follows_leaders_and_coordinators(three: Cluster, protocol: str) -> None:
    """REP-12, IDM-06: a member and an idempotent producer go on when the broker dies that coordinates the one and leads
    partitions of the other."""
    topic = group = f"own-{protocol}"
    three.create(topic, PARTITIONS)

    async def live() -> list[bytes | None]:
        client = Client(three.bootstrap)
        producer = Producer(client, idempotent=True)
        member = GroupConsumer(client, group, [topic], protocol=protocol, reset=EARLIEST)
        try:
            await write(producer, topic, range(60))
            found = await collect(member, 60)
            await member.commit()
            three.members[coordinator_of(three, group)].kill()
            await write(producer, topic, range(60, 120))
            found += await collect(member, 60)
            await member.commit()
            where = [TopicPartition(topic, index) for index in range(PARTITIONS)]
            assert {each.offset for each in (await member.committed(where)).values()} == {20}
            return [each.value for each in found]
        finally:
            await producer.close()
            await member.close()
            client.close()

    found = asyncio.run(asyncio.wait_for(live(), 100))
    assert sorted(found, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(120)]
    assert committed(three, group, topic, PARTITIONS) == [20] * PARTITIONS


def test_groups_are_seen_from_every_broker_and_after_any_has_died(three: Cluster, tools: ApacheTools) -> None:
    """CLI-08, OPS-04: ours and Apache's tools, with the address of one broker or of all."""
    topic = group = "seen"
    three.create(topic, PARTITIONS)
    ottla("group", "reset", group, "--topic", topic, "--to", "0", "--execute", "-b", three.bootstrap)
    listed = [ottla("group", "list", "--json", "-b", member.address) for member in three.members.values()]
    assert all(group in each for each in listed)
    gone = coordinator_of(three, group)
    three.members[gone].kill()
    for words in (("group", "list"), ("group", "describe", group), ("transaction", "list")):
        said = ottla(*words, "--json", "-b", three.bootstrap)
        assert group in said or words[0] == "transaction"

    def leaders() -> list[int]:
        described = json.loads(ottla("topic", "describe", topic, "--json", "-b", three.bootstrap))
        return [part["leader"] for each in described for part in each["partitions"]]

    eventually(lambda: gone not in leaders(), "others lead, whoever is asked")
    ran = tools.run("kafka-consumer-groups", "--bootstrap-server", three.bootstrap, "--describe", "--group", group)
    assert ran.code == 0 and ran.out.count(topic) >= PARTITIONS, ran


def test_no_two_producers_get_the_same_id(three: Cluster) -> None:
    """IDM-02: blocks come from the controller, whoever that is, and nobody uses what is left of another's."""
    taken: list[int] = []

    def take(of: int) -> bool:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answer = three.ask(lambda line: line.ask(request, InitProducerIdResponse, 4), of)
        if answer.error_code == Error.COORDINATOR_LOAD_IN_PROGRESS.code:
            return False
        assert answer.error_code == 0, answer
        taken.append(int(answer.producer_id))
        return True

    rng = random.Random(3)
    for _ in range(2):
        for member in three.members.values():
            for _ in range(rng.randint(1, 5)):
                eventually(lambda of=member.node_id: take(of), "an id")
        three.members[three.active_controller()].kill()
        for member in three.running:
            eventually(lambda of=member.node_id: take(of), "an id")
        three.mend()
    assert len(set(taken)) == len(taken) > 10
