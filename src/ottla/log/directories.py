"""All data directories of a node: one identity, and logs spread over them.

Every directory says in `meta.properties` to which cluster and node it belongs and what its own id is; a node does not start on
directories that contradict each other. New directories are given the identity of the others. A new log goes to the directory
with the fewest logs, and the metadata is told which one that was (KIP-858). A directory that is cordoned (KIP-1066), or whose
disk is full (see `ballast`), gets new logs only if all are.

Of two logs of one partition (a crash while it was moving, see `moving`) the longer one counts, unless that is an old copy; the
other is put aside.

A log that the metadata places in a directory which is not there (a disk that was not mounted, say) is not begun anew
elsewhere: that would give out its offsets a second time and hide its records when the disk is back.

One of several directories may *fail*: it is left out from then on, or from the start if it could not even be opened, and the
others go on. What is in it comes back when a process starts that can read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ottla.log.ballast import NO_ROOM, Ballast, is_full
from ottla.log.directory import DataDirectory, Key, Loading
from ottla.log.files import FILES_MAX
from ottla.log.identity import PARTITION_METADATA, MetaProperties
from ottla.log.log import Log
from ottla.log.moving import futures_in, how_far
from ottla.log.settings import LogSettings
from ottla.log.trimming import raise_start
from ottla.wire.errors import Error, KafkaError
from ottla.wire.ids import is_reserved, random_id, uuid_text
from ottla.wire.messages.quorum import METADATA_TOPIC
from ottla.world import Disk

# Errors of this process, and not of a disk.
NO_FILES = (errno.EMFILE, errno.ENFILE)
# How many logs wait for the disk at the same time when a node stops.
SETTLED_TOGETHER = 32


class WrongDirectory(Exception):
    """The directories do not fit together, or belong to another node. The text says what to do."""


class Directories:
    def __init__(
        self,
        disk: Disk,
        paths: Sequence[str],
        node_id: int,
        now_ms: Callable[[], int],
        rng: random.Random,
        files_max: int = FILES_MAX,
    ) -> None:
        self._node_id = node_id
        self._random = rng
        self.all = [DataDirectory(disk, path, now_ms=now_ms, rng=rng, files_max=files_max) for path in paths]
        self.ballasts = {path: Ballast(disk, path) for path in paths}
        self.cluster_id = ""
        # The paths of those that are used as they are, and are to get nothing new.
        self.cordoned: frozenset[str] = frozenset()
        # Those that could not be opened, and why.
        self.unopened: dict[str, OSError] = {}
        # Those where something failed that does not look like a want of room, until somebody decides what follows.
        self.suspects: dict[str, BaseException] = {}
        self._making: Counter[str] = Counter()
        # Moves that the last process did not live to end: directory to move to, topic id, partition.
        self.unfinished: list[tuple[DataDirectory, bytes, int]] = []

    # --- identity

    def open(self, cluster_id: str | None = None) -> None:
        """Lock every directory and settle who we are; directories without identity get one. Blocks."""
        self._open_all()
        metas = [directory.meta for directory in self.all if directory.meta is not None]
        for meta in metas:
            self._check(meta, metas[0].cluster_id, cluster_id)
        self.cluster_id = metas[0].cluster_id if metas else cluster_id or uuid_text(random_id(self._random))
        for directory in self.all:
            if directory.meta is None:
                directory.format(MetaProperties(self.cluster_id, self._node_id, random_id(self._random)))
        for ballast in self.ballasts.values():
            if ballast.has_room():
                ballast.take()
            else:
                ballast.release()

    def _open_all(self) -> None:
        """One of several may be out of order; one that another process has is an error, and so is having none."""
        for directory in list(self.all):
            try:
                directory.open()
            except BlockingIOError:
                raise
            except OSError as error:
                if len(self.all) == 1:
                    raise
                self.unopened[directory.path] = error
                self.all.remove(directory)
                del self.ballasts[directory.path]

    def _check(self, meta: MetaProperties, first: str, wanted: str | None) -> None:
        if meta.node_id != self._node_id:
            raise WrongDirectory(
                f"the data directory belongs to node {meta.node_id}, but node.id is {self._node_id}: "
                "use another directory or the right node.id"
            )
        if meta.cluster_id != first or wanted not in (None, meta.cluster_id):
            raise WrongDirectory(
                f"the data directories belong to clusters {meta.cluster_id} and {wanted or first}: "
                "all of log.dirs must come from one cluster"
            )

    @property
    def ids(self) -> list[bytes]:
        return [directory.meta.directory_id for directory in self.all if directory.meta is not None]

    @property
    def cordoned_ids(self) -> list[bytes]:
        return [each.meta.directory_id for each in self.all if each.path in self.cordoned and each.meta is not None]

    def at(self, path: str) -> DataDirectory:
        return next(directory for directory in self.all if directory.path == path)

    @property
    def whole(self) -> list[DataDirectory]:
        """Those that have not failed."""
        return [directory for directory in self.all if directory.failed is None]

    def suspect(self, path: str, error: BaseException) -> None:
        """Something in this directory could not be written. A full disk is another matter, and so are too many open files."""
        cause = error.__cause__ if isinstance(error, KafkaError) else error
        if isinstance(cause, OSError) and cause.errno not in (*NO_ROOM, *NO_FILES):
            self.suspects.setdefault(path, cause)

    @property
    def clean_epoch(self) -> int | None:
        """The broker epoch that the last clean stop left behind, if every directory was stopped cleanly."""
        epochs = {directory.clean_epoch for directory in self.all}
        return epochs.pop() if len(epochs) == 1 else None

    async def look_at_tails(self) -> None:
        """After a clean stop: is everything still there?"""
        for directory in self.all:
            await directory.look_at_tails()

    @property
    def is_shortened(self) -> bool:
        """Whether something of a log was taken away after a clean stop."""
        return any(directory.is_shortened for directory in self.all)

    # --- logs

    async def load(self, settings_of: Callable[[str], LogSettings]) -> list[Loading]:
        loadings = [await directory.load(settings_of) for directory in self.all]
        for directory in self.all:
            for path, partition, topic_id in futures_in(directory):
                self.unfinished.append((directory, topic_id, partition))
                await directory.disk.away(directory.disk.remove_tree, path)
        await self._settle_doubles()
        return loadings

    async def _settle_doubles(self) -> None:
        found: dict[tuple[str, int, bytes], list[DataDirectory]] = {}
        for directory in self.all:
            for (topic, index), log in directory.logs.items():
                found.setdefault((topic, index, log.topic_id), []).append(directory)
        for (topic, index, _), homes in found.items():
            newest = max(home.logs[topic, index].epochs.latest for home in homes)
            *others, home = sorted(homes, key=lambda home: how_far(home.logs[topic, index], newest))
            log = home.logs[topic, index]
            deleted_to = max(each.checkpointed_start(topic, index) for each in homes)
            if raise_start(log, min(deleted_to, log.end_offset)):  # what was deleted on request stays deleted
                await home.checkpoint()
            for directory in others:
                await directory.delete(topic, index)

    async def log(
        self, topic: str, index: int, topic_id: bytes, settings: LogSettings, wanted: bytes, is_copy: bool = False
    ) -> Log:
        """The log of a partition: as it lies on the disk, or new. One of an older topic with the same name is set aside. If it
        `is_copy`, others have all that may be missing here."""
        home = next((d for d in self.all if d.meta is not None and d.meta.directory_id == wanted), None)
        for directory in sorted(self.all, key=lambda each: each is not home):
            log = directory.logs.get((topic, index))
            if directory.failed is not None:
                if log is not None and log.topic_id == topic_id:
                    raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{directory.path} has failed: {directory.failed}")
                continue
            if log is not None and log.topic_id == topic_id:
                return log
            if log is not None:
                await directory.delete(topic, index)
        if home is not None and home.failed is not None:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"{home.path} has failed: {home.failed}")
        if home is None and not is_reserved(wanted):
            raise KafkaError(
                Error.KAFKA_STORAGE_ERROR, f"the data directory {uuid_text(wanted)} that holds it is not among log.dirs"
            )
        if home is None or self.ballasts[home.path].released:
            roomy = [directory for directory in self.whole if not self.ballasts[directory.path].released] or self.whole
            inviting = [directory for directory in roomy if directory.path not in self.cordoned] or roomy
            home = min(inviting, key=lambda directory: len(directory.logs) + self._making[directory.path])
        self._give_up_unidentified(topic, index, topic_id, is_copy)
        self._making[home.path] += 1
        try:
            return await home.create(topic, index, topic_id, settings)
        except OSError as error:
            self.suspect(home.path, error)
            raise
        finally:
            self._making[home.path] -= 1

    def _give_up_unidentified(self, topic: str, index: int, topic_id: bytes, is_copy: bool) -> None:
        """A log of this name with records that do not say whose they are: it may be the one that is wanted."""
        for directory in self.whole:
            if directory.unidentified.get((topic, index)) == topic_id and not is_copy:
                raise KafkaError(
                    Error.KAFKA_STORAGE_ERROR,
                    f"{directory.path}/{topic}-{index} has records, and its {PARTITION_METADATA} does not say whose. If they "
                    f"are this topic's, write two lines there, `version: 0` and `topic_id: {uuid_text(topic_id)}`, and start "
                    "again; else take it away",
                )
            directory.set_unidentified_aside(topic, index)

    def home_of(self, log: Log) -> DataDirectory:
        """The directory that holds a log."""
        return self.at(log.directory.rpartition("/")[0])

    def id_of(self, log: Log) -> bytes:
        """The id of the directory that holds a log."""
        meta = self.home_of(log).meta
        assert meta is not None
        return meta.directory_id

    async def delete(self, log: Log) -> None:
        for directory in self.all:
            if directory.logs.get((log.topic, log.partition)) is log:
                await directory.delete(log.topic, log.partition)

    def set_strays_aside(self, claimed_by: Callable[[str, int], bytes | None]) -> list[str]:
        """Rename logs that no topic of the cluster claims; `claimed_by` tells the id of one that has a replica of that name
        here. They are never deleted: somebody may want them back."""
        gone = []
        for directory in self.all:
            for key, log in list(directory.logs.items()):
                if key[0] != METADATA_TOPIC and claimed_by(*key) != log.topic_id:
                    gone.append(directory.set_aside(*key))
            for key in list(directory.unidentified):
                directory.unidentified[key] = claimed_by(*key)
                if directory.unidentified[key] is None and (path := directory.set_unidentified_aside(*key)):
                    gone.append(path)
        return gone

    # --- room

    def ballast_of(self, log: Log) -> Ballast:
        """The ballast of the directory that holds a log."""
        return self.ballasts[log.directory.rpartition("/")[0]]

    @property
    def is_full(self) -> bool:
        """Whether no directory takes records or new logs."""
        return all(ballast.released for ballast in self.ballasts.values())

    def relieve(self, error: BaseException) -> bool:
        """If a disk is full, let go of the ballast; whether that was done and what failed is worth another try."""
        if not is_full(error):
            return False
        ballasts = [self.ballasts[directory.path] for directory in self.whole]
        held = [ballast for ballast in ballasts if not ballast.released and not ballast.has_room()]
        for ballast in held:
            ballast.release()
        return bool(held)

    async def regain(self) -> list[str]:
        """Take up the ballast again where there is room; the directories that take records again."""
        back = []
        for directory in self.whole:
            ballast = self.ballasts[directory.path]
            if ballast.released and await directory.disk.away(_take_if_room, ballast):
                back.append(directory.path)
        return back

    # --- upkeep

    async def checkpoint(self, high_watermarks: Mapping[Key, int]) -> None:
        """All of them, also when one cannot be written to."""
        problem: OSError | None = None
        for directory in self.whole:
            try:
                await directory.checkpoint({k: high_watermarks[k] for k in directory.logs if k in high_watermarks})
            except OSError as error:
                problem = error
                self.suspect(directory.path, error)
        if problem is not None:
            raise problem

    def note(self, high_watermarks: Mapping[Key, int]) -> None:
        """What is to be written down of them when the logs are closed."""
        for directory in self.all:
            directory.high_watermarks = {key: high_watermarks[key] for key in directory.logs if key in high_watermarks}

    async def sweep(self) -> None:
        for directory in self.whole:
            await directory.sweep(at_once=self.ballasts[directory.path].released)

    async def close(self, broker_epoch: int) -> None:
        """Close all logs and leave the mark of a clean stop. Those that must wait for the disk do so together."""
        unsettled = [log for directory in self.all for log in directory.logs.values() if log.failed is None]
        await asyncio.gather(*(_settle_in_turn(unsettled) for _ in range(min(len(unsettled), SETTLED_TOGETHER))))
        await asyncio.gather(*(directory.stop(broker_epoch) for directory in self.all))

    def release(self) -> None:
        """Let go without a clean stop: the node could not start, or failed."""
        for directory in self.all:
            directory.release()


def _take_if_room(ballast: Ballast) -> bool:
    return ballast.has_room() and ballast.take()


async def _settle_in_turn(logs: list[Log]) -> None:
    while logs:
        with contextlib.suppress(OSError, KafkaError):  # the log remembers that it failed; then there is no clean mark
            log = logs.pop()
            log.publish()  # here, and not where it is closed: when a flight lands, the loop publishes too
            await log.settle()
