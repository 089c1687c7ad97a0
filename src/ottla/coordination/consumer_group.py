"""A consumer group (KIP-848): its members, what each is to have, and who holds which partition now.

Three epochs turn around one another. The *group epoch* rises whenever something changes that the division of work depends
on: a member comes or goes, subscribes to something else, or a topic grows. The *assignment epoch* is the group epoch for
which the target was made. A *member epoch* is the assignment epoch that a member has got to. From them follow the states that
clients see: Empty; Assigning while the target lags behind the group; Reconciling while some member lags behind the target;
Stable.

Everything here but what is marked as soft comes from records, by the methods at the end of the class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.coordination.consumer_member import Held, Member, Target, end_records
from ottla.coordination.groups import CONSUMER, CONSUMER_PROTOCOL, EMPTY, CheckPartition
from ottla.coordination.machine import Moment
from ottla.coordination.offsets import Commit
from ottla.coordination.records import Record
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.coordination.groups import Groups

# The first version of OffsetCommit whose clients know what a stale epoch is.
COMMITS_BY_EPOCH = 9
NO_TARGET: Target = {}
# Of a group that nobody changed yet: a member's epoch 0 means that it joins, and must not be reached by reconciling.
FIRST_EPOCH = 1
NEVER_MS = -(2**63)


class Resolved(NamedTuple):
    """What a regular expression stood for when it was last evaluated, and as of which picture of the cluster."""

    topics: frozenset[str]
    version: int
    at_ms: int


class ConsumerGroup:
    kind = CONSUMER
    protocol_type = CONSUMER_PROTOCOL

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.instances: dict[str, str] = {}  # static members: instance id -> member id
        self.regexes: dict[str, Resolved] = {}
        self.has_partition_metadata = False  # a record of an older release describes its topics
        # What follows from the members, kept up to date with them.
        self.names: Counter[str] = Counter()
        self.expressions: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_members = 0
        self.classic_protocols: Counter[str] = Counter()
        self._holders: dict[tuple[bytes, int], str] = {}
        # Soft: topics were looked at for this epoch and have not changed since.
        self.topics_known_at_epoch: int | None = None
        # Soft: the driver is working out what the expressions stand for.
        self.is_evaluating = False

    # --- looking at it

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        reconciled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return "Stable" if reconciled else "Reconciling"

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(Error.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str, instance_id: str | None = None) -> Target:
        """A static member that comes back under another id has the target of its former self."""
        if instance_id is not None:
            member_id = self.instances.get(instance_id, "")
        return self.targets.get(member_id, NO_TARGET)

    def has_holder(self, topic_id: bytes, partition: int) -> bool:
        return (topic_id, partition) in self._holders

    def topics_of(self, member: Member) -> frozenset[str]:
        """Names that it subscribes to, also those that its expression stands for; not all of them need exist."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.names | resolved.topics if resolved else member.names

    def topics(self) -> set[str]:
        """Names that anybody subscribes to."""
        return set(self.names).union(*(resolved.topics for resolved in self.regexes.values()))

    def topics_after(self, gone: Iterable[Member], after: Member | None = None) -> set[str]:
        """The same, when members go, or one becomes another. An expression that nobody has any more does not count."""
        names, expressions = self.names.copy(), self.expressions.copy()
        for member in gone:
            names.subtract(member.names)
            expressions.subtract([member.regex] if member.regex else [])
        if after is not None:
            names.update(after.names)
            expressions.update([after.regex] if after.regex else [])
        left = {regex for regex in self.expressions if expressions[regex] <= 0}
        resolved = (found.topics for regex, found in self.regexes.items() if regex not in left)
        return {name for name, count in names.items() if count > 0}.union(*resolved)

    def preferred_assignor(self, before: Member | None = None, after: Member | None = None) -> str | None:
        """The one that most members ask for, if any asks. `uniform` wins a tie with `range`, as in Apache Kafka."""
        votes = self.assignors.copy()
        if before is not None and before.assignor:
            votes[before.assignor] -= 1
        if after is not None and after.assignor:
            votes[after.assignor] += 1
        best = max(sorted(votes, reverse=True), key=lambda name: votes[name], default=None)
        return best if best is not None and votes[best] > 0 else None

    @property
    def regexes_resolved_ms(self) -> int:
        return next((resolved.at_ms for resolved in self.regexes.values()), NEVER_MS)

    @property
    def regexes_version(self) -> int:
        return next((resolved.version for resolved in self.regexes.values()), 0)

    # --- what is asked of groups of either kind

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int, is_transactional: bool
    ) -> CheckPartition | None:
        if generation < 0 and not self.members:
            return None  # somebody outside, while nobody is at work
        if is_transactional and generation == -1 and not member_id and instance_id is None:
            return None  # producers of before KIP-447 say nothing about their group
        member = self.member(member_id)
        if not is_transactional and member.classic is None and version < COMMITS_BY_EPOCH:
            raise KafkaError(
                Error.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if generation > member.epoch:
            raise _stale(member, generation, f"is newer than current member epoch {member.epoch}.")
        return None if generation == member.epoch else _checking(member, generation)

    def keep_alive(self, member_id: str, groups: Groups, moment: Moment) -> None:
        """Commits do not count: members of consumer groups have heartbeats of their own."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch == member.epoch:
            return
        if member.classic is not None:
            what = f"The received generation id {member_epoch} does not match the expected member epoch {member.epoch}."
            raise KafkaError(Error.ILLEGAL_GENERATION, what)
        what = f"The received member epoch {member_epoch} does not match the expected member epoch {member.epoch}."
        raise KafkaError(Error.STALE_MEMBER_EPOCH, what)

    def check_deletable(self) -> None:
        if self.members:
            raise KafkaError(Error.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.names or any(topic in resolved.topics for resolved in self.regexes.values())

    def may_expire(self) -> bool:
        return True

    def expires_from_ms(self, commit: Commit) -> int:
        return commit.committed_ms

    def tombstones(self) -> list[Record]:
        return end_records(self.group_id, self.members, self.regexes)

    # --- changed by records

    def put(self, member: Member) -> None:
        before = self.members.get(member.id)
        self._count(before, -1)
        self._let_go(before)
        self.members[member.id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        for partitions in (member.assigned, member.revoking):
            self._take(member.id, partitions)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._count(member, -1)
        self._let_go(member)
        if member is not None and self.instances.get(member.instance_id or "") == member_id:
            del self.instances[member.instance_id or ""]

    def _count(self, member: Member | None, by: int) -> None:
        if member is None:
            return
        _add(self.names, member.names, by)
        _add(self.expressions, [member.regex] if member.regex else [], by)
        _add(self.assignors, [member.assignor] if member.assignor else [], by)
        if member.classic is not None:
            self.classic_members += by
            _add(self.classic_protocols, [name for name, _ in member.classic.protocols], by)

    def _take(self, member_id: str, partitions: Held) -> None:
        for topic_id, those in partitions.items():
            for partition in those:
                self._holders[topic_id, partition] = member_id

    def _let_go(self, member: Member | None) -> None:
        if member is None:
            return
        for partitions in (member.assigned, member.revoking):
            for topic_id, those in partitions.items():
                for partition in those:
                    if self._holders.get((topic_id, partition)) == member.id:
                        del self._holders[topic_id, partition]


def _add(counts: Counter[str], names: Iterable[str], by: int) -> None:
    for name in names:
        counts[name] += by
        if not counts[name]:
            del counts[name]


def _stale(member: Member, epoch: int, what: str) -> KafkaError:
    if member.classic is not None:
        return KafkaError(Error.ILLEGAL_GENERATION, f"Received generation id {epoch} {what}")
    return KafkaError(Error.STALE_MEMBER_EPOCH, f"Received member epoch {epoch} {what}")


def _checking(member: Member, epoch: int) -> CheckPartition:
    """A member that has moved on may still commit, from an epoch that is past, for what it has held since then."""

    def check(topic: str, topic_id: bytes, partition: int) -> None:
        since = member.held_since(topic_id, partition)
        if since is None:
            error = Error.ILLEGAL_GENERATION if member.classic is not None else Error.STALE_MEMBER_EPOCH
            what = f"Partition {topic}-{partition} is not assigned or pending revocation for member."
            raise KafkaError(error, what)
        if epoch < since:
            what = f"is older than assignment epoch {since} for partition {topic}-{partition}."
            raise _stale(member, epoch, what)

    return check
