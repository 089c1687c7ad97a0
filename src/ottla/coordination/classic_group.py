"""A classic group: its members, what they agreed on, and where they are on the way to the next agreement.

    Empty --------> PreparingRebalance <-------> CompletingRebalance --------> Stable
      ^                  |       ^                                               |
      +------------------+       +-----------------------------------------------+

*Empty*: nobody is here; the group lives on for the sake of its offsets. *PreparingRebalance*: everybody is asked to join
(again), and joins are answered together. *CompletingRebalance*: the next generation has begun; its leader divides the work,
and those who ask for their part wait for the leader to bring it. *Stable*: everybody may have their part.

A *generation* is one agreement: who is in, by which *protocol* the work is divided (each member votes for the first one on its
list that all can speak), and who the *leader* is. It is written down once its parts are known, as one record. Until then it
lives in memory alone, and a coordinator that takes over knows only the generation before: its members join again. So most of
what happens to a group is soft state, changed by decisions directly; a record that the group wrote about itself
(`proposed`) brings it to Stable and changes nothing else when it is replayed.

Terms. A *pending* member was given an id and is expected to join with it (KIP-394); it has no place in a generation yet. A
*static* member (KIP-345) is known by an instance id that outlives its member id: a new member id for the same instance
replaces the old one, and whoever still uses the old one is *fenced*. *Awaited* members have joined the generation and have not
asked for their part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ottla.coordination.groups import CLASSIC, CONSUMER_PROTOCOL, EMPTY, CheckPartition, Groups
from ottla.coordination.machine import Moment, Waiter
from ottla.coordination.offsets import Commit
from ottla.coordination.records import GroupMetadataKey, GroupMetadataValue, Record
from ottla.wire.codec import Malformed, decode
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import Chance
from ottla.wire.messages.groups import JoinGroupResponse
from ottla.wire.messages.subscriptions import VERSION_BYTES, ConsumerProtocolSubscription

PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"

NEXT_STATES = {
    EMPTY: (PREPARING,),
    PREPARING: (COMPLETING, EMPTY),
    COMPLETING: (STABLE, PREPARING),
    STABLE: (PREPARING,),
}

SESSION = "classic session"  # alarm: nothing was heard of a member, or of a pending one
UNKNOWN_TIME = -1

# Names and subscriptions, in the order in which the member prefers them.
Protocols = tuple[tuple[str, bytes], ...]


class Waiting(NamedTuple):
    """Somebody whose reply is owed, and the version it asked in."""

    waiter: Waiter
    version: int


class Delay(NamedTuple):
    """The first rebalance of a group waits for more members: how long this time, and how long it still may."""

    ms: int
    remaining_ms: int


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # Waits for its first generation. It cannot send heartbeats, and may have gone away, so that its wait has an end.
    is_new: bool = False
    join: Waiting | None = None
    sync: Waiting | None = None

    @property
    def is_excused(self) -> bool:
        """Whoever waits for us need not send heartbeats."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def subscription(self, protocol: str | None) -> bytes:
        return next(data for name, data in self.protocols if name == protocol)

    def vote(self, candidates: Iterable[str]) -> str:
        """The one it likes best."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    protocol_type: str = ""
    state: str = EMPTY
    state_ms: int = UNKNOWN_TIME
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    by_instance: dict[str, str] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    awaited: dict[str, None] = field(default_factory=dict)
    joined: int = 0  # members that wait for the next generation
    delay: Delay | None = None  # set while the first rebalance waits for more members
    grew: bool = False  # somebody came during the delay
    proposed: GroupMetadataValue | None = None  # what it wrote about itself
    proposed_ms: int = UNKNOWN_TIME
    _speakers: Counter[str] = field(default_factory=Counter)
    _topics: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        return CLASSIC

    def move(self, state: str, now_ms: int) -> None:
        if state not in NEXT_STATES[self.state]:
            raise AssertionError(f"group {self.group_id}: {self.state} is not followed by {state}")
        self.state, self.state_ms = state, now_ms

    # --- members

    def known(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member that says to be this one."""
        if instance_id is not None and (current := self.by_instance.get(instance_id)) != member_id:
            if current is None:
                raise KafkaError(Error.UNKNOWN_MEMBER_ID)
            raise KafkaError(Error.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID)
        return member

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._speakers.update(spoken_by(member.protocols))
        self.joined += member.join is not None
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """A member or a pending one goes; somebody else leads, if it was the leader."""
        self.pending.pop(member_id, None)
        self.awaited.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance_id is not None:
            del self.by_instance[member.instance_id]
        self._speakers.subtract(spoken_by(member.protocols))
        self.joined -= member.join is not None
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicMember, member_id: str) -> ClassicMember:
        """A static member came back under a new id; nobody waits under the old one any more. It is no newcomer."""
        old_id = member.member_id
        renamed = replace(member, member_id=member_id, is_new=False)
        self.members = {each.member_id: each for each in (renamed if m is member else m for m in self.members.values())}
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        if old_id in self.awaited:
            del self.awaited[old_id]
            self.awaited[member_id] = None
        self._topics = None
        return renamed

    def speak(self, member: ClassicMember, protocols: Protocols) -> None:
        self._speakers.subtract(spoken_by(member.protocols))
        member.protocols = protocols
        self._speakers.update(spoken_by(protocols))

    def park_join(self, member: ClassicMember, waiting: Waiting) -> None:
        self.joined += member.join is None
        member.join = waiting

    def take_join(self, member: ClassicMember) -> Waiting | None:
        waiting, member.join = member.join, None
        self.joined -= waiting is not None
        return waiting

    @property
    def has_all_joined(self) -> bool:
        return self.joined == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The most patient member decides."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def accepts(self, member_id: str, most: int) -> bool:
        """Is there room? After the limit was lowered, those who are the last to join again have to go."""
        if self.state == EMPTY:
            return True
        member = self.members.get(member_id)
        if self.state == PREPARING:
            return (member is not None and member.join is not None) or self.joined < most
        return member is not None or len(self.members) < most

    # --- agreements

    def can_speak(self, protocol_type: str, protocols: Protocols) -> bool:
        """Does a member with these protocols fit in?"""
        if self.state == EMPTY:
            return bool(protocol_type and protocols)
        size = len(self.members)
        return protocol_type == self.protocol_type and any(self._speakers[name] == size for name, _ in protocols)

    def elected_protocol(self) -> str:
        """Each member votes for the first on its list that all can speak."""
        size = len(self.members)
        candidates = {name for name, speakers in self._speakers.items() if speakers == size}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=lambda name: votes[name])

    def elect_joined_leader(self) -> bool:
        """The leader stays if it has joined; else one that has becomes it. False if there is none."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join is not None:
            return leader is not None
        for member in self.members.values():
            if member.join is not None:
                self.leader = member.member_id
                return True
        return False

    def begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.elected_protocol() if self.members else None
        self._topics = None
        self.move(COMPLETING if self.members else EMPTY, now_ms)
        self.awaited = dict.fromkeys(self.members)
        self.delay = None

    def roll_call(self) -> list[JoinGroupResponse.Member]:
        """All members with their subscriptions, for the leader."""
        return [
            JoinGroupResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.subscription(self.protocol),
            )
            for member in self.members.values()
        ]

    # --- records

    def birth(self) -> Record:
        """The first record of a group: it exists."""
        return self._propose(GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=self.state_ms))

    def record(self, now_ms: int, assignments: dict[str, bytes] | None = None) -> Record:
        """The group as it is, or as it will be when members have these assignments."""
        self.proposed_ms = now_ms
        return self._propose(
            GroupMetadataValue(
                protocol_type=self.protocol_type,
                generation=self.generation,
                protocol=self.protocol,
                leader=self.leader,
                current_state_timestamp=self.state_ms,
                members=[self._written(member, assignments) for member in self.members.values()],
            )
        )

    def _propose(self, value: GroupMetadataValue) -> Record:
        self.proposed = value
        return Record(GroupMetadataKey(group=self.group_id), value)

    def _written(self, member: ClassicMember, assignments: dict[str, bytes] | None) -> GroupMetadataValue.Member:
        given = member.assignment if assignments is None else assignments.get(member.member_id, b"")
        return GroupMetadataValue.Member(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription(self.protocol),
            assignment=given,
        )

    def settle(self, value: GroupMetadataValue) -> None:
        """What this group proposed was written."""
        if self.state != COMPLETING:
            return
        for written in value.members:
            self.members[written.member_id].assignment = written.assignment
        self.move(STABLE, self.proposed_ms)

    # --- what can be asked of any group

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, is_transactional: bool
    ) -> CheckPartition | None:
        if generation < 0 and self.state == EMPTY:
            return None  # a consumer that takes no part in groups, or an administrator
        if generation >= 0 or member_id or instance_id is not None:
            self.known(member_id, instance_id)
            if generation != self.generation:
                raise KafkaError(Error.ILLEGAL_GENERATION)
        elif not is_transactional and self.state != EMPTY:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID)
        if not is_transactional and self.state == COMPLETING:
            raise KafkaError(Error.REBALANCE_IN_PROGRESS)
        return None

    def keep_alive(self, member_id: str, groups: Groups, moment: Moment) -> None:
        member = self.members.get(member_id)
        if member is not None and self.state in (STABLE, PREPARING):
            groups.timers.set((SESSION, self.group_id, member_id), moment.elapsed_ms + member.session_timeout_ms)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Everybody may."""

    def check_deletable(self) -> None:
        if self.state != EMPTY:
            raise KafkaError(Error.NON_EMPTY_GROUP)

    @property
    def topics(self) -> frozenset[str] | None:
        """What the consumers of this generation read; None if it cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if self._topics is None and (self.protocol is not None or not self.members):
            self._topics = self._read_subscriptions()
        return self._topics

    def _read_subscriptions(self) -> frozenset[str] | None:
        """Whatever their versions are, they begin as version 0 does."""
        subscriptions = (member.subscription(self.protocol) for member in self.members.values())
        try:
            read = [
                decode(ConsumerProtocolSubscription, said, 0, VERSION_BYTES, trailing=True) for said in subscriptions
            ]
        except Malformed:
            return None
        return frozenset(topic for subscription in read for topic in subscription.topics)

    def is_subscribed_to(self, topic: str) -> bool:
        topics = self.topics
        return self.protocol_type == CONSUMER_PROTOCOL if topics is None else topic in topics

    def may_expire(self) -> bool:
        if not self.protocol_type or self.state == EMPTY:
            return True
        return self.state == STABLE and self.topics is not None

    def expires_from_ms(self, commit: Commit) -> int:
        """From when the last member went, where members came and went."""
        if self.protocol_type and self.state == EMPTY and self.state_ms != UNKNOWN_TIME:
            return self.state_ms
        return commit.committed_ms

    def tombstones(self) -> list[Record]:
        return [Record(GroupMetadataKey(group=self.group_id), None)]


def spoken_by(protocols: Protocols) -> dict[str, int]:
    return dict.fromkeys((name for name, _ in protocols), 1)


def new_member_id(name: str, chance: Chance) -> str:
    """Kafka's member ids: the client's or the instance's name, and a random UUID."""
    raw = bytearray(chance.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{name}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def replay(groups: Groups, record: Record, offset: int) -> None:
    """A group as one generation left it; a group that wrote this itself has to be told only that it stands written."""
    key, value = record
    assert isinstance(key, GroupMetadataKey)
    group = groups.by_id.get(key.group)
    if value is None:
        if isinstance(group, ClassicGroup):
            del groups.by_id[key.group]
        return
    assert isinstance(value, GroupMetadataValue)
    if isinstance(group, ClassicGroup) and group.proposed is value:
        group.settle(value)
    else:
        groups.by_id[key.group] = written_group(key.group, value)


def written_group(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    group = ClassicGroup(
        group_id,
        value.protocol_type,
        STABLE if value.members else EMPTY,
        value.current_state_timestamp,
        value.generation,
        value.protocol,
        value.leader,
    )
    for written in value.members:
        group.add(_read_member(written, value.protocol or ""), value.protocol_type)
    return group


def _read_member(written: GroupMetadataValue.Member, protocol: str) -> ClassicMember:
    return ClassicMember(
        written.member_id,
        written.group_instance_id,
        written.client_id,
        written.client_host,
        written.session_timeout if written.rebalance_timeout == -1 else written.rebalance_timeout,
        written.session_timeout,
        ((protocol, bytes(written.subscription)),),
        bytes(written.assignment),
    )
