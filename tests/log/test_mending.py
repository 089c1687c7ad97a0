"""Damage below the recovery point is mended with the bytes of a log that has the same batches, and with no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.log.log import Log
from ottla.log.mending import Gap, fill, find
from ottla.log.settings import LogSettings
from ottla.log.trimming import truncate_to
from ottla.sim.disk import SimDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import batch, make_log, offsets, put, read_batches, reopen, run
from logs import fill as fill_with

SETTINGS = LogSettings(segment_bytes=4096, index_interval_bytes=512)
BATCHES = 40
BATCH_BYTES = 285
PER_SEGMENT = 4096 // BATCH_BYTES
END = 2 * BATCHES


def settled(settings: LogSettings = SETTINGS) -> Log:
    """Forty batches in three segments, all synced, and everything below the recovery point."""
    log = make_log(SimDisk(), settings)
    fill_with(log, BATCHES)
    run(log.settle())
    return reopen(log)


def place_of(log: Log, number: int) -> tuple[str, int]:
    """File and position of a batch."""
    segment = log.segments[number // PER_SEGMENT]
    return segment.path + ".log", number % PER_SEGMENT * BATCH_BYTES


def rot(log: Log, number: int, byte: int) -> None:
    assert isinstance(log.disk, SimDisk)
    path, position = place_of(log, number)
    log.disk.rot(path, (position + byte) * 8)


def files(log: Log) -> list[bytes]:
    return [log.disk.read(segment.path + ".log") for segment in log.segments]


def from_offset(log: Log, offset: int, bytes_max: int = 1 << 20) -> bytes:
    return run(log.read(offset, bytes_max, log.end_offset)).read()


def gap_of(log: Log, number: int) -> Gap:
    gap = run(find(log, 2 * number))
    assert gap is not None
    return gap


def test_whether_there_is_anything_to_mend() -> None:
    log = settled()
    assert all(run(find(log, offset)) is None for offset in range(END))
    rot(log, 20, 100)
    assert run(find(log, 39)) is None
    assert [gap_of(log, number).offset for number in (20, 21, 22)] == [40, 40, 40], (
        "it is in the way of those behind it"
    )


@pytest.mark.parametrize("number", [0, 1, PER_SEGMENT - 1, PER_SEGMENT, 20, BATCHES - 1])
@pytest.mark.parametrize("byte", [0, 7, 9, 11, 13, 16, 17, 25, 60, 100, BATCH_BYTES - 1])
def test_one_batch(number: int, byte: int) -> None:
    """LOG-05: wherever the flipped bit is, in a closed segment or in the last one. In front of the CRC, nobody can see that an
    epoch is wrong, nor an offset that is only a little too large where no other batch of the file follows."""
    log, twin = settled(), settled()
    before = files(log)
    rot(log, number, byte)
    gap = run(find(log, 2 * number))
    if byte == 13 or (byte == 7 and number in (PER_SEGMENT - 1, BATCHES - 1)):
        assert gap is None
        return
    assert gap is not None and gap.offset == 2 * number
    assert run(fill(log, gap, from_offset(twin, gap.offset), END))
    assert files(log) == before
    assert run(find(log, END - 1)) is None
    assert offsets(read_batches(log, 2 * number))[0] == 2 * number
    again = reopen(log, clean=False, recovery_point=END)
    assert again.end_offset == END and not again.corrupt_batches


def test_several_that_lie_side_by_side() -> None:
    log, twin = settled(), settled()
    before = files(log)
    for number in (15, 16, 17, 20):
        rot(log, number, 9)
    assert run(fill(log, gap_of(log, 17), from_offset(twin, 30), END)) == 3 * BATCH_BYTES
    assert files(log) != before
    assert run(fill(log, gap_of(log, 20), from_offset(twin, 40), END)) == BATCH_BYTES
    assert files(log) == before


def other_epoch() -> Log:
    log = make_log(SimDisk(), SETTINGS)
    for _ in range(BATCHES):
        put(log, batch(2, value=b"x" * 100), epoch=3)
    return log


def other_sizes() -> Log:
    """As if it had been compacted."""
    log = make_log(SimDisk(), SETTINGS)
    fill_with(log, BATCHES, size=90)
    return log


@pytest.mark.parametrize("other", [other_epoch, other_sizes], ids=lambda it: it.__name__)
def test_what_others_have_must_be_the_same(other: Callable[[], Log]) -> None:
    log = settled()
    rot(log, 20, 100)
    before = files(log)
    assert run(fill(log, gap_of(log, 20), from_offset(other(), 40), END)) == 0
    assert files(log) == before


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:100] + b"!" + data[101:],
        lambda data: data[1:],
        lambda data: bytes(7) + b"\x29" + data[8:],
    ],
    ids=["nothing", "not all", "damaged itself", "no batch", "another offset"],
)
def test_what_came_must_be_right(spoiled: Callable[[bytes], bytes]) -> None:
    log, twin = settled(), settled()
    rot(log, 20, 100)
    before = files(log)
    assert run(fill(log, gap_of(log, 20), spoiled(from_offset(twin, 40, BATCH_BYTES)), END)) == 0
    assert files(log) == before


@pytest.mark.parametrize("bound", [40, 41])
def test_not_above_what_all_have(bound: int) -> None:
    log, twin = settled(), settled()
    rot(log, 20, 100)
    assert run(fill(log, gap_of(log, 20), from_offset(twin, 40), bound)) == 0


def test_not_above_the_recovery_point() -> None:
    """There a crash in the middle of it would be the end of the log."""
    log = make_log(SimDisk(), SETTINGS)
    fill_with(log, BATCHES)
    rot(log, BATCHES - 1, 100)
    assert run(find(log, END - 1)) is None


def test_a_log_that_is_cut_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut off is not written again, behind the end or over what came since."""
    log, twin = settled(), settled()
    rot(log, 20, 100)
    gap, data, away = gap_of(log, 20), from_offset(twin, 40), log.disk.away

    async def cut_after(call: Callable[..., Any], *args: Any) -> Any:
        result = await away(call, *args)
        if result == BATCH_BYTES:
            monkeypatch.undo()
            await truncate_to(log, 30)
        return result

    monkeypatch.setattr(log.disk, "away", cut_after)
    assert run(fill(log, gap, data, END)) == 0
    assert log.end_offset == 30 and files(log)[-1] == files(twin)[1][:BATCH_BYTES]


def test_a_failed_sync_is_not_believed() -> None:
    log, twin = settled(), settled()
    rot(log, 20, 100)
    gap = gap_of(log, 20)
    assert isinstance(log.disk, SimDisk)
    log.disk.failing_syncs = lambda path: True
    with pytest.raises(OSError):
        run(fill(log, gap, from_offset(twin, 40), END))
    assert log.failed is not None
