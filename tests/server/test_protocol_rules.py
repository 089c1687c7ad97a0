"""The rules that real clients rely on (PRT-01 to PRT-20), one test each, as far as they concern the server of one node."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.features import SERVED
from ottla.server.dispatch import HANDLERS
from ottla.wire.codec import decode
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, DescribeClusterRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from ottla.wire.messages.transactions import InitProducerIdRequest
from served import Client, batch, fetch_request, frame, heads, produce_request, serving, values

# What Apache Kafka 4.3.1 advertises, of what is served here.
RELEASE_4_3 = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 65: (0, 0), 66: (0, 2),
    32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 37: (0, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1),
    45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2),
    60: (0, 2), 61: (0, 0), 64: (0, 0), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 80: (0, 1), 81: (0, 0),
}  # fmt: skip


async def advertised(client: Client) -> dict[int, tuple[int, int]]:
    response: ApiVersionsResponse = await client.call(ApiVersionsRequest(), 0)
    return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}


def named(version: int) -> ApiVersionsRequest:
    return (
        ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
        if version >= 3
        else ApiVersionsRequest()
    )


@pytest.mark.parametrize("version", range(5))
@on_loop
async def test_prt_01_api_versions_answers_with_the_oldest_header(tmp_path: Path, version: int) -> None:
    """PRT-01: header 0 even where the body is flexible."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        client.writer.write(frame(named(version), version, 99))
        data = await client.frame()
        assert struct.unpack_from(">ih", data) == (99, 0)
        response = decode(ApiVersionsResponse, data, version, 4)
        assert {row.api_key for row in response.api_keys} == set(HANDLERS)


@pytest.mark.parametrize("version", [5, 99, 32767])
@on_loop
async def test_prt_01_a_version_nobody_knows_is_answered_as_version_0(tmp_path: Path, version: int) -> None:
    """PRT-01, KIP-511: error 35, a body of version 0, the range of key 18; and the connection stays."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        body = struct.pack(">hhih", 18, version, 7, 4) + b"test" + b"\0" + b"whatever that version has"
        client.writer.write(struct.pack(">i", len(body)) + body)
        data = await client.frame()
        response = decode(ApiVersionsResponse, data, 0, 4)
        assert response.error_code == Error.UNSUPPORTED_VERSION.code
        assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [(18, 0, 4)]
        assert await advertised(client)


@pytest.mark.parametrize("setting", ["false", "true"])
@on_loop
async def test_two_phase_commit_is_spoken_only_where_it_is_on(tmp_path: Path, setting: str) -> None:
    """TRAP-68: InitProducerId 6 is advertised and answered while the setting is true; else it costs the connection."""
    async with serving(tmp_path, {"transaction.two.phase.commit.enable": setting}) as served:
        client = await served.connect()
        assert (await advertised(client))[InitProducerIdRequest.key] == (0, 6 if setting == "true" else 5)
        client.send(InitProducerIdRequest(transactional_id=None), 6)
        if setting == "true":
            assert (await client.receive()).error_code == 0
        else:
            assert await client.is_cut()


@on_loop
async def test_prt_02_first_contact(tmp_path: Path) -> None:
    """PRT-02: kafkajs walks 2, 1, 0; librdkafka sends 3; Java and franz-go send 4; a bad software name is 42."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        for version in (2, 1, 0, 3, 4):
            assert (await client.call(named(version), version)).error_code == 0
        for name in ("", "-bad", "bad name", "é", "bad-"):
            request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
            assert (await client.call(request, 3)).error_code == Error.INVALID_REQUEST.code


@on_loop
async def test_prt_03_produce_is_advertised_from_0_and_served_from_3(tmp_path: Path) -> None:
    """PRT-03, KAFKA-18659."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        ranges = await advertised(client)
        assert ranges[0] == (0, 13) and ranges[3][0] == 0
        body = struct.pack(">hhih", 0, 2, 7, -1) + bytes(20)
        client.writer.write(struct.pack(">i", len(body)) + body)
        assert await client.is_cut()


@on_loop
async def test_prt_04_and_05_what_switches_features_of_clients(tmp_path: Path) -> None:
    """PRT-04 librdkafka, PRT-05 Java 4.x: the least they need."""
    least = {0: 7, 1: 10, 2: 1, 3: 4, 19: 2, 20: 1, 32: 1, 23: 3}
    async with serving(tmp_path) as served:
        ranges = await advertised(await served.connect())
        assert all(ranges[key][1] >= version for key, version in least.items())
        assert ranges[23][0] == 2, "librdkafka asks OffsetForLeaderEpoch with version 2 exactly"
        assert ranges[0][0] <= 3 and ranges[1][0] <= 4


@on_loop
async def test_prt_07_and_08_features_are_told_as_far_as_they_are_served(tmp_path: Path) -> None:
    """PRT-07, PRT-08: transactions of generation 2 are chosen by clients only if the feature says so."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        response = await client.call(named(4), 4)
        supported = {row.name: (row.min_version, row.max_version) for row in response.supported_features}
        finalised = {row.name: row.max_version_level for row in response.finalized_features}
        assert supported == SERVED and "metadata.version" in finalised
        assert all(level <= SERVED[name][1] for name, level in finalised.items())
        assert finalised["transaction.version"] == 2
        ranges = {row.api_key: row.max_version for row in response.api_keys}
        assert ranges[0] >= 12 and ranges[26] >= 5 and ranges[28] >= 5, "what generation 2 speaks"
        older = await client.call(named(3), 3)
        assert all(row.min_version > 0 for row in older.supported_features), "0 is legal only from version 4 on"
        assert response.finalized_features_epoch >= 0


@on_loop
async def test_prt_10_the_first_produce_of_an_idempotent_client(tmp_path: Path) -> None:
    """PRT-10: InitProducerId without a transactional id, then sequences from 0."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        given = [await client.call(InitProducerIdRequest(transactional_id=None), version) for version in range(6)]
        ids = [answer.producer_id for answer in given]
        assert len(set(ids)) == 6 and all(answer.error_code == 0 and answer.producer_epoch == 0 for answer in given)
        data = batch(b"v", producer_id=ids[0], producer_epoch=0, base_sequence=0)
        assert [(await client.produce("t", data)).base_offset for _ in range(2)] == [0, 0]


@on_loop
async def test_prt_11_acks_0_has_no_answer(tmp_path: Path) -> None:
    """PRT-11."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for _ in range(10):
            client.writer.write(frame(produce_request("t", {0: batch(b"v")}, acks=0), 9, 1))
        client.writer.write(frame(ApiVersionsRequest(), 0, 2))
        assert int.from_bytes((await client.frame())[:4], "big") == 2
        assert served.partition("t").log.end_offset == 10


@on_loop
async def test_prt_12_and_13_ranges_are_those_of_one_release(tmp_path: Path) -> None:
    """PRT-12 no telemetry; PRT-13 kafka-python guesses the release from the ranges; TRAP-68 InitProducerId ends at 5."""
    async with serving(tmp_path) as served:
        ranges = await advertised(await served.connect())
        assert not {71, 72} & set(ranges)
        assert ranges == RELEASE_4_3


@on_loop
async def test_prt_15_a_fetch_inside_a_batch_and_records_never_null(tmp_path: Path) -> None:
    """PRT-15: on the bytes of the wire, for the old and the flexible form."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(b"a", b"b", b"c"))
        assert values((await client.fetch("t", 1)).records) == [b"a", b"b", b"c"]
        for topic, offset in (("none", 0), ("t", 99), ("t", 3)):
            for version in (4, 11, 12):
                assert (await client.fetch(topic, offset, version=version)).records is not None


@on_loop
async def test_prt_16_aborted_transactions_are_sorted(tmp_path: Path) -> None:
    """PRT-16: by first offset, whatever the order of their ends."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        for producer in (1, 2, 3):
            data = batch(b"v", producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
            served.append_in_transaction("t", data)
        for producer in (3, 1, 2):
            served.end_transaction("t", producer, 0, commit=False)
        fetched = await client.fetch("t", 0, isolation_level=1)
        assert [row.first_offset for row in fetched.aborted_transactions] == [0, 1, 2]


async def created(client: Client, name: str) -> Any:
    topics = [CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)]
    return (await client.call(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)).topics[0]


@on_loop
async def test_prt_17_auto_creation_with_the_default_of_partitions(tmp_path: Path) -> None:
    """PRT-17; TRAP-79: when the answer comes, the topic is usable."""
    async with serving(tmp_path, {"num.partitions": "4"}) as served:
        client = await served.connect()
        asked = MetadataRequest(topics=[MetadataRequest.Topic(name="new")], allow_auto_topic_creation=True)
        async with asyncio.timeout(60):
            while (topic := (await client.call(asked, 9)).topics[0]).error_code:
                assert topic.error_code in (Error.UNKNOWN_TOPIC_OR_PARTITION.code, Error.LEADER_NOT_AVAILABLE.code)
                await asyncio.sleep(0.01)
        assert len(topic.partitions) == 4
        assert (await client.produce("new", batch(b"v"), index=3)).error_code == 0
        assert (await created(client, "made")).error_code == 0
        assert (await client.produce("made", batch(b"v"))).error_code == 0


@on_loop
async def test_prt_17_limits_of_a_topic(tmp_path: Path) -> None:
    """PRT-17: max.message.bytes, keys on compacted topics."""
    async with serving(tmp_path) as served:
        await served.topic("small", max_message_bytes="1000")
        await served.topic("compacted", cleanup_policy="compact")
        client = await served.connect()
        assert (await client.produce("small", batch(b"x" * 2000))).error_code == Error.MESSAGE_TOO_LARGE.code
        assert (await client.produce("compacted", batch(b"x", key=None))).error_code == Error.INVALID_RECORD.code


@on_loop
async def test_prt_19_answers_in_order_many_in_flight(tmp_path: Path) -> None:
    """PRT-19: correlation ids in order, whatever they are; the limit of a frame is enforced."""
    async with serving(tmp_path, {"socket.request.max.bytes": "100000"}) as served:
        await served.topic("t")
        client = await served.connect()
        ids = [5, -1, 2**31 - 1, 5, 0, -(2**31)]
        for correlation in ids:
            client.writer.write(frame(fetch_request("t", {0: 0}, max_wait_ms=20), 12, correlation))
        answered = [struct.unpack_from(">i", await client.frame())[0] for _ in ids]
        assert answered == ids
        client.writer.write(struct.pack(">i", 100_001))
        assert await client.is_cut()


@on_loop
async def test_prt_20_batches_keep_every_field(tmp_path: Path) -> None:
    """PRT-20: what is read is what was written, but for base offset and leader epoch, which lie outside the CRC."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(b"first"))
        data = batch(b"a", b"b" * 300, None, codec=1, producer_id=8, producer_epoch=2, base_sequence=0)
        assert (await client.produce("t", data)).error_code == 0
        fetched = bytes((await client.fetch("t", 1)).records)
        (head,) = heads(fetched)
        assert (head.base_offset, head.leader_epoch, head.last_offset) == (1, 0, 3)
        assert fetched[16:] == data[16:] and fetched[8:12] == data[8:12]


@on_loop
async def test_an_unknown_api_or_version_ends_the_connection(tmp_path: Path) -> None:
    """faults 2.3: Kafka cannot build an answer either."""
    async with serving(tmp_path) as served:
        for key, version in ((999, 0), (-1, 0), (1, 3), (1, 19), (3, 99), (2, -1), (60, 3)):
            client = await served.connect()
            body = struct.pack(">hhih", key, version, 1, -1) + bytes(40)
            client.writer.write(struct.pack(">i", len(body)) + body)
            assert await client.is_cut(), (key, version)


@on_loop
async def test_a_client_id_may_be_null_empty_or_any_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        for name in (None, "", "x" * 30_000, "ünï\x00\n%s{}"):
            assert (await client.call(DescribeClusterRequest(), 0, name)).error_code == 0
