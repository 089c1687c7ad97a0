"""Loads on the coordinator: many small groups that commit, members that come and go (churn.py), a million offsets to load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench import churn, client
from bench.asking import WAIT_FOR, Line, find, frame
from bench.drivers import CannotMeasure
from bench.scenes import Size, Tally
from harness import Server
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

TOPIC = "offsets"
CONNECTIONS = 50
PARTITIONS_PER_GROUP = 1_000


def groups(server: Server, size: Size, tally: Tally) -> None:
    settings: dict[str, str] = server.settings  # type: ignore[attr-defined]
    settings |= churn.SETTINGS
    server.start()
    if tally.wants("groups-commit-cpu", "offsets-load", "offsets-restart"):
        client.make_topic(server, TOPIC, PARTITIONS_PER_GROUP)
    if tally.wants("groups-commit-cpu"):
        committing(server, size, tally)
    for key, kind in churn.LINES.items():
        if tally.wants(key):
            tally.add(key, churn.seconds_to_settle(server, size, kind))
    if tally.wants("offsets-load", "offsets-restart"):
        loading(server, size, tally)
    server.stop(60)


def commit_request(group: str, generation: int, member: str, partitions: range, offset: int) -> OffsetCommitRequest:
    asked = OffsetCommitRequest.Topic.Partition
    parts = [asked(partition_index=n, committed_offset=offset, committed_metadata="") for n in partitions]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequest.Topic(name=TOPIC, partitions=parts)],
    )


# --- many groups of one member that commit once a second


def committing(server: Server, size: Size, tally: Tally) -> None:
    for _ in range(size.repeats):
        tally.add("groups-commit-cpu", asyncio.run(_committing(server, size)))


async def _committing(server: Server, size: Size) -> float:
    """Percent of one core while every group commits once a second and every member is heard every three."""
    lines = [await Line.to(server) for _ in range(CONNECTIONS)]
    names = [f"small-{n}" for n in range(size.groups)]
    await find(lines[0], names[0])
    members = await asyncio.gather(*(_join(lines[n % CONNECTIONS], name) for n, name in enumerate(names)))
    pace = Pace()
    work = asyncio.gather(*(_commit_on(lines[n % CONNECTIONS], *m, n, pace) for n, m in enumerate(members)))
    await asyncio.sleep(2)
    before, began = server.cpu_seconds(), time.monotonic()
    await asyncio.sleep(size.latency_seconds * 2)
    used = 100 * (server.cpu_seconds() - before) / (time.monotonic() - began)
    pace.is_over = True
    await work
    await asyncio.gather(*(lines[n % CONNECTIONS].ask(_goodbye(*m)) for n, m in enumerate(members)))
    for line in lines:
        line.close()
    if pace.late > 1.0:
        raise CannotMeasure(f"commits came {pace.late:.1f} s late: the load was not what it says")
    return used


@dataclass
class Pace:
    """Whether all is over, and by how much somebody was late."""

    is_over: bool = False
    late: float = 0.0


async def _join(line: Line, group: str) -> tuple[str, int, str]:
    asked = JoinGroupRequest.Protocol(name="range", metadata=b"")
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="bench",
        protocols=[asked],
    )
    while (joined := await line.ask(join)).error_code:
        if joined.error_code in WAIT_FOR:
            await asyncio.sleep(0.1)
        elif joined.error_code == Error.MEMBER_ID_REQUIRED.code:
            join.member_id = joined.member_id
        else:
            raise CannotMeasure(f"{group}: JoinGroup got {joined.error_code}")
    part = SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all")
    sync = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[part]
    )
    if error := (await line.ask(sync)).error_code:
        raise CannotMeasure(f"{group}: SyncGroup got {error}")
    return group, joined.generation_id, joined.member_id


async def _commit_on(line: Line, group: str, generation: int, member: str, number: int, pace: Pace) -> None:
    commit = frame(commit_request(group, generation, member, range(number % 100, number % 100 + 1), 1))
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    due = time.monotonic() + number % 1000 / 1000
    turn = 0
    while not pace.is_over:
        turn += 1
        await asyncio.sleep(max(due - time.monotonic(), 0))
        answer = await line.exchange(commit)
        if answer[-2:] != b"\0\0":
            raise CannotMeasure(f"{group}: a commit was refused")
        pace.late = max(pace.late, time.monotonic() - due)
        if turn % 3 == number % 3:
            await line.ask(beat)
        due += 1


def _goodbye(group: str, _: int, member: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id=group, member_id=member)


# --- a million offsets


def loading(server: Server, size: Size, tally: Tally) -> None:
    count = size.offsets // PARTITIONS_PER_GROUP
    asyncio.run(_commit_all(server, count))
    for _ in range(size.repeats):
        server.stop(120)
        began = time.monotonic()
        server.launch()
        server.wait_ready()
        ready = time.monotonic()
        asyncio.run(_until_told(server, count))
        tally.add("offsets-load", time.monotonic() - ready)
        tally.add("offsets-restart", time.monotonic() - began)


async def _commit_all(server: Server, count: int) -> None:
    line = await Line.to(server)
    await find(line, "loaded-0")
    for group in _names(count):
        answer = await line.ask(commit_request(group, -1, "", range(PARTITIONS_PER_GROUP), 7))
        if any(part.error_code for topic in answer.topics for part in topic.partitions):
            raise CannotMeasure(f"{group}: a commit was refused")
    line.close()


async def _until_told(server: Server, count: int) -> None:
    """Until every group's offsets are told."""
    line = await Line.to(server)
    for group in _names(count):
        asked = OffsetFetchRequest.Topic(name=TOPIC, partition_indexes=[0, PARTITIONS_PER_GROUP - 1])
        while True:
            answer = await line.ask(OffsetFetchRequest(group_id=group, topics=[asked]))
            if answer.error_code in WAIT_FOR:
                await asyncio.sleep(0.01)
                continue
            if [part.committed_offset for part in answer.topics[0].partitions] != [7, 7]:
                raise CannotMeasure(f"{group}: offsets are missing")
            break
    line.close()


def _names(count: int) -> Iterator[str]:
    return (f"loaded-{n}" for n in range(count))


LINES = frozenset({"groups-commit-cpu", *churn.LINES, "offsets-load", "offsets-restart"})
