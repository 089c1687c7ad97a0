"""Produce on the wire: what is accepted, what is refused and how, and when an ack may leave."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from desk import on_loop
from ottla.metadata.image import Partition as Assignment
from ottla.wire.errors import Error
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.records import Record, build
from served import SECONDS, TouchyDisk, batch, frame, heads, produce_request, serving, until, values

WITHOUT_END_MS = int(2 * SECONDS * 1000)  # longer than the client here has patience

ACKS = [1, -1]


def codes(response: object) -> dict[tuple[str, int], int]:
    return {
        (topic.name, part.index): part.error_code
        for topic in response.responses  # type: ignore[attr-defined]
        for part in topic.partition_responses
    }


@pytest.mark.parametrize("version", range(3, 14))
@on_loop
async def test_every_version_appends_and_says_where(tmp_path: Path, version: int) -> None:
    """PRT-05, M6: names up to version 12, ids from 13 on."""
    async with serving(tmp_path) as served:
        topic_id = await served.topic("t")
        client = await served.connect()
        for expected in (0, 2):
            request = produce_request(topic_id if version >= 13 else "t", {0: batch(b"a", b"b")})
            answer = (await client.call(request, version)).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, expected, -1)
            assert answer.log_start_offset == (0 if version >= 5 else -1)
        fetched = await client.fetch("t", 0)
        assert [(head.base_offset, head.leader_epoch) for head in heads(fetched.records)] == [(0, 0), (2, 0)]


@on_loop
async def test_what_is_refused_and_with_which_code(tmp_path: Path) -> None:
    """TRAP-19, faults 2.3: whole batches are refused with Kafka's codes, without a word, and the log is unchanged."""
    good = batch(b"v")
    wrong_crc = good[:17] + bytes([good[17] ^ 1]) + good[18:]
    wrong_count = struct.pack(">i", 7)

    def with_crc(data: bytes) -> bytes:
        return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]

    refused = {
        Error.CORRUPT_MESSAGE: [wrong_crc, good[:16] + b"\x03" + good[17:], struct.pack(">qi", 0, 5) + good[12:]],
        Error.INVALID_RECORD: [
            b"",
            good[:40],
            good + good,
            good[:16] + b"\x01" + good[17:],
            with_crc(good[:57] + wrong_count + good[61:]),
            with_crc(good[:21] + b"\x00\x20" + good[23:]),
            struct.pack(">q", 5) + good[8:],
            batch(b"v", producer_id=5, producer_epoch=0, base_sequence=-1),
        ],
        Error.MESSAGE_TOO_LARGE: [batch(b"x" * 3000)],
        Error.UNKNOWN_SERVER_ERROR: [with_crc(good[:21] + b"\x00\x01" + good[23:])],
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: [
            batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        ],
    }
    async with serving(tmp_path) as served:
        await served.topic("t", max_message_bytes="2000")
        client = await served.connect()
        for error, batches in refused.items():
            for number, data in enumerate(batches):
                answer = await client.produce("t", data)
                assert answer.error_code == error.code, (error, number, answer)
                assert answer.base_offset == -1 and answer.record_errors == []
        assert served.partition("t").log.end_offset == 0
        assert (await client.produce("t", wrong_crc)).error_message is None
        assert (await client.produce("t", None)).error_code == Error.INVALID_RECORD.code


@on_loop
async def test_missing_partitions_and_wrong_acks(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"), acks=2)).error_code == Error.INVALID_REQUIRED_ACKS.code
        assert (await client.produce("none", batch(b"v"), acks=2)).error_code == 3, "existence is looked at first"
        assert (await client.produce("t", batch(b"v"), index=1)).error_code == 3
        answer = await client.call(produce_request(bytes(15) + b"x", {0: batch(b"v")}), 13)
        assert answer.responses[0].partition_responses[0].error_code == Error.UNKNOWN_TOPIC_ID.code
        assert served.partition("t").log.end_offset == 0


@on_loop
async def test_each_partition_is_answered_once(tmp_path: Path) -> None:
    """As Apache 4.3.1 answers: topics are merged, empty ones left out, of two batches for one partition the last counts."""
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        part, topic = ProduceRequest.Topic.Partition, ProduceRequest.Topic
        twice = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                topic(name="t", partition_data=[part(index=0, records=batch(b"first"))]),
                topic(name="empty", partition_data=[]),
                topic(
                    name="t", partition_data=[part(index=1, records=batch(b"x")), part(index=0, records=batch(b"last"))]
                ),
            ],
        )
        response = await client.call(twice, 9)
        assert [len(topic.partition_responses) for topic in response.responses] == [2]
        assert codes(response) == {("t", 0): 0, ("t", 1): 0}
        assert values((await client.fetch("t", 0)).records) == [b"last"]


@on_loop
async def test_internal_topics_take_writes_from_the_admin_client_only(tmp_path: Path) -> None:
    """TRAP-26."""
    async with serving(tmp_path) as served:
        await served.topic("__consumer_offsets")
        client = await served.connect()
        request = produce_request("__consumer_offsets", {0: batch(b"v")})
        assert codes(await client.call(request, 9)) == {("__consumer_offsets", 0): Error.INVALID_TOPIC_EXCEPTION.code}
        assert codes(await client.call(request, 9, "__admin_client")) == {("__consumer_offsets", 0): 0}


@pytest.mark.parametrize("size", [10, 40_000])
@on_loop
async def test_a_compacted_topic_needs_keys_and_names_the_records(tmp_path: Path, size: int) -> None:
    """PRT-17, KIP-467: small batches are looked at in place, large ones in another process, with one answer."""
    keys = [b"k", None, b"k", None]
    data = build([Record(timestamp=5, key=key, value=b"v" * size) for key in keys])
    async with serving(tmp_path) as served:
        await served.topic("t", cleanup_policy="compact")
        client = await served.connect()
        answer = await client.produce("t", data)
        assert answer.error_code == Error.INVALID_RECORD.code
        assert [error.batch_index for error in answer.record_errors] == [1, 3]
        assert "key" in answer.record_errors[0].batch_index_error_message
        assert answer.error_message is not None
        assert (await client.produce("t", batch(b"v" * size))).base_offset == 0


@on_loop
async def test_a_codec_of_the_topics_own_keeps_the_order_of_the_connection(tmp_path: Path) -> None:
    """A batch that another process has to recompress holds back what the connection sends after it."""
    large, small = b"L" * 200_000, b"s"
    async with serving(tmp_path) as served:
        await served.topic("t", compression_type="zstd")
        client = await served.connect()
        for value in (large, small, large, small):
            client.send(produce_request("t", {0: batch(value)}), 9)
        answers = [(await client.receive()).responses[0].partition_responses[0] for _ in range(4)]
        assert [answer.base_offset for answer in answers] == [0, 1, 2, 3]
        fetched = await client.fetch("t", 0)
        assert values(fetched.records) == [large, small, large, small]
        assert {head.codec for head in heads(fetched.records)} == {4}


@on_loop
async def test_append_time_is_stamped_and_told(tmp_path: Path) -> None:
    """TRAP-21."""
    async with serving(tmp_path) as served:
        await served.topic("t", message_timestamp_type="LogAppendTime")
        client = await served.connect()
        before = served.node.world.now_ms()
        answer = await client.produce("t", batch(b"v", timestamp=5))
        assert before <= answer.log_append_time_ms <= served.node.world.now_ms()
        (head,) = heads((await client.fetch("t", 0)).records)
        assert (head.timestamp_type, head.max_timestamp) == (1, answer.log_append_time_ms)


@on_loop
async def test_a_repeated_batch_gets_its_first_answer(tmp_path: Path) -> None:
    """TRAP-20, IDM: also when both came in one turn of the loop."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        first, second = (batch(b"v", producer_id=7, producer_epoch=0, base_sequence=n) for n in (0, 1))
        for data in (first, first, second, first):
            client.send(produce_request("t", {0: data}), 9)
        offsets = [(await client.receive()).responses[0].partition_responses[0].base_offset for _ in range(4)]
        assert offsets == [0, 0, 1, 0]
        gap = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=9)
        assert (await client.produce("t", gap)).error_code == Error.OUT_OF_ORDER_SEQUENCE_NUMBER.code
        assert served.partition("t").log.end_offset == 2


@on_loop
async def test_without_acks_nothing_is_said_and_an_error_ends_the_connection(tmp_path: Path) -> None:
    """PRT-11; faults: with acks=0 a client can learn of an error only by losing its connection."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        client.writer.write(frame(produce_request("t", {0: batch(b"a")}, acks=0), 9))
        assert values((await client.fetch("t", 0)).records) == [b"a"], "the only answer is that of the fetch"
        for bad in (produce_request("none", {0: batch(b"a")}, acks=0), produce_request("t", {0: b"\xff" * 80}, acks=0)):
            other = await served.connect()
            other.writer.write(frame(bad, 9))
            assert await other.is_cut()


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("size", [100, 100_000])
@on_loop
async def test_a_full_disk_refuses_and_appends_resume(tmp_path: Path, acks: int, size: int) -> None:
    """Goal 20: the write fails after the batch was accepted; the answer is changed before it leaves."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", 2)
        client = await served.connect()
        assert (await client.produce("t", batch(b"before"), acks=acks)).error_code == 0
        disk.full = True
        for _ in range(3):
            client.send(produce_request("t", {0: batch(b"x" * size), 1: batch(b"x" * size)}, acks), 9)
        for _ in range(3):
            assert set(codes(await client.receive()).values()) == {Error.KAFKA_STORAGE_ERROR.code}
        assert values((await client.fetch("t", 0)).records) == [b"before"], "reads go on"
        disk.full = False
        answer = await client.produce("t", batch(b"after"), acks=acks)
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert values((await client.fetch("t", 0)).records) == [b"before", b"after"]


@on_loop
async def test_a_full_disk_with_acks_0_ends_the_connection(tmp_path: Path) -> None:
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t")
        client = await served.connect()
        disk.full = True
        client.writer.write(frame(produce_request("t", {0: batch(b"a")}, acks=0), 9))
        assert await client.is_cut()
        disk.full = False


@on_loop
async def test_a_sequence_lost_with_its_write_may_be_sent_again(tmp_path: Path) -> None:
    """IDM: what was staged and lost is not remembered, so the retry is no gap and no duplicate."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t")
        client = await served.connect()
        data = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
        disk.full = True
        assert (await client.produce("t", data)).error_code == Error.KAFKA_STORAGE_ERROR.code
        disk.full = False
        answer = await client.produce("t", data)
        assert (answer.error_code, answer.base_offset) == (0, 0)


@on_loop
async def test_acks_after_fsync_share_it(tmp_path: Path) -> None:
    """flush.messages=1: no ack before the sync, and one sync for all that wait."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        await asyncio.sleep(0.05)
        clients = [await served.connect() for _ in range(10)]
        disk.slow = True
        disk.syncs.clear()
        for client in clients:
            for _ in range(5):
                client.send(produce_request("t", {0: batch(b"v")}), 9)
        log = served.partition("t").log
        await until(lambda: log.end_offset == 50)
        assert not await clients[0].is_cut(0.2), "nothing was said before the sync"
        assert (log.synced_end, disk.syncs) == (0, [])
        disk.slow = False
        disk.let_go()
        offsets = [
            (await client.receive()).responses[0].partition_responses[0].base_offset
            for client in clients
            for _ in range(5)
        ]
        assert sorted(offsets) == list(range(50))
        assert log.synced_end == 50
        assert len(disk.syncs) <= 2, "the second is for those who came after the first began"


@on_loop
async def test_consumers_do_not_see_what_is_not_synced(tmp_path: Path) -> None:
    """GRP-27: nothing at or above the high watermark."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        await asyncio.sleep(0.05)
        client, reader = await served.connect(), await served.connect()
        disk.slow = True
        client.send(produce_request("t", {0: batch(b"v")}), 9)
        await asyncio.sleep(0.1)
        fetched = await reader.fetch("t", 0)
        assert (fetched.high_watermark, bytes(fetched.records)) == (0, b"")
        disk.slow = False
        disk.let_go()
        await client.receive()
        assert (await reader.fetch("t", 0)).high_watermark == 1


@on_loop
async def test_a_failed_fsync_is_told_at_once_and_never_believed(tmp_path: Path) -> None:
    """Issue section 6: the waiting produce gets 56, not a timeout, and so does every later one."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"))).error_code == 0
        disk.broken = True
        assert (await client.produce("t", batch(b"v"), timeout_ms=WITHOUT_END_MS)).error_code == 56
        disk.broken = False
        assert (await client.produce("t", batch(b"v"))).error_code == 56
        assert values((await client.fetch("t", 0)).records) == [b"v"]


@pytest.mark.parametrize("size", [100, 100_000])
@on_loop
async def test_a_write_that_fails_under_a_wait_is_told_at_once(tmp_path: Path, size: int) -> None:
    """flush.messages=1 and a full disk: nobody waits until the timeout for an offset that somebody else will get."""
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", 2, flush_messages="1")
        client, other = await served.connect(), await served.connect()
        disk.slow = True
        client.send(produce_request("t", {0: batch(b"waits for its sync")}, timeout_ms=WITHOUT_END_MS), 9)
        await until(lambda: disk.waiting)
        disk.full = True
        request = produce_request("t", {0: batch(b"x" * 50), 1: batch(b"x" * size)}, timeout_ms=WITHOUT_END_MS)
        assert set(codes(await other.call(request, 9)).values()) == {56}
        disk.slow = disk.full = False
        disk.let_go()
        assert codes(await client.receive()) == {("t", 0): 0}, "what was written before is not touched"


@on_loop
async def test_a_wait_longer_than_the_timeout_is_told(tmp_path: Path) -> None:
    disk = TouchyDisk()
    async with serving(tmp_path, disk=disk) as served:
        await served.topic("t", flush_messages="1")
        client = await served.connect()
        disk.slow = True
        answer = await client.produce("t", batch(b"v"), timeout_ms=50)
        assert (answer.error_code, answer.base_offset) == (Error.REQUEST_TIMED_OUT.code, 0)
        assert served.partition("t").high_watermark.waiting == 0
        disk.slow = False
        disk.let_go()


@on_loop
async def test_too_few_in_sync_replicas(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        partition = served.partition("t")
        partition.configure(partition.log.settings, min_insync=2)
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"))).error_code == 0, "no more can be wanted than there are"
        partition.lead(Assignment((1, 2), (1,), 1, 1))
        assert (await client.produce("t", batch(b"v"))).error_code == Error.NOT_ENOUGH_REPLICAS.code
        assert (await client.produce("t", batch(b"v"), acks=1)).error_code == 0


@on_loop
async def test_zstd_came_with_version_7(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        data = batch(b"v" * 50, codec=4)
        assert (await client.produce("t", data, version=6)).error_code == Error.UNSUPPORTED_COMPRESSION_TYPE.code
        assert (await client.produce("t", data, version=7)).error_code == 0


@on_loop
async def test_a_codec_that_does_not_exist(tmp_path: Path) -> None:
    """As Apache 4.3.1 answers: before version 7 it fails the request, after that only its batch."""
    good = batch(b"v")
    odd = good[:21] + b"\0\5" + good[23:]
    odd = odd[:17] + struct.pack(">I", crc32c(odd[21:])) + odd[21:]
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        old = await client.call(produce_request("t", {0: good, 1: odd}), 6)
        assert codes(old) == {("t", 0): -1, ("t", 1): -1}
        new = await client.call(produce_request("t", {0: good, 1: odd}), 7)
        assert codes(new) == {("t", 0): 0, ("t", 1): -1}
        assert served.partition("t").log.end_offset == 1


@on_loop
async def test_a_transaction_that_nobody_could_end_is_not_begun(tmp_path: Path) -> None:
    """It would hide all later records from readers of committed ones. Without a producer there is nothing to end."""
    begun = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        answer = await client.produce("t", begun, transactional_id="x")
        assert answer.error_code == Error.NOT_ENOUGH_REPLICAS.code
        assert (await client.produce("t", batch(b"v", transactional=True), transactional_id="x")).error_code == 0
        assert (await client.fetch("t", 0, isolation_level=1)).last_stable_offset == 1


@on_loop
async def test_a_corrupt_batch_beside_one_in_a_transaction_is_refused_alone(tmp_path: Path) -> None:
    """As Apache 4.3.1 answers: it looks at all batches only up to the first one in a transaction."""
    inside = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    corrupt = batch(b"v")[:16] + b"\4" + batch(b"v")[17:]
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        for version in (5, 9):
            later = await client.call(produce_request("t", {0: inside, 1: corrupt}, transactional_id="x"), version)
            assert codes(later) == {("t", 0): Error.NOT_ENOUGH_REPLICAS.code, ("t", 1): Error.CORRUPT_MESSAGE.code}
            first = await client.call(produce_request("t", {0: corrupt, 1: inside}, transactional_id="x"), version)
            assert set(codes(first).values()) == {Error.CORRUPT_MESSAGE.code}


@on_loop
async def test_a_batch_in_a_transaction_that_is_too_short_for_a_producer(tmp_path: Path) -> None:
    """TRAP-19: alone, or behind one that is whole and whose producer must not be taken for its own."""
    short = struct.pack(">qiibIh7x", 0, 18, 0, 2, 0, 16)
    async with serving(tmp_path) as served:
        await served.topic("t", partitions=2)
        client = await served.connect()
        inside = batch(b"v", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
        for parts in ({0: short}, {0: inside, 1: short}):
            answer = await client.call(produce_request("t", parts, transactional_id="x"), 12)
            assert codes(answer)["t", max(parts)] == Error.CORRUPT_MESSAGE.code
        assert not served.partition("t", 1).log.producers.guards
