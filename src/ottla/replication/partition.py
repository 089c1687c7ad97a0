"""One replica on this broker: its role, its epoch, its in-sync set and its watermarks, over one log.

Words
- *end*: the offset the next record gets. The log publishes it after the write, never before.
- *safe end*: how far this replica vouches for its own copy: the end, or with `flush.messages` reached only the synced end.
- *high watermark*: below it a record is on every in-sync replica; only that much is shown to consumers. It is a Rising that
  belongs to one leadership: when the epoch ends it is closed, and whoever waits gets NOT_LEADER_OR_FOLLOWER.

A partition with one replica has no more to it: the watermark is the safe end, and a produce need not wait for anything but the
write of its own tick (`acknowledges_on_write`). With several, the leader has a `leadership` (next door), which knows how far
the others are; a follower takes from its leader (`follower.py`) records, watermark and log start, and cuts what contradicts.

A follower's watermark is what its leader said, as far as its own log goes. It only rises, unless the log is cut below it: what
was once on all in-sync replicas is on each of them that may lead, however little a new leader knows of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from ottla.log.ballast import Ballast
from ottla.log.log import Appended, Log, Owner, storage_error
from ottla.log.producers import UNGUARDED, Guard, Marker, Origin
from ottla.log.settings import LogSettings
from ottla.log.staging import UNCOUNTED
from ottla.log.trimming import raise_start
from ottla.metadata.image import Partition as Assignment
from ottla.replication.leadership import Cluster, Leadership
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
        "_cluster",
        "_dirty",
        "_flying",
        "_mark_dirty",
        "_node_id",
        "_spawn",
        "_syncing",
        "_write_failed",
        "acknowledges_on_write",
        "epoch_start",
        "high_watermark",
        "index",
        "is_short_of_replicas",
        "isr",
        "leader",
        "leader_epoch",
        "leadership",
        "log",
        "min_insync",
        "partition_epoch",
        "replicas",
        "stores_on_write",
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
        write_failed: Callable[[Log, BaseException], None],
        cluster: Cluster | None = None,
        high_watermark: int = 0,
    ) -> None:
        self.log = log
        self._cluster = cluster
        self.traffic = traffic
        self._ballast = ballast
        self._write_failed = write_failed
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self._node_id = node_id
        self._mark_dirty = mark_dirty
        self._spawn = spawn
        self._dirty = self._syncing = self._flying = False
        self.leader = self.leader_epoch = self.partition_epoch = self.epoch_start = -1
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.min_insync = 1
        self.is_short_of_replicas = True
        self.high_watermark = Rising(max(log.start_offset, min(high_watermark, log.end_offset)))
        # Whether a reply that leaves after the write of this turn may say so: with acks=all, and with acks=1.
        self.acknowledges_on_write = self.stores_on_write = False
        self.leadership: Leadership | None = None
        log.tower, log.tally = self, traffic

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic_id, self.index

    def configure(self, settings: LogSettings, min_insync: int) -> None:
        self.log.configure(settings)
        self.min_insync = min_insync
        self.settle()

    # --- roles

    def lead(self, assignment: Assignment) -> None:
        """Be the leader. A new leader epoch begins behind everything that was accepted in the one before."""
        if assignment.leader_epoch > self.leader_epoch:
            self.come_to_rest()
            self.log.begin_epoch(assignment.leader_epoch)
            self._end_leadership()
            self.epoch_start = self.log.end_offset
        elif assignment.partition_epoch <= self.partition_epoch and self.leader == assignment.leader:
            return  # the controller's answer to a proposal of ours was faster
        self._take_over(assignment)
        self.log.tally = self.traffic
        if self.leadership is not None:
            self.leadership.assign(assignment)
        elif len(assignment.replicas) > 1:
            assert self._cluster is not None, "nobody was told how to reach the other replicas"
            self.leadership = Leadership(self, assignment, self._cluster)
        self.settle()
        if self.leadership is not None:
            self.leadership.look_for_joiners()

    def follow(self, assignment: Assignment) -> None:
        """Another leads, or nobody does."""
        if assignment.leader_epoch > self.leader_epoch or self.leader == self._node_id:
            self.come_to_rest()
            self._end_leadership()
        self._take_over(assignment)
        self.epoch_start = -1
        self.log.tally = UNCOUNTED  # what a follower copies nobody has produced here
        self.acknowledges_on_write = self.stores_on_write = self.is_short_of_replicas = False

    def _take_over(self, assignment: Assignment) -> None:
        self.leader, self.leader_epoch = assignment.leader, assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.replicas, self.isr = assignment.replicas, assignment.isr

    def agree(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        """The controller has changed the in-sync set as we proposed."""
        self.isr, self.partition_epoch = isr, partition_epoch
        if self.leadership is not None:
            self.leadership.agree()
        self.settle()
        if self.leadership is not None:
            self.leadership.look_for_joiners()

    def _end_leadership(self) -> None:
        error = KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        leadership, self.leadership = self.leadership, None
        self._begin_watermark(self.high_watermark.value, error)
        if leadership is not None:
            leadership.close(error)

    def _begin_watermark(self, value: int, error: KafkaError) -> None:
        mark, self.high_watermark = self.high_watermark, Rising(value)
        mark.close(error)

    def _close(self, error: KafkaError) -> None:
        """Nothing that somebody waits for will come any more."""
        self.high_watermark.close(error)
        if self.leadership is not None:
            self.leadership.close(error)

    def settle(self) -> None:
        """Work out anew what follows from role, in-sync set and settings."""
        if self.leader == self._node_id:
            # More than there are replicas nobody can want.
            self.is_short_of_replicas = len(self.isr) < min(self.min_insync, len(self.replicas))
            self._settle_acknowledging()
            self._advance()

    def _settle_acknowledging(self) -> None:
        self.stores_on_write = self.log.settings.flush_messages == NEVER and not self._flying
        self.acknowledges_on_write = self.stores_on_write and len(self.replicas) == 1

    @property
    def is_short_after_append(self) -> bool:
        """Whether what was written is on fewer replicas than the topic wants; those that are about to join count."""
        leadership = self.leadership
        return self.is_short_of_replicas and (
            leadership is None or len(leadership.maximal) < min(self.min_insync, len(self.replicas))
        )

    @property
    def is_behind_its_start(self) -> bool:
        """A new leader's watermark has not passed yet what came before it."""
        return self.high_watermark.value < self.epoch_start

    def retire(self, error: Error) -> None:
        """The partition leaves this broker."""
        self.leader = -1
        self._close(KafkaError(error))

    def check_leader(self, wanted_epoch: int, or_follower: bool = False) -> None:
        """KIP-320: refuse a request that speaks of another leadership, and one that only a leader can answer."""
        if wanted_epoch >= 0 and wanted_epoch != self.leader_epoch:
            raise KafkaError(
                Error.FENCED_LEADER_EPOCH if wanted_epoch < self.leader_epoch else Error.UNKNOWN_LEADER_EPOCH
            )
        if self.leader != self._node_id and not or_follower:
            raise KafkaError(Error.NOT_LEADER_OR_FOLLOWER)

    def check_follower(self, broker_id: int, known_epoch: int) -> None:
        """Refuse whom we do not know as a replica. It has perhaps heard of it before us, and tries again."""
        if self.leadership is None or broker_id not in self.leadership.followers:
            raise KafkaError(Error.UNKNOWN_LEADER_EPOCH if known_epoch >= 0 else Error.NOT_LEADER_OR_FOLLOWER)

    def move_to(self, log: Log, ballast: Ballast) -> None:
        """The log lies in another directory from now on, and has all that this one has. Whoever waits does not notice."""
        self.log.tower = None
        log.tower, log.tally = self, self.log.tally
        self.log, self._ballast = log, ballast
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
            self._write_failed(self.log, error)

    def _why_closed(self) -> KafkaError:
        self.traffic.failed_produces += 1
        if self.leader != self._node_id:
            return KafkaError(Error.NOT_LEADER_OR_FOLLOWER)
        return KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk of {self._ballast.directory} is full")

    def took_off(self) -> None:
        """A large write goes on after this turn of the loop: until it has landed, nobody is told that it is done."""
        self._flying = True
        self.acknowledges_on_write = self.stores_on_write = False

    def landed(self) -> None:
        self._flying = self.log.is_flying  # somebody in need may have landed it, and the next one is on its way
        if self.leader == self._node_id:
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
            self._write_failed(self.log, error)
        if self.acknowledges_on_write:
            self.high_watermark.rise(self.log.end_offset)
        else:
            self._advance()
        if self.log.producers.completed:
            # Forgets those that are safe, though nobody may read here.
            self.log.last_stable_offset(self.high_watermark.value)

    def _dismiss(self, error: KafkaError) -> None:
        """What was staged is lost: whoever waits for offsets beyond the end would wait for somebody else's records."""
        self._refuse_above(self.log.end_offset, error)

    def _refuse_above(self, end: int, error: KafkaError) -> None:
        self.high_watermark.dismiss(end, error)
        if self.leadership is not None:
            self.leadership.stored.dismiss(end, error)

    def _advance(self) -> None:
        if self.leader != self._node_id:
            return
        log = self.log
        if self.leadership is not None:
            self.leadership.grow(log.end_offset)
        if log.unflushed < log.settings.flush_messages:
            self._vouch(log.end_offset)
        elif not self._syncing:
            self._syncing = True
            self._spawn(self._sync())

    def _vouch(self, end: int) -> None:
        """Our own copy is as safe as it has to be, up to `end`."""
        if self.leadership is None:
            self.high_watermark.rise(end)
        else:
            self.leadership.stored.rise(end)
            self.raise_watermark()

    def raise_watermark(self) -> None:
        """The leader's copy or a follower's has grown, or others are in sync."""
        if self.leadership is not None and not self.is_short_of_replicas:
            self.high_watermark.rise(self.leadership.watermark())
            if self.log.producers.completed:
                self.log.last_stable_offset(self.high_watermark.value)

    async def _sync(self) -> None:
        """One fsync serves everybody who came before it; those who came meanwhile get the next."""
        try:
            while self.log.unflushed >= self.log.settings.flush_messages:
                await self._flush(self.log)
                if self.leader == self._node_id:
                    self._vouch(self.log.synced_end)
        except KafkaError as error:
            log_.error("%s: fsync failed, the partition takes no more writes: %s", self.log.name, error)
            self._close(error)
        except OSError as error:
            # No descriptor left, say: nothing was synced and nothing is broken, the next write tries again.
            log_.error("%s: could not begin to sync, those who wait are refused: %s", self.log.name, error)
            self._refuse_above(self.log.synced_end, storage_error(error))
        finally:
            self._syncing = False

    async def _flush(self, log: Log) -> None:
        try:
            await log.flush()
        except (KafkaError, OSError):
            if log is self.log:
                raise
            # It moved meanwhile, and what was waited for is gone: all of it is in the other log, which is synced next.

    async def acknowledged(self, offset: int, seconds: float, mark: Rising | None = None) -> None:
        """Return when everything below `offset` is as safe as this partition promises; TimeoutError if that takes longer.
        Who has waited for something else since the append says whose `mark` it was.

        A flight is waited for without a limit, as any write is: its records may be in the file already, and who was told
        to try again would send them twice."""
        await (mark or self.high_watermark).reaches(offset, None if self._flying else seconds)

    @property
    def stored(self) -> Rising:
        """How far this replica alone can promise anything (acks=1)."""
        return self.high_watermark if self.leadership is None else self.leadership.stored

    # --- following

    def take(self, data: memoryview, now_ms: int) -> None:
        """Append batches of the leader as they are. KafkaError: what came before the bad one is appended."""
        if self._ballast.released:
            raise KafkaError(Error.KAFKA_STORAGE_ERROR, f"the disk of {self._ballast.directory} is full")
        try:
            try:
                self.log.append(data, Origin.REPLICATION, self.leader_epoch, now_ms)
            finally:
                self.log.publish()
        except OSError as error:
            self._write_failed(self.log, error)
            raise storage_error(error)
        except KafkaError as error:
            if error.error is Error.KAFKA_STORAGE_ERROR:
                self._write_failed(self.log, error)
            raise

    def learn(self, high_watermark: int, log_start: int) -> None:
        """What the leader said of its watermark and its start, as far as it holds for our log."""
        log = self.log
        self.high_watermark.rise(min(high_watermark, log.end_offset))
        mark = self.high_watermark.value
        if log.producers.completed:
            log.last_stable_offset(mark)
        raise_start(log, min(log_start, mark))

    async def cut(self, offset: int) -> None:
        """Nothing at or above `offset` stays: the leader has other records there."""
        if offset < self.high_watermark.value:
            log_.warning(
                "%s is cut at %d, below its watermark %d: the leader was elected uncleanly, and has less",
                *(self.log.name, offset, self.high_watermark.value),
            )
            self._fall_to(offset)
        try:
            await self.log.truncate_to(offset)
        except OSError as error:
            self._write_failed(self.log, error)
            raise storage_error(error)

    def begin_anew(self, offset: int) -> None:
        """The leader has nothing any more of what is here, and begins at `offset`."""
        try:
            self.log.truncate_fully_and_start_at(offset)
        except OSError as error:
            self._write_failed(self.log, error)
            raise storage_error(error)
        self._fall_to(offset)

    def _fall_to(self, offset: int) -> None:
        self._begin_watermark(offset, KafkaError(Error.NOT_LEADER_OR_FOLLOWER))

    # --- reading

    def open_to(self, wanted_epoch: int, comes_behind: bool = True, or_follower: bool = False) -> None:
        """A reader comes: refuse it if it speaks of another leadership, and let it see what was accepted before it.

        A client that writes and then reads without waiting for the answer must find what it wrote: a reader that
        `comes_behind` a request of its own that is not answered yet even waits for a flight to land.
        """
        self.check_leader(wanted_epoch, or_follower)
        if self._dirty:
            if comes_behind:
                self.log.wait_for_landing()
            self.write()

    def bound(self, isolation: int) -> int:
        """The offset that a consumer at this isolation level may not reach."""
        mark = self.high_watermark.value
        return self.log.last_stable_offset(mark) if isolation else mark
