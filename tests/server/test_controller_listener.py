"""The controller's own listener: a port that is advertised takes connections, and serves what a controller serves."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
import zipfile
from pathlib import Path

import pytest

from apache import kafka
from desk import on_loop
from ottla.server.dispatch import HANDLERS, ON_BOTH, ON_CONTROLLER, ONLY_ON_CONTROLLER
from ottla.wire.messages.cluster import ApiVersionsRequest, DescribeClusterRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from ottla.wire.messages.voters import DescribeQuorumRequest
from ottla.wire.schema import Message
from served import Client, Served, serving

# What a controller of Apache Kafka 4.3.1 lists: key, lowest and highest version.
LISTED = """
1:4-18 17:0-1 18:0-4 19:2-7 20:1-6 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2 36:0-2 37:0-3 38:1-3 39:1-2 40:1-2
41:1-3 43:0-2 44:0-1 45:0-1 46:0-0 49:0-1 50:0-0 51:0-0 52:0-2 53:0-1 54:0-1 55:0-2 56:2-3 57:0-2 58:0-0
59:0-1 60:0-2 62:0-4 63:0-2 64:0-0 67:0-0 70:0-0 73:0-0 80:0-1 81:0-0 82:0-0
"""
APACHES = {int(key): (int(low), int(high)) for key, low, high in re.findall(r"(\d+):(\d+)-(\d+)", LISTED)}


async def to_controller(served: Served) -> Client:
    """As somebody who was told the address by the metadata."""
    endpoint = served.node.quorum.image.controllers[1].endpoints["CONTROLLER"]
    return Client(*await asyncio.open_connection(endpoint.host, endpoint.port))


def test_the_tables_have_what_apaches_controller_lists() -> None:
    assert ON_BOTH | ONLY_ON_CONTROLLER | {FetchRequest.key} == APACHES.keys()
    assert not ON_BOTH & ONLY_ON_CONTROLLER


def listeners_of_apache() -> dict[int, list[str]]:
    """By key: the listeners that each request's message file in Apache Kafka's jar names."""
    (jar,) = kafka.JARS.glob("kafka-clients-*.jar")
    listeners = {}
    with zipfile.ZipFile(jar) as files:
        for name in files.namelist():
            if re.fullmatch(r"common/message/\w+Request\.json", name):
                text = re.sub(r"(?m)(^|\s)//.*$", "", files.read(name).decode())  # comments, which JSON does not have
                request = json.loads(text)
                listeners[request["apiKey"]] = request.get("listeners", [])
    return listeners


@pytest.mark.apache
def test_listeners_serve_what_apaches_message_files_say() -> None:
    """Also where nothing is served yet: who writes the handler need not think of the listener."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    apaches = listeners_of_apache()
    assert len(apaches) > 80 and FetchRequest.key in apaches
    tables = {"broker": HANDLERS, "controller": ON_CONTROLLER}
    served = {key: {kind for kind, table in tables.items() if key in table} for key in HANDLERS | ON_CONTROLLER}
    assert served == {key: set(apaches[key]) for key in served}
    on_controller = {key for key, kinds in apaches.items() if "controller" in kinds}
    both = {key for key in on_controller if "broker" in apaches[key]}
    assert both - {FetchRequest.key} == ON_BOTH
    assert on_controller - both == ONLY_ON_CONTROLLER


@on_loop
async def test_the_registered_address_takes_connections(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        assert (await client.call(ApiVersionsRequest(), 0)).error_code == 0
        new = CreateTopicsRequest.Topic(name="made-there", num_partitions=1, replication_factor=1)
        answer = await client.call(CreateTopicsRequest(topics=[new], timeout_ms=5_000), 7)
        assert [topic.error_code for topic in answer.topics] == [0]
        assert served.partition("made-there").log.end_offset == 0
        client.close()


@pytest.mark.parametrize(("request_", "version"), [(MetadataRequest(), 12), (ProduceRequest(), 9)])
@on_loop
async def test_what_belongs_to_brokers_ends_the_connection(tmp_path: Path, request_: Message, version: int) -> None:
    """As in Apache Kafka, where the message files say which listener serves what."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        client.send(request_, version)
        assert await client.is_cut()
        client.close()


@on_loop
async def test_the_voters_in_the_log_have_the_port_of_the_settings(tmp_path: Path) -> None:
    """A free port is known only once it is bound; the record that names the voters must not say 0."""
    async with serving(tmp_path) as served:
        (voter,) = served.node.quorum.voters.voters
        assert voter.addresses[0].port == served.node.listeners[-1].port > 0


@on_loop
async def test_voters_of_the_settings_are_told_under_the_name_of_the_listener(tmp_path: Path) -> None:
    """They have no name of their own, and Kafka's tools stumble over an empty one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"
    voters = {"listeners": listeners, "controller.quorum.voters": f"1@127.0.0.1:{port}"}
    async with serving(tmp_path, voters) as served:
        client = await served.connect()
        topic = DescribeQuorumRequest.Topic
        metadata = topic(topic_name="__cluster_metadata", partitions=[topic.Partition(partition_index=0)])
        answer = await client.call(DescribeQuorumRequest(topics=[metadata]), 2)
        assert [(each.name, each.port) for each in answer.nodes[0].listeners] == [("CONTROLLER", port)]


@on_loop
async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """A port that somebody wrote down must be free; that of a node without settings gives way."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {"listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"}
        async with serving(tmp_path, settings | {"ottla.controller.port.fallback": "true"}) as served:
            client = await to_controller(served)
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == 0
            topic = DescribeQuorumRequest.Topic
            metadata = topic(topic_name="__cluster_metadata", partitions=[topic.Partition(partition_index=0)])
            quorum = await client.call(DescribeQuorumRequest(topics=[metadata]), 2)
            client.close()
            (voter,) = served.node.quorum.voters.voters
            assert voter.addresses[0].port == port, "whoever serves this directory next listens where the settings say"
            assert quorum.nodes[0].listeners[0].port == served.node.listeners[-1].port != port, "where it is now"
        with pytest.raises(OSError) as refused:
            async with serving(tmp_path, settings | {"ottla.controller.port.fallback": "false"}):
                pass
        assert refused.value.errno == errno.EADDRINUSE


@on_loop
async def test_two_nodes_that_start_at_once(tmp_path: Path) -> None:
    """Both may bind the port before either listens there; one of them moves."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    fallback = {"ottla.controller.port.fallback": "true"}
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}", **fallback}
    both = [serving(tmp_path / name, settings) for name in ("one", "other")]
    started = await asyncio.gather(*(each.__aenter__() for each in both))
    ports = [served.node.listeners[-1].port for served in started]
    for each in both:
        await each.__aexit__(None, None, None)
    assert port in ports and len(set(ports)) == 2


@on_loop
async def test_it_lists_what_it_serves_in_the_versions_of_apaches_controller(tmp_path: Path) -> None:
    """Logins, access rules and tokens are for a later release."""
    later = {17, 29, 30, 31, 36, 38, 39, 40, 41}
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        answer = await client.call(ApiVersionsRequest(), 0)
        listed = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        assert listed.keys() == ON_CONTROLLER.keys()
        assert listed == {key: APACHES[key] for key in listed}
        assert not listed.keys() & later
        client.close()


@on_loop
async def test_controllers_are_described_there_and_brokers_are_not(tmp_path: Path) -> None:
    """KIP-919. Error codes, texts and what is left empty are Apache's, seen beside it."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        asked = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
        answer = await client.call(asked, 2)
        port = served.node.listeners[-1].port
        assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == [(1, "127.0.0.1", port)]
        assert (answer.endpoint_type, answer.controller_id, answer.error_code) == (2, 1, 0)
        assert answer.cluster_authorized_operations == 8096
        wrong = await client.call(DescribeClusterRequest(endpoint_type=1), 2)
        assert (wrong.error_code, wrong.endpoint_type, wrong.cluster_id) == (114, 1, "")
        assert wrong.error_message == (
            "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
        )
        assert (await client.call(DescribeClusterRequest(endpoint_type=3), 2)).error_code == 115
        client.close()
