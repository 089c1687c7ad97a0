"""The metadata of a node on its disk: the log, its snapshots, the quorum's promises; laid out as Apache Kafka does it.

    bootstrap.checkpoint                      what the directory was formatted with
    __cluster_metadata-0/
      quorum-state                            the epoch, and whom this voter chose
      00000000000000000000-0000000000.checkpoint   the first voters (kraft.version 1)
      <end offset>-<epoch>.checkpoint         snapshots, mode 0400
      00000000000000000000.log ...            the log, an ordinary one
      committed-offset                        ours alone: so far this voter's copy was once committed and synced. A log that
                                              ends before has been damaged, and its voter must not elect anybody

A start replays the newest snapshot that is whole and the log after it. A new snapshot is written beside the log while the
node serves; the picture it is made from is frozen, so it can be written out a little at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ottla.config import BrokerConfig
from ottla.log import retention
from ottla.log.directories import Directories
from ottla.log.directory import METADATA_LOG, make_durable_directory
from ottla.log.files import OpenFiles
from ottla.log.identity import (
    MetaProperties,
    read_meta_properties,
    read_topic_id,
    write_meta_properties,
    write_topic_id,
)
from ottla.log.log import Appended, Log
from ottla.log.producers import Origin
from ottla.log.settings import LONG_MAX, LogSettings
from ottla.metadata.controller import format_records
from ottla.metadata.decisions import Versioned
from ottla.metadata.image import Delta, Image
from ottla.metadata.records import frame, unframe
from ottla.metadata.replay import replay
from ottla.metadata.snapshot import records_of
from ottla.raft import snapshots
from ottla.raft.history import History
from ottla.raft.quorum import QuorumState, VoterSet
from ottla.raft.snapshots import Damaged, SnapshotId
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import random_id
from ottla.wire.messages.quorum import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotHeaderRecord,
)
from ottla.wire.records import Batch, Record, batches, build_control, crc_ok, iterate, look
from ottla.wire.schema import Message
from ottla.world import World

log = logging.getLogger("ottla.quorum")

T = TypeVar("T")

QUORUM_STATE = "quorum-state"
COMMITTED = "committed-offset"
# So much of the log is replayed in one go: thousands of partitions, a tenth of a second.
READ_BYTES = 1 << 20
BATCH_BYTES_MAX = 8 << 20
READ_ONLY = 0o400
NOTHING = SnapshotId(0, 0)


@dataclass(slots=True)
class Loaded:
    """What was on the disk: the picture at its end, that of its newest snapshot, what the quorum says of itself, and what
    this voter has promised."""

    image: Image
    history: History
    snapshot: Image
    state: QuorumState = field(default_factory=QuorumState)


class MetadataStore:
    def __init__(self, config: BrokerConfig, world: World, directories: Directories) -> None:
        self._config = config
        self._world = world
        self._disk = world.disk
        self._relieve = directories.relieve
        self._home = config.metadata_log_dir
        self.path = f"{self._home}/{METADATA_LOG}"
        self.cluster_id = directories.cluster_id
        self.directory_id = self._identify(directories)
        self.log: Log
        # The newest snapshot; -1 before the first.
        self.snapshot_end = -1
        self._snapshots: list[SnapshotId] = []
        # A snapshot that we copy from the leader, and one that somebody copies from us.
        self._incoming = bytearray()
        self._outgoing: tuple[SnapshotId, bytes] | None = None
        # Whether everything that was synced once is still readable.
        self.is_sound = True
        self._noted_end = 0
        self.bytes_since_snapshot = 0
        self.last_timestamp = 0

    def _identify(self, directories: Directories) -> bytes:
        """The id of the directory that holds the metadata; one of its own, where that is none of `log.dirs`."""
        metas = [d.meta for d in directories.all if d.path == self._home and d.meta is not None]
        if metas:
            return metas[0].directory_id
        make_durable_directory(self._disk, self._home)
        meta = read_meta_properties(self._disk, self._home)
        if meta is None:
            meta = MetaProperties(self.cluster_id, self._config.node_id, random_id(self._world.random))
            write_meta_properties(self._disk, self._home, meta, self._world.now_ms())
        return meta.directory_id

    # --- formatting

    def format(self, voters: VoterSet, kraft_version: int) -> None:
        """Make an empty directory look as `kafka-storage format` leaves it. What is there already stays: a directory that
        was formatted without voters gets none."""
        self._disk.make_directory(self.path)
        now_ms, bootstrap = self._world.now_ms(), f"{self._home}/{snapshots.BOOTSTRAP}"
        first = f"{self.path}/{SnapshotId(0, 0).file_name}"
        is_new = not self._disk.exists(bootstrap) and not self._has_history() and not self._disk.exists(first)
        if kraft_version >= 1 and voters.voters and is_new:
            self._write(first, [], now_ms, kraft_version, voters, now_ms)
            self._disk.set_mode(first, READ_ONLY)
        if not self._disk.exists(bootstrap):
            values = [frame(record, version) for record, version in format_records()]
            self._write(bootstrap, values, 0, 0, VoterSet(), now_ms)
        if read_topic_id(self._disk, self.path) is None:
            write_topic_id(self._disk, self.path, METADATA_TOPIC_ID)

    def _has_history(self) -> bool:
        return any(name.endswith(".log") or name == QUORUM_STATE for name in self._disk.names(self.path))

    def _write(
        self, path: str, values: list[bytes], timestamp: int, kraft_version: int, voters: VoterSet, now_ms: int
    ) -> None:
        parts = snapshots.pieces(
            values, last_timestamp=timestamp, kraft_version=kraft_version, voters=voters, epoch=0, now_ms=now_ms
        )
        self._disk.replace(path, b"".join(parts))

    def formatted_with(self) -> list[Versioned]:
        """The records of bootstrap.checkpoint."""
        path = f"{self._home}/{snapshots.BOOTSTRAP}"
        if not self._disk.exists(path):
            return []
        values = [value for _, held in snapshots.read(self._disk.read(path)) for value in held]
        return [(unframe(value), 0) for value in values]

    # --- loading

    def load(self, fixed: VoterSet) -> Loaded:
        """Replay everything. Blocks: nothing is served yet. `fixed` are the voters that the settings name."""
        self._disk.make_directory(self.path)
        empty = Image(cluster_id=self.cluster_id)
        loaded = Loaded(empty, History(fixed), empty)
        self.log = self._open_log()
        self._snapshots = self._found_snapshots()
        # What a snapshot holds was committed, hence synced: there is no torn tail below it, whatever else there may be.
        self.log.load(clean=False, recovery_point=max(self._snapshots, default=NOTHING).end_offset)
        self._load_snapshot(loaded)
        self._noted_end = self._read_noted()
        self._let_go_of_what_a_snapshot_replaced(loaded.image)
        loaded.snapshot = loaded.image
        for image, _ in self.replay(loaded.snapshot, self.log.end_offset, loaded.history):
            loaded.image = image
        self.is_sound = self._is_whole(loaded.history.voters)
        state = f"{self.path}/{QUORUM_STATE}"
        if self._disk.exists(state):
            loaded.state = QuorumState.of_json(self._disk.read(state))
        return loaded

    def _is_whole(self, voters: VoterSet) -> bool:
        """Whether nothing is missing that others may have. Who has always been alone has the only copy, as good as it is."""
        is_alone = voters.ids == (self._config.node_id,)
        has_all = max(self.log.end_offset, self.snapshot_end) >= self._noted_end
        return has_all and (is_alone or self.log.corrupt_batches == 0)

    def _let_go_of_what_a_snapshot_replaced(self, image: Image) -> None:
        """A snapshot that reaches further than the log, or is of a later epoch than all of it, was a leader's: whatever is
        true of the log is in it, and the rest may be what nobody else ever had."""
        log, end = self.log, image.offset + 1
        begins_with_it = log.start_offset == log.end_offset == end
        if (log.end_offset < end or log.epochs.latest < image.epoch) and not begins_with_it:
            log.truncate_fully_and_start_at(end)

    def _read_noted(self) -> int:
        path = f"{self.path}/{COMMITTED}"
        try:
            return int(self._disk.read(path)) if self._disk.exists(path) else 0
        except ValueError:
            return 0

    def _open_log(self) -> Log:
        settings = LogSettings(
            segment_bytes=self._config["metadata.log.segment.bytes"],
            segment_ms=self._config["metadata.log.segment.ms"],
            max_message_bytes=BATCH_BYTES_MAX,
            retention_ms=-1,
            message_timestamp_after_max_ms=LONG_MAX,
        )
        world = self._world
        return Log(
            *(world.disk, OpenFiles(world.disk), self.path, METADATA_TOPIC, 0, settings),
            *(world.now_ms, world.random, METADATA_TOPIC_ID),
        )

    def _found_snapshots(self) -> list[SnapshotId]:
        """Those on disk, the oldest first."""
        named = (SnapshotId.of_file_name(name) for name in self._disk.names(self.path))
        return sorted(found for found in named if found is not None)

    def _load_snapshot(self, loaded: Loaded) -> None:
        """The newest one that is whole. A damaged one is passed over if an older one and the log can make up for it."""
        problem: Exception | None = None
        for found in reversed(self._snapshots):
            try:
                loaded.image, notes = self.read_snapshot(found)
            except Damaged as damage:
                problem = problem or damage
            else:
                for message in notes:
                    loaded.history.note(found.end_offset - 1, message)
                self.snapshot_end = found.end_offset
                break
        if self.log.start_offset > loaded.image.offset + 1:
            raise Damaged(f"{self.path}: nothing below offset {self.log.start_offset} can be read: {problem}")

    def read_snapshot(self, found: SnapshotId) -> tuple[Image, list[Message]]:
        """The picture in a snapshot, and what it says about the quorum."""
        whole = list(snapshots.read(self._disk.read(f"{self.path}/{found.file_name}")))
        notes = [message for notes, _ in whole for message in notes]
        image = Image(cluster_id=self.cluster_id)
        for message in notes:
            image = _noted(image, message)
            if isinstance(message, SnapshotHeaderRecord):
                self.last_timestamp = message.last_contained_log_timestamp
        records = (unframe(value) for _, values in whole for value in values)
        return replay(image, records, found.end_offset - 1, found.epoch)[0], notes

    def replay(self, image: Image, end: int, history: History | None = None) -> Iterator[tuple[Image, Delta]]:
        """The pictures from `image` up to `end`, a stretch of the log at a time; `history` learns what is new to it."""
        for stretch in self._stretches(image.offset + 1, end):
            records: list[Message] = []
            for batch, data in stretch:
                held = list(iterate(data))
                if batch.is_control:
                    for offset, message in _notes_of(batch, held):
                        image = _noted(image, message)
                        if history is not None:
                            history.note(offset, message)
                else:
                    records += [unframe(record.value or b"") for record in held]
                if history is not None:
                    self.last_timestamp = batch.max_timestamp
                    self.bytes_since_snapshot += batch.size
            image, delta = replay(image, records, batch.last_offset, batch.leader_epoch)
            yield image, delta

    def _stretches(self, offset: int, end: int) -> Iterator[list[tuple[Batch, memoryview]]]:
        while offset < end:
            located = self.log.locate(offset, READ_BYTES, end)
            if not located.size:
                return
            data = memoryview(located.read())
            found = [(batch, data[at : at + batch.size]) for at, batch in batches(data) if batch.base_offset >= offset]
            if not found:
                return
            if found[0][0].base_offset != offset:
                # A power cut while the log was trimmed, and then damage to the snapshot that made up for it.
                raise Damaged(f"{self.path}: nothing from offset {offset} to {found[0][0].base_offset} can be read")
            yield found
            offset = found[-1][0].next_offset

    # --- what a replica knows of its log

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.staged_end

    @property
    def synced_end(self) -> int:
        return self.log.synced_end

    @property
    def last_epoch(self) -> int:
        latest = self.latest_snapshot
        return max(self.log.epochs.latest, 0 if latest is None else latest.epoch)

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self._snapshots[0] if self._snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._snapshots[-1] if self._snapshots else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_offset_for_epoch(epoch)

    # --- for others to copy

    def records_from(self, offset: int, bytes_max: int) -> bytes:
        """Whole batches, the first one however large it is."""
        located = self.log.locate(offset, max(bytes_max, 1), self.log.end_offset)
        return bytes(located.read()) if located.size else b""

    def has_snapshot(self, wanted: SnapshotId) -> bool:
        """The one that only the format made is not for others: the first leader writes all of it into the log."""
        return wanted in self._snapshots and wanted != NOTHING

    async def snapshot_bytes(self, wanted: SnapshotId, position: int, bytes_max: int) -> tuple[int, bytes]:
        """How large it is, and some of it. It stays in memory until its last bytes are asked for."""
        if self._outgoing is None or self._outgoing[0] != wanted:
            self._outgoing = wanted, await self._disk.away(self._disk.read, f"{self.path}/{wanted.file_name}")
        data = self._outgoing[1]
        if position + bytes_max >= len(data):
            self._outgoing = None
        return len(data), data[position : position + bytes_max] if position >= 0 else b""

    # --- writing

    def _with_room(self, write: Callable[..., T], *what: Any) -> T:
        """The last room of a full disk is kept for this."""
        try:
            return write(*what)
        except (OSError, KafkaError) as error:
            self._make_room(error)
            return write(*what)

    async def _with_room_away(self, write: Callable[..., Awaitable[T]], *what: Any) -> T:
        try:
            return await write(*what)
        except (OSError, KafkaError) as error:
            self._make_room(error)
            return await write(*what)

    def _make_room(self, error: Exception) -> None:
        if not self._relieve(error):
            raise error
        log.error("the disk is full: records are refused until there is room, the metadata goes on")

    def write_state(self, state: QuorumState, kraft_version: int, voters: VoterSet) -> None:
        self._with_room(self._disk.replace, f"{self.path}/{QUORUM_STATE}", state.to_json(kraft_version, voters))

    async def note_committed(self, end: int) -> None:
        """Write down, now and then, what no start of this voter may find missing. A crash never takes it: it is synced."""
        end = min(end, self.log.synced_end)
        if end > self._noted_end:
            await self._disk.away(self._disk.replace, f"{self.path}/{COMMITTED}", str(end).encode())
            self._noted_end = end

    def append_notes(self, messages: list[Message], epoch: int) -> int:
        """Append a control batch; its last offset."""
        notes = [snapshots.note(message) for message in messages]
        now_ms = self._world.now_ms()
        return self._append(
            build_control(notes, now_ms, base_offset=self.end_offset, leader_epoch=epoch), epoch, now_ms
        )

    def append_records(self, records: list[Versioned], epoch: int) -> int:
        """Append records as one batch; its last offset."""
        values = [frame(record, version) for record, version in records]
        now_ms = self._world.now_ms()
        return self._append(snapshots.batch_of(values, self.end_offset, epoch, now_ms), epoch, now_ms)

    def _append(self, batch: bytes, epoch: int, now_ms: int) -> int:
        appended = self._with_room(self._write_to_log, memoryview(batch), epoch, now_ms)
        self.bytes_since_snapshot += len(batch)
        self.last_timestamp = now_ms
        return appended.last_offset

    def _write_to_log(self, batch: memoryview, epoch: int, now_ms: int) -> Appended:
        appended = self.log.append(batch, Origin.RAFT, epoch, now_ms)
        self.log.publish()
        return appended

    def append_copies(self, records: bytes, epoch_max: int) -> Iterator[tuple[int, Message]]:
        """Append batches that a leader numbered, telling the control records among them as soon as they are in the log.
        KafkaError: here something begins that is not sound, or not of this leader's time (TRAP-47)."""
        now_ms = self._world.now_ms()
        for at, batch in batches(records):
            data = memoryview(records)[at : at + batch.size]
            is_next = batch.base_offset == self.end_offset and batch.leader_epoch <= epoch_max
            if not is_next or not crc_ok(records, at, batch.size):
                raise KafkaError(Error.CORRUPT_MESSAGE, f"the batch at offset {batch.base_offset} cannot be appended")
            self._with_room(self._write_to_log, data, batch.leader_epoch, now_ms)
            self.bytes_since_snapshot += batch.size
            self.last_timestamp = batch.max_timestamp
            if batch.is_control:
                yield from _notes_of(batch, list(iterate(data)))

    async def flush(self) -> None:
        await self.log.flush()

    async def truncate(self, offset: int) -> None:
        await self._with_room_away(self.log.truncate_to, offset)

    # --- a snapshot of the leader's

    def take_part(self, position: int, data: bytes) -> None:
        del self._incoming[position:]
        self._incoming += data

    async def install(self, snapshot: SnapshotId) -> tuple[Image, list[Message]]:
        """It is whole: it takes the place of the log. Damaged if it is not."""
        data, self._incoming = bytes(self._incoming), bytearray()
        for _ in snapshots.read(data):
            pass
        path = f"{self.path}/{snapshot.file_name}"
        await self._with_room_away(self._disk.away, self._keep_snapshot, path, data)
        await self.log.at_rest()
        self._with_room(self.log.truncate_fully_and_start_at, snapshot.end_offset)
        self._snapshots = sorted({*self._snapshots, snapshot})
        self.snapshot_end, self.bytes_since_snapshot = snapshot.end_offset, 0
        return self.read_snapshot(snapshot)

    async def close(self) -> None:
        await self._disk.away(self.log.close)

    # --- snapshots

    async def write_snapshot(self, image: Image, voters: VoterSet) -> None:
        """Write out a committed picture, a batch per turn of the loop, then let the log before it go when it is time."""
        self.bytes_since_snapshot = 0
        made = SnapshotId(image.offset + 1, image.epoch)
        values = (frame(record, version) for record, version in records_of(image))
        parts: list[bytes] = []
        for part in snapshots.pieces(
            values,
            last_timestamp=self.last_timestamp,
            kraft_version=image.kraft_version,
            voters=voters,
            epoch=image.epoch,
            now_ms=self._world.now_ms(),
        ):
            parts.append(part)
            await asyncio.sleep(0)
        await self._disk.away(self._keep_snapshot, f"{self.path}/{made.file_name}", b"".join(parts))
        self._snapshots = sorted({*self._snapshots, made})
        self.snapshot_end = self._snapshots[-1].end_offset
        await self.trim()

    def _keep_snapshot(self, path: str, data: bytes) -> None:
        self._disk.replace(path, data)
        self._disk.set_mode(path, READ_ONLY)

    async def trim(self) -> None:
        """Old snapshots go when they are too many bytes or too old, and the log before the oldest that stays."""
        kept = list(self._snapshots)
        sizes = {found: self._disk.size(f"{self.path}/{found.file_name}") for found in kept}
        while len(kept) > 1 and await self._is_over(kept[0], sum(sizes[found] for found in kept)):
            gone = kept.pop(0)
            self._snapshots = [
                each for each in self._snapshots if each != gone
            ]  # nobody is sent to look for it any more
            await self._disk.away(self._disk.remove, f"{self.path}/{gone.file_name}")
        keep_from = max(min(kept[0].end_offset, self.log.synced_end), self.log.start_offset)
        self.log.delete_records(keep_from, self.log.synced_end)
        await retention.perform(self.log, retention.plan(self.log, self._world.now_ms(), self.log.synced_end))
        for path in self.log.sweep(self._world.now_ms()):
            await self._disk.away(self._disk.remove, path)

    async def _is_over(self, oldest: SnapshotId, snapshot_bytes: int) -> bool:
        bytes_max: int = self._config["metadata.max.retention.bytes"]
        age_max: int = self._config["metadata.max.retention.ms"]
        if 0 <= bytes_max < snapshot_bytes + self.log.size:
            return True
        first = look(await self._disk.away(self._disk.read, f"{self.path}/{oldest.file_name}"))
        return 0 <= age_max < self._world.now_ms() - first.base_timestamp


def _notes_of(batch: Batch, held: list[Record]) -> list[tuple[int, Message]]:
    """The control records of a batch, with their offsets."""
    read = (
        (offset, snapshots.read_note(record.key, record.value)) for offset, record in enumerate(held, batch.base_offset)
    )
    return [(offset, message) for offset, message in read if message is not None]


def _noted(image: Image, message: Message) -> Image:
    """What a picture shows of the quorum's own records."""
    if isinstance(message, KRaftVersionRecord):
        return replace(image, kraft_version=message.kraft_version)
    if isinstance(message, LeaderChangeMessage):
        return replace(image, controller_id=message.leader_id)
    return image
