"""Fetch on the wire: bounds, limits, waiting, sessions, epochs and transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.image import Partition as Assignment
from ottla.wire.errors import Error
from ottla.wire.messages.fetch import FetchRequest
from served import SECONDS, Client, Served, batch, fetch_request, heads, produce_request, serving, until, values

WITHOUT_END_MS = int(2 * SECONDS * 1000)  # longer than the client here has patience


async def filled(served: Served, name: str, *batches: bytes, partitions: int = 1, **configs: str) -> Client:
    """A topic with these batches in its partition 0, and a client."""
    await served.topic(name, partitions, **configs)
    client = await served.connect()
    for data in batches:
        assert (await client.produce(name, data)).error_code == 0
    return client


@pytest.mark.parametrize("version", range(4, 19))
@on_loop
async def test_every_version_reads(tmp_path: Path, version: int) -> None:
    """PRT-05, M6: names up to version 12, ids from 13 on."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a", b"b"), batch(b"c"))
        topic = served.partition("t").topic_id if version >= 13 else "t"
        response = await client.call(fetch_request(topic, {0: 0}), version)
        (told,) = response.responses
        assert (told.topic_id if version >= 13 else told.topic) == topic
        (part,) = told.partitions
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
        assert values(part.records) == [b"a", b"b", b"c"]
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert part.aborted_transactions is None and part.preferred_read_replica == -1


@on_loop
async def test_a_fetch_inside_a_batch_returns_all_of_it(tmp_path: Path) -> None:
    """PRT-15."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a", b"b", b"c"), batch(b"d"))
        fetched = await client.fetch("t", 2)
        assert [(head.base_offset, head.count) for head in heads(fetched.records)] == [(0, 3), (3, 1)]
        fetched = await client.fetch("t", 1, partition_max_bytes=10)
        assert [head.base_offset for head in heads(fetched.records)] == [0]


@on_loop
async def test_the_first_batch_comes_whole_and_the_rest_within_limits(tmp_path: Path) -> None:
    """Issue section 5: an oversized first batch is given once a response, not once a partition."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"x" * 1000), batch(b"y" * 1000), partitions=2)
        await client.produce("t", batch(b"z" * 1000), index=1)
        response = await client.call(fetch_request("t", {0: 0, 1: 0}, max_bytes=1), 12)
        sizes = [len(part.records) for part in response.responses[0].partitions]
        assert sizes[0] > 1000 and sizes[1] == 0
        response = await client.call(fetch_request("t", {0: 0, 1: 0}, partition_max_bytes=1), 12)
        assert [bool(part.records) for part in response.responses[0].partitions] == [True, False]
        one_and_a_half = sizes[0] + sizes[0] // 2
        fetched = await client.fetch("t", 0, partition_max_bytes=one_and_a_half)
        assert len(fetched.records) == sizes[0], "only whole batches"
        fetched = await client.fetch("t", 0, partition_max_bytes=2 * sizes[0])
        assert len(heads(fetched.records)) == 2


@on_loop
async def test_large_answers_are_byte_for_byte_what_was_written(tmp_path: Path) -> None:
    """sendfile and joined slices in one response, in order, over several partitions."""
    async with serving(tmp_path) as served:
        await served.topic("t", 3)
        client = await served.connect()
        for index, size in ((0, 900_000), (1, 10), (2, 700_000)):
            assert (await client.produce("t", batch(bytes([65 + index]) * size), index=index)).error_code == 0
        for _ in range(3):
            client.send(fetch_request("t", {0: 0, 1: 0, 2: 0}), 12)
        for _ in range(3):
            (topic,) = (await client.receive()).responses
            assert [values(part.records) for part in topic.partitions] == [
                [b"A" * 900_000],
                [b"B" * 10],
                [b"C" * 700_000],
            ]


@on_loop
async def test_errors_come_with_records_that_are_empty_not_null(tmp_path: Path) -> None:
    """PRT-15, librdkafka; nulls and -1 as Apache 4.3.1 answers."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a"))
        expected: list[tuple[str, int, dict[str, Any], int, list[Any] | None]] = [
            ("none", 0, {}, Error.UNKNOWN_TOPIC_OR_PARTITION.code, []),
            ("t", 7, {}, Error.OFFSET_OUT_OF_RANGE.code, None),
            ("t", -1, {}, Error.OFFSET_OUT_OF_RANGE.code, None),
            ("t", 0, {"current_leader_epoch": 9}, Error.UNKNOWN_LEADER_EPOCH.code, None),
        ]
        for topic, offset, more, code, aborted in expected:
            part = await client.fetch(topic, offset, **more)
            assert (part.error_code, bytes(part.records), part.aborted_transactions) == (code, b"", aborted)
            assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (-1, -1, -1)
        response = await client.call(fetch_request(b"x" * 16, {0: 0}), 13)
        assert response.responses[0].partitions[0].error_code == Error.UNKNOWN_TOPIC_ID.code
        empty = await client.fetch("t", 1)
        assert (empty.error_code, bytes(empty.records), empty.high_watermark) == (0, b"", 1)


@on_loop
async def test_an_id_of_zero_that_others_follow_is_refused_whole(tmp_path: Path) -> None:
    """As Apache 4.3.1 answers."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a"))
        alone = await client.call(fetch_request(bytes(16), {0: 0}), 13)
        assert alone.responses[0].partitions[0].error_code == Error.UNKNOWN_TOPIC_ID.code
        followed = await client.call(fetch_request(bytes(16), {0: 0, 1: 0}), 13)
        assert (followed.error_code, followed.responses) == (Error.UNKNOWN_SERVER_ERROR.code, [])


@on_loop
async def test_a_partition_that_is_missing_does_not_hurry_the_others(tmp_path: Path) -> None:
    """As in Kafka: or a consumer of a deleted topic would ask without pause."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a"))
        loop = asyncio.get_running_loop()
        part = FetchRequest.Topic.Partition
        asked = [
            part(partition=5, fetch_offset=0, partition_max_bytes=9),
            part(partition=0, fetch_offset=1, partition_max_bytes=9),
        ]
        request = FetchRequest(max_wait_ms=200, min_bytes=1, topics=[FetchRequest.Topic(topic="t", partitions=asked)])
        began = loop.time()
        (topic,) = (await client.call(request, 12)).responses
        assert loop.time() - began >= 0.19
        assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(0, 0), (5, 3)]
        await client.fetch("none", 0, max_wait_ms=WITHOUT_END_MS)  # with nothing to wait for there is no wait


@on_loop
async def test_a_fetch_waits_for_enough_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served, "t", partitions=2)
        writer = await served.connect()
        size = len(batch(b"v" * 100))
        client.send(fetch_request("t", {0: 0, 1: 0}, max_wait_ms=WITHOUT_END_MS, min_bytes=3 * size), 12)
        for index in (0, 1):
            await writer.produce("t", batch(b"v" * 100), index=index)
        await asyncio.sleep(0.05)
        assert not await client.is_cut(0.1), "two of three: nothing is said yet"
        await writer.produce("t", batch(b"v" * 100))
        (topic,) = (await client.receive()).responses
        assert [len(part.records) for part in topic.partitions] == [2 * size, size]
        assert served.partition("t").high_watermark.waiting == 0


@on_loop
async def test_a_fetch_that_waits_in_vain_answers_at_its_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        part = await client.fetch("t", 0, max_wait_ms=150, min_bytes=1 << 20)
        assert loop.time() - began >= 0.14
        assert values(part.records) == [b"a"], "what is there is given"
        await client.fetch("t", 1, max_wait_ms=WITHOUT_END_MS, min_bytes=0)
        assert served.partition("t").high_watermark.waiting == 0


@on_loop
async def test_a_parked_fetch_ends_with_its_connection_and_with_its_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served, "t")
        mark = served.partition("t").high_watermark
        client.send(fetch_request("t", {0: 0}, max_wait_ms=WITHOUT_END_MS), 12)
        await until(lambda: mark.waiting)
        client.close()
        await until(lambda: not mark.waiting)
        other = await served.connect()
        other.send(fetch_request("t", {0: 0}, max_wait_ms=WITHOUT_END_MS), 12)
        await until(lambda: mark.waiting)
        from ottla.metadata.controller import delete_topics

        topic_id = served.partition("t").topic_id
        await served.node.controller.propose(lambda image: delete_topics(image, [topic_id]))
        (topic,) = (await other.receive()).responses
        assert topic.partitions[0].error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code


@on_loop
async def test_a_reader_sees_what_its_connection_wrote_before(tmp_path: Path) -> None:
    """Requests of one connection take effect in the order they came, also within one turn of the loop."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t")
        for _ in range(20):
            offset = served.partition("t").log.end_offset
            client.send(produce_request("t", {0: batch(b"v")}), 9)
            client.send(fetch_request("t", {0: offset}), 12)
            await client.receive()
            assert values((await client.receive()).responses[0].partitions[0].records) == [b"v"]


# --- sessions (KIP-227)


async def session(client: Client, session_id: int, epoch: int, offsets: dict[int, int], **more: Any) -> Any:
    return await client.call(fetch_request("t", offsets, session_id=session_id, session_epoch=epoch, **more), 12)


def told(response: Any) -> dict[int, list[bytes | None]]:
    return {part.partition_index: values(part.records) for topic in response.responses for part in topic.partitions}


@on_loop
async def test_an_incremental_fetch_tells_only_news(tmp_path: Path) -> None:
    """TRAP-22."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", partitions=3)
        first = await session(client, 0, 0, {0: 0, 1: 0, 2: 0})
        assert first.session_id > 0 and told(first) == {0: [], 1: [], 2: []}
        assert told(await session(client, first.session_id, 1, {})) == {}
        await client.produce("t", batch(b"v"), index=1)
        assert told(await session(client, first.session_id, 2, {})) == {1: [b"v"]}
        assert told(await session(client, first.session_id, 3, {1: 1})) == {}
        gone = [FetchRequest.ForgottenTopic(topic="t", partitions=[1])]
        await client.produce("t", batch(b"w"), index=1)
        assert told(await session(client, first.session_id, 4, {}, forgotten_topics_data=gone)) == {}
        assert len(served.node.fetch_sessions) == 1


@on_loop
async def test_session_errors_on_the_wire(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served, "t")
        first = await session(client, 0, 0, {0: 0})
        assert (await session(client, 12345, 1, {})).error_code == Error.FETCH_SESSION_ID_NOT_FOUND.code
        wrong = await session(client, first.session_id, 9, {})
        assert wrong.error_code == Error.INVALID_FETCH_SESSION_EPOCH.code and wrong.responses == []
        by_id = fetch_request(b"", {}, session_id=first.session_id, session_epoch=1)
        assert (await client.call(by_id, 13)).error_code == Error.FETCH_SESSION_TOPIC_ID_ERROR.code
        ended = await session(client, first.session_id, -1, {0: 0})
        assert (ended.error_code, ended.session_id) == (0, 0)
        assert (await session(client, first.session_id, 1, {})).error_code == Error.FETCH_SESSION_ID_NOT_FOUND.code


@on_loop
async def test_a_repeated_incremental_fetch_is_noticed_when_the_first_one_answers(tmp_path: Path) -> None:
    """TRAP-23: the parked one finds that the session moved on."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t")
        other = await served.connect()
        first = await session(client, 0, 0, {0: 0})
        parked = fetch_request("t", {}, session_id=first.session_id, session_epoch=1, max_wait_ms=WITHOUT_END_MS)
        client.send(parked, 12)
        await until(lambda: served.partition("t").high_watermark.waiting)
        assert (await session(other, first.session_id, 2, {})).error_code == 0
        await other.produce("t", batch(b"v"))
        assert (await client.receive()).error_code == Error.INVALID_FETCH_SESSION_EPOCH.code


@on_loop
async def test_partitions_that_gave_data_come_last(tmp_path: Path) -> None:
    """TRAP-22: a response limit must not starve the partitions at the end."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", partitions=2)
        for index in (0, 1):
            for _ in range(3):
                await client.produce("t", batch(b"v" * 500), index=index)
        first = await session(client, 0, 0, {0: 3, 1: 3})
        offsets = {0: 0, 1: 0}
        seen: list[int] = []
        for epoch in range(1, 5):
            response = await session(client, first.session_id, epoch, dict(offsets), max_bytes=1)
            (index,) = [i for i, records in told(response).items() if records]
            seen.append(index)
            offsets = {index: seen.count(index)}
        assert sorted(seen[:2]) == [0, 1] and sorted(seen[2:]) == [0, 1]


# --- leader epochs


@on_loop
async def test_epochs_fence_and_tell_where_histories_part(tmp_path: Path) -> None:
    """KIP-320, KIP-595, TRAP-24."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"a"), batch(b"b"))
        partition = served.partition("t")
        partition.lead(Assignment((1,), (1,), 1, 3))
        await client.produce("t", batch(b"c"))
        assert (await client.fetch("t", 0, current_leader_epoch=2)).error_code == Error.FENCED_LEADER_EPOCH.code
        assert (await client.fetch("t", 0, current_leader_epoch=4)).error_code == Error.UNKNOWN_LEADER_EPOCH.code
        assert (await client.fetch("t", 0, current_leader_epoch=3)).error_code == 0
        same = await client.fetch("t", 3, last_fetched_epoch=3)
        assert (same.error_code, same.diverging_epoch.epoch) == (0, -1)
        parted = await client.fetch("t", 3, last_fetched_epoch=1)
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (0, 2)
        assert bytes(parted.records) == b"" and parted.error_code == 0
        served.node.replicas.delete_records("t", 0, 1)
        assert (await client.fetch("t", 0, last_fetched_epoch=1)).error_code == Error.OFFSET_OUT_OF_RANGE.code


# --- transactions: the log's half of them


def in_transaction(value: bytes, producer_id: int, sequence: int) -> bytes:
    return batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


@on_loop
async def test_read_committed_ends_where_a_transaction_is_open(tmp_path: Path) -> None:
    """TRAP-60, PRT-16, PRT-17: no leak, and the aborted ones are listed by first offset."""
    async with serving(tmp_path) as served:
        client = await filled(served, "t", batch(b"plain"))
        for producer, value in ((1, b"one"), (2, b"two")):
            served.append_in_transaction("t", in_transaction(value, producer, 0))
        committed = await client.fetch("t", 0, isolation_level=1)
        assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
        assert values(committed.records) == [b"plain"] and committed.aborted_transactions == []
        everything = await client.fetch("t", 0)
        assert values(everything.records) == [b"plain", b"one", b"two"] and everything.aborted_transactions is None

        served.end_transaction("t", 2, 0, commit=False)
        committed = await client.fetch("t", 0, isolation_level=1)
        assert committed.last_stable_offset == 1, "producer 1 is still open, and its records come first"
        waiting = await client.fetch("t", 1, isolation_level=1)
        assert waiting.aborted_transactions == [], "producer 2 lies further on than may be read"
        served.end_transaction("t", 1, 0, commit=False)
        committed = await client.fetch("t", 0, isolation_level=1)
        assert committed.last_stable_offset == 5
        listed = [(row.producer_id, row.first_offset) for row in committed.aborted_transactions]
        assert listed == [(1, 1), (2, 2)]
        assert (await client.fetch("t", 5, isolation_level=1)).aborted_transactions == []


@on_loop
async def test_a_parked_reader_of_committed_records_wakes_at_the_marker(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await filled(served, "t")
        client.send(fetch_request("t", {0: 0}, max_wait_ms=WITHOUT_END_MS, isolation_level=1), 12)
        served.append_in_transaction("t", in_transaction(b"v", 1, 0))
        assert not await client.is_cut(0.2), "an open transaction is not there yet"
        served.end_transaction("t", 1, 0, commit=True)
        part = (await client.receive()).responses[0].partitions[0]
        assert values(part.records) == [b"v"] and part.last_stable_offset == 2
