"""A bench for one classic group: speaks for its members, and has shorthands for what they usually do."""

from __future__ import annotations

from groups_bench import GroupsBench
from machine_bench import Asked
from ottla.coordination import classic
from ottla.coordination.classic_group import STABLE, ClassicGroup
from ottla.coordination.records import GroupMetadataValue
from ottla.wire.errors import Error
from ottla.wire.messages.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

RANGE = [("range", b"topics")]
NEWEST = 9
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def protocols(pairs: list[tuple[str, bytes]]) -> list[JoinGroupRequest.Protocol]:
    return [JoinGroupRequest.Protocol(name=name, metadata=data) for name, data in pairs]


class ClassicBench(GroupsBench):
    """Speaks for members of one group."""

    def __init__(self, *, group_initial_rebalance_delay_ms: int = 3000, **settings: object) -> None:
        super().__init__(None, group_initial_rebalance_delay_ms=group_initial_rebalance_delay_ms, **settings)

    @property
    def group(self) -> ClassicGroup:
        group = self.groups.by_id["g"]
        assert isinstance(group, ClassicGroup)
        return group

    def join(
        self,
        member_id: str = "",
        instance: str | None = None,
        *,
        speaks: list[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = NEWEST,
    ) -> Asked:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=protocols(speaks),
        )
        return self.ask(classic.join, request, version)

    def named(self) -> str:
        """A newcomer's first join, which is told an id."""
        asked = self.join()
        assert asked.error is Error.MEMBER_ID_REQUIRED
        return str(asked.reply.member_id)

    def sync(
        self,
        member_id: str,
        parts: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Asked:
        given = [SyncGroupRequest.Assignment(member_id=to, assignment=part) for to, part in (parts or {}).items()]
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=given,
        )
        return self.ask(classic.sync, request, 5)

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> Error:
        request = HeartbeatRequest(
            group_id="g",
            generation_id=self.group.generation if generation is None else generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return self.ask(classic.heartbeat, request, 4).error

    def leave(self, *members: tuple[str, str | None], version: int = 5) -> Asked:
        leaving = [LeaveGroupRequest.Member(member_id=m, group_instance_id=i) for m, i in members]
        request = LeaveGroupRequest(group_id="g", member_id=members[0][0], members=leaving)
        return self.ask(classic.leave, request, version)

    def settle(self) -> None:
        """Everybody who is in a new generation syncs; the leader gives each member its own name as its part."""
        given = {member: member.encode() for member in self.group.members}
        for member in self.group.members.values():
            self.sync(
                member.member_id, given if member.member_id == self.group.leader else None, instance=member.instance_id
            )

    def stable(self, dynamic: int = 0, static: int = 0) -> list[str]:
        """A stable group of so many members; the first of them leads."""
        ids = [self.named() for _ in range(dynamic)]
        joins = [self.join(member_id) for member_id in ids]
        joins += [self.join(instance=f"i{n}") for n in range(static)]
        self.pass_ms(10_000)
        assert {join.error for join in joins} == {Error.NONE}
        self.settle()
        assert self.group.state == STABLE
        for member in self.group.members.values():
            assert self.heartbeat(member.member_id, instance=member.instance_id) is Error.NONE
        return [str(join.reply.member_id) for join in joins]

    def last_written(self) -> GroupMetadataValue:
        value = self.written()[-1].value
        assert isinstance(value, GroupMetadataValue)
        return value
