"""Apache Kafka's own tool reads our segments, indexes, snapshots and transaction indexes, without complaint."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.compression import Codec
from ottla.wire.records import end_marker
from ottla.world import RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, batch, closed_log, make_log, put

DUMP = "org.apache.kafka.tools.DumpLogSegments"
RunTool = Callable[..., str]
COMPLAINTS = re.compile(
    r"mismatch|non.?secutive|Found timestamp|Could not|Exception|is not|isvalid: false", re.IGNORECASE
)


def write_all_kinds(path: Path) -> Log:
    """Every codec, idempotent and transactional batches, aborts and commits, over several segments."""
    log = make_log(RealDisk(), LogSettings(segment_bytes=4000, index_interval_bytes=500), str(path))
    for number in range(60):
        codec = list(Codec)[number % 5]
        put(log, batch(3, value=b"value %d" % number * 5, timestamp=NOW_MS + number, codec=codec))
        numbered = {"producer_id": 40 + number % 3, "producer_epoch": 0, "base_sequence": number // 3 * 2}
        put(log, batch(2, timestamp=NOW_MS + number, transactional=number % 3 == 1, **numbered))
        if number % 3 == 1 and number < 55:
            marker = end_marker(number % 2 == 0, NOW_MS, producer_id=41, producer_epoch=0, coordinator_epoch=3)
            put(log, memoryview(marker), origin=Origin.COORDINATOR)
    return log


def dump(tool: RunTool, path: Path, *options: str) -> str:
    out = tool(DUMP, "--files", ",".join(map(str, sorted(path.parent.glob(path.name)))), *options)
    assert not COMPLAINTS.search(out), out
    return out


@pytest.mark.apache
@pytest.mark.timeout(180)
@pytest.mark.parametrize("stop", ["clean", "crash and recovery"])
def test_the_dump_tool_reads_everything(stop: str, tmp_path: Path, apache_tool: RunTool) -> None:
    """LOG-20, REC-01, TRAP-01, TRAP-02, TRAP-06, TRAP-61"""
    path = tmp_path / "topic-0"
    log = write_all_kinds(path)
    if stop != "clean":
        log = closed_log(RealDisk(), log.settings, str(path))
        log.load(clean=False)
    end, segments = log.end_offset, len(log.segments)
    log.close()
    assert segments > 3
    records = dump(apache_tool, path / "*.log", "--deep-iteration", "--print-data-log")
    seen = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", records, re.MULTILINE)]
    assert seen == list(range(end))
    assert len(re.findall(r"isvalid: true", records)) == 60 * 2 + 18
    assert "endTxnMarker: ABORT coordinatorEpoch: 3" in records
    for suffix in ("*.index", "*.timeindex"):
        dump(apache_tool, path / suffix)
        assert dump(apache_tool, path / suffix, "--index-sanity-check").count("passed sanity check") == segments
    snapshots = dump(apache_tool, path / "*.snapshot")
    assert snapshots.count("producerId: 40 ") == segments
    aborted = dump(apache_tool, path / "*.txnindex")
    assert aborted.count("producerId: 41 ") == len(list(range(1, 55, 6)))
