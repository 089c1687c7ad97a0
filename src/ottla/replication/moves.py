"""Replicas on their way from one data directory of this broker to another (AlterReplicaLogDirs).

What is copied, and in which order the two logs change places, is told in `log/moving`. Here is who may move: one move for a
partition, so many at a time, so many bytes in a second; a move ends early when somebody wants the replica elsewhere, or back,
when the topic is deleted, or when the node stops. Once the copy has its place on the disk a move is not stopped any more:
what is left are a few syncs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.log.directory import DataDirectory, Key
from ottla.log.log import Log
from ottla.log.moving import Copy, Overtaken, future_name
from ottla.replication.partition import Partition
from ottla.wire.errors import Error, KafkaError

if TYPE_CHECKING:
    from ottla.log.directories import Directories

log_ = logging.getLogger("ottla.replication")

NO_LIMIT = 2**63 - 1


class Move:
    """One partition on its way."""

    def __init__(self, partition: Partition, target: DataDirectory, rng: random.Random) -> None:
        self.partition = partition
        self.target = target
        self.unwanted = asyncio.Event()
        self.copy = Copy(partition.log, target, rng)
        self.has_begun = self.stays = False
        self.task: asyncio.Task[None]
        self._rng = rng

    async def begin(self) -> None:
        await self.copy.begin()
        self.has_begun = True

    async def begin_anew(self) -> None:
        await self.copy.drop()
        self.copy = Copy(self.partition.log, self.target, self._rng)
        await self.begin()

    async def catch_up(self, bytes_per_second: Callable[[], int]) -> bool:
        """Copy until little is missing; False if the move was called off."""
        while not self.unwanted.is_set():
            if self.copy.is_close:
                return True
            await self._pause(await self.copy.copy_some() / max(1, bytes_per_second()))
        return False

    async def _pause(self, seconds: float) -> None:
        """Give the loop back, and keep to the limit."""
        waiting = asyncio.ensure_future(self.unwanted.wait())
        try:
            await asyncio.wait([waiting], timeout=seconds)
        finally:
            waiting.cancel()


class Moves:
    def __init__(
        self,
        directories: Directories,
        rng: random.Random,
        together: int,
        bytes_per_second: Callable[[], int] = lambda: NO_LIMIT,
        tell: Callable[[dict[tuple[bytes, int], bytes]], None] = lambda places: None,
    ) -> None:
        self._directories = directories
        self._rng = rng
        self._turns = asyncio.Semaphore(max(1, together))
        self._bytes_per_second = bytes_per_second
        self._tell = tell
        self.under_way: dict[Key, Move] = {}

    # --- beginning and ending

    async def move(self, partition: Partition, path: str) -> None:
        """Begin to move a replica to a directory; or, if that is where it is, stay there."""
        target = self.check(partition.topic, partition.index, path)
        running = self.under_way.get((partition.topic, partition.index))
        if running is not None and running.target is target:
            return
        await self.stop(partition)
        if self._directories.home_of(partition.log) is not target:
            self._start(partition, target)

    def check(self, topic: str, index: int, path: str) -> DataDirectory:
        """The directory of that path, if there is one, and if a copy could have a name."""
        future_name(topic, index, self._rng)
        for directory in self._directories.all:
            if directory.path == path:
                return directory
        raise KafkaError(Error.LOG_DIR_NOT_FOUND, "Log dir is not found in the config.")

    def _start(self, partition: Partition, target: DataDirectory) -> None:
        is_closed = target.failed is not None or self._directories.ballasts[target.path].released
        if partition.log.failed is not None or is_closed:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR)
        move = Move(partition, target, self._rng)
        self.under_way[partition.topic, partition.index] = move
        move.task = asyncio.get_running_loop().create_task(self._run(move), name=f"move {partition.log.name}")

    async def stop(self, partition: Partition) -> None:
        """No move of this partition is under way when this returns: called off, or over."""
        move = self.under_way.get((partition.topic, partition.index))
        if move is not None and move.partition is partition:
            move.unwanted.set()
            await asyncio.wait([move.task])

    async def stop_all(self) -> None:
        """The node stops. What is not over is begun again by its next start."""
        for move in list(self.under_way.values()):
            move.stays = True
            await self.stop(move.partition)

    def resume(self, find: Callable[[bytes, int], Partition]) -> None:
        """Begin again what the last process did not end."""
        unfinished, self._directories.unfinished = self._directories.unfinished, []
        for target, topic_id, index in unfinished:
            try:
                partition = find(topic_id, index)
                if self._directories.home_of(partition.log) is not target:
                    self._start(partition, target)
            except KafkaError as error:
                log_.warning("a copy in %s is not wanted any more: %s", target.path, error)

    def has_left(self, log: Log) -> bool:
        """Whether this log has changed places with its copy, and is only there until that is safe."""
        move = self.under_way.get((log.topic, log.partition))
        return move is not None and move.copy.source is log and move.partition.log is not log

    # --- one move

    async def _run(self, move: Move) -> None:
        name, path = move.partition.log.name, move.target.path
        try:
            await move.begin()
            async with self._turns:
                arrived = await self._arrive(move)
            if arrived:
                log_.info("%s moved to %s", name, path)
            elif move.has_begun:
                await (move.copy.close() if move.stays else move.copy.drop())
        except (OSError, KafkaError) as error:
            log_.error("%s could not be moved to %s: %s", name, path, error)
            if move.partition.log is move.copy.log:
                self._leave_behind(move)
            else:
                await move.copy.drop()
        finally:
            del self.under_way[move.partition.topic, move.partition.index]

    async def _arrive(self, move: Move) -> bool:
        while True:
            try:
                if not await move.catch_up(self._bytes_per_second):
                    return False
                await self._change_places(move)
                return True
            except Overtaken:
                await move.begin_anew()

    async def _change_places(self, move: Move) -> None:
        """Steps 1 to 3 of `log/moving`. From here on nobody stops the move."""
        partition, copy = move.partition, move.copy
        await copy.put_in_place()
        while not copy.is_close:
            await copy.copy_some()
        self._switch(partition, copy)
        await copy.log.flush()
        await copy.home.checkpoint()  # where it begins, which the old one knew
        await self._directories.home_of(copy.source).delete(partition.topic, partition.index)
        self._tell({(partition.topic_id, partition.index): self._directories.id_of(copy.log)})

    def _leave_behind(self, move: Move) -> None:
        """Something failed when the two had changed places. The old log lacks what is written from then on: nobody may find it
        where a log of this partition is looked for, if the new disk fails too. It is kept under another name; but if the copy
        is not safe, a start has to choose between the two."""
        partition, source, copy = move.partition, move.copy.source, move.copy.log
        home, name, path = self._directories.home_of(source), copy.name, move.target.path
        if home.logs.get((partition.topic, partition.index)) is source:
            if copy.synced_end >= source.end_offset:
                with suppress(OSError):
                    aside = home.set_aside(partition.topic, partition.index)
                    log_.warning("%s is in %s all the same; what it left is in %s, and not needed", name, path, aside)
            else:
                home.leave_lying(partition.topic, partition.index)
                log_.warning("%s is in %s, not safely yet; what it left stays in %s", name, path, source.directory)
        self._tell({(partition.topic_id, partition.index): self._directories.id_of(copy)})

    def _switch(self, partition: Partition, copy: Copy) -> None:
        partition.come_to_rest()
        if copy.source.failed is not None:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the log failed meanwhile: {copy.source.failed}")
        copy.finish()
        copy.home.logs[partition.topic, partition.index] = copy.log
        partition.move_to(copy.log, self._directories.ballast_of(copy.log))
