"""Rows into a real PostgreSQL, each micro-batch once. Left out where the server or its driver is not installed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest

from pipeline.databases import postgresql

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'ottla[postgres]'")
from ottla.pipeline.committing import MicroBatch, Refused  # noqa: E402
from ottla.pipeline.files import postgres, sinks  # noqa: E402
from ottla.pipeline.files.spec import read_object  # noqa: E402

SECONDS = 60


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as address:
        yield address


@pytest.fixture
def target(database: str, request: pytest.FixtureRequest) -> postgres.Target:
    name = f"t{abs(hash(request.node.name))}"
    with psycopg.connect(database) as connection:
        connection.execute(f'CREATE TABLE {name} (page text PRIMARY KEY, n bigint, "Sum" numeric, data jsonb)')
    return postgres.Target(database, name, ("page",), "", "", f"pipeline.{name}")


def rows(target: postgres.Target) -> list[tuple[object, ...]]:
    with psycopg.connect(target.address) as connection:
        return connection.execute(f'SELECT page, n, "Sum", data FROM {target.table} ORDER BY page').fetchall()


COLUMNS = ["page", "n", "Sum", "data"]


def test_rows_replace_those_with_the_same_key(target):
    assert postgres.write(
        target, MicroBatch("query", 0), COLUMNS, [("a", 1, Decimal("1.5"), {"x": Decimal(1)}), ("b", 1, None, None)]
    )
    assert postgres.write(
        target, MicroBatch("query", 1), COLUMNS, [("a", 2, None, None), ("c", 3, None, None), ("a", 4, None, None)]
    )
    assert rows(target) == [("a", 4, None, None), ("b", 1, None, None), ("c", 3, None, None)], "the last one counts"


def test_a_micro_batch_that_comes_again_changes_nothing(target):
    """Exactly once: after a failure Spark repeats its last micro-batch, perhaps with other rows."""
    assert postgres.write(target, MicroBatch("query", 0), COLUMNS, [("a", 1, None, {"x": 1})])
    assert not postgres.write(target, MicroBatch("query", 0), COLUMNS, [("z", 9, None, None)])
    assert rows(target) == [("a", 1, None, {"x": 1})]


def test_one_that_fails_half_way_leaves_nothing(target):
    def failing() -> Iterator[tuple[object, ...]]:
        yield ("a", 1, None, None)
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        postgres.write(target, MicroBatch("query", 0), COLUMNS, failing())
    assert rows(target) == []
    assert postgres.write(target, MicroBatch("query", 0), COLUMNS, [("a", 1, None, None)])


@pytest.mark.parametrize("batch", [0, 3])
def test_a_checkpoint_that_does_not_belong_to_the_table_is_refused(target, batch):
    """A lost checkpoint begins at 0 again, an old table leaves a hole: neither may be taken for the next micro-batch."""
    for number in (0, 1):
        postgres.write(target, MicroBatch("query", number), COLUMNS, [])
    with pytest.raises(Refused, match=f"micro-batch {batch} of .* comes after 1 .* in ottla_batches"):
        postgres.write(target, MicroBatch("query", batch), COLUMNS, [("a", 1, None, None)])
    assert rows(target) == []


def test_a_checkpoint_that_was_lost_after_its_first_micro_batch_is_noticed(target):
    """Its number alone would pass for a repetition."""
    postgres.write(target, MicroBatch("lost", 0), COLUMNS, [])
    with pytest.raises(Refused):
        postgres.write(target, MicroBatch("new", 0), COLUMNS, [("a", 1, None, None)])


def test_the_first_micro_batch_of_two_drivers_is_written_once(target):
    """One that was taken for dead goes on while its successor repeats the micro-batch: there is no marker to lock yet."""
    plain = postgres.Target(target.address, target.table, (), "", "", target.query)
    postgres.write(replace(plain, query="before"), MicroBatch("before", 0), COLUMNS, [])  # makes the table of markers
    both, other_waits = threading.Barrier(2), threading.Event()

    def slowly() -> Iterator[tuple[object, ...]]:
        yield ("a", 1, None, None)
        both.wait(SECONDS)
        other_waits.wait(SECONDS)

    with ThreadPoolExecutor(2) as drivers:
        first = drivers.submit(postgres.write, plain, MicroBatch("query", 0), COLUMNS, slowly())
        both.wait(SECONDS)
        second = drivers.submit(postgres.write, plain, MicroBatch("query", 0), COLUMNS, [("b", 1, None, None)])
        until_somebody_waits(target.address, second)
        other_waits.set()
        assert (first.result(SECONDS), second.result(SECONDS)) == (True, False)
    assert [row[0] for row in rows(target)] == ["a"]


def until_somebody_waits(address: str, other: Future[bool]) -> None:
    """For a lock, or does not and is done."""
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(address, autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() and not other.done():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_without_keys_rows_are_added(target):
    plain = postgres.Target(target.address, target.table, (), "", "", target.query)
    postgres.write(plain, MicroBatch("query", 0), ["page"], [("a",), ("b",)])
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres.write(plain, MicroBatch("query", 1), ["page"], [("c",), ("a",)])
    assert [row[0] for row in rows(target)] == ["a", "b"]


def test_a_micro_batch_that_was_planned_anew_is_no_repetition(target):
    """Of a checkpoint that is one micro-batch older: what it has more would be lost. One whose plan nobody knows passes."""
    postgres.write(target, MicroBatch("query", 0, "first"), COLUMNS, [("a", 1, None, None)])
    assert not postgres.write(target, MicroBatch("query", 0, "first"), COLUMNS, [("z", 9, None, None)])
    assert not postgres.write(target, MicroBatch("query", 0), COLUMNS, [("z", 9, None, None)])
    with pytest.raises(Refused, match=r"micro-batch 0 of .* comes after 0 "):
        postgres.write(target, MicroBatch("query", 0, "second"), COLUMNS, [("a", 1, None, None), ("b", 1, None, None)])
    assert [row[0] for row in rows(target)] == ["a"]


class Batch:
    """Stands for a frame, and says what was done with it."""

    def __init__(self) -> None:
        self.columns, self.done, self.write = ["page"], [], self

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[tuple[str]]:
        self.done.append("taken")
        return iter([("a",)])

    def format(self, name: str) -> Batch:
        self.done.append(name)
        return self

    def mode(self, name: str) -> Batch:
        return self

    def save(self) -> None:
        self.done.append("saved")


def test_one_that_is_skipped_is_computed_all_the_same(target, tmp_path, monkeypatch):
    """Once, and not by two at the same time: Spark keeps its state with it, and without that the query could not go on."""
    monkeypatch.setattr(sinks.Asked, "query_of", lambda self, batch: "query")
    sink = {"from": "s", "jdbc": f"jdbc:{target.address}", "table": target.table}
    spec = read_object({"name": target.table, "sources": {"s": {"rate": 1}}, "sinks": {"out": sink}}, tmp_path)
    write, first, again = sinks._to_postgres(spec.sinks[0], spec), Batch(), Batch()
    write(first, 0)  # type: ignore[arg-type]
    write(again, 0)  # type: ignore[arg-type]
    assert (first.done, again.done) == (["taken"], ["noop", "saved"])
    assert [row[0] for row in rows(target)] == ["a"]


def test_a_table_of_markers_from_before_plans_is_used_on(target):
    with psycopg.connect(target.address) as connection:
        connection.execute("CREATE SCHEMA old")
        connection.execute(
            "CREATE TABLE old.ottla_batches (query text PRIMARY KEY, checkpoint text NOT NULL, batch bigint NOT NULL)"
        )
        connection.execute("INSERT INTO old.ottla_batches VALUES (%s, 'query', 4)", [target.query])
    old = replace(target, address=f"{target.address}&options=-csearch_path%3Dold,public")
    assert not postgres.write(old, MicroBatch("query", 4, "fourth"), COLUMNS, [("z", 9, None, None)])
    assert postgres.write(old, MicroBatch("query", 5, "fifth"), COLUMNS, [("a", 1, None, None)])
    with pytest.raises(Refused):
        postgres.write(old, MicroBatch("query", 5, "another"), COLUMNS, [("z", 9, None, None)])
    assert [row[0] for row in rows(target)] == ["a"]
