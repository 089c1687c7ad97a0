"""Members of classic groups played by hand, to see what a broker tells whom: a script is run on two brokers, and what was said
is compared.

Everybody has a connection of its own, so that one may wait while others speak. Member ids are chance: in what was said they
are replaced by who was first told them, and in which place among the ids this one was told.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from typing import Any

from harness import split
from ottla.coordination.records import GroupMetadataKey, unpack
from ottla.wire.codec import decode
from ottla.wire.errors import Error
from ottla.wire.frames import read_response_header, request_frame
from ottla.wire.messages import RESPONSES
from ottla.wire.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ottla.wire.messages.subscriptions import ConsumerProtocolSubscription, packed
from ottla.wire.schema import Message, Struct

SECONDS = 60.0
NEWEST = {JoinGroupRequest: 9, SyncGroupRequest: 5, HeartbeatRequest: 4, LeaveGroupRequest: 5}
ID = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
NAMES = {row.code: row.name for row in Error}
NONE, MEMBER_ID_REQUIRED = Error.NONE.code, Error.MEMBER_ID_REQUIRED.code
# Clocks, and what is masked because Apache's texts are its own.
MASKED = ("throttle_time_ms", "error_message", "current_state_timestamp")


class Line:
    """A connection."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(split(address), SECONDS)
        self._asked: list[tuple[type[Message], int]] = []

    def send(self, request: Message, version: int) -> None:
        frame = b"".join(bytes(part) for part in request_frame(request, version, 1, "guest"))
        self._socket.sendall(frame)
        self._asked.append((RESPONSES[type(request).key], version))

    def hear(self) -> Message:
        cls, version = self._asked.pop(0)
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        _, start = read_response_header(frame, cls, version)
        answer: Message = decode(cls, frame, version, start)
        return answer

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the broker hung up"
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()


class Party:
    """One group on one broker, and who takes part in it."""

    def __init__(self, address: str, group_id: str) -> None:
        self.address, self.group_id = address, group_id
        self.lines: dict[str, Line] = {}
        self.ids: dict[str, str] = {}
        self.generation, self.protocol = 0, "range"
        self.said: list[tuple[str, Message]] = []
        self._await_coordinator()

    # --- speaking

    def ask(self, who: str, request: Message, version: int | None = None) -> None:
        """Say it and do not wait for the answer."""
        if who not in self.lines:
            self.lines[who] = Line(self.address)
        self.lines[who].send(request, NEWEST[type(request)] if version is None else version)

    def hear(self, *who: str) -> Any:
        """What each of them is told; it goes into the comparison. The last answer is returned."""
        answer: Any = None
        for each in who:
            answer = self.lines[each].hear()
            self.said.append((each, answer))
            if getattr(answer, "member_id", "") and answer.error_code in (NONE, MEMBER_ID_REQUIRED):
                self.ids[each] = answer.member_id
            self.generation = max(self.generation, getattr(answer, "generation_id", 0))
            self.protocol = getattr(answer, "protocol_name", None) or self.protocol
        return answer

    def join(
        self, who: str, version: int | None = None, *, speaks: str = "range", id_of: str | None = None, **more: Any
    ) -> None:
        """`speaks`: names of protocols, each with its subscription behind a colon, if that is not the usual one."""
        spoken = [name.partition(":") for name in speaks.split()]
        protocols = [
            JoinGroupRequest.Protocol(name=n, metadata=subscription(data or "topics")) for n, _, data in spoken
        ]
        values = {
            "group_id": self.group_id,
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "member_id": self.ids.get(who if id_of is None else id_of, ""),
            "protocol_type": "consumer",
            "protocols": protocols,
        }
        self.ask(who, JoinGroupRequest(**{**values, **more}), version)

    def come(self, who: str, version: int | None = None, **more: Any) -> None:
        """A newcomer: asks for an id and joins with it, if its version does so."""
        self.join(who, version, **more)
        if (version is None or version >= 4) and more.get("group_instance_id") is None:
            self.hear(who)
            self.join(who, version, **more)

    def sync(
        self, who: str, version: int | None = None, *, parts: str = "", id_of: str | None = None, **more: Any
    ) -> None:
        """`parts`: names, each with its part behind a colon."""
        given = [part.partition(":") for part in parts.split()]
        assignments = [SyncGroupRequest.Assignment(member_id=self.ids[n], assignment=p.encode()) for n, _, p in given]
        values = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.ids.get(id_of or who, ""),
            "assignments": assignments,
            "protocol_type": "consumer",
            "protocol_name": self.protocol,
        }
        self.ask(who, SyncGroupRequest(**{**values, **more}), version)

    def heartbeat(self, who: str, version: int | None = None, *, id_of: str | None = None, **more: Any) -> None:
        values = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.ids.get(id_of or who, ""),
        }
        self.ask(who, HeartbeatRequest(**{**values, **more}), version)
        self.hear(who)

    def leave(self, who: str, *leaving: tuple[str, str | None], version: int | None = None, **more: Any) -> None:
        """Whose ids, and their instances; a name that was never told an id stands for itself."""
        gone = [(self.ids.get(name, name), instance) for name, instance in leaving]
        members = [LeaveGroupRequest.Member(member_id=member, group_instance_id=instance) for member, instance in gone]
        values = {"group_id": self.group_id, "member_id": gone[0][0] if gone else "", "members": members}
        self.ask(who, LeaveGroupRequest(**{**values, **more}), version)
        self.hear(who)

    def describe(self, who: str = "admin") -> None:
        """What administrators are told."""
        for version in (0, 6):
            self.ask(who, DescribeGroupsRequest(groups=[self.group_id]), version)
            self.hear(who)

    # --- waiting

    def until(self, state: str, members: int) -> None:
        """Wait until the group is in this state, with so many members."""
        deadline = time.monotonic() + SECONDS
        while (seen := self.look()) != (state, members):
            assert time.monotonic() < deadline, f"{seen} instead of {state} with {members} members"
            time.sleep(0.02)

    def look(self) -> tuple[str, int]:
        group = self._asked_aside(DescribeGroupsRequest(groups=[self.group_id]), 5).groups[0]
        return group.group_state, len(group.members)

    def _await_coordinator(self) -> None:
        deadline = time.monotonic() + SECONDS
        find, beat = FindCoordinatorRequest(coordinator_keys=[self.group_id]), HeartbeatRequest(group_id=self.group_id)
        while (
            self._asked_aside(find, 4).coordinators[0].error_code
            or self._asked_aside(beat, 4).error_code != Error.UNKNOWN_MEMBER_ID.code
        ):
            assert time.monotonic() < deadline, "no coordinator"
            time.sleep(0.1)

    def _asked_aside(self, request: Message, version: int) -> Any:
        if "" not in self.lines:
            self.lines[""] = Line(self.address)
        self.lines[""].send(request, version)
        return self.lines[""].hear()

    def close(self) -> None:
        for line in self.lines.values():
            line.close()

    # --- comparing

    def minutes(self) -> list[tuple[str, str, Any]]:
        """Who was told what, without what is chance."""
        names = self._names_of_ids()
        return [(who, type(answer).__name__, comparable(answer, names)) for who, answer in self.said]

    def _names_of_ids(self) -> dict[str, str]:
        names: dict[str, str] = {}
        told: dict[str, int] = {}
        for who, answer in self.said:
            member_id = getattr(answer, "member_id", "")
            if ID.search(member_id) and member_id not in names:
                told[who] = told.get(who, 0) + 1
                names[member_id] = ID.sub(f" of {who}, {told[who]}", member_id)
        return names

    def records(self, log: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
        """What the broker wrote down about the group."""
        names, found = self._names_of_ids(), []
        for key, value in log:
            record = unpack(key, value)
            if record is not None and isinstance(record.key, GroupMetadataKey) and record.key.group == self.group_id:
                found.append((None if value is None else value[:2], comparable(record.value, names)))
        return found


def subscription(topic: str) -> bytes:
    """One that can be read: Apache's coordinator cannot go on with one that says to be a consumer's and is not."""
    return packed(ConsumerProtocolSubscription(topics=[topic]))


def comparable(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, (Message, Struct)):
        fields = {field.name: getattr(value, field.name) for field in type(value).fields}
        told = {name: comparable(each, names) for name, each in fields.items() if name not in MASKED}
        return {**told, **({"error_code": NAMES[fields["error_code"]]} if "error_code" in fields else {})}
    if isinstance(value, list):
        return sorted((comparable(each, names) for each in value), key=repr)
    return names.get(value, value) if isinstance(value, str) else value
