"""Records come and go in large pieces that lie together."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.sim.disk import SimDisk
from ottla.wire.compression import Codec
from ottla.wire.records import Record, batches, build

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, fill, make_log, put, run


def test_what_arrives_in_one_turn_is_one_write_at_the_end_of_the_file() -> None:
    """IO-01: fifty batches of one partition, one call, and the file only ever grows at its end."""
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    put(log, batch())
    for _ in range(3):
        before = log.size
        disk.trace = []
        for _ in range(50):
            log.append(batch(3), Origin.CLIENT, 0, NOW_MS)
        assert disk.trace == [], "nothing is written before the turn is over"
        log.publish()
        assert disk.trace == [("write", log.active.path + ".log")]
        assert log.size == before + 50 * len(batch(3))


def test_a_fetch_gets_everything_it_may_have_in_one_piece() -> None:
    """IO-02: hundreds of batches are one range of one file, and finding it reads none of them."""
    disk = SimDisk()
    log = make_log(disk, LogSettings())
    fill(log, 5000)
    disk.trace = []
    located = log.locate(0, 1 << 20, log.end_offset)
    assert located.slice is not None and located.data == b""
    data = located.read()
    heads = [head for _, head in batches(data)]
    assert located.size == len(data) <= 1 << 20
    assert len(data) > (1 << 20) - 2 * log.settings.index_interval_bytes, (
        "cut where the index knows a place, no earlier"
    )
    assert [head.base_offset for head in heads] == list(range(0, 2 * len(heads), 2))
    assert not [path for kind, path in disk.trace if kind == "write"]
    rest = run(log.read(heads[-1].next_offset, 1 << 20, log.end_offset))
    assert rest.position == located.position + located.size


@pytest.mark.parametrize(("codec", "times"), [(Codec.GZIP, 5), (Codec.ZSTD, 5), (Codec.LZ4, 4), (Codec.SNAPPY, 4)])
def test_packed_records_take_a_fraction_of_the_disk(codec: Codec, times: int) -> None:
    """REC-07: five to ten times less for lines of JSON with gzip and zstd; the quick codecs come close."""
    lines = [
        json.dumps({"user": n * 7919 % 5000, "page": f"/item/{n * 31 % 977}", "country": "CZ", "agent": "Mozilla/5.0"})
        for n in range(2000)
    ]
    records = [Record(timestamp=NOW_MS + n, value=line.encode()) for n, line in enumerate(lines)]
    sizes = {}
    for chosen in (Codec.NONE, codec):
        log = make_log(settings=LogSettings())
        put(log, memoryview(bytearray(build(records, codec=chosen))))
        sizes[chosen] = log.disk.size(log.active.path + ".log")
    assert sizes[Codec.NONE] / sizes[codec] >= times
