"""The driver of groups: who coordinates, loading, answers that wait for the log, and what happens if it is not written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ottla.log import compaction
from ottla.log.log import Log
from ottla.log.trimming import raise_start
from ottla.metadata.image import Delta
from ottla.metadata.image import Partition as Assignment
from ottla.server import loading
from ottla.server import shard as shards
from ottla.server.coordinators import partition_of
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from ottla.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.records import look
from served import Client, TouchyDisk, batch, serving, until

ONE = {"offsets.topic.num.partitions": "1"}


async def find(client: Client, group: str = "g") -> Any:
    return (await client.call(FindCoordinatorRequest(coordinator_keys=[group]), 4)).coordinators[0]


def commit_request(offset: int, group: str = "g", topic: str = "t") -> OffsetCommitRequest:
    part = OffsetCommitRequest.Topic.Partition(partition_index=0, committed_offset=offset, committed_metadata="note")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequest.Topic(name=topic, partitions=[part])])


async def commit(client: Client, offset: int, group: str = "g", topic: str = "t") -> int:
    answer = await client.call(commit_request(offset, group, topic), 8)
    return int(answer.topics[0].partitions[0].error_code)


async def committed(client: Client, group: str = "g", topic: str = "t") -> tuple[int, int]:
    """The offset, and the error of the group."""
    asked = OffsetFetchRequest.Group(
        group_id=group, topics=[OffsetFetchRequest.Group.Topic(name=topic, partition_indexes=[0])]
    )
    found = (await client.call(OffsetFetchRequest(groups=[asked]), 8)).groups[0]
    return (found.topics[0].partitions[0].committed_offset if found.topics else -1), found.error_code


def join_request(group: str = "g", member: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        # Seen in partitions of Apache Kafka 4.3.1; the hashes of the second row are below zero.
        *(("", 0), ("g", 3), ("g848", 7), ("plain", 12), ("open", 24), ("deleted", 1)),
        *(("committed", 38), ("aborted", 49), ("overtaken", 45)),
        ("polygenelubricants", 0),  # its hash is the lowest number of all
        *(("naïve", 25), ("群", 26), ("g\U0001f600", 32)),
    ],
)
def test_a_group_lives_where_apache_puts_it(group: str, partition: int) -> None:
    """TRAP-58, GRP-11: the absolute value of Java's hash of the name in UTF-16. It is not the hash without its sign."""
    assert partition_of(group, 50) == partition


def test_it_is_told_why_no_group_can_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Clients wait without a word: the node must say what is wrong."""

    async def ask() -> None:
        async with serving(tmp_path, {"offsets.topic.replication.factor": "3"}) as served:
            found = await find(await served.connect())
            assert found.error_code == Error.COORDINATOR_NOT_AVAILABLE.code

    asyncio.run(ask())
    (line,) = [each.getMessage() for each in caplog.records if "no group can begin" in each.getMessage()]
    assert "factor of 3 cannot be reached" in line and line.endswith("lower offsets.topic.replication.factor.")


async def _find_makes_the_topic(path: Path) -> None:
    async with serving(path) as served:
        client = await served.connect()
        found = await find(client)
        assert (found.error_code, found.node_id, found.port) == (0, 1, served.port)
        topic = served.node.quorum.image.topic("__consumer_offsets")
        assert topic is not None and len(topic.partitions) == 50
        assert served.node.quorum.image.configs(2, "__consumer_offsets")["cleanup.policy"] == "compact"
        assert await commit(client, 5, "anything") == Error.UNKNOWN_TOPIC_OR_PARTITION.code


def test_the_first_client_gets_its_coordinator_at_once(tmp_path: Path) -> None:
    """GRP-11, OFF-02, TRAP-57: the topic is there when the answer comes, with 50 partitions, compacted."""
    asyncio.run(_find_makes_the_topic(tmp_path))


async def _no_topic_no_coordinator(path: Path) -> None:
    async with serving(path) as served:
        client = await served.connect()
        answer = await client.call(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)
        assert answer.error_code == Error.NOT_COORDINATOR.code
        await find(client)
        answer = await client.call(HeartbeatRequest(group_id="", generation_id=1, member_id="m"), 4)
        assert answer.error_code == Error.INVALID_GROUP_ID.code


def test_who_asks_before_there_is_a_coordinator(tmp_path: Path) -> None:
    asyncio.run(_no_topic_no_coordinator(tmp_path))


async def _nowhere(path: Path) -> None:
    async with serving(path, ONE) as served:
        client = await served.connect()
        joined = await client.call(join_request(member="me"), 9)
        assert (joined.error_code, joined.member_id) == (Error.NOT_COORDINATOR.code, "")
        alive = ConsumerGroupHeartbeatRequest(group_id="g", member_id="me", member_epoch=1)
        told = await client.call(alive, 1)
        assert (told.error_code, told.error_message) == (Error.NOT_COORDINATOR.code, None)
        alive.member_id = ""
        told = await client.call(alive, 1)
        assert (told.error_code, told.error_message) == (Error.INVALID_REQUEST.code, "MemberId can't be empty.")


def test_what_makes_no_sense_is_refused_also_where_nothing_is_coordinated(tmp_path: Path) -> None:
    asyncio.run(_nowhere(tmp_path))


async def _restart(path: Path) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        for offset in range(300):
            assert await commit(client, offset) == 0
        joined = await client.call(join_request(), 3)
        assignment = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all of it")
        synced = await client.call(
            SyncGroupRequest(
                group_id="g",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[assignment],
            ),
            3,
        )
        assert (joined.error_code, synced.error_code) == (0, 0)
    async with serving(path, ONE) as served:
        client = await served.connect()
        await until(lambda: served.node.groups.shards[0].machine)
        assert await committed(client) == (299, 0)
        beat = HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
        assert (await client.call(beat, 3)).error_code == 0, "the member is still one after a restart"


def test_groups_and_offsets_outlive_a_restart(tmp_path: Path) -> None:
    """OFF-02, TRAP-54."""
    asyncio.run(_restart(tmp_path))


async def _loading(path: Path) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        assert await commit(client, 7) == 0
    disk = TouchyDisk()
    async with serving(path, ONE, disk) as served:
        client = await served.connect()
        shard = served.node.groups.shards[0]
        await until(lambda: shard.machine)
        shard.machine = None  # as it is while it loads
        assert await committed(client) == (-1, Error.COORDINATOR_LOAD_IN_PROGRESS.code)
        assert await commit(client, 8) == Error.COORDINATOR_LOAD_IN_PROGRESS.code
        hasty = JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="consumer")
        assert (await client.call(hasty, 9)).error_code == Error.INVALID_SESSION_TIMEOUT.code
        assert (await client.call(HeartbeatRequest(group_id="g", member_id="m"), 4)).error_code == 0
        await shard.load()
        assert await committed(client) == (7, 0)


def test_clients_are_asked_to_wait_while_groups_load(tmp_path: Path) -> None:
    """Heartbeats excepted: consumers do not know this word as an answer to them."""
    asyncio.run(_loading(tmp_path))


async def _unreadable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        assert await commit(client, 7) == 0
        shard = served.node.groups.shards[0]
        shard.machine = None
        unicode = UnicodeDecodeError("utf-8", b"", 0, 1, "a name that is none")
        failures = iter([OSError("the disk does not answer"), KafkaError(Error.CORRUPT_MESSAGE), unicode])
        read = loading.replay

        def fail_twice(*arguments: Any) -> Any:
            for error in failures:
                raise error
            return read(*arguments)

        monkeypatch.setattr(loading, "replay", fail_twice)
        monkeypatch.setattr(shards, "LOAD_AGAIN_S", 0.01)
        await shard.load()
        assert await committed(client) == (-1, Error.COORDINATOR_LOAD_IN_PROGRESS.code)
        await until(lambda: shard.machine)
        assert await committed(client) == (7, 0)


def test_what_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_unreadable(tmp_path, monkeypatch))


async def _compacted_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(path, ONE) as served:
        always = {"cleanup_policy": "compact", "delete_retention_ms": "0", "min_cleanable_dirty_ratio": "0"}
        for name in ("t", "u"):
            await served.topic(name)
        await served.topic("__consumer_offsets", 1, **always)
        client, compactions = await served.connect(), served.node.upkeep.compactions
        shard, log = served.node.groups.shards[0], served.partition("__consumer_offsets").log
        for topic, offset in (("t", 7), ("u", 1), ("u", 2)):
            assert await commit(client, offset, topic=topic) == 0
        gone = [
            OffsetDeleteRequest.Topic(name="t", partitions=[OffsetDeleteRequest.Topic.Partition(partition_index=0)])
        ]
        assert (await client.call(OffsetDeleteRequest(group_id="g", topics=gone), 0)).error_code == 0
        log.roll(log.end_offset)
        await log.flush()
        may_swap, may_read, has_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
        swap, read = compaction.swap, Log.read

        async def swap_later(*arguments: Any) -> bool:
            await may_swap.wait()
            return await swap(*arguments)

        async def read_by_steps(self: Log, offset: int, *rest: int) -> Any:
            if offset > 0:
                has_read.set()
                await may_read.wait()
            return await read(self, offset, *rest)

        monkeypatch.setattr(compaction, "swap", swap_later)
        monkeypatch.setattr(Log, "read", read_by_steps)
        monkeypatch.setattr(shards, "LOADED_AT_ONCE_BYTES", 1)
        round_under_way = asyncio.create_task(compactions.run())
        await until(lambda: log.directory in compactions._busy)
        shard.machine = None
        load = asyncio.create_task(shard.load())
        await has_read.wait()
        may_swap.set()
        await round_under_way
        log.cleaned_to = -1  # all of it is due again
        await compactions.run()
        may_read.set()
        await load
        assert (await committed(client), await committed(client, topic="u")) == ((-1, 0), (2, 0))
        await compactions.run()
        assert log.cleaned_to == log.active.base


def test_what_is_read_back_while_it_is_compacted_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-05: one round takes away a record that was read by then, the next one would take away what ends it."""
    asyncio.run(_compacted_meanwhile(tmp_path, monkeypatch))


async def _trimmed_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        for offset in range(4):
            assert await commit(client, offset, group=f"g{offset}") == 0
        shard, read = served.node.groups.shards[0], loading.replay
        log = shard.partition.log

        def trim(*arguments: Any) -> Any:
            monkeypatch.setattr(loading, "replay", read)
            raise_start(log, 3)
            return read(*arguments)

        monkeypatch.setattr(loading, "replay", trim)
        monkeypatch.setattr(shards, "LOADED_AT_ONCE_BYTES", 1)
        monkeypatch.setattr(shards, "LOAD_AGAIN_S", 0.01)
        shard.machine = None
        await shard.load()
        assert shard.machine is None
        await until(lambda: shard.machine)
        assert list(shard.state.offsets.by_group) == ["g3"]


def test_what_is_read_back_while_it_is_trimmed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_trimmed_meanwhile(tmp_path, monkeypatch))


async def _write_fails(path: Path) -> None:
    disk = TouchyDisk()
    async with serving(path, ONE, disk) as served:
        await served.topic("t")
        client, waiting = await served.connect(), await served.connect()
        await find(client)
        assert await commit(client, 1) == 0
        served.node.config._values["group.initial.rebalance.delay.ms"] = 60_000
        waiting.send(join_request("other"), 3)
        await until(lambda: "other" in served.node.groups.shards[0].state.by_id)
        disk.full = True
        assert await commit(client, 2) == Error.NOT_COORDINATOR.code
        joined = await waiting.receive()
        assert joined.error_code == Error.NOT_COORDINATOR.code, "whoever waited is told to look again"
        disk.full = False
        await served.node.upkeep.find_room()
        await until(lambda: served.node.groups.shards[0].machine)
        assert await committed(client) == (1, 0), "what was not written is not remembered"
        assert await commit(client, 3) == 0
        assert await committed(client) == (3, 0)


def test_a_write_that_fails_is_forgotten_and_the_groups_are_loaded_again(tmp_path: Path) -> None:
    """Nothing is acknowledged that is not in the log, and nothing that is not in the log is told."""
    asyncio.run(_write_fails(tmp_path))


async def _leads_anew(path: Path) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client, groups = await served.connect(), served.node.groups
        await find(client)
        assert await commit(client, 1) == 0
        before = groups.shards[0]
        before.partition.leader_epoch += 1  # it was led elsewhere, and this is the first that is heard of it
        groups.follow(served.node.quorum.image, Delta())
        assert groups.shards[0] is not before and before.machine is None
        await until(lambda: groups.shards[0].machine is not None)
        assert await committed(client) == (1, 0)


def test_a_leadership_that_ended_and_began_again_reads_its_partition_anew(tmp_path: Path) -> None:
    """Others may have written there between the two."""
    asyncio.run(_leads_anew(tmp_path))


async def _revoked(path: Path) -> None:
    disk = TouchyDisk()
    async with serving(path, ONE, disk) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        assert await commit(client, 1) == 0
        disk.full = True
        both = commit_request(3)
        both.topics = [*commit_request(3, topic="unknown").topics, *both.topics]
        for request in (commit_request(2), both, commit_request(4, "other")):
            client.send(request, 8)
        answers = [await client.receive() for _ in range(3)]
        assert codes(answers[0]) == codes(answers[2]) == {"t": Error.NOT_COORDINATOR.code}
        assert codes(answers[1]) == {
            "t": Error.NOT_COORDINATOR.code,
            "unknown": Error.UNKNOWN_TOPIC_OR_PARTITION.code,
        }
        disk.full = False
        await served.node.upkeep.find_room()
        await until(lambda: served.node.groups.shards[0].machine)
        assert await committed(client) == (1, 0)
        assert await commit(client, 5) == 0


def codes(answer: Any) -> dict[str, int]:
    return {topic.name: topic.partitions[0].error_code for topic in answer.topics}


def test_answers_that_were_ready_before_a_write_that_fails_are_revoked(tmp_path: Path) -> None:
    """Of all commits that came in one turn, and of nothing in them that was refused for another reason."""
    asyncio.run(_revoked(tmp_path))


async def _leader_first(path: Path) -> None:
    disk = TouchyDisk()
    settings = ONE | {"group.initial.rebalance.delay.ms": "0"}
    async with serving(path, settings, disk) as served:
        await served.topic("__consumer_offsets", 1, cleanup_policy="compact", flush_messages="1")
        leader, follower = [await served.connect() for _ in range(2)]
        names = [(await each.call(join_request(), 4)).member_id for each in (leader, follower)]
        first = await leader.call(join_request(member=names[0]), 4)
        follower.send(join_request(member=names[1]), 4)
        beat = HeartbeatRequest(group_id="g", generation_id=first.generation_id, member_id=names[0])
        while (await leader.call(beat, 3)).error_code != Error.REBALANCE_IN_PROGRESS.code:
            await asyncio.sleep(0.01)
        joined = await leader.call(join_request(member=names[0]), 4)
        assert (await follower.receive()).leader == joined.leader == names[0]
        disk.slow = True
        given = [SyncGroupRequest.Assignment(member_id=name, assignment=name.encode()) for name in names]
        for client, name, parts in ((leader, names[0], given), (follower, names[1], [])):
            sync = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=name, assignments=parts)
            client.send(sync, 3)
            await until(lambda: disk.waiting)
            await asyncio.sleep(0.05)
        heard: list[str] = []
        hearing = [asyncio.ensure_future(_hear(each, heard)) for each in (follower, leader)]
        disk.slow = False
        disk.let_go()
        await asyncio.gather(*hearing)
        assert heard == names


async def _hear(client: Client, heard: list[str]) -> None:
    heard.append((await client.receive()).assignment.decode())


def test_the_leader_has_its_part_before_who_asks_after_it(tmp_path: Path) -> None:
    asyncio.run(_leader_first(tmp_path))


async def _answers_wait(path: Path) -> None:
    disk = TouchyDisk()
    async with serving(path, ONE, disk) as served:
        await served.topic("t")
        await served.topic("__consumer_offsets", 1, cleanup_policy="compact", flush_messages="1")
        writer, reader, refused = [await served.connect() for _ in range(3)]
        disk.slow = True
        writer.send(commit_request(5), 8)
        await until(lambda: disk.waiting)
        reader.send(OffsetFetchRequest(group_id="g", topics=None), 7)
        wrong = commit_request(6)
        wrong.generation_id_or_member_epoch = 7
        refused.send(wrong, 8)
        for client in (writer, reader, refused):
            assert not await client.is_cut(0.05)
        disk.slow = False
        disk.let_go()
        assert (await writer.receive()).topics[0].partitions[0].error_code == 0
        found = await reader.receive()
        assert found.topics[0].partitions[0].committed_offset == 5
        code = (await refused.receive()).topics[0].partitions[0].error_code
        assert code == Error.UNKNOWN_MEMBER_ID.code, "so the group is there, and has no members"


def test_answers_wait_until_what_they_speak_of_is_committed(tmp_path: Path) -> None:
    """TRAP-59: the commit's own answer, and those of others, refusals too, that saw it before it was safe."""
    asyncio.run(_answers_wait(tmp_path))


async def _too_few_copies(path: Path) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        await served.topic("__consumer_offsets", 1, cleanup_policy="compact", min_insync_replicas="2")
        served.partition("__consumer_offsets").lead(Assignment((1, 2), (1,), 1, 0, 1))
        client = await served.connect()
        assert await commit(client, 1) == Error.COORDINATOR_NOT_AVAILABLE.code
        assert served.node.groups.shards[0].partition.log.end_offset == 0
        assert await committed(client) == (-1, 0)


def test_nothing_is_written_where_it_could_not_be_safe(tmp_path: Path) -> None:
    asyncio.run(_too_few_copies(tmp_path))


async def _too_large(path: Path) -> None:
    async with serving(path, {**ONE, "group.initial.rebalance.delay.ms": "0"}) as served:
        await served.topic("__consumer_offsets", 1, cleanup_policy="compact", max_message_bytes="2000")
        first, second = await served.connect(), await served.connect()
        one = (await first.call(join_request(), 3)).member_id
        second.send(join_request(), 3)
        await until(lambda: served.node.groups.shards[0].state.by_id["g"].state == "PreparingRebalance")
        generation = (await first.call(join_request(member=one), 3)).generation_id
        other = (await second.receive()).member_id
        second.send(SyncGroupRequest(group_id="g", generation_id=generation, member_id=other), 3)
        parts = [SyncGroupRequest.Assignment(member_id=one, assignment=b"x" * 3000)]
        divided = SyncGroupRequest(group_id="g", generation_id=generation, member_id=one, assignments=parts)
        answers = [await first.call(divided, 3), await second.receive()]
        assert [answer.error_code for answer in answers] == [Error.UNKNOWN_SERVER_ERROR.code] * 2
        assert served.node.groups.shards[0].state.by_id["g"].state == "PreparingRebalance"


def test_what_is_too_large_to_be_written_is_told_to_all_who_wait_for_it(tmp_path: Path) -> None:
    """The leader's parts do not fit into a batch: nobody waits for ever, and the group tries again."""
    asyncio.run(_too_large(tmp_path))


async def _compressed(path: Path) -> None:
    async with serving(path, {**ONE, "offsets.topic.compression.codec": "1"}) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        assert await commit(client, 3) == 0
        log = served.node.groups.shards[0].partition.log
        located = await log.read(0, 1 << 20, log.end_offset)
        assert look(located.read()).codec == 1
    async with serving(path, ONE) as served:
        client = await served.connect()
        await until(lambda: served.node.groups.shards[0].machine)
        assert await committed(client) == (3, 0)


def test_records_of_groups_are_compressed_as_the_settings_say(tmp_path: Path) -> None:
    asyncio.run(_compressed(tmp_path))


async def _told(path: Path) -> None:
    async with serving(path, ONE) as served:
        await served.topic("t")
        client = await served.connect()
        await find(client)
        for _ in range(5):
            await client.produce("t", batch(b"one", b"two"))
        assert await commit(client, 4) == 0
        joined = await client.call(join_request("other"), 3)
        assert joined.error_code == 0
        page = served.node.measures.render()
        assert 'ottla_groups{kind="classic",state="CompletingRebalance"} 1' in page
        assert 'ottla_group_lag{group="g",topic="t"} 6' in page
        assert "ottla_group_partitions_loading 0" in page


def test_a_node_tells_of_its_groups_and_how_far_behind_they_are(tmp_path: Path) -> None:
    """GRP-28, OPS-02: the metric; the tools tell it by partition."""
    asyncio.run(_told(tmp_path))


async def _stops(path: Path) -> None:
    async with serving(path, {**ONE, "group.initial.rebalance.delay.ms": "60000"}) as served:
        client = await served.connect()
        await find(client)
        client.send(join_request(), 3)
        await until(lambda: served.node.groups.shards[0].state.by_id)
        served.node.groups.stop()
        assert (await client.receive()).error_code == Error.NOT_COORDINATOR.code


def test_a_node_that_stops_sends_members_away(tmp_path: Path) -> None:
    asyncio.run(_stops(tmp_path))
