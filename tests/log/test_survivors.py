"""Compaction tells of most batches without a look inside what stays of them; that must never differ from a look inside."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from ottla.log.compacting import Fields, Survivors
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.segment import COUNT
from ottla.wire.records import Record, build

sys.path.insert(0, str(Path(__file__).parent))
from compacted import COMPACT, NOW_MS, clean, decide, keyed, records, transactional
from logs import make_log, run


def write(log: Log, producer_id: int, rng: random.Random) -> None:
    """Some batches: of hot keys and of keys that never come again, with tombstones and without keys, also in transactions."""
    sequence = 0
    for number in range(60):
        kind = rng.choice(["hot", "hot", "fresh", "fresh", "deleting", "transaction"])
        pairs = [(f"hot {rng.randrange(4)}".encode(), b"v") for _ in range(rng.randrange(1, 5))]
        if kind == "fresh":
            pairs = [(f"fresh {number} {n}".encode(), b"v") for n in range(3)]
        if kind == "deleting":
            keyed(log, *pairs, (b"hot 1", None), (f"fresh {rng.randrange(60)} 0".encode(), None))
        elif kind == "transaction":
            transactional(log, producer_id, sequence, *pairs)
            sequence += len(pairs)
            decide(log, producer_id, commit=rng.random() < 0.5)
        else:
            keyed(log, *pairs)


def played(seed: int) -> list[bytes]:
    """What lies in the files after several rounds."""
    rng, log, files = random.Random(seed), make_log(settings=COMPACT), []
    for turn in range(3):
        write(log, turn, rng)
        run(clean(log, now_ms=NOW_MS + turn * 600))
        files += [log.disk.read(s.path + ".log") for s in log.segments[:-1]]
    return files


@pytest.mark.parametrize("seed", range(12))
def test_the_same_bytes_stay_as_after_a_look_inside(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """RET-06: nothing that stays by the rules goes, and the reverse."""
    answers: Counter[str] = Counter()
    of = Survivors.of

    def counted(self: Survivors, fields: Fields) -> int | None:
        told = of(self, fields)
        answers["unknown" if told is None else "none" if not told else "all" if told == fields[COUNT] else "some"] += 1
        return told

    monkeypatch.setattr(Survivors, "of", counted)
    quick = played(seed)
    assert set(answers) == {"unknown", "none", "some", "all"}
    monkeypatch.setattr(Survivors, "of", lambda self, fields: None)
    assert quick == played(seed)


def test_a_record_outside_the_offsets_of_its_batch_is_found_by_a_look_inside() -> None:
    """Nobody should write such a batch, but one that was replicated is not taken apart before."""
    log = make_log(settings=COMPACT)
    strange = build([Record(5, NOW_MS, b"strange", b"v"), Record(0, NOW_MS, b"key", b"v")], base_offset=0)
    log.append(memoryview(bytearray(strange)), Origin.REPLICATION, 0, NOW_MS)
    log.publish()
    for number in range(40):
        keyed(log, (b"key", b"value %d" % number * 10))
    run(clean(log))
    assert b"strange" in {record.key for record in run(records(log))}
