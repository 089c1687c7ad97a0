"""Requests that only the active controller can grant, asked of a node that is not it.

Two nodes run in the test's process. The second one has been deposed: it knows of a leader of the metadata, and that is the
first.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from desk import on_loop
from ottla.client.connection import Lost
from ottla.metadata.controller import NewTopic
from ottla.metadata.image import BROKER, BROKER_LOGGER, TOPIC, Image
from ottla.raft.quorum import NOBODY, Address, Voter, VoterSet
from ottla.server import creation
from ottla.server.context import ITSELF, Context
from ottla.server.dispatch import HANDLERS, ON_CONTROLLER, PLAIN_BYTES_MAX
from ottla.server.forwarding import (
    FORWARD_S,
    Call,
    address_bytes,
    enclosed,
    host_of,
    patience_s,
    principal_bytes,
    principal_of,
)
from ottla.server.handlers.envelope import FORWARDABLE
from ottla.server.node import Node
from ottla.server.quorum import Quorum
from ottla.wire.codec import decode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.frames import read_response_header
from ottla.wire.messages.brokers import EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.cluster import ApiVersionsRequest
from ottla.wire.messages.groups import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.placement import ElectLeadersRequest
from ottla.wire.messages.quotas import AlterClientQuotasRequest
from ottla.wire.messages.settings import AlterConfigsRequest, IncrementalAlterConfigsRequest
from ottla.wire.messages.topics import CreateTopicsRequest, CreateTopicsResponse, DeleteTopicsRequest
from ottla.wire.schema import Message
from served import Client, Served, frame, serving, until

SEVENTH = 7


class Deposed:
    """The quorum of a node as it looks after somebody else has won: all else is asked of the real one."""

    def __init__(self, quorum: Quorum, node_id: int) -> None:
        self.quorum, self.node_id = quorum, node_id
        self.leader_id = NOBODY
        self.voters = quorum.voters

    def knows(self, controller_id: int, port: int) -> None:
        voter = Voter(controller_id, addresses=(Address("CONTROLLER", "127.0.0.1", port),))
        self.voters = VoterSet((*self.voters.voters, voter))

    @property
    def leads(self) -> bool:
        return self.leader_id == self.node_id

    def check_leads(self) -> None:
        if not self.leads:
            raise KafkaError(Error.NOT_CONTROLLER)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.quorum, name)


class Pair(NamedTuple):
    leader: Served
    other: Served
    quorum: Deposed  # of the other


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    async with serving(path / "leader") as leader, serving(path / "other") as other:
        node: Any = other.node
        real = node.quorum
        deposed = Deposed(real, node.config.node_id)
        deposed.knows(SEVENTH, controller_port(leader.node))
        deposed.leader_id = SEVENTH
        node.quorum = node.controller._quorum = node.peers._quorum = deposed
        yield Pair(leader, other, deposed)
        node.quorum = node.controller._quorum = node.peers._quorum = real


def controller_port(node: Node) -> int:
    (listener,) = [each for each in node.listeners if each.is_controller]
    return listener.port


def creating(name: str, timeout_ms: int = 20_000) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


async def to_controller(node: Node) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", controller_port(node)))


def test_what_is_passed_on_is_what_kafka_passes_on() -> None:
    """Changes of settings partly concern the node that gets them: their handlers pass on the rest."""
    themselves = {AlterConfigsRequest.key, IncrementalAlterConfigsRequest.key}
    forwarded = {key for key, handler in HANDLERS.items() if handler.forwarded}
    assert forwarded | themselves == FORWARDABLE & HANDLERS.keys()
    assert forwarded <= ON_CONTROLLER.keys()


@on_loop
async def test_what_a_handler_raises_is_its_answer_also_inside_of_an_envelope_and_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: CreateTopicsRequest, ctx: object) -> CreateTopicsResponse:
        raise KafkaError(Error.POLICY_VIOLATION)

    async with pair(tmp_path) as (leader, other, _):
        client = await other.connect()
        monkeypatch.setattr(ON_CONTROLLER[CreateTopicsRequest.key], "call", refuse)
        answers = [await client.call(creating("t"), 7), await leader.node.channel.ask(creating("t"), 20.0)]
        assert [topic.error_code for answer in answers for topic in answer.topics] == [Error.POLICY_VIOLATION.code] * 2


@on_loop
async def test_the_controller_grants_what_another_node_was_asked(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, other, _):
        client = await other.connect()
        for version in (2, 7):
            made = await client.call(creating(f"t{version}"), version)
            assert [topic.error_code for topic in made.topics] == [0]
            assert leader.partition(f"t{version}").log.end_offset == 0
        again = await client.call(creating("t7"), 7)
        assert [topic.error_code for topic in again.topics] == [Error.TOPIC_ALREADY_EXISTS.code]
        gone = await client.call(DeleteTopicsRequest(topic_names=["t2"], timeout_ms=20_000), 4)
        assert [topic.error_code for topic in gone.responses] == [0]
        elected = await client.call(ElectLeadersRequest(timeout_ms=20_000, topic_partitions=None), 2)
        assert elected.error_code == 0
        assert other.node.quorum.image.topic("t7") is None


@on_loop
async def test_the_largest_request_fits_into_an_envelope(tmp_path: Path) -> None:
    """One byte more, and its client would have been refused in the first place."""
    async with pair(tmp_path) as (_, other, _):
        client = await other.connect()
        wanted = DeleteTopicsRequest(topic_names=["", *["x" * 32_000] * 131], timeout_ms=20_000)
        wanted.topic_names[0] = "y" * (PLAIN_BYTES_MAX + 4 - len(frame(wanted, 3)))
        assert len(frame(wanted, 3)) == PLAIN_BYTES_MAX + 4
        assert (await client.call(wanted, 3)).responses
        to_leader = await to_controller(other.node)
        to_leader.send(enclosed(frame(wanted, 3)[4:] + b"\0", "User:a", "::1"), 0)
        assert (await to_leader.receive()).error_code == Error.UNSUPPORTED_VERSION.code
        to_leader.close()


@on_loop
async def test_the_active_controller_passes_nothing_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert [topic.error_code for topic in (await client.call(creating("t"), 7)).topics] == [0]
        assert not served.node.peers._lines
        assert "Envelope" not in _asked(served)


def _asked(served: Served) -> list[str]:
    measures = served.node.measures.api
    return [ON_CONTROLLER[key].name for key in ON_CONTROLLER if sum(measures[key].counts)]


def altering(kind: int, name: str, **values: str) -> IncrementalAlterConfigsRequest.Resource:
    config = IncrementalAlterConfigsRequest.Resource.Config
    dotted = [config(name=key.replace("_", "."), config_operation=0, value=value) for key, value in values.items()]
    return IncrementalAlterConfigsRequest.Resource(resource_type=kind, resource_name=name, configs=dotted)


@on_loop
async def test_of_a_change_of_settings_only_the_rest_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log levels are those of the node that was asked, and it refuses what it could not live with."""
    async with pair(tmp_path) as (leader, other, _):
        await leader.topic("t")
        client, me = await other.connect(), str(other.node.config.node_id)
        resources = [
            altering(TOPIC, "t", retention_ms="1000"),
            altering(BROKER_LOGGER, me, ottla_server="ERROR"),
            altering(TOPIC, "missing", retention_ms="1000"),
            altering(BROKER, "77", log_cleaner_threads="2"),
            altering(BROKER, me, log_cleaner_threads="2"),
        ]
        logger = logging.getLogger("ottla.server")
        monkeypatch.setattr(logger, "level", logger.level)
        answer = await client.call(IncrementalAlterConfigsRequest(resources=resources), 1)
        assert logger.level == logging.ERROR
        assert [(each.resource_name, each.error_code) for each in answer.responses] == [
            ("t", 0),
            (me, 0),
            ("missing", Error.UNKNOWN_TOPIC_OR_PARTITION.code),
            ("77", Error.INVALID_REQUEST.code),
            (me, 0),
        ]
        image = leader.node.quorum.image
        assert image.configs(TOPIC, "t") == {"retention.ms": "1000"}
        assert image.configs(BROKER, me) == {"log.cleaner.threads": "2"}
        old = AlterConfigsRequest.Resource
        values = [old.Config(name="retention.ms", value="-7")]
        replaced = await client.call(
            AlterConfigsRequest(resources=[old(resource_type=TOPIC, resource_name="t", configs=values)]), 1
        )
        (told,) = replaced.responses
        assert told.error_code == Error.INVALID_CONFIG.code and "-7" in told.error_message


@on_loop
async def test_who_asked_is_who_pays(tmp_path: Path) -> None:
    """The quota on changes of topics is that of the client, not of the node that passed them on."""
    async with pair(tmp_path) as (leader, other, _):
        client = await leader.connect()
        entity = AlterClientQuotasRequest.Entry.Entity(entity_type="client-id", entity_name="test")
        rate = AlterClientQuotasRequest.Entry.Op(key="controller_mutation_rate", value=0.001)
        await client.call(
            AlterClientQuotasRequest(entries=[AlterClientQuotasRequest.Entry(entity=[entity], ops=[rate])]), 1
        )
        asked = await other.connect()
        codes = [(await asked.call(creating(f"t{n}"), 7)).topics[0].error_code for n in range(3)]
        assert Error.THROTTLING_QUOTA_EXCEEDED.code in codes


@on_loop
async def test_the_controller_hears_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if only a part of the request is passed on, and if the node itself has become the controller meanwhile: whoever
    lost the principal would let everybody do what the node may do."""
    heard: list[tuple[str, str]] = []
    alice = ("User:alice", "10.0.0.7")

    def listen(call: Call, request: Message, ctx: Context) -> object:
        heard.append((ctx.principal, ctx.client_host))
        return call(request, ctx)

    for key in (CreateTopicsRequest.key, IncrementalAlterConfigsRequest.key):
        monkeypatch.setattr(ON_CONTROLLER[key], "call", functools.partial(listen, ON_CONTROLLER[key].call))
    async with pair(tmp_path) as (leader, other, quorum):
        client = await other.connect()
        await client.call(ApiVersionsRequest(), 0)
        (connection,) = other.node.listeners[0].connections
        connection.principal, connection.peer_host = alice
        assert (await client.call(creating("t"), 7)).topics[0].error_code == 0
        assert leader.partition("t").log.end_offset == 0
        assert heard == [alice]
        wanted = IncrementalAlterConfigsRequest(resources=[altering(TOPIC, "t", retention_ms="1000")])
        # The node's own handler hears it first, as it has to look what concerns itself.
        assert (await client.call(wanted, 1)).responses[0].error_code == 0
        assert heard == [alice] * 3
        quorum.leader_id = NOBODY
        asked = asyncio.ensure_future(client.call(creating("u"), 7))
        await until(lambda: connection.exchanges)
        quorum.leader_id = other.node.config.node_id
        assert (await asked).topics[0].error_code == 0
        assert heard == [alice] * 4
        await other.node.channel.ask(creating("v"), 20.0)
        assert heard[4:] == [(ITSELF, "")]


@on_loop
async def test_on_its_own_listener_a_controller_that_is_not_active_says_so(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other, _):
        client = await to_controller(other.node)
        made = await client.call(creating("t"), 7)
        assert [topic.error_code for topic in made.topics] == [Error.NOT_CONTROLLER.code]
        wrapped = await client.call(enclosed(frame(creating("t"), 7)[4:], "User:a", "10.0.0.1"), 0)
        assert (wrapped.error_code, wrapped.response_data) == (Error.NOT_CONTROLLER.code, None)
        client.close()


@on_loop
async def test_a_request_waits_for_the_next_controller(tmp_path: Path) -> None:
    """Nobody knows of a leader, then one is named that is dead, then one that lives."""
    async with pair(tmp_path) as (leader, other, quorum):
        quorum.leader_id = NOBODY
        client = await other.connect()
        asked = asyncio.ensure_future(client.call(creating("t"), 7))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            dead = probe.getsockname()[1]
        quorum.knows(8, dead)
        quorum.leader_id = 8
        await until(lambda: other.node.peers.to_controller("Envelope", 8).is_refused)
        quorum.leader_id = SEVENTH
        assert [topic.error_code for topic in (await asked).topics] == [0]
        assert leader.partition("t").log.end_offset == 0


@on_loop
async def test_a_controller_that_stands_still_is_not_waited_for_when_there_is_another(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other, quorum):
        taken: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
        quorum.knows(8, silent.sockets[0].getsockname()[1])
        quorum.leader_id = 8
        client = await other.connect()
        asked = asyncio.ensure_future(client.call(creating("t"), 7))
        await until(lambda: taken)
        quorum.leader_id = SEVENTH
        assert [topic.error_code for topic in (await asked).topics] == [0]
        silent.close()
        for writer in taken:
            writer.transport.abort()


@on_loop
async def test_the_node_itself_may_become_the_controller_meanwhile(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other, quorum):
        quorum.leader_id = NOBODY
        client = await other.connect()
        asked = asyncio.ensure_future(client.call(creating("t"), 7))
        await until(lambda: any(each.exchanges for each in other.node.listeners[0].connections))
        quorum.leader_id = other.node.config.node_id
        assert [topic.error_code for topic in (await asked).topics] == [0]
        assert other.partition("t").log.end_offset == 0


@on_loop
async def test_a_controller_that_is_deposed_passes_on_what_it_has_not_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has asked a broker, and need not know who the controller was."""
    async with pair(tmp_path) as (leader, other, quorum):
        await leader.topic("there")

        async def depose(decide: Callable[[Image], object]) -> None:
            decide(other.node.quorum.image)  # as it sees things, which nobody will ever commit
            quorum.leader_id = SEVENTH
            raise KafkaError(Error.NOT_CONTROLLER)

        monkeypatch.setattr(other.node.controller, "propose", depose)
        client, me = await other.connect(), other.node.config.node_id
        quorum.leader_id = me
        assert [topic.error_code for topic in (await client.call(creating("t"), 7)).topics] == [0]
        assert quorum.leader_id == SEVENTH and leader.partition("t").log.end_offset == 0
        quorum.leader_id = me
        wanted = IncrementalAlterConfigsRequest(resources=[altering(TOPIC, "there", retention_ms="1000")])
        assert [each.error_code for each in (await client.call(wanted, 1)).responses] == [0]
        assert leader.node.quorum.image.configs(TOPIC, "there") == {"retention.ms": "1000"}


@on_loop
async def test_without_a_controller_the_time_runs_out(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, other, quorum):
        quorum.leader_id = NOBODY
        client = await other.connect()
        made = await client.call(creating("t", timeout_ms=1), 7)
        assert [topic.error_code for topic in made.topics] == [Error.REQUEST_TIMED_OUT.code]
        with pytest.raises(Lost, match="no controller"):
            await other.node.channel.ask(creating("t"), 0.1)


@on_loop
async def test_topics_that_are_named_are_made_by_the_controller(tmp_path: Path) -> None:
    """Those that are named together are asked for together."""
    async with pair(tmp_path) as (leader, other, _):
        client, image = await other.connect(), lambda: leader.node.quorum.image
        wanted = MetadataRequest(topics=[MetadataRequest.Topic(name="a")], allow_auto_topic_creation=True)
        (told,) = (await client.call(wanted, 12)).topics
        assert told.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code
        await until(lambda: image().topic("a"))
        asked = leader.node.measures.api[CreateTopicsRequest.key].counts
        await until(lambda: sum(asked))
        before = sum(asked)
        for name in ("b", "c", "b", "b"):
            other.node.creation.create_soon([NewTopic(name, 1, 1)])
        await until(lambda: image().topic("b") and image().topic("c") and sum(asked) > before)
        assert sum(asked) == before + 1


@on_loop
async def test_who_coordinates_is_known_once_the_controller_has_made_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is never known, because this node copies no metadata yet: the client is told to ask again."""
    monkeypatch.setattr(creation, "READING_S", 0.05)
    async with pair(tmp_path) as (leader, other, _):
        clients = [await other.connect() for _ in range(3)]
        asked = [each.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4) for each in clients]
        for answer in await asyncio.gather(*asked):
            assert [each.error_code for each in answer.coordinators] == [Error.COORDINATOR_NOT_AVAILABLE.code]
        topic = leader.node.quorum.image.topic("__consumer_offsets")
        assert topic is not None and len(topic.partitions) == other.node.config["offsets.topic.num.partitions"]
        assert leader.node.quorum.image.configs(TOPIC, topic.name)["cleanup.policy"] == "compact"
        assert sum(leader.node.measures.api[CreateTopicsRequest.key].counts) == 1


def test_how_long_a_request_is_kept() -> None:
    assert patience_s(creating("t", 5_000)) == 6
    assert (
        patience_s(creating("t", 0)) == patience_s(creating("t", 10**9)) == patience_s(MetadataRequest()) == FORWARD_S
    )


# --- envelopes


def open_envelope(answer: EnvelopeResponse, cls: Any, version: int) -> Any:
    assert answer.error_code == 0 and answer.response_data is not None
    correlation_id, position = read_response_header(answer.response_data, cls, version)
    return correlation_id, decode(cls, answer.response_data, version, position)


@on_loop
async def test_envelopes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await to_controller(served.node)
        answer = await client.call(enclosed(frame(creating("t"), 7, 4711)[4:], "User:alice", "::1"), 0)
        correlation_id, made = open_envelope(answer, CreateTopicsResponse, 7)
        assert (correlation_id, made.topics[0].error_code) == (4711, 0)
        good = enclosed(frame(creating("u"), 7)[4:], "User:alice", "10.0.0.1")
        refused = {
            Error.PRINCIPAL_DESERIALIZATION_FAILURE: [
                {"request_principal": None},
                {"request_principal": b""},
                {"request_principal": b"\0\7" + principal_bytes("User:a")[2:]},
            ],
            Error.INVALID_REQUEST: [
                {"client_host_address": b"123"},
                {"request_data": frame(MetadataRequest(), 12)[4:]},
                {"request_data": frame(ApiVersionsRequest(), 0)[4:]},
                {"request_data": frame(good, 0)[4:]},
            ],
            Error.UNSUPPORTED_VERSION: [
                {"request_data": b"\0"},
                {"request_data": frame(creating("u"), 7)[4:12]},
                {"request_data": b"\0\x13\0\x63" + good.request_data[4:]},
                {"request_data": b"\x7f\x13" + good.request_data[2:]},
            ],
        }
        for error, changes in refused.items():
            for change in changes:
                fields = {field.name: getattr(good, field.name) for field in EnvelopeRequest.fields}
                answer = await client.call(EnvelopeRequest(**{**fields, **change}), 0)
                assert (answer.error_code, answer.response_data) == (error.code, None), change
        client.close()


def test_principals_and_addresses_as_kafka_writes_them() -> None:
    """Bytes of DefaultKafkaPrincipalBuilder.serialize in Kafka 4.3.1."""
    assert principal_bytes("User:alice") == bytes.fromhex("0000055573657206616c6963650000")
    assert principal_of(principal_bytes("User:a:b")) == "User:a:b"
    with pytest.raises(KafkaError):
        principal_of(None)
    assert (address_bytes("10.1.2.3"), address_bytes("::1")) == (bytes([10, 1, 2, 3]), bytes(15) + b"\1")
    assert address_bytes("fe80::1%eth0")[:2] == b"\xfe\x80" and address_bytes("a-name") == bytes(4)
    for host in ("10.1.2.3", "fe80::1"):
        assert host_of(address_bytes(host)) == host
