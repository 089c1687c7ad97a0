"""Mistakes planted on purpose into a node: each breaks one promise, and the simulation has to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.client.sending import Sender
from ottla.log import damage, directory, flushing, identity, recovery, retention
from ottla.log.log import Log
from ottla.log.producers import Producers
from ottla.log.writer import Writer
from ottla.metadata import controller
from ottla.metadata.decisions import Decision
from ottla.replication.partition import Partition
from ottla.server.metadata_store import MetadataStore
from ottla.server.tick import Tick
from ottla.wire.errors import KafkaError

Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Plant] = {}


def mutant(plant: Plant) -> Plant:
    MUTANTS[plant.__name__] = plant
    return plant


def is_metadata(log: Log) -> bool:
    return log.topic == "__cluster_metadata"


@mutant
def reply_before_write(patch: pytest.MonkeyPatch) -> None:
    """The tick sends its replies first and writes afterwards."""

    def flush(self: Any) -> None:
        self._armed = False
        connections, self._connections = self._connections, []
        for connection in connections:
            connection.flush()
        dirty, self._dirty = self._dirty, []
        for partition in dirty:
            partition.write()

    patch.setattr(Tick, "_flush", flush)


@mutant
def ack_before_landing(patch: pytest.MonkeyPatch) -> None:
    """A large write is acknowledged when it has taken off."""
    patch.setattr(Partition, "took_off", lambda self: setattr(self, "_flying", True))


@mutant
def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    """flush.messages=1 is not waited for."""

    async def acknowledged(self: Partition, offset: int, seconds: float, mark: object = None) -> None:
        return None

    patch.setattr(Partition, "acknowledged", acknowledged)


@mutant
def show_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Consumers are given what is not synced yet, and may vanish."""
    patch.setattr(Partition, "bound", lambda self, isolation: self.log.end_offset)


@mutant
def no_sync_of_data(patch: pytest.MonkeyPatch) -> None:
    """The fsync of a data log does nothing."""
    sync = flushing.sync
    patch.setattr(flushing, "sync", lambda log, paths, file: sync(log, paths, file) if is_metadata(log) else None)


@mutant
def no_sync_of_new_names(patch: pytest.MonkeyPatch) -> None:
    """New segments are synced, their names are not."""
    what = flushing.what_to_sync

    def without_directory(log: Log, closed: Any, settle: bool) -> Any:
        paths, file = what(log, closed, settle)
        return [path for path in paths if path != log.directory], file

    patch.setattr(flushing, "what_to_sync", without_directory)


@mutant
def sync_covers_later_writes(patch: pytest.MonkeyPatch) -> None:
    """What was written while a sync was under way is believed to be synced by it."""
    sync = flushing.Flusher._sync

    async def believing(self: Any, settle: bool) -> None:
        await sync(self, settle)
        self._log.synced_end = self._log.end_offset

    patch.setattr(flushing.Flusher, "_sync", believing)


@mutant
def sync_error_believed_later(patch: pytest.MonkeyPatch) -> None:
    """An fsync error is swallowed."""
    sync = flushing.sync

    def forgiving(log: Log, paths: list[str], file: Any) -> None:
        try:
            sync(log, paths, file)
        except KafkaError:
            log.failed = None

    patch.setattr(flushing, "sync", forgiving)


@mutant
def recovery_ignores_crc(patch: pytest.MonkeyPatch) -> None:
    """Whatever has the shape of a batch is taken for one."""
    from ottla.log import scanning

    def shapes(file: Any, position: int, end: int) -> Iterator[Any]:
        patch.setattr(scanning, "crc32c", lambda data: _Equal())
        yield from sound(file, position, end)

    sound = damage.sound_batches
    patch.setattr(damage, "sound_batches", shapes)


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@mutant
def torn_tail_stays(patch: pytest.MonkeyPatch) -> None:
    """The scan does not cut what it could not read; appends go behind it."""
    scan = recovery._scan

    def lazy(log: Log, segment: Any, report: Any, known: int, with_producers: bool = True) -> Any:
        size, content = segment.size, segment.open().read_at(0, segment.size)
        end, was_cut = scan(log, segment, report, known, with_producers)
        if was_cut:
            segment.open().write_at(0, [content])
            segment.size = size
        return end, False

    patch.setattr(recovery, "_scan", lazy)


@mutant
def no_scan_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Every stop is taken for a clean one."""
    patch.setattr(identity, "take_clean_mark", lambda disk, path: -1)


@mutant
def epoch_not_raised(patch: pytest.MonkeyPatch) -> None:
    """A restart goes on in the old leader epoch."""
    lead = Partition.lead
    patch.setattr(Partition, "lead", lambda self, epoch, isr: lead(self, 0, isr))


@mutant
def producers_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A restart does not know the producers of before."""
    patch.setattr(recovery, "rebuild_producers", lambda log: log.producers.clear())
    patch.setattr(recovery, "_replay", lambda log, fields, batch: b"")


@mutant
def no_duplicates_recognised(patch: pytest.MonkeyPatch) -> None:
    """Sequence numbers are not looked at."""
    patch.setattr(Producers, "_repeated", staticmethod(lambda *_: None))
    patch.setattr("ottla.log.producers.check_sequence", lambda *_: None)


@mutant
def metadata_published_before_sync(patch: pytest.MonkeyPatch) -> None:
    """A change of the metadata is answered before it is on disk."""

    patch.setattr(MetadataStore, "synced_end", property(lambda self: self.end_offset))


@mutant
def metadata_sync_error_ignored(patch: pytest.MonkeyPatch) -> None:
    """The node goes on although its metadata log cannot be synced."""
    flush = MetadataStore.flush

    async def forgiving(self: MetadataStore) -> None:
        try:
            await flush(self)
        except KafkaError:
            self.log.failed = None
            self.log.synced_end = self.log.end_offset

    patch.setattr(MetadataStore, "flush", forgiving)


@mutant
def producer_ids_not_written(patch: pytest.MonkeyPatch) -> None:
    """Blocks of producer ids are handed out without a record."""
    decide = controller.next_producer_ids
    patch.setattr(controller, "next_producer_ids", lambda *a: Decision([], decide(*a).reply))


@mutant
def retention_forgets_the_start(patch: pytest.MonkeyPatch) -> None:
    """Segments go, and the start of the log stays where it was."""
    perform = retention.perform

    async def forgetful(log: Log, count: int) -> int:
        start = log.start_offset
        freed = await perform(log, count)
        log.start_offset = start
        return freed

    patch.setattr(retention, "perform", forgetful)


@mutant
def retention_goes_before_its_start_is_written(patch: pytest.MonkeyPatch) -> None:
    """Files go, and the checkpoint that says where the log starts now has not been written: names that a power cut brings
    back stand before a hole."""
    perform = retention.perform

    async def hasty(log: Log, count: int) -> int:
        checkpoint, log.checkpoint = log.checkpoint, None
        try:
            return await perform(log, count)
        finally:
            log.checkpoint = checkpoint

    patch.setattr(retention, "perform", hasty)


@mutant
def retention_takes_too_much(patch: pytest.MonkeyPatch) -> None:
    """Retention without a limit also takes segments."""
    plan = retention.plan
    patch.setattr(retention, "plan", lambda log, *a: plan(log, *a) or len(log.segments) // 3)


@mutant
def deleted_topic_keeps_its_log(patch: pytest.MonkeyPatch) -> None:
    """A topic that is made again under its old name finds the old records, and nobody looks whose they are."""

    async def delete(self: directory.DataDirectory, topic: str, partition: int) -> None:
        del self.logs[topic, partition]

    patch.setattr(directory.DataDirectory, "delete", delete)
    patch.setattr(directory.DataDirectory, "_is_foreign", lambda *_: False)


@mutant
def failed_write_keeps_its_offsets(patch: pytest.MonkeyPatch) -> None:
    """A write that the disk refused is answered as if it had been done."""
    publish = Writer.publish

    def careless(self: Any) -> None:
        owners = self._batches
        self._batches = [(*batch[:3], None) for batch in owners]
        try:
            publish(self)
        except OSError:
            if is_metadata(self):
                raise

    patch.setattr(Writer, "publish", careless)


@mutant
def log_end_forgets_last_batch(patch: pytest.MonkeyPatch) -> None:
    """Recovery stops one batch early."""
    sound = damage.sound_batches

    def one_less(file: Any, position: int, end: int) -> Iterator[Any]:
        batches = list(sound(file, position, end))
        yield from batches[:-1] if len(batches) > 3 else batches

    patch.setattr(damage, "sound_batches", one_less)


@mutant
def refused_retry_keeps_its_numbers(patch: pytest.MonkeyPatch) -> None:
    """The producer takes a refused retry for a batch that was never written."""
    failed = Sender._failed
    patch.setattr(
        Sender, "_failed", lambda self, lane, error, doubtful, sealed: failed(self, lane, error, False, sealed)
    )
