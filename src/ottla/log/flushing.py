"""Waiting for the disk, together.

One sync serves everybody who wanted one before it began. Whoever comes while one is under way waits for the next, because
their bytes may have been written after the running one started. The sync runs off the loop, and once begun it runs to its end:
whoever waits for it may be cancelled, but a thread cannot be called back, and two syncs of one log at once would write the
same files. An error marks the log as failed inside that call, so that it counts even if nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.wire.errors import Error, KafkaError
from ottla.world import File

if TYPE_CHECKING:
    from ottla.log.log import Log
    from ottla.log.segment import Segment


class Deleted(FileNotFoundError):
    """Why a log takes no more records whose files were given up on purpose: nothing is wrong with the disk."""


class Covered(NamedTuple):
    """What a sync makes safe: the state of the log when its files were listed. Writes that come later count for the next."""

    end: int
    recovery_point: int
    cuts: int
    refused: int
    closed: list[Segment]


class Flusher:
    __slots__ = ("_log", "_running", "_waiters")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._running: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    async def flush(self, upto: int) -> None:
        log = self._log
        cuts = log.cuts
        while (log.synced_end < upto or log.refused) and log.cuts == cuts:
            if log.failed is not None:
                raise failed(log.failed)
            if self._running is not None:
                await self._turn()
            else:
                await self._sync(settle=False)

    async def settle(self) -> None:
        await self.at_rest()
        if self._log.failed is None and not self._log.is_settled:
            await self._sync(settle=True)

    @property
    def is_at_rest(self) -> bool:
        return self._running is None

    async def at_rest(self) -> None:
        while self._running is not None:
            await self._turn()

    async def _turn(self) -> None:
        """Wait until the sync under way is over. A future of one's own, so that nobody's cancellation touches another."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _sync(self, settle: bool) -> None:
        log = self._log
        if settle:
            log.write_out()
        # Without its indexes on disk the active segment must be scanned after a crash, however much of it is synced.
        point = log.end_offset if settle else log.active.base
        covered = Covered(log.end_offset, point, log.cuts, log.refused, list(log.unsynced))
        paths, file = what_to_sync(log, covered.closed, settle)
        self._running = asyncio.get_running_loop().create_task(self._carry_out(paths, file, covered))
        await asyncio.shield(self._running)

    async def _carry_out(self, paths: list[str], file: File, covered: Covered) -> None:
        log = self._log
        try:
            await log.disk.away(sync, log, paths, file)
            log.refused -= covered.refused
            log.unsynced = [segment for segment in log.unsynced if segment not in covered.closed]
            if log.cuts == covered.cuts:
                log.synced_end = max(log.synced_end, covered.end)
                if not log.refused:  # else a cut came meanwhile, and is not on disk
                    log.recovery_point = max(log.recovery_point, covered.recovery_point)
        finally:
            self._running = None
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def what_to_sync(log: Log, closed: list[Segment], settle: bool) -> tuple[list[str], File]:
    """Closed segments with all that belongs to them, snapshots, and the active file."""
    paths: list[str] = []
    for segment in closed:
        paths += [segment.at(suffix) for suffix in (".log", ".index", ".timeindex")]
        if segment.base in log.with_aborted:
            paths.append(segment.at(".txnindex"))
    active = log.active
    if settle:
        paths += [active.path + ".index", active.path + ".timeindex"]
    if active.base in log.with_aborted:
        paths.append(active.path + ".txnindex")
    paths += [log.snapshot_path(offset) for offset in log.snapshots if offset >= log.synced_end]
    if paths or log.fresh:
        paths.append(log.directory)
    return paths, active.open()


def sync(log: Log, paths: list[str], file: File) -> None:
    """Runs off the loop. The directory comes last in `paths`: names count only once their files do."""
    if log.failed is not None:
        raise failed(log.failed)
    try:
        if log.epochs.unwritten:
            log.epochs.write()
        file.sync()
        for path in paths:
            if path == log.directory:
                log.fresh = False
                log.disk.sync_directory(path)
            else:
                _sync_path(log, path)
    except OSError as error:
        log.failed = log.failed or error  # it may have been deleted meanwhile
        raise failed(log.failed) from error


def failed(error: BaseException) -> KafkaError:
    return KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk failed: {error}")


def _sync_path(log: Log, path: str) -> None:
    try:
        file = log.disk.open(path)
    except FileNotFoundError:
        return  # deleted by retention since the list was made
    try:
        file.sync()
    finally:
        file.close()
