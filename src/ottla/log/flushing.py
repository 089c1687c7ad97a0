"""Waiting for the disk, together.

One sync serves everybody who wanted one before it began. Whoever comes while one is under way waits for the next, because
their bytes may have been written after the running one started. The sync runs off the loop; an error marks the log as failed
inside that call, so that it counts even if nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.wire.errors import Error, KafkaError
from ottla.world import File

if TYPE_CHECKING:
    from ottla.log.log import Log
    from ottla.log.segment import Segment


class Flusher:
    __slots__ = ("_busy", "_log", "_waiters")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._busy = False
        self._waiters: list[asyncio.Future[None]] = []

    async def flush(self, upto: int) -> None:
        log = self._log
        cuts = log.cuts
        while (log.synced_end < upto or log.refused) and log.cuts == cuts:
            if log.failed is not None:
                raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk failed: {log.failed}")
            if self._busy:
                await self._turn()
            else:
                await self._sync(settle=False)

    async def settle(self) -> None:
        while self._busy:
            await self._turn()
        if self._log.failed is None and not self._log.is_settled:
            await self._sync(settle=True)

    async def _turn(self) -> None:
        """Wait until the sync under way is over. A future of one's own, so that nobody's cancellation touches another."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _sync(self, settle: bool) -> None:
        log = self._log
        end, base, cuts = log.end_offset, log.active.base, log.cuts
        if settle:
            log.write_out()
        closed, refused = list(log.unsynced), log.refused
        paths, file = what_to_sync(log, closed, settle)
        self._busy = True
        try:
            await log.disk.away(sync, log, paths, file)
        finally:
            self._busy = False
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        log.refused -= refused
        log.unsynced = [segment for segment in log.unsynced if segment not in closed]
        if log.cuts == cuts:
            log.synced_end = max(log.synced_end, end)
            # Without its indexes on disk the active segment must be scanned after a crash, however much of it is synced.
            log.recovery_point = max(log.recovery_point, end if settle else base)


def what_to_sync(log: Log, closed: list[Segment], settle: bool) -> tuple[list[str], File]:
    """Closed segments with all that belongs to them, snapshots, and the active file."""
    paths: list[str] = []
    for segment in closed:
        paths += [segment.path + suffix for suffix in (".log", ".index", ".timeindex")]
        if segment.base in log.with_aborted:
            paths.append(segment.path + ".txnindex")
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
    except FileNotFoundError:
        return  # the whole directory was renamed away: the topic is being deleted
    except OSError as error:
        log.failed = error
        raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk failed: {error}") from error


def _sync_path(log: Log, path: str) -> None:
    try:
        file = log.disk.open(path)
    except FileNotFoundError:
        return  # deleted by retention since the list was made
    try:
        file.sync()
    finally:
        file.close()
