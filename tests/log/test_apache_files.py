"""Files that Apache Kafka 4.3.1 wrote, and ours for the same batches: the same bytes."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.log import checkpoints, identity
from ottla.log.directory import DataDirectory
from ottla.log.log import Log
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.wire.records import batches
from ottla.world import RealDisk

sys.path.insert(0, str(Path(__file__).parent))
from logs import NOW_MS, closed_log, make_log, read_batches, run

GOLDEN = Path(__file__).parent / "apache-4.3.1"
FOREVER = 2**62
SETTINGS = {
    "rolled-0": LogSettings(segment_bytes=16384, index_interval_bytes=1024, producer_id_expiration_ms=FOREVER),
    "transactions-0": LogSettings(segment_bytes=1000, index_interval_bytes=300, producer_id_expiration_ms=FOREVER),
}
ENDS = {"rolled-0": 160, "transactions-0": 49}
INDEX_BYTES = 10_485_760
TIME_INDEX_BYTES = 10_485_756


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "partition.metadata"}


def same_files(ours: Path, theirs: Path) -> None:
    mine, golden = files(ours), files(theirs)
    assert sorted(mine) == sorted(golden)
    for name, data in golden.items():
        assert mine[name] == data, f"{name}: {mine[name].hex(' ')} instead of {data.hex(' ')}"


def golden_copy(name: str, tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    return tmp_path / name


def open_copy(path: Path, name: str, *, clean: bool, recovery_point: int = 0) -> Log:
    log = closed_log(RealDisk(), SETTINGS[name], str(path))
    log.load(clean=clean, recovery_point=recovery_point)
    return log


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_batches_give_the_same_files(name: str, tmp_path: Path) -> None:
    """LOG-10, LOG-11, LOG-20, REC-01, TRAP-01, TRAP-02, TRAP-06, TRAP-61: logs, indexes, snapshots, byte for byte."""
    log = make_log(RealDisk(), SETTINGS[name], str(tmp_path / name))
    for path in sorted((GOLDEN / name).glob("*.log")):
        data = path.read_bytes()
        for position, head in batches(data):
            log.append(memoryview(data)[position : position + head.size], Origin.REPLICATION, -1, NOW_MS)
            log.publish()
    log.close()
    same_files(tmp_path / name, GOLDEN / name)


def test_a_client_gives_the_same_files_too(tmp_path: Path) -> None:
    """REC-02: what a producer sends is what lies on disk, but for offset and epoch."""
    log = make_log(RealDisk(), SETTINGS["rolled-0"], str(tmp_path / "rolled-0"))
    for path in sorted((GOLDEN / "rolled-0").glob("*.log")):
        data = bytearray(path.read_bytes())
        for position, head in list(batches(data)):
            data[position : position + 8] = bytes(8)
            log.append(memoryview(data)[position : position + head.size], Origin.CLIENT, 0, NOW_MS)
    log.publish()
    log.close()
    same_files(tmp_path / "rolled-0", GOLDEN / "rolled-0")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_clean_directory_opens_without_a_scan_and_closes_unchanged(name: str, tmp_path: Path) -> None:
    """LOG-20: ours opens theirs, touches nothing, and leaves it as it was."""
    path = golden_copy(name, tmp_path)
    log = open_copy(path, name, clean=True)
    assert log.recovered is not None and log.recovered.scanned_bytes == 0
    assert (log.start_offset, log.end_offset) == (0, ENDS[name])
    log.close()
    same_files(path, GOLDEN / name)


def as_killed(path: Path) -> None:
    """Kafka preallocates the active indexes, trims them at a clean stop, and writes the last snapshot then."""
    last = max(path.glob("*.log")).stem
    for suffix, size in ((".index", INDEX_BYTES), (".timeindex", TIME_INDEX_BYTES)):
        with open(path / f"{last}{suffix}", "r+b") as file:
            file.truncate(size)
    max(path.glob("*.snapshot")).unlink()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("recovery_point", [0, 30, 130])
def test_a_killed_node_leaves_zeros_at_the_end_of_its_indexes(name: str, recovery_point: int, tmp_path: Path) -> None:
    """TRAP-03, LOG-18: preallocated index tails are no entries; after recovery the files are those of a clean stop."""
    path = golden_copy(name, tmp_path)
    as_killed(path)
    log = open_copy(path, name, clean=False, recovery_point=recovery_point)
    assert log.end_offset == ENDS[name]
    log.close()
    same_files(path, GOLDEN / name)


def without(*suffixes: str) -> Callable[[Path], None]:
    def remove(path: Path) -> None:
        for suffix in suffixes:
            for file in path.glob(f"*{suffix}"):
                file.unlink()

    return remove


def with_garbage(suffix: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        for file in path.glob(f"*{suffix}"):
            file.write_bytes(b"\x01\x02garbage" * 5)

    return spoil


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "damage",
    [without(".index"), without(".timeindex"), without(".index", ".timeindex", ".txnindex", ".snapshot")]
    + [with_garbage(suffix) for suffix in (".index", ".timeindex", ".txnindex", ".snapshot")],
    ids=["no index", "no time index", "nothing but logs", *(f"bad {s}" for s in ("index", "times", "txn", "snapshot"))],
)
def test_what_derives_from_the_log_is_rebuilt_from_it(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """LOG-18, TRAP-07: an unclean start rebuilds indexes, transaction indexes and snapshots, to the byte."""
    path = golden_copy(name, tmp_path)
    damage(path)
    log = open_copy(path, name, clean=False)
    log.close()
    same_files(path, GOLDEN / name)


@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
def test_a_missing_index_is_rebuilt_after_a_clean_stop_too(suffixes: tuple[str, ...], tmp_path: Path) -> None:
    """LOG-12: an index that is not there costs a scan, not the data."""
    path = golden_copy("rolled-0", tmp_path)
    without(*suffixes)(path)
    log = open_copy(path, "rolled-0", clean=True)
    log.close()
    same_files(path, GOLDEN / "rolled-0")


def test_transactions_of_apache_are_found_again(tmp_path: Path) -> None:
    """TRAP-60, TRAP-61: aborted transactions by offset, and the one that is still open holds the last stable offset."""
    log = open_copy(golden_copy("transactions-0", tmp_path), "transactions-0", clean=True)
    assert log.last_stable_offset(49) == 48
    everything = log.aborted_transactions(0, 49)
    assert [(row.first_offset, row.last_offset) for row in everything] == sorted(
        (row.first_offset, row.last_offset) for row in everything
    )
    assert len(everything) == 5
    assert all(row.last_offset >= 30 for row in log.aborted_transactions(30, 49))
    assert [head.base_offset for head in read_batches(log, 0, bound=log.last_stable_offset(49))][-1] < 48


def test_the_directory_of_apache_opens_as_a_whole(tmp_path: Path) -> None:
    """LOG-09, TRAP-12, TRAP-13, TRAP-16: identity, clean mark, checkpoints and topic ids are understood."""
    shutil.copytree(GOLDEN, tmp_path / "data")

    async def opened() -> DataDirectory:
        directory = DataDirectory(RealDisk(), str(tmp_path / "data"), now_ms=lambda: NOW_MS, rng=random.Random(1))
        directory.open()
        await directory.load(lambda topic: SETTINGS[f"{topic}-0"])
        return directory

    directory = run(opened())
    assert (
        directory.meta is not None
        and directory.meta.node_id == 1
        and directory.meta.cluster_id == "MVdii54lSl3Nyae6NapiZw"
    )
    assert directory.clean_epoch is not None and not (tmp_path / "data" / identity.CLEAN_MARK).exists()
    assert sorted(directory.logs) == [("rolled", 0), ("transactions", 0)]
    assert directory.high_watermarks["rolled", 0] == 160
    directory.close(broker_epoch=77)
    assert (tmp_path / "data" / identity.CLEAN_MARK).read_text() == '{"version":0,"brokerEpoch":77}'
    assert (
        checkpoints.read_offsets(RealDisk(), str(tmp_path / "data" / checkpoints.RECOVERY_POINTS))["rolled", 0] == 160
    )
    for name in SETTINGS:
        same_files(tmp_path / "data" / name, GOLDEN / name)


def test_meta_properties_and_partition_metadata_are_written_as_apache_does(tmp_path: Path) -> None:
    """LOG-20: the same lines, so that either can take over from the other."""
    disk = RealDisk()
    meta = identity.read_meta_properties(disk, str(GOLDEN))
    assert meta is not None
    identity.write_meta_properties(disk, str(tmp_path), meta, NOW_MS)
    assert identity.read_meta_properties(disk, str(tmp_path)) == meta
    ours, theirs = ((path / "meta.properties").read_text().splitlines() for path in (tmp_path, GOLDEN))
    assert ours[2:] == theirs[2:]
    topic_id = identity.read_topic_id(disk, str(GOLDEN / "rolled-0"))
    assert topic_id is not None
    identity.write_topic_id(disk, str(tmp_path), topic_id)
    assert (tmp_path / "partition.metadata").read_bytes() == (GOLDEN / "rolled-0" / "partition.metadata").read_bytes()
