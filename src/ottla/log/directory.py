"""A data directory (one entry of `log.dirs`): its lock, its identity, its checkpoints and the logs in it.

One process at a time holds the directory's lock. The clean-shutdown mark is written last when stopping and removed, with a
sync, before the first log is opened, so it never outlives the state it vouches for. Each partition has a directory
`<topic>-<partition>`; a topic that is deleted has its directories renamed to `...-delete` at once and removed later; a
directory that belongs to no known topic, or is in the way of a new one, is renamed to `...-stray` and never removed. One with
records that does not say whose they are may be what a known topic misses: then it stays, and nothing is begun in its place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import ENOENT

from ottla.log import identity, recovery
from ottla.log.checkpoints import (
    CLEANED_TO,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    BadCheckpoint,
    read_offsets,
    write_offsets,
)
from ottla.log.files import FILES_MAX, OpenFiles
from ottla.log.flushing import Deleted
from ottla.log.log import Log
from ottla.log.settings import LogSettings
from ottla.wire.messages.quorum import METADATA_TOPIC
from ottla.world import Disk

# Where the log of the metadata is.
METADATA_LOG = f"{METADATA_TOPIC}-0"
NAME_BYTES_MAX = 255
# Logs that were closed cleanly open in a fraction of a millisecond: many of them share one trip off the loop.
LOADED_TOGETHER = 32
LOADERS = 2
FOREVER = 2**63

Key = tuple[str, int]


@dataclass(slots=True)
class Loading:
    """What opening all logs of a directory took."""

    logs: int = 0
    clean: bool = False
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    repaired: int = 0
    took_ms: int = 0
    stray: list[str] = field(default_factory=list)
    # Logs that end below what was known to be in them: where, and how far that went.
    shortened: list[tuple[str, int, int]] = field(default_factory=list)


class DataDirectory:
    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        now_ms: Callable[[], int],
        rng: random.Random,
        files_max: int = FILES_MAX,
    ) -> None:
        self.disk = disk
        self.path = path
        self.files = OpenFiles(disk, files_max)
        self.logs: dict[Key, Log] = {}
        self.meta: identity.MetaProperties | None = None
        # Once its disk failed, nothing here is read or written any more, until a new process looks at it.
        self.failed: BaseException | None = None
        self.clean_epoch: int | None = None
        # Whether it is not any more what that clean stop left behind.
        self.is_shortened = False
        # A log was left in it that nobody closed.
        self._is_untidy = False
        # Logs with records whose topic id cannot be read, each with that of the topic which may be missing them.
        self.unidentified: dict[Key, bytes | None] = {}
        self.high_watermarks: dict[Key, int] = {}
        self.loading = Loading()
        self._recovery_points: dict[Key, int] = {}
        self._written: dict[str, dict[Key, int]] = {}
        # Whom the files of checkpoints may speak of.
        self._checkpointed: set[Key] = set()
        self._log_starts: dict[Key, int] = {}
        self._cleaned_to: dict[Key, int] = {}
        self._now_ms = now_ms
        self._random = rng
        self._release: Callable[[], None] | None = None
        self._doomed: list[tuple[int, str]] = []
        self._checkpointing = asyncio.Lock()

    # -- opening

    def open(self) -> identity.MetaProperties | None:
        """Lock the directory and read who it belongs to. BlockingIOError if another process has it. Blocks."""
        make_durable_directory(self.disk, self.path)
        self._release = self.disk.lock(f"{self.path}/.lock")
        self.meta = identity.read_meta_properties(self.disk, self.path)
        self.clean_epoch = identity.take_clean_mark(self.disk, self.path)
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._log_starts = self._read_offsets(LOG_STARTS)
        self._cleaned_to = self._read_offsets(CLEANED_TO)
        self.high_watermarks = self._read_offsets(HIGH_WATERMARKS)
        self._checkpointed = {*self._recovery_points, *self._log_starts, *self._cleaned_to, *self.high_watermarks}
        return self.meta

    @property
    def was_clean(self) -> bool:
        """Whether the last process stopped cleanly."""
        return self.clean_epoch is not None

    def format(self, meta: identity.MetaProperties) -> None:
        identity.write_meta_properties(self.disk, self.path, meta, self._now_ms())
        self.meta = meta

    def _read_offsets(self, name: str) -> dict[Key, int]:
        try:
            return read_offsets(self.disk, f"{self.path}/{name}")
        except BadCheckpoint:
            return {}  # as if it had never been written: more is scanned, nothing is lost

    async def load(self, settings_of: Callable[[str], LogSettings]) -> Loading:
        """Open every log but the metadata log, as far as `partition.metadata` says whose it is."""
        begun, loading = self._now_ms(), self.loading
        loading.clean = self.was_clean
        found = [name for name in self.disk.names(self.path) if self.disk.is_directory(f"{self.path}/{name}")]
        logs = [log for name in found if (log := self._recognise(name, settings_of)) is not None]
        together = LOADED_TOGETHER if self.was_clean else 1
        groups = [logs[n : n + together] for n in range(0, len(logs), together)][::-1]
        await asyncio.gather(*(self._load_groups(groups) for _ in range(LOADERS)))
        for log in logs:
            self.logs[log.topic, log.partition] = log
            report = log.recovered
            assert report is not None
            loading.logs += 1
            loading.scanned_bytes += report.scanned_bytes
            loading.truncated_bytes += report.truncated_bytes
            loading.repaired += report.repaired
            if log.end_offset < (known := self._known_end(log)):
                loading.shortened.append((log.name, log.end_offset, known))
        self.files.recount()
        loading.took_ms = self._now_ms() - begun
        return loading

    def _known_end(self, log: Log) -> int:
        """So far it was synced once, or on all in-sync replicas."""
        key = log.topic, log.partition
        return max(self._recovery_points.get(key, 0), self.high_watermarks.get(key, 0))

    async def look_at_tails(self) -> None:
        """Has any log lost something since it was closed cleanly, which left it synced to its end?"""
        if not self.was_clean:
            return
        points = self._recovery_points.items()
        ends = [(f"{self.path}/{topic}-{partition}", end) for (topic, partition), end in points if end]
        parts = (ends[number::LOADERS] for number in range(LOADERS))
        self.is_shortened = any(await asyncio.gather(*(self.disk.away(self._is_any_shorter, part) for part in parts)))

    def _is_any_shorter(self, ends: Iterable[tuple[str, int]]) -> bool:
        return any(self._is_shorter(path, end) for path, end in ends)

    def _is_shorter(self, path: str, end: int) -> bool:
        nobodys = identity.read_topic_id(self.disk, path) is None
        return nobodys or recovery.ends_before(self.disk, self.files, path, end)

    async def _load_groups(self, groups: list[list[Log]]) -> None:
        while groups:
            await self.disk.away(self._load_logs, groups.pop())

    def _load_logs(self, logs: Iterable[Log]) -> None:
        for log in logs:
            self._load_log(log)

    def _load_log(self, log: Log) -> None:
        key = log.topic, log.partition
        recovery_point, start = self._recovery_points.get(key, 0), self._log_starts.get(key, 0)
        log.load(clean=self.was_clean, recovery_point=recovery_point, start_offset=start)
        cleaned_to = self._cleaned_to.get(key, -1)
        # Of a log that was longer: what it gets from now on is not compacted up to there, or its tombstones would go early.
        log.cleaned_to = cleaned_to if cleaned_to <= log.end_offset else -1

    def _recognise(self, name: str, settings_of: Callable[[str], LogSettings]) -> Log | None:
        """The log that a directory holds; interrupted deletions are queued, what is not ours is left alone."""
        if name.endswith("-delete"):
            self._doomed.append((0, f"{self.path}/{name}"))
            return None
        key = partition_of(name)
        if key is None or key[0] == METADATA_TOPIC or name.endswith("-stray"):
            return None
        topic_id = identity.read_topic_id(self.disk, f"{self.path}/{name}")
        if topic_id is None:
            if self._has_records(f"{self.path}/{name}"):
                self.unidentified[key] = None
            else:
                self.loading.stray.append(self._rename_aside(*key, "stray"))
            return None
        return self._log(*key, topic_id, settings_of(key[0]))

    def _has_records(self, path: str) -> bool:
        return any(name.endswith(".log") and self.disk.size(f"{path}/{name}") for name in self.disk.names(path))

    def _log(self, topic: str, partition: int, topic_id: bytes, settings: LogSettings) -> Log:
        path = f"{self.path}/{topic}-{partition}"
        log = Log(self.disk, self.files, path, topic, partition, settings, self._now_ms, self._random, topic_id)
        log.checkpoint = self.checkpoint
        return log

    def checkpointed_start(self, topic: str, partition: int) -> int:
        """Where a log began when the last process said so; 0 if it never did."""
        return self._log_starts.get((topic, partition), 0)

    # -- topics come and go

    async def create(self, topic: str, partition: int, topic_id: bytes, settings: LogSettings) -> Log:
        """A new, empty log. Its topic id is on disk before it can hold a byte."""
        await self.free_name(topic, partition)
        await self.disk.away(self._make, topic, partition, topic_id)
        log = self._log(topic, partition, topic_id, settings)
        log.load(clean=True)
        log.fresh = True  # the first flush makes the names of its files durable
        self.logs[topic, partition] = log
        return log

    async def free_name(self, topic: str, partition: int) -> None:
        """Where the checkpoints still speak of a log of this name that is gone, a crash would make the next one believe that
        it begins where the old one did."""
        if (topic, partition) in self._checkpointed and (topic, partition) not in self.logs:
            await self.checkpoint()

    def _make(self, topic: str, partition: int, topic_id: bytes) -> None:
        path = f"{self.path}/{topic}-{partition}"
        if self.disk.is_directory(path) and self._is_foreign(path, topic_id):
            self._rename_aside(topic, partition, "stray")
        self.disk.make_directory(path)
        identity.write_topic_id(self.disk, path, topic_id)
        self.disk.sync_directory(self.path)

    def _is_foreign(self, path: str, topic_id: bytes) -> bool:
        """Whether a directory is left of another topic of that name, because it could not be renamed when that one went, or
        nobody knew of it. What an earlier try to make this log left is no stranger, nor is one that had just begun."""
        found = identity.read_topic_id(self.disk, path)
        return found != topic_id and self.disk.names(path) not in ([], [f"{identity.PARTITION_METADATA}.tmp"])

    async def delete(self, topic: str, partition: int) -> None:
        """Out of sight at once, out of the disk after `file.delete.delay.ms`."""
        log = self._let_go(topic, partition)
        with suppress(FileNotFoundError):  # somebody was faster
            path = self._rename_aside(topic, partition, "delete")
            log.follow(path)
            self._doomed.append((self._now_ms() + log.settings.file_delete_delay_ms, path))
        await self.disk.away(self.disk.sync_directory, self.path)

    def set_aside(self, topic: str, partition: int) -> str:
        """A log that no known topic claims: renamed, kept. Its new path."""
        log = self._let_go(topic, partition)
        try:
            path = self._rename_aside(topic, partition, "stray")
        except OSError:
            self._is_untidy = True
            raise
        log.follow(path)
        return path

    def set_unidentified_aside(self, topic: str, partition: int) -> str | None:
        """The new path of such a log, if there is one of this name."""
        if (topic, partition) not in self.unidentified:
            return None
        path = self._rename_aside(topic, partition, "stray")
        del self.unidentified[topic, partition]
        return path

    def _let_go(self, topic: str, partition: int) -> Log:
        """The log is not ours any more. Work on it that is under way must not touch the files of a namesake after it."""
        log = self.logs.pop((topic, partition))
        log.failed = Deleted(ENOENT, "the log was deleted", log.directory)
        for segment in log.segments:
            segment.close()
            self.files.drop_index(segment.at(".index"))
        for offsets in (self._recovery_points, self._log_starts, self._cleaned_to, self.high_watermarks):
            offsets.pop((topic, partition), None)
        return log

    def leave_lying(self, topic: str, partition: int) -> None:
        """As `_let_go`, but its files stay where a start finds them. Nobody has closed them: that start must not take them for
        closed cleanly, or it would forget the log's producers and open transactions."""
        self._let_go(topic, partition)
        self._is_untidy = True

    def _rename_aside(self, topic: str, partition: int, suffix: str) -> str:
        tail = f"-{partition}.{self._random.getrandbits(128):032x}-{suffix}"
        path = f"{self.path}/{topic[: NAME_BYTES_MAX - len(tail)]}{tail}"
        self.disk.rename(f"{self.path}/{topic}-{partition}", path)
        return path

    # -- upkeep

    async def checkpoint(self, high_watermarks: Mapping[Key, int] | None = None) -> None:
        """Write recovery points, log starts, what is compacted and, if given, high watermarks. One at a time, and once begun
        to the end."""
        await asyncio.shield(asyncio.get_running_loop().create_task(self._checkpoint(high_watermarks)))

    async def _checkpoint(self, high_watermarks: Mapping[Key, int] | None) -> None:
        async with self._checkpointing:
            if high_watermarks is not None:
                self.high_watermarks = dict(high_watermarks)
            offsets = *self._offsets(), dict(self.high_watermarks)
            named = {key for file in offsets for key in file}
            self._checkpointed |= named
            await self.disk.away(self._write_checkpoints, *offsets)
            self._checkpointed = named

    def _offsets(self) -> tuple[dict[Key, int], dict[Key, int], dict[Key, int]]:
        """Recovery points of all logs, log starts of those that begin inside their first segment or whose old names may not be
        gone for good, and up to where those are compacted that are."""
        points = {key: log.recovery_point for key, log in self.logs.items()}
        begun = {key: log for key, log in self.logs.items() if log.start_offset > log.segments[0].base or log.arranging}
        starts = {key: log.start_offset for key, log in begun.items()}
        points.pop((METADATA_TOPIC, 0), None)
        return points, starts, {key: log.cleaned_to for key, log in self.logs.items() if log.cleaned_to >= 0}

    def _write_checkpoints(
        self, points: dict[Key, int], starts: dict[Key, int], cleaned: dict[Key, int], watermarks: dict[Key, int]
    ) -> None:
        """Log starts first: files go once their log start is on disk, and recovery points may refer to what follows."""
        all_offsets = {LOG_STARTS: starts, RECOVERY_POINTS: points, CLEANED_TO: cleaned, HIGH_WATERMARKS: watermarks}
        for name, offsets in all_offsets.items():
            if self._written.get(name, {} if name == CLEANED_TO else None) != offsets:
                write_offsets(self.disk, f"{self.path}/{name}", offsets)
                self._written[name] = offsets

    async def sweep(self, at_once: bool = False) -> int:
        """Remove files and directories whose delay is over, or all of them, off the loop; how many.

        The delay is a courtesy to readers, and those hold their files open: where room is short there is none.
        """
        now = FOREVER if at_once else self._now_ms()
        for log in self.logs.values():
            if log.deleted:
                self._doomed += [(0, path) for path in log.sweep(now)]
        due = [entry for entry in self._doomed if entry[0] <= now]
        for entry in due:
            await self.disk.away(self._remove, entry[1])
            self._doomed.remove(entry)
        return len(due)

    def _remove(self, path: str) -> None:
        if self.disk.is_directory(path):
            self.disk.remove_tree(path)
        elif self.disk.exists(path):
            self.disk.remove(path)

    def fail(self, error: BaseException) -> None:
        """The disk under it cannot be trusted: no log in it takes anything any more."""
        self.failed = error
        for log in self.logs.values():
            log.failed = log.failed or error

    async def stop(self, broker_epoch: int = identity.NO_EPOCH) -> None:
        """`close` off the loop, after a checkpoint that may be under way."""
        async with self._checkpointing:
            if self.failed is None:
                await self.disk.away(self.close, broker_epoch)
            else:
                self.release()

    def close(self, broker_epoch: int = identity.NO_EPOCH) -> None:
        """Close every log, write the checkpoints and, if nothing failed or was left lying, the mark of a clean stop.
        Blocks."""
        for log in self.logs.values():
            try:
                log.close()
            except OSError as error:
                log.failed = error
        if all(log.failed is None for log in self.logs.values()):
            self._write_checkpoints(*self._offsets(), dict(self.high_watermarks))
            if not self._is_untidy:
                identity.write_clean_mark(self.disk, self.path, broker_epoch)
        self.release()

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None


def make_durable_directory(disk: Disk, path: str) -> None:
    """Make a directory with its parents; when this returns, none of them can vanish again."""
    if disk.is_directory(path):
        return
    parent = path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    if parent not in ("/", "."):
        make_durable_directory(disk, parent)
    disk.make_directory(path)
    disk.sync_directory(parent)


def partition_of(name: str) -> Key | None:
    """(topic, partition) of a directory name, or None if it is not one of a partition."""
    topic, _, number = name.rpartition("-")
    return (topic, int(number)) if topic and number.isdigit() and str(int(number)) == number else None
