"""What tasks hand to the driver: in the message, in a file, and nowhere any more when all is over."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from ottla.pipeline import spool as spooling
from ottla.pipeline.rows import Made
from ottla.pipeline.spool import Entry, Filling, Spool, SpoolError
from ottla.wire.errors import KafkaError
from ottla.wire.records import Record, build
from pipeline.stores import store

SINK = "sink/of ../orders"


def made(number: int, size: int = 100) -> Made:
    return Made("t", number, bytearray(build([Record(timestamp=number, value=bytes(size))])))


def fill(spool: Spool, above_bytes: int, count: int = 10) -> spooling.Parcel:
    with Filling(spool, above_bytes) as filling:
        for number in range(count):
            filling.add(made(number))
        return filling.seal()


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("above_bytes", "in_file"), [(1 << 20, False), (500, True), (0, True)])
def test_what_goes_in_comes_out(tmp_path, above_bytes, in_file):
    spool = Spool.prepare(str(tmp_path), SINK)
    parcel = pickle.loads(pickle.dumps(fill(spool, above_bytes)))
    assert (parcel.path is not None, parcel.data == b"") == (in_file, in_file)
    assert list(spool.read(parcel)) == [(Entry("t", n, len(made(n).data)), made(n).data) for n in range(10)]
    assert parcel.size == sum(len(made(n).data) for n in range(10))
    assert len(files(tmp_path)) == in_file


def test_nothing_at_all_is_a_parcel_too(tmp_path):
    spool = Spool.prepare(str(tmp_path), SINK)
    parcel = fill(spool, 0, count=0)
    assert list(spool.read(parcel)) == [] and files(tmp_path) == []


def test_a_task_that_fails_leaves_no_file(tmp_path):
    spool = Spool.prepare(str(tmp_path), SINK)
    with pytest.raises(ZeroDivisionError), Filling(spool, 0) as filling:
        filling.add(made(1))
        assert len(files(tmp_path)) == 1
        raise ZeroDivisionError
    assert files(tmp_path) == []


def test_the_driver_clears_all_of_its_sink_and_nothing_else(tmp_path):
    """Also what attempts left that were killed, of this write and of earlier ones; by another writer of the same sink."""
    for _ in range(2):
        fill(Spool.prepare(str(tmp_path), SINK), 0)
    other = fill(Spool.prepare(str(tmp_path), "another"), 0)
    assert len(files(tmp_path)) == 3
    Spool.prepare(str(tmp_path), SINK).clear()
    assert [str(path) for path in files(tmp_path)] == [other.path]
    Spool.prepare(str(tmp_path), SINK).clear()


def test_a_driver_that_gives_up_takes_only_its_own_away(tmp_path):
    """One that is refused must not take the files of the one that is at work under the same name."""
    mine, theirs = (Spool.prepare(str(tmp_path), SINK) for _ in range(2))
    kept, _ = fill(theirs, 0), fill(mine, 0)
    mine.give_up()
    mine.give_up()
    assert [str(path) for path in files(tmp_path)] == [kept.path]


def test_what_nobody_came_back_for_is_swept_away_after_a_day(tmp_path):
    fill(Spool.prepare(str(tmp_path), "dead"), 0)
    fill(Spool.prepare(str(tmp_path), "alive"), 0)
    long_ago = (tmp_path / "dead").stat().st_mtime - spooling.LEFT_OVER_SECONDS - 60
    os.utime(tmp_path / "dead", (long_ago, long_ago))
    Spool.prepare(str(tmp_path), SINK)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["alive", spooling._file_name(SINK)])


def test_a_task_on_another_machine_says_what_to_set(tmp_path, monkeypatch):
    """It does not find the directory that the driver made: a little stays in memory, much is refused."""
    spool = Spool.prepare(str(tmp_path), SINK)
    spool.clear()
    assert fill(spool, 0).path is None and files(tmp_path) == []
    monkeypatch.setattr(spooling, "MEMORY_BYTES_MAX", 500)
    with pytest.raises(SpoolError, match="spoolPath"):
        fill(spool, 0)


def test_a_file_that_was_changed_is_not_sent(tmp_path):
    spool = Spool.prepare(str(tmp_path), SINK)
    parcel = fill(spool, 0)
    content = bytearray(Path(str(parcel.path)).read_bytes())
    for damaged in (content[:-1], content[:500] + b"x" + content[501:]):
        Path(str(parcel.path)).write_bytes(damaged)
        with pytest.raises(KafkaError, match="not as the task wrote it"):
            list(spool.read(parcel))


def test_a_uri_is_a_place_too(tmp_path):
    spool = Spool.prepare(f"file://{tmp_path}", SINK)
    assert len(list(spool.read(fill(spool, 0)))) == 10
    spool.clear()
    assert files(tmp_path) == []


def test_a_store_of_objects_is_a_place_too():
    """Large files go there in parts. A task that fails leaves none, and the driver takes away its own, or all."""
    with store() as far:
        spool, other = (Spool.prepare(far.uri("bucket/a%20spool"), SINK) for _ in range(2))
        for each in (spool, other):
            with Filling(each, 0) as filling:
                for number in range(4):
                    filling.add(made(number, 3_000_000))
                parcel = filling.seal()
        with pytest.raises(KeyError), Filling(spool, 0) as filling:
            filling.add(made(0))
            raise KeyError
        assert len(far.files()) == 2
        assert [data for _, data in other.read(parcel)] == [made(number, 3_000_000).data for number in range(4)]
        spool.give_up()
        assert far.files() == [parcel.path]
        spool.clear()
        assert far.files() == []


def test_a_place_that_cannot_be_used_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for root in ("nonsense://x", str(tmp_path / "file")):
        with pytest.raises(SpoolError, match=r"spoolPath .* cannot be used"):
            Spool.prepare(root, SINK)
    monkeypatch.chdir(tmp_path)
    assert Spool.prepare("here", SINK).root == str(tmp_path / "here")


def test_without_a_place_it_is_one_that_only_we_can_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool.prepare(None, SINK)
    assert Path(spool.root).parent == tmp_path and Path(spool.root).stat().st_mode & 0o077 == 0
    other = tmp_path / "elsewhere"
    other.mkdir()
    Path(spool.root, spool.sink, spool.write).rmdir()
    Path(spool.root, spool.sink).rmdir()
    Path(spool.root).rmdir()
    Path(spool.root).symlink_to(other)
    with pytest.raises(SpoolError, match="belongs to somebody else"):
        Spool.prepare(None, SINK)


def test_names_of_sinks_are_names_of_files():
    names = [spooling._file_name(name) for name in ("..", ".", "a/b", "ä" * 300, "ä" * 300 + "x", "a b")]
    assert len(set(names)) == len(names)
    assert all("/" not in name and name.strip(".") and len(name) < 255 for name in names)
