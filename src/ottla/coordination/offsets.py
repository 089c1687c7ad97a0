"""Offsets that groups have committed, as many as there are.

A cluster may hold a million of them, and all are read back when a leadership begins; most are never asked for before
they change. So what is kept is what stands in the topic: under the name of the group, the rest of the record's key (topic
and partition) and the record's value, both as bytes. They are taken apart when somebody asks. Bytes are small, and the
garbage collector does not look into them.

A group id that has an entry here and is no group of any protocol is a *simple* group (`simple.py`). Its entry stays when
its last offset goes, until the group itself is deleted.

Offsets that were sent in a transaction are *pending* until its marker comes. While they are, those who want stable offsets
are told to wait. When the transaction is committed, the later of two records about a partition holds, and that is not
always the pending one: whatever was stored meanwhile takes its place.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ottla.coordination.machine import NO_PRODUCER
from ottla.coordination.records import TOPIC_ID_FOLLOWS, USUAL_HEAD, OffsetCommitKey, OffsetCommitValue, Record
from ottla.wire.codec import Malformed, decode
from ottla.wire.schema import ZERO_UUID

# What a key of the topic begins with if it is about an offset: 0 in the oldest releases, 1 in all others.
_KINDS = (b"\0\0", b"\0\1")
_VERSIONS = OffsetCommitValue.versions
# A usual value without a note. It is not looked at any closer when it is replayed.
_USUAL_SIZE, _NOTE_AT = 42, 14

_OFFSET_AND_EPOCH = struct.Struct(">qi")
_TIME = struct.Struct(">q")
_TOPIC_SIZE = struct.Struct(">H")
_PARTITION = struct.Struct(">i")


class Commit(NamedTuple):
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expire_ms: int = -1  # given by the client (versions 2-4); -1: the broker's retention counts
    topic_id: bytes = ZERO_UUID


def read_commit(value: bytes) -> Commit:
    """A value of the topic. What Apache Kafka and we write is read by hand: a round of expiry reads all of them."""
    if value[:2] == USUAL_HEAD and len(value) >= _USUAL_SIZE and 1 <= value[_NOTE_AT] < 0x80:
        end = _NOTE_AT + value[_NOTE_AT]
        if value[end + 8 : end + 11] == TOPIC_ID_FOLLOWS and len(value) == end + 27:
            offset, leader_epoch = _OFFSET_AND_EPOCH.unpack_from(value, 2)
            note = str(value[_NOTE_AT + 1 : end], "utf-8")
            (committed_ms,) = _TIME.unpack_from(value, end)
            return Commit(offset, leader_epoch, note, committed_ms, -1, value[end + 11 :])
    said = decode(OffsetCommitValue, value, int.from_bytes(value[:2], "big"), 2)
    return Commit(
        said.offset, said.leader_epoch, said.metadata, said.commit_timestamp, said.expire_timestamp, said.topic_id
    )


def _place(topic: str, partition: int) -> bytes:
    """Topic and partition as they stand in a key, behind the name of the group."""
    name = topic.encode()
    return _TOPIC_SIZE.pack(len(name)) + name + _PARTITION.pack(partition)


def _topic_of(topic: str) -> bytes:
    return _place(topic, 0)[:-4]


def _read_place(place: bytes) -> tuple[str, int]:
    return str(place[2:-4], "utf-8"), _PARTITION.unpack_from(place, len(place) - 4)[0]


class Pending(NamedTuple):
    """An offset whose transaction has no end yet."""

    record_offset: int
    value: bytes | None  # None: something later was stored meanwhile, but the transaction is still open


class Offsets:
    """By group, then by topic and partition."""

    __slots__ = ("_group", "_prefix", "by_group", "open_transactions", "pending", "topics")

    def __init__(self) -> None:
        self.by_group: dict[str, dict[bytes, bytes]] = {}
        # Producer -> group -> topic and partition.
        self.pending: dict[int, dict[str, dict[bytes, Pending]]] = {}
        self.open_transactions: dict[str, set[int]] = {}
        # Every topic that was ever in here. One that is not here need not be looked for when it is deleted.
        self.topics: set[bytes] = set()
        # Records of one group mostly stand together: where the last one lives, and how its key began.
        self._prefix = b""
        self._group = ""

    # --- replay

    def replay(self, key: bytes, value: bytes | None, record_offset: int, producer_id: int = NO_PRODUCER) -> bool:
        """Follow a record as it stands in the topic. False, and nothing done, if it is not about an offset."""
        prefix = self._prefix
        if not prefix or not key.startswith(prefix):
            if key[:2] not in _KINDS:
                return False
            prefix = self._learn(key)
        place, group = key[len(prefix) :], self._group
        if len(place) < 6 or (place[0] << 8 | place[1]) + 6 != len(place):
            raise Malformed("the key of an offset does not end where it should")
        if value is None:
            self._remove(group, place)
        elif self._is_known(value):
            if producer_id != NO_PRODUCER:
                self._hold(producer_id, group, place, Pending(record_offset, value))
            else:
                self._store(group, place, value, record_offset)
        return True

    def _learn(self, key: bytes) -> bytes:
        """Another group than the last one's."""
        size = int.from_bytes(key[2:4], "big")
        if len(key) < 4 + size:
            raise Malformed("the name of a group does not end where it should")
        self._group = str(key[4 : 4 + size], "utf-8")
        self._prefix = key[: 4 + size]
        return self._prefix

    def _is_known(self, value: bytes) -> bool:
        """Whether it can be read; Malformed if it should be readable and is not. Unknown versions are passed over."""
        if len(value) == _USUAL_SIZE and value[:2] == USUAL_HEAD and value[_NOTE_AT] == 1:
            return True
        if int.from_bytes(value[:2], "big") not in _VERSIONS:
            return False
        read_commit(value)
        return True

    def _store(self, group: str, place: bytes, value: bytes, record_offset: int) -> None:
        kept = self.by_group.get(group)
        if kept is None:
            kept = self.by_group[group] = {}
        if place not in kept:
            self.topics.add(place[:-4])
        kept[place] = value
        if self.open_transactions and group in self.open_transactions:
            self._supersede(group, place, record_offset)

    def _supersede(self, group: str, place: bytes, record_offset: int) -> None:
        """What was pending before this record will not be stored any more when its transaction is committed."""
        for producer_id in self.open_transactions[group]:
            held = self.pending[producer_id][group]
            if place in held and held[place].record_offset < record_offset:
                held[place] = Pending(record_offset, None)

    def _hold(self, producer_id: int, group: str, place: bytes, pending: Pending) -> None:
        self.by_group.setdefault(group, {})
        self.topics.add(place[:-4])
        self.pending.setdefault(producer_id, {}).setdefault(group, {})[place] = pending
        self.open_transactions.setdefault(group, set()).add(producer_id)

    def _remove(self, group: str, place: bytes) -> None:
        self.by_group.get(group, {}).pop(place, None)
        for producer_id in self.open_transactions.get(group, ()):
            self.pending[producer_id][group].pop(place, None)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A marker: what the producer sent is stored now, or forgotten."""
        for group, held in self.pending.pop(producer_id, {}).items():
            producers = self.open_transactions[group]
            producers.discard(producer_id)
            if not producers:
                del self.open_transactions[group]
            for place, (record_offset, value) in held.items():
                if committed and value is not None:
                    self._store(group, place, value, record_offset)

    def forget(self, group: str) -> None:
        """The group was deleted. (Its offsets went before it, each by its own record.)"""
        if not self.by_group.get(group, True):
            del self.by_group[group]

    # --- asking

    def __contains__(self, group: object) -> bool:
        return group in self.by_group

    def find(self, group: str, topic: str, partition: int) -> Commit | None:
        value = self.by_group.get(group, {}).get(_place(topic, partition))
        return None if value is None else read_commit(value)

    def has(self, group: str, topic: str, partition: int) -> bool:
        """Is there anything about this partition, committed or pending?"""
        return _place(topic, partition) in self.by_group.get(group, ()) or self.is_pending(group, topic, partition)

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Would an open transaction change this offset?"""
        producers = self.open_transactions.get(group)
        return producers is not None and any(
            _place(topic, partition) in self.pending[producer_id][group] for producer_id in producers
        )

    def has_open_transactions(self, group: str) -> bool:
        return group in self.open_transactions

    def all_of(self, group: str) -> Iterator[tuple[str, int, Commit]]:
        """Everything that the group has committed."""
        for place, value in self.by_group.get(group, {}).items():
            yield *_read_place(place), read_commit(value)

    # --- tombstones

    def tombstones(self, group: str) -> list[Record]:
        """What ends every offset of a group, pending ones included."""
        places = dict.fromkeys(self.by_group.get(group, ()))
        for producer_id in sorted(self.open_transactions.get(group, ())):
            places.update(dict.fromkeys(self.pending[producer_id][group]))
        return [tombstone(group, *_read_place(place)) for place in places]

    def tombstones_of_topic(self, topic: str, topic_id: bytes, most: int) -> dict[str, list[Record]]:
        """What ends offsets of a topic that was deleted, by group, unless they are about another one of that name."""
        head = _topic_of(topic)
        if head not in self.topics:
            return {}
        places = (
            (group, place)
            for group, place, value in self._everything()
            if place.startswith(head) and len(place) == len(head) + 4 and _is_about(value, topic_id)
        )
        found: dict[str, list[Record]] = {}
        for group, place in dict.fromkeys(itertools.islice(places, most)):
            found.setdefault(group, []).append(tombstone(group, *_read_place(place)))
        return found

    def _everything(self) -> Iterator[tuple[str, bytes, bytes | None]]:
        for group, kept in self.by_group.items():
            for place, value in kept.items():
                yield group, place, value
        for groups in self.pending.values():
            for group, held in groups.items():
                for place, pending in held.items():
                    yield group, place, pending.value


def _is_about(value: bytes | None, topic_id: bytes) -> bool:
    """Where nothing of a pending offset is left, what was stored meanwhile says of which topic it is."""
    return value is not None and read_commit(value).topic_id in (ZERO_UUID, topic_id)


def tombstone(group: str, topic: str, partition: int) -> Record:
    """The record after which a group has no offset there."""
    return Record(OffsetCommitKey(group=group, topic=topic, partition=partition), None)
