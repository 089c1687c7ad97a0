"""One replica on this broker: its role, its epoch, its in-sync set and its watermarks, over one log.

Words
- *end*: the offset the next record gets. The log publishes it after the write, never before.
- *safe end*: how far this replica vouches for its own copy: the end, or with `flush.messages` reached only the synced end.
- *high watermark*: below it a record is on every in-sync replica; only that much is shown to consumers. It is a Rising that
  belongs to one leadership: when the epoch ends it is closed, and whoever waits gets NOT_LEADER_OR_FOLLOWER.

While this replica alone is in sync, the watermark is the safe end, and a produce need not wait for anything but the write
of its own tick (`acknowledges_on_write`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from ottla.log.ballast import Ballast
from ottla.log.log import Appended, Log, Owner, storage_error
from ottla.log.producers import UNGUARDED, Guard, Marker, Origin
from ottla.log.settings import LogSettings
from ottla.rising import Rising
from ottla.wire.errors import Error, KafkaError

log_ = logging.getLogger("ottla.replication")

NEVER = 2**63 - 1


class Traffic(Protocol):
    """Where what happens to the partitions of one topic is counted."""

    bytes_in: int
    bytes_out: int
    records_in: int
    produces: int
    failed_produces: int
    fetches: int
    failed_fetches: int


class Partition:
    __slots__ = (
        "_ballast",
        "_dirty",
        "_flying",
        "_mark_dirty",
        "_node_id",
        "_spawn",
        "_syncing",
        "_write_failed",
        "acknowledges_on_write",
        "high_watermark",
        "index",
        "is_short_of_replicas",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "min_insync",
        "topic",
        "topic_id",
        "traffic",
    )

    def __init__(
        self,
        log: Log,
        topic: str,
        topic_id: bytes,
        index: int,
        node_id: int,
        mark_dirty: Callable[[Partition], None],
        spawn: Callable[[Any], Any],
        ballast: Ballast,
        traffic: Traffic,
        write_failed: Callable[[BaseException], None],
    ) -> None:
        self.log = log
        self.traffic = traffic
        self._ballast = ballast
        self._write_failed = write_failed
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self._node_id = node_id
        self._mark_dirty = mark_dirty
        self._spawn = spawn
        self._dirty = self._syncing = self._flying = False
        self.leader = -1
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.min_insync = 1
        self.is_short_of_replicas = True
        self.high_watermark = Rising(log.start_offset)
        self.acknowledges_on_write = False
        log.tower, log.tally = self, traffic

    def configure(self, settings: LogSettings, min_insync: int) -> None:
        self.log.configure(settings)
        self.min_insync = min_insync
        self.settle()

    # --- roles

    def lead(self, leader_epoch: int, isr: tuple[int, ...]) -> None:
        """Be the leader in `leader_epoch`, which begins behind everything that was accepted in the one before."""
        if leader_epoch > self.leader_epoch:
            self.come_to_rest()
            self.log.begin_epoch(leader_epoch)
            self._renew_watermark()
        self.leader, self.leader_epoch, self.isr = self._node_id, leader_epoch, isr
        self.settle()

    def step_down(self, leader: int, leader_epoch: int) -> None:
        """Another leads, or nobody does."""
        self.leader, self.leader_epoch = leader, leader_epoch
        self._renew_watermark()

    def _renew_watermark(self) -> None:
        mark, self.high_watermark = self.high_watermark, Rising(self.high_watermark.value)
        mark.close(KafkaError(Error.NOT_LEADER_OR_FOLLOWER))

    def settle(self) -> None:
        """Work out anew what follows from role, in-sync set and settings."""
        self.is_short_of_replicas = len(self.isr) < self.min_insync
        self._settle_acknowledging()
        self._advance()

    def _settle_acknowledging(self) -> None:
        alone = self.isr == (self._node_id,)
        at_once = self.log.settings.flush_messages == NEVER and not self._flying
        self.acknowledges_on_write = alone and at_once

    def retire(self, error: Error) -> None:
        """The partition leaves this broker."""
        self.leader = -1
        self.high_watermark.close(KafkaError(error))

    def check_leader(self, wanted_epoch: int) -> None:
        """KIP-320: refuse a request that speaks of another leadership."""
        if wanted_epoch >= 0 and wanted_epoch != self.leader_epoch:
            raise KafkaError(
                Error.FENCED_LEADER_EPOCH if wanted_epoch < self.leader_epoch else Error.UNKNOWN_LEADER_EPOCH
            )
        if self.leader != self._node_id:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def move_to(self, log: Log, ballast: Ballast) -> None:
        """The log lies in another directory from now on, and has all that this one has. Whoever waits does not notice."""
        self.log.tower = None
        self.log, self._ballast = log, ballast
        log.tower, log.tally = self, self.traffic
        self.settle()

    def come_to_rest(self) -> None:
        """Nothing is staged when this returns, or on its way to the file."""
        if self._dirty:
            self.log.wait_for_landing()
            self.write()

    # --- writing

    def append(
        self,
        data: Any,
        now_ms: int,
        origin: Origin,
        owner: Owner,
        prepared: bool = False,
        transaction_version: int = 0,
        guard: Guard | None = UNGUARDED,
    ) -> Appended:
        """Stage batches; they are written and become visible with the tick. If that fails, `owner` is told. A batch in a
        transaction comes with what `Log.producers.guard` gave out before its coordinator was asked."""
        self.traffic.produces += 1
        if self.leader != self._node_id or self._ballast.released:
            raise self._why_closed()
        try:
            appended = self.log.append(
                data, origin, self.leader_epoch, now_ms, owner, prepared, transaction_version, guard
            )
        except KafkaError as error:
            self._refused(error)
            raise
        if not self._dirty:
            self._dirty = True
            self._mark_dirty(self)
        return appended

    def append_marker(self, marker: Marker, now_ms: int, owner: Owner) -> Appended:
        """Stage the end of a transaction."""
        self.traffic.produces += 1
        if self.leader != self._node_id or self._ballast.released:
            raise self._why_closed()
        try:
            appended = self.log.append_marker(marker, self.leader_epoch, now_ms, owner)
        except KafkaError as error:
            self._refused(error)
            raise
        if not self._dirty:
            self._dirty = True
            self._mark_dirty(self)
        return appended

    def _refused(self, error: KafkaError) -> None:
        self.traffic.failed_produces += 1
        if error.error is Error.KAFKA_STORAGE_ERROR:
            self._dismiss(error)
            self._write_failed(error)

    def _why_closed(self) -> KafkaError:
        self.traffic.failed_produces += 1
        if self.leader != self._node_id:
            return KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        return KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk of {self._ballast.directory} is full")

    def took_off(self) -> None:
        """A large write goes on after this turn of the loop: until it has landed, nobody is told that it is done."""
        self._flying = True
        self.acknowledges_on_write = False

    def landed(self) -> None:
        self._flying = self.log.is_flying  # somebody in need may have landed it, and the next one is on its way
        self._settle_acknowledging()
        self._mark_dirty(self)

    def write(self) -> None:
        """The tick: everything staged goes to the file in one write, then the watermark follows. A write that is under way
        is left alone; it brings us back here when it has landed."""
        if self._flying and self.log.is_flying:
            self._advance()  # to where the one before it ended
            return
        self._dirty = False
        try:
            self.log.publish()
        except OSError as error:
            log_.error("%s: could not write, the requests concerned are refused: %s", self.log.name, error)
            self._dismiss(storage_error(error))
            self._write_failed(error)
        if self.acknowledges_on_write:
            self.high_watermark.rise(self.log.end_offset)
        else:
            self._advance()
        if self.log.producers.completed:
            # Forgets those that are safe, though nobody may read here.
            self.log.last_stable_offset(self.high_watermark.value)

    def _dismiss(self, error: KafkaError) -> None:
        """What was staged is lost: whoever waits for offsets beyond the end would wait for somebody else's records."""
        self.high_watermark.dismiss(self.log.end_offset, error)

    def _advance(self) -> None:
        if self.isr != (self._node_id,):
            return
        log = self.log
        if log.unflushed < log.settings.flush_messages:
            self.high_watermark.rise(log.end_offset)
        elif not self._syncing:
            self._syncing = True
            self._spawn(self._sync())

    async def _sync(self) -> None:
        """One fsync serves everybody who came before it; those who came meanwhile get the next."""
        try:
            while self.log.unflushed >= self.log.settings.flush_messages:
                await self._flush(self.log)
                self.high_watermark.rise(self.log.synced_end)
        except KafkaError as error:
            log_.error("%s: fsync failed, the partition takes no more writes: %s", self.log.name, error)
            self.high_watermark.close(error)
        except OSError as error:
            # No descriptor left, say: nothing was synced and nothing is broken, the next write tries again.
            log_.error("%s: could not begin to sync, those who wait are refused: %s", self.log.name, error)
            self.high_watermark.dismiss(self.log.synced_end, storage_error(error))
        finally:
            self._syncing = False

    async def _flush(self, log: Log) -> None:
        try:
            await log.flush()
        except (KafkaError, OSError):
            if log is self.log:
                raise
            # It moved meanwhile, and what was waited for is gone: all of it is in the other log, which is synced next.

    async def acknowledged(self, offset: int, seconds: float) -> None:
        """Return when everything below `offset` is as safe as this partition promises; TimeoutError if that takes longer.

        A flight is waited for without a limit, as any write is: its records may be in the file already, and who was told
        to try again would send them twice."""
        await self.high_watermark.reaches(offset, None if self._flying else seconds)

    # --- reading

    def open_to(self, wanted_epoch: int, comes_behind: bool = True) -> None:
        """A reader comes: refuse it if it speaks of another leadership, and let it see what was accepted before it.

        A client that writes and then reads without waiting for the answer must find what it wrote: a reader that
        `comes_behind` a request of its own that is not answered yet even waits for a flight to land.
        """
        self.check_leader(wanted_epoch)
        if self._dirty:
            if comes_behind:
                self.log.wait_for_landing()
            self.write()

    def bound(self, isolation: int) -> int:
        """The offset that a consumer at this isolation level may not reach."""
        mark = self.high_watermark.value
        return self.log.last_stable_offset(mark) if isolation else mark
