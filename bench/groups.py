"""Loads on the coordinator: many small groups that commit, members that come and go, a million offsets to load.

Members are played by the benchmark itself, over plain sockets, so that the broker is what is measured: real clients would cost
more than either broker.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench import client
from bench.drivers import CannotMeasure
from bench.scenes import Size, Tally
from harness import Server, split
from ottla.wire.codec import decode
from ottla.wire.errors import Error
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.commits import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.schema import Message

TOPIC = "offsets"
CONNECTIONS = 50
PARTITIONS_PER_GROUP = 1_000
CHURN_PARTITIONS = 200
VERSIONS: dict[type[Message], int] = {
    OffsetCommitRequest: 7,
    OffsetFetchRequest: 7,
    FindCoordinatorRequest: 2,
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
    LeaveGroupRequest: 2,
}
WAIT_FOR = {error.code for error in (Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE)}
WAIT_FOR |= {Error.NOT_COORDINATOR.code}


class Line:
    """One connection; requests are answered in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def to(cls, server: Server) -> Line:
        return cls(*await asyncio.open_connection(*split(server.address)))

    async def ask(self, request: Message) -> Any:
        version = VERSIONS[type(request)]
        frame = b"".join(bytes(part) for part in request_frame(request, version, 1, "bench"))  # type: ignore[arg-type]
        data = await self.exchange(frame)
        response = RESPONSES[type(request).key]
        _, position = read_response_header(data, response, version)  # type: ignore[arg-type]
        return decode(response, data, version, position)  # type: ignore[type-var]

    async def exchange(self, frame: bytes) -> bytes:
        async with self._turn:
            self._writer.write(frame)
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.transport.abort()


def groups(server: Server, size: Size, tally: Tally) -> None:
    """When a group settles depends on when its rounds began, so both begin without the delay of a group's first one."""
    settings: dict[str, str] = server.settings  # type: ignore[attr-defined]
    settings["group.initial.rebalance.delay.ms"] = "0"
    server.start()
    if tally.wants("groups-commit-cpu", "offsets-load", "offsets-restart"):
        client.make_topic(server, TOPIC, PARTITIONS_PER_GROUP)
    if tally.wants("groups-commit-cpu"):
        committing(server, size, tally)
    if tally.wants("groups-churn-settled"):
        tally.add("groups-churn-settled", asyncio.run(_churn(server, size)))
    if tally.wants("offsets-load", "offsets-restart"):
        loading(server, size, tally)
    server.stop(60)


async def find(line: Line, group: str) -> None:
    deadline = time.monotonic() + 60
    while (await line.ask(FindCoordinatorRequest(key=group))).error_code:
        if time.monotonic() > deadline:
            raise CannotMeasure("no coordinator")
        await asyncio.sleep(0.1)


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
    parts = request_frame(
        commit_request(group, generation, member, range(number % 100, number % 100 + 1), 1), 7, 1, "b"
    )
    commit = b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]
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


# --- members that come and go


class Churner:
    """A member of the one large group: it joins, takes its part, and says so until it is told to go."""

    def __init__(self, server: Server, owners: dict[tuple[int, int], str]) -> None:
        self._server, self._owners = server, owners
        self.generation, self.member, self.owns = -1, "", frozenset[int]()

    async def live(self) -> None:
        line = await Line.to(self._server)
        try:
            while True:
                await self._take_part(line)
                await self._beat(line)
        except asyncio.CancelledError:
            line._writer.close()
            raise
        finally:
            line.close()

    async def _take_part(self, line: Line) -> None:
        self.owns, self.generation = frozenset(), -1
        join = JoinGroupRequest(
            group_id="churn",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=5_000,
            member_id=self.member,
            protocol_type="bench",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        joined = await line.ask(join)
        if joined.error_code == Error.UNKNOWN_MEMBER_ID.code:
            self.member = ""
            return
        self.member = joined.member_id
        if joined.error_code:
            return
        parts = [
            SyncGroupRequest.Assignment(member_id=m.member_id, assignment=struct.pack(">HH", n, len(joined.members)))
            for n, m in enumerate(joined.members)
        ]
        synced = await line.ask(
            SyncGroupRequest(
                group_id="churn", generation_id=joined.generation_id, member_id=self.member, assignments=parts
            )
        )
        if synced.error_code == 0 and synced.assignment:
            place, count = struct.unpack(">HH", synced.assignment)
            self._own(joined.generation_id, frozenset(range(place, CHURN_PARTITIONS, count)))

    def _own(self, generation: int, partitions: frozenset[int]) -> None:
        self.generation, self.owns = generation, partitions
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), self.member)
            if owner != self.member:
                raise CannotMeasure(f"partition {partition} had two owners in generation {generation}")

    async def _beat(self, line: Line) -> None:
        beat = HeartbeatRequest(group_id="churn", generation_id=self.generation, member_id=self.member)
        while self.generation >= 0 and (await line.ask(beat)).error_code == 0:
            await asyncio.sleep(0.5)


async def _churn(server: Server, size: Size) -> float:
    """Seconds until the group has settled, after 200 members came and went for a while."""
    line, owners = await Line.to(server), dict[tuple[int, int], str]()
    await find(line, "churn")
    living: dict[asyncio.Task[None], Churner] = {}
    for _ in range(int(size.churn_seconds * 10)):
        _add(server, owners, living)
        if len(living) > size.members:
            next(iter(living)).cancel()
        await asyncio.sleep(0.1)
        _bury(living)
    while len(living) < size.members:
        _add(server, owners, living)
    began = time.monotonic()
    while not _is_settled(list(living.values())):
        if time.monotonic() - began > 120:
            raise CannotMeasure("the group did not settle in two minutes")
        _bury(living)
        await asyncio.sleep(0.05)
    settled = time.monotonic() - began
    for task in living:
        task.cancel()
    await asyncio.gather(*living, return_exceptions=True)
    line.close()
    return settled


def _add(server: Server, owners: dict[tuple[int, int], str], living: dict[asyncio.Task[None], Churner]) -> None:
    churner = Churner(server, owners)
    living[asyncio.get_running_loop().create_task(churner.live())] = churner


def _bury(living: dict[asyncio.Task[None], Churner]) -> None:
    """Forgets who was told to go; whoever ended otherwise ends the measurement."""
    for task in [task for task in living if task.done()]:
        del living[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            raise CannotMeasure(f"a member ended with {error!r}")


def _is_settled(members: list[Churner]) -> bool:
    generations = {member.generation for member in members}
    owned = Counter(partition for member in members for partition in member.owns)
    return len(generations) == 1 and owned == Counter(range(CHURN_PARTITIONS))


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


LINES = frozenset({"groups-commit-cpu", "groups-churn-settled", "offsets-load", "offsets-restart"})
