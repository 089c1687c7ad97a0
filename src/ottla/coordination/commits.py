"""Decisions about committed offsets: keep them, tell them, forget them.

Who may commit is for the group to say; a group that does not exist is made by a commit without a generation (`simple.py`).
Topics were looked up by the handler before: what comes here exists, and has its name as well as its id.

An offset is kept with the id of its topic. When a topic is deleted its offsets go with it; those of another topic that has
the name now do not. Whoever asks by id is not told an offset of another id.

Offsets are forgotten some time after anybody can have wanted them (`offsets.retention.minutes`): in a group that somebody
joined, counted from when the last member left; in others from the commit; never while a member subscribes to the topic or a
transaction is about to change the offset. A group that has lost its last offset that way, and is empty, goes with it. All
groups are looked at every `offsets.retention.check.interval.ms`, a limited number at a time, so that nobody has to wait.
What is found then of topics that do not exist goes too: the node may have been killed between their deletion and the end of
their offsets, or the partition was loading.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from ottla.coordination.groups import CLASSIC, CONSUMER_PROTOCOL, EMPTY, CheckPartition, Group, Groups
from ottla.coordination.machine import Alarm, Caller, Decision, Moment
from ottla.coordination.offsets import Commit, tombstone
from ottla.coordination.records import OffsetCommitKey, OffsetCommitValue, Record
from ottla.coordination.simple import SimpleGroup, find_any
from ottla.wire.allowance import Allowance
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from ottla.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.wire.schema import ZERO_UUID

# From this version on, a commit to a group that does not exist is told so.
GROUP_NOT_FOUND_SINCE = 9
BROKERS_RETENTION = -1

MINUTE_MS = 60_000
TIME_MAX_MS = 2**63 - 1  # the last moment that can be written down: whoever names a later one means never
# At most so many offsets are looked at before others get their turn,
LOOKED_AT_MAX = 2_000
# and so many bytes of tombstones go into one batch; the name of a topic has no more than 249.
TOMBSTONES_BYTES_MAX = 512 * 1024
TOMBSTONE_BYTES = 300
UNWRITTEN_PAUSE_MS = 1_000
EXPIRY = "offsets"
EXPIRY_ALARM: Alarm = (EXPIRY, "", "")
DELETION = "deleted topics"
DELETION_ALARM: Alarm = (DELETION, "", "")

Committed = OffsetCommitResponse.Topic.Partition
Held = TxnOffsetCommitResponse.Topic
Fetched = OffsetFetchResponse.Group.Topic
FetchedPartition = OffsetFetchResponse.Group.Topic.Partition
Deleted = OffsetDeleteResponse.Topic


# --- commit


def commit(
    groups: Groups, request: OffsetCommitRequest, caller: Caller, moment: Moment
) -> Decision[OffsetCommitResponse]:
    check = _check_commit(groups, request, caller.version, moment)
    expire_ms = -1
    if request.retention_time_ms != BROKERS_RETENTION:
        expire_ms = min(moment.wall_ms + request.retention_time_ms, TIME_MAX_MS)
    records: list[Record] = []
    note_max: int = groups.config["offset.metadata.max.bytes"]
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            note = asked.committed_metadata or ""
            if _is_too_long(note, note_max):
                code = Error.OFFSET_METADATA_TOO_LARGE.code
            else:
                if check is not None:
                    check(topic.name, topic.topic_id, asked.partition_index)
                code = 0
                value = OffsetCommitValue(
                    offset=asked.committed_offset,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=note,
                    commit_timestamp=moment.wall_ms,
                    expire_timestamp=expire_ms,
                    topic_id=topic.topic_id,
                )
                key = OffsetCommitKey(group=request.group_id, topic=topic.name, partition=asked.partition_index)
                records.append(Record(key, value))
            answers.append(Committed(partition_index=asked.partition_index, error_code=code))
        topics.append(OffsetCommitResponse.Topic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
    return Decision(OffsetCommitResponse(topics=topics), records, revoke=functools.partial(_refuse_all, topics))


def _refuse_all(topics: list[OffsetCommitResponse.Topic] | list[Held], error: KafkaError) -> None:
    for topic in topics:
        for told in topic.partitions:
            told.error_code = error.code


def _check_commit(groups: Groups, request: OffsetCommitRequest, version: int, moment: Moment) -> CheckPartition | None:
    """May it commit? If so, that also keeps its session alive."""
    group_id, generation = request.group_id, request.generation_id_or_member_epoch
    missing = Error.GROUP_ID_NOT_FOUND if version >= GROUP_NOT_FOUND_SINCE else Error.ILLEGAL_GENERATION
    group = _group_to_commit(groups, group_id, generation, missing)
    check = group.check_commit(request.member_id, request.group_instance_id, generation, version, False)
    if request.member_id:
        group.keep_alive(request.member_id, groups, moment)
    return check


def _group_to_commit(groups: Groups, group_id: str, generation: int, missing: Error) -> Group:
    try:
        return find_any(groups, group_id)
    except KafkaError as error:
        if generation < 0:
            return SimpleGroup(group_id)
        raise KafkaError(missing, error.message)


def _is_too_long(note: str, units_max: int) -> bool:
    """Java counts characters as UTF-16 does."""
    if len(note) > units_max:
        return True
    return not note.isascii() and len(note.encode("utf-16-le", "surrogatepass")) // 2 > units_max


# --- commit in a transaction


def commit_in_transaction(
    groups: Groups, request: TxnOffsetCommitRequest, caller: Caller, moment: Moment
) -> Decision[TxnOffsetCommitResponse]:
    """Offsets that hold once a producer's transaction is committed (KIP-98, KIP-447).

    A transaction may well end while a rebalance is under way: nobody is told to wait for that, and no session is kept alive.
    Producers know no epochs of members: one that lags behind hears the same as one of an older generation.
    """
    try:
        check = _check_transactional(groups, request, caller.version)
        return _hold(groups, request, check, moment)
    except KafkaError as error:
        if error.error is not Error.STALE_MEMBER_EPOCH:
            raise
        raise KafkaError(Error.ILLEGAL_GENERATION, error.message)


def _check_transactional(groups: Groups, request: TxnOffsetCommitRequest, version: int) -> CheckPartition | None:
    generation = request.generation_id
    group = _group_to_commit(groups, request.group_id, generation, Error.ILLEGAL_GENERATION)
    return group.check_commit(request.member_id, request.group_instance_id, generation, version, True)


def _hold(
    groups: Groups, request: TxnOffsetCommitRequest, check: CheckPartition | None, moment: Moment
) -> Decision[TxnOffsetCommitResponse]:
    records: list[Record] = []
    note_max: int = groups.config["offset.metadata.max.bytes"]
    answer = TxnOffsetCommitResponse()
    for topic in request.topics:
        known = groups.image.topic(topic.name)
        topic_id = ZERO_UUID if known is None else known.id
        told = Held(name=topic.name)
        answer.topics.append(told)
        for asked in topic.partitions:
            note, code = asked.committed_metadata or "", 0
            if _is_too_long(note, note_max):
                code = Error.OFFSET_METADATA_TOO_LARGE.code
            else:
                if check is not None:
                    check(topic.name, topic_id, asked.partition_index)
                value = OffsetCommitValue(
                    offset=asked.committed_offset,
                    leader_epoch=asked.committed_leader_epoch,
                    metadata=note,
                    commit_timestamp=moment.wall_ms,
                    topic_id=topic_id,
                )
                key = OffsetCommitKey(group=request.group_id, topic=topic.name, partition=asked.partition_index)
                records.append(Record(key, value))
            told.partitions.append(Held.Partition(partition_index=asked.partition_index, error_code=code))
    return Decision(answer, records, revoke=functools.partial(_refuse_all, answer.topics))


# --- fetch

# What an offset takes in an answer besides its metadata, about.
PARTITION_BYTES = 20


class WantedTopic(NamedTuple):
    """Partitions of a topic, by its name; with an id, only what was committed for that topic counts."""

    name: str
    topic_id: bytes
    partitions: list[int]


class Wanted(NamedTuple):
    """Offsets of a group that somebody asks for; no topics means all of them."""

    group_id: str
    topics: list[WantedTopic] | None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


def fetch(groups: Groups, wanted: Wanted, caller: Caller, moment: Moment) -> Decision[OffsetFetchResponse.Group]:
    """The offsets, -1 where nothing was committed. A group that does not exist has committed nothing."""
    try:
        find_any(groups, wanted.group_id).check_fetch(wanted.member_id, wanted.member_epoch)
    except KafkaError as error:
        if error.error is not Error.GROUP_ID_NOT_FOUND:
            raise
    if wanted.topics is None:
        topics = _fetch_all(groups, wanted)
    else:
        allowance = Allowance()
        topics = [_fetch_topic(groups, topic, wanted, allowance) for topic in wanted.topics]
    return Decision(OffsetFetchResponse.Group(group_id=wanted.group_id, topics=topics))


def _fetch_all(groups: Groups, wanted: Wanted) -> list[Fetched]:
    topics: dict[str, Fetched] = {}
    for name, partition, commit in groups.offsets.all_of(wanted.group_id):
        if name not in topics:
            topics[name] = Fetched(name=name)
        topics[name].partitions.append(_told(groups, wanted, name, partition, commit))
    return list(topics.values())


def _fetch_topic(groups: Groups, topic: WantedTopic, wanted: Wanted, allowance: Allowance) -> Fetched:
    answer = Fetched(name=topic.name, topic_id=topic.topic_id)
    for partition in topic.partitions:
        commit = groups.offsets.find(wanted.group_id, topic.name, partition)
        if commit is not None and topic.topic_id not in (ZERO_UUID, commit.topic_id) and commit.topic_id != ZERO_UUID:
            commit = None
        told = _told(groups, wanted, topic.name, partition, commit)
        allowance.take((topic.name, partition), PARTITION_BYTES + len(told.metadata or ""))
        answer.partitions.append(told)
    return answer


def _told(groups: Groups, wanted: Wanted, topic: str, partition: int, commit: Commit | None) -> FetchedPartition:
    if wanted.require_stable and groups.offsets.is_pending(wanted.group_id, topic, partition):
        return not_told(partition, Error.UNSTABLE_OFFSET_COMMIT)
    if commit is None:
        return not_told(partition, Error.NONE)
    return FetchedPartition(
        partition_index=partition,
        committed_offset=commit.offset,
        committed_leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
    )


def not_told(partition: int, error: Error) -> FetchedPartition:
    """There is no offset, or none to be told now."""
    return FetchedPartition(partition_index=partition, committed_offset=-1, metadata="", error_code=error.code)


# --- delete


def delete(
    groups: Groups, request: OffsetDeleteRequest, caller: Caller, moment: Moment
) -> Decision[OffsetDeleteResponse]:
    """Forget offsets of topics that no member reads."""
    group = find_any(groups, request.group_id)
    if group.kind == CLASSIC and group.state != EMPTY and group.protocol_type != CONSUMER_PROTOCOL:
        raise KafkaError(Error.NON_EMPTY_GROUP)
    answer, records = OffsetDeleteResponse(), []
    for topic in request.topics:
        is_read = group.is_subscribed_to(topic.name)
        code = Error.GROUP_SUBSCRIBED_TO_TOPIC.code if is_read else 0
        indexes = [asked.partition_index for asked in topic.partitions]
        if not is_read:
            has = groups.offsets.has
            gone = [index for index in indexes if has(request.group_id, topic.name, index)]
            records += [tombstone(request.group_id, topic.name, index) for index in gone]
        told = [Deleted.Partition(partition_index=index, error_code=code) for index in indexes]
        answer.topics.append(Deleted(name=topic.name, partitions=told))
    return Decision(answer, records)


def fitting(group_id: str) -> int:
    """How many tombstones of this group's offsets fit into one batch."""
    return max(1, TOMBSTONES_BYTES_MAX // (TOMBSTONE_BYTES + 3 * len(group_id)))


def topic_deleted(groups: Groups, topic: str, topic_id: bytes, moment: Moment) -> list[Callable[[], Decision[None]]]:
    """A topic is gone, and so is how far anybody came in it. Where many did, the rest of them has to wait a little; so have
    those that cannot be written now."""

    def go_on_at(elapsed_ms: int) -> None:
        groups.deleted_topics[topic_id] = topic
        groups.timers.set(DELETION_ALARM, elapsed_ms)

    def pause(error: KafkaError) -> Decision[None]:
        go_on_at(moment.elapsed_ms + UNWRITTEN_PAUSE_MS)
        return Decision()

    decisions: list[Callable[[], Decision[None]]] = []
    total = 0
    for group_id, records in groups.offsets.tombstones_of_topic(topic, topic_id, LOOKED_AT_MAX).items():
        step, total = fitting(group_id), total + len(records)
        pieces = [records[at : at + step] for at in range(0, len(records), step)]
        decisions += [functools.partial(Decision, None, piece, refused=pause) for piece in pieces]
    if total >= LOOKED_AT_MAX:
        go_on_at(moment.elapsed_ms)
    return decisions


def go_on_deleting(groups: Groups, _group: str, _member: str, moment: Moment) -> Decision[None]:
    """Some more offsets of a topic that was deleted."""
    topic_id, topic = next(iter(groups.deleted_topics.items()))
    found = groups.offsets.tombstones_of_topic(topic, topic_id, LOOKED_AT_MAX)
    records: list[Record] = []
    room = 1.0
    for group_id, tombstones in found.items():
        fits = int(room * fitting(group_id))
        records += tombstones[:fits]
        room -= len(tombstones) / fitting(group_id)
        if room <= 0:
            break
    if not found:
        del groups.deleted_topics[topic_id]
    if groups.deleted_topics:
        groups.timers.set(DELETION_ALARM, moment.elapsed_ms)
    return _or_later(groups, records, DELETION_ALARM, moment)


def _or_later(groups: Groups, records: list[Record], alarm: Alarm, moment: Moment) -> Decision[None]:
    """Write these. If that is not possible, because the disk is full say, go on after a pause, not at once for ever."""

    def pause(error: KafkaError) -> Decision[None]:
        groups.timers.set(alarm, moment.elapsed_ms + UNWRITTEN_PAUSE_MS)
        return Decision()

    return Decision(records=records, refused=pause)


# --- expiry


def begin_expiry(groups: Groups, moment: Moment) -> None:
    """The first look is due in the second half of the interval: all partitions load together, but should not look so."""
    interval_ms: int = groups.config["offsets.retention.check.interval.ms"]
    sooner_ms = int.from_bytes(groups.chance.randbytes(6), "big") % (interval_ms // 2 + 1)
    groups.timers.set(EXPIRY_ALARM, moment.elapsed_ms + interval_ms - sooner_ms)


def expire(groups: Groups, _group: str, _member: str, moment: Moment) -> Decision[None]:
    """Look at some groups. When all were looked at, the next round is due after the interval."""
    if not groups.to_look_at:
        groups.to_look_at = list(dict.fromkeys((*groups.by_id, *groups.offsets.by_group)))
    records: list[Record] = []
    looked_at, room = 0, 1.0  # how much of a batch is left
    while groups.to_look_at and looked_at < LOOKED_AT_MAX:
        group_id = groups.to_look_at[-1]
        looked_at += 1 + len(groups.offsets.by_group.get(group_id, ()))
        found, is_done = _expire_group(groups, group_id, int(room * fitting(group_id)), moment)
        records += found
        room -= len(found) / fitting(group_id)
        if not is_done:
            break
        groups.to_look_at.pop()
    rest_ms: int = 0 if groups.to_look_at else groups.config["offsets.retention.check.interval.ms"]
    groups.timers.set(EXPIRY_ALARM, moment.elapsed_ms + rest_ms)
    return _or_later(groups, records, EXPIRY_ALARM, moment)


def _expire_group(groups: Groups, group_id: str, room: int, moment: Moment) -> tuple[list[Record], bool]:
    """Tombstones for what nobody needs any more, the group itself included; and whether that is all."""
    try:
        group = find_any(groups, group_id)
    except KafkaError:
        return [], True  # it was deleted since the round began
    expired, kept = _expired_offsets(groups, group, moment) if group_id in groups.offsets else ([], 0)
    if len(expired) >= room:
        return expired[:room], False
    if kept == 0 and group.state == EMPTY and not groups.offsets.has_open_transactions(group_id):
        expired += group.tombstones()
    return expired, True


def _expired_offsets(groups: Groups, group: Group, moment: Moment) -> tuple[list[Record], int]:
    """Tombstones, and how many offsets stay."""
    offsets, group_id, topics = groups.offsets, group.group_id, groups.image.topics
    retention_ms = groups.config["offsets.retention.minutes"] * MINUTE_MS
    may_expire = group.may_expire()
    needed: dict[str, bool] = {}
    expired = []
    for topic, partition, commit in offsets.all_of(group_id):
        if commit.topic_id == ZERO_UUID or commit.topic_id in topics:
            if topic not in needed:
                needed[topic] = not may_expire or group.is_subscribed_to(topic)
            ends_ms = commit.expire_ms if commit.expire_ms != -1 else group.expires_from_ms(commit) + retention_ms
            if moment.wall_ms < ends_ms or needed[topic]:
                continue
        if not offsets.is_pending(group_id, topic, partition):
            expired.append(tombstone(group_id, topic, partition))
    return expired, len(offsets.by_group[group_id]) - len(expired)
