"""Compaction against a model that knows nothing of files: any history, any rounds, any small map."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ottla.log import compacting
from ottla.log.compacting import Decisions, Rewriter, Survey
from ottla.log.compaction import Tools
from ottla.log.log import Log
from ottla.wire.compression import Codec
from ottla.wire.records import DELETE_HORIZON_BIT, Batch, Record, iterate
from ottla.world import UNLIMITED

sys.path.insert(0, str(Path(__file__).parent))
from compacted import COMPACT, NOW_MS, clean, contents, decide, keyed, transactional
from logs import make_log, reopen, run

RETENTION_MS = COMPACT.delete_retention_ms
KEYS = [b"a", b"b", b"c", b"d", b"k" * 49, b"k" * 50]
pairs = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([b"v", b"w" * 90, None])), min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), pairs, st.sampled_from([Codec.NONE, Codec.LZ4])),
        st.tuples(st.just("numbered"), st.integers(0, 1), pairs),
        st.tuples(st.just("transaction"), st.integers(2, 4), pairs),
        st.tuples(st.just("decide"), st.integers(2, 4), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("forget")),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("clean"), st.sampled_from([1, 700, 1 << 20]), st.integers(0, 2 * RETENTION_MS)),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Model:
    """Every record ever written, and which transactions went how."""

    records: dict[int, Record] = field(default_factory=dict)
    owner: dict[int, tuple[int, int]] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    # Tombstones may be gone from when on; the first round that sees one decides.
    may_go_ms: dict[int, int] = field(default_factory=dict)
    now_ms: int = NOW_MS

    def put(self, first: int, written: list[tuple[bytes, bytes | None]]) -> None:
        for offset, (key, value) in enumerate(written, first):
            self.records[offset] = Record(offset, NOW_MS, key, value)

    def is_aborted(self, offset: int) -> bool:
        return self.owner.get(offset) in self.aborted

    def expected(self, end: int) -> tuple[set[int], set[int]]:
        """Offsets that must be there after all below `end` was compacted, and those that may be."""
        newest: dict[bytes | None, int] = {}
        for offset, record in self.records.items():
            if offset < end and not self.is_aborted(offset):
                newest[record.key] = offset
        stay = set(newest.values())
        must = {
            at for at in stay if self.records[at].value is not None or self.now_ms < self.may_go_ms.get(at, 1 << 62)
        }
        after = {offset for offset in self.records if offset >= end}
        return must | {offset for offset in after if not self.is_aborted(offset)}, stay | after


class Story:
    def __init__(self) -> None:
        self.log: Log = make_log(settings=replace(COMPACT, segment_bytes=700))
        self.model = Model()
        self.forgotten: set[tuple[int, int]] = set()

    async def tell(self, step: tuple[object, ...]) -> None:
        await getattr(self, f"do_{step[0]}")(*step[1:])

    async def do_put(self, written: list[tuple[bytes, bytes | None]], codec: Codec) -> None:
        self.model.put(keyed(self.log, *written, codec=codec), written)

    def _sequence(self, producer: int, count: int) -> int:
        known = self.log.producers.known(producer)
        return known.last_sequence + 1 if known is not None and known.batches else 0

    async def do_numbered(self, producer: int, written: list[tuple[bytes, bytes | None]]) -> None:
        numbers = {
            "producer_id": producer,
            "producer_epoch": 0,
            "base_sequence": self._sequence(producer, len(written)),
        }
        self.model.put(keyed(self.log, *written, **numbers), written)

    async def do_transaction(self, producer: int, written: list[tuple[bytes, bytes | None]]) -> None:
        first = transactional(self.log, producer, self._sequence(producer, len(written)), *written)
        began = self.model.open.setdefault(producer, first)
        self.model.put(first, written)
        for offset in range(first, first + len(written)):
            self.model.owner[offset] = (producer, began)

    async def do_decide(self, producer: int, commit: bool) -> None:
        decide(self.log, producer, commit)
        began = self.model.open.pop(producer, None)
        if began is not None and not commit:
            self.model.aborted.add((producer, began))

    async def do_roll(self) -> None:
        self.log.roll()

    async def do_forget(self) -> None:
        """Producers that are silent for long. An older snapshot brings them back after a crash, but not their batches."""
        producers = self.log.producers
        silent = {pid: entry for pid, entry in producers.entries.items() if entry.transaction_first < 0}
        self.forgotten |= {(pid, entry.batches[-1].last_offset) for pid, entry in silent.items() if entry.batches}
        producers.entries = {pid: entry for pid, entry in producers.entries.items() if pid not in silent}

    async def do_restart(self, is_clean: bool) -> None:
        point, cleaned_to = self.log.recovery_point, self.log.cleaned_to
        if is_clean:
            self.log.close()
        known = {pid: (entry.epoch, entry.last_sequence) for pid, entry in self.log.producers.entries.items()}
        self.log = reopen(self.log, clean=is_clean, recovery_point=point)
        self.log.cleaned_to = cleaned_to
        found = {pid: (entry.epoch, entry.last_sequence) for pid, entry in self.log.producers.entries.items()}
        for producer, (epoch, last) in known.items():
            assert found[producer][0] == epoch and found[producer][1] >= last, "a producer was forgotten"

    async def do_clean(self, map_bytes: int, later_ms: int) -> None:
        log, model = self.log, self.model
        model.now_ms += later_ms
        before = await contents(log)
        start, end = log.start_offset, log.end_offset
        producers = dict(log.producers.entries)
        tools = Tools(map_bytes=map_bytes, chunk_bytes=256, bytes_per_second=UNLIMITED)
        await clean(log, now_ms=model.now_ms, tools=tools)
        assert (log.start_offset, log.end_offset, log.producers.entries) == (start, end, producers)
        after = await contents(log)
        self.check(before, after)
        again = reopen(log, clean=True, recovery_point=log.recovery_point, disk=deepcopy(log.disk))
        assert await contents(again) == after

    def check(self, before: list[tuple[Batch, bytes]], after: list[tuple[Batch, bytes]]) -> None:
        model, cleaned_to = self.model, max(self.log.cleaned_to, 0)
        found = {r.offset: r for head, data in after if not head.is_control for r in iterate(data)}
        assert list(found) == sorted(found)
        must, may = model.expected(cleaned_to)
        assert must <= found.keys() <= may, f"cleaned to {cleaned_to}"
        assert all(model.records[offset] == record for offset, record in found.items())
        heads = {head.base_offset: head for head, _ in before}
        for head, _ in after:
            was = heads[head.base_offset]
            assert (head.last_offset, *head[9:12], head.leader_epoch) == (was.last_offset, *was[9:12], was.leader_epoch)
        self.note_tombstones(after, cleaned_to)
        self.check_producers(after)

    def note_tombstones(self, after: list[tuple[Batch, bytes]], cleaned_to: int) -> None:
        for head, data in after:
            if head.is_control or head.base_offset >= cleaned_to:
                continue
            for record in iterate(data):
                if record.value is None:
                    assert head.attributes & DELETE_HORIZON_BIT
                    assert head.base_timestamp <= self.model.now_ms + RETENTION_MS
                    assert self.model.may_go_ms.setdefault(record.offset, head.base_timestamp) == head.base_timestamp

    def check_producers(self, after: list[tuple[Batch, bytes]]) -> None:
        """The last batch of each that is known is there, and no transaction seems to be open that is not."""
        lasts = {(head.producer_id, head.last_offset) for head, _ in after}
        for producer, entry in self.log.producers.entries.items():
            if entry.batches and (producer, entry.batches[-1].last_offset) not in self.forgotten:
                assert (producer, entry.batches[-1].last_offset) in lasts
        again = reopen(self.log, clean=False, recovery_point=0, disk=deepcopy(self.log.disk))
        assert again.last_stable_offset(again.end_offset) == self.log.last_stable_offset(self.log.end_offset)


async def told(history: list[tuple[object, ...]]) -> None:
    story = Story()
    for step in history:
        await story.tell(step)
    story.log.roll()
    await story.do_clean(1 << 20, 0)
    await story.do_clean(1 << 20, RETENTION_MS + 1)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_any_history_and_any_rounds(history: list[tuple[object, ...]]) -> None:
    """RET-05, RET-07, TRAP-69, TRAP-70: latest per key, offsets, order, producers, transactions, tombstones."""
    run(told(history))


# -- each of these mistakes must be caught


def everything_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rewriter, "_stays", lambda self, entry, keeps: True)


def tombstones_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stays = Rewriter._stays
    monkeypatch.setattr(Rewriter, "_stays", lambda self, entry, keeps: stays(self, entry, False))


def producers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rewriter, "_ends_producer", lambda self, fields: False)


def aborted_records_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decisions, "of_data", lambda self, fields: False)


def markers_go_with_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    of_marker = Decisions.of_marker

    def at_once(self: Decisions, fields: tuple[int, ...], batch: memoryview) -> bool:
        of_marker(self, fields, batch)
        return True

    monkeypatch.setattr(Decisions, "of_marker", at_once)
    monkeypatch.setattr(Rewriter, "_keep_marker", lambda self, fields, batch, waits: None)


def keys_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "mapped", lambda key: key[:49])


def the_map_forgets_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = Survey.newest
    monkeypatch.setattr(Survey, "newest", lambda self: (newest(self)[0], self._job.upper, 0.0))


@pytest.mark.parametrize(
    "mistake",
    [
        everything_stays,
        tombstones_go_at_once,
        producers_are_forgotten,
        aborted_records_count,
        markers_go_with_their_records,
        keys_are_cut_short,
        the_map_forgets_where_it_ended,
    ],
)
def test_the_model_catches(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)

    @given(steps)
    @settings(max_examples=400, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    def wrong(history: list[tuple[object, ...]]) -> None:
        run(told(history))

    with pytest.raises((AssertionError, ExceptionGroup)):
        wrong()
