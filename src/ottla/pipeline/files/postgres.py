"""Rows into PostgreSQL, each micro-batch once.

The rows, and a marker that says how far this query has come, are written in one transaction: after a failure Spark repeats
its last micro-batch, and the marker shows that it is there already. A micro-batch of another checkpoint, one that is older,
or one that leaves a hole, is refused: the checkpoint and the table do not belong together. With `keys` a row replaces the one
with the same key; without, rows are added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from ottla.pipeline.committing import Marker, MicroBatch, Outcome, Refused, outcome_of
from ottla.pipeline.plans import UNKNOWN

MARKERS = "ottla_batches"
ORDER = "ottla_row_number"


@dataclass(frozen=True)
class Target:
    address: str  # postgresql://host:port/database
    table: str
    keys: tuple[str, ...]
    user: str
    password: str
    query: str  # whose marker


def write(target: Target, micro_batch: MicroBatch, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
    """One micro-batch; False if it was there already."""
    with (
        psycopg.connect(target.address, user=target.user or None, password=target.password or None) as connection,
        connection.transaction(),
        connection.cursor() as cursor,
    ):
        if _is_there(cursor, target, micro_batch):
            return False
        _insert(cursor, target, columns, rows)
        _mark(cursor, target.query, micro_batch)
    return True


def _is_there(cursor: psycopg.Cursor[Any], target: Target, micro_batch: MicroBatch) -> bool:
    marker = _marker(cursor, target, micro_batch)
    found = outcome_of(marker, micro_batch)
    if found is None:
        query_id, batch_id, _ = micro_batch
        raise Refused(
            f"micro-batch {batch_id} of {target.query} (checkpoint {query_id}) comes after {marker.next_batch - 1} "
            f"(checkpoint {marker.query_id}) in {MARKERS}: the checkpoint and the table do not belong together. To begin "
            f"anew: empty {target.table}, DELETE FROM {MARKERS} WHERE query = '{target.query}', and remove the checkpoint"
        )
    return found is Outcome.SKIPPED


def _marker(cursor: psycopg.Cursor[Any], target: Target, micro_batch: MicroBatch) -> Marker:
    """Locked until the end of the transaction."""
    cursor.execute(
        f"CREATE TABLE IF NOT EXISTS {MARKERS} (query text PRIMARY KEY, checkpoint text NOT NULL, batch bigint NOT NULL, "
        f"plan text NOT NULL DEFAULT '{UNKNOWN}')"
    )
    _add_plans(cursor)
    # There must be one before the first micro-batch too: where two drivers come with that, the second waits for the first.
    first = [target.query, micro_batch.query_id]
    cursor.execute(f"INSERT INTO {MARKERS} VALUES (%s, %s, -1) ON CONFLICT DO NOTHING", first)
    cursor.execute(f"SELECT checkpoint, batch, plan FROM {MARKERS} WHERE query = %s FOR UPDATE", [target.query])
    checkpoint, last, plan = cursor.fetchone()  # type: ignore[misc]  # a row that is there
    return Marker(checkpoint, last + 1, plan)


def _add_plans(cursor: psycopg.Cursor[Any]) -> None:
    """To a table that is older than they are. Where there is one already, nothing is locked for it."""
    cursor.execute("SELECT FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'plan'", [MARKERS])
    if cursor.fetchone() is None:
        cursor.execute(f"ALTER TABLE {MARKERS} ADD COLUMN IF NOT EXISTS plan text NOT NULL DEFAULT '{UNKNOWN}'")


def _insert(cursor: psycopg.Cursor[Any], target: Target, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Everything goes into a table of its own first: COPY is quick, and does not know what to do about a key."""
    table, names = sql.Identifier(*target.table.split(".")), sql.SQL(", ").join(map(sql.Identifier, columns))
    stage, order = sql.Identifier("ottla_stage"), sql.Identifier(ORDER)
    cursor.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(stage, names, table)
    )
    cursor.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} bigserial").format(stage, order))
    with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(stage, names)) as copy:
        for row in rows:
            copy.write_row([_adapted(value) for value in row])
    cursor.execute(_insertion(target, columns).format(table=table, names=names, stage=stage, order=order))


def _insertion(target: Target, columns: Sequence[str]) -> sql.SQL | Any:
    if not target.keys:
        return sql.SQL("INSERT INTO {table} ({names}) SELECT {names} FROM {stage} ORDER BY {order}")
    keys = ", ".join(f'"{key}"' for key in target.keys)
    others = [name for name in columns if name not in target.keys]
    change = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in others)
    # Of several rows with one key the last counts; PostgreSQL takes only one.
    newest = f"SELECT DISTINCT ON ({keys}) {{names}} FROM {{stage}} ORDER BY {keys}, {{order}} DESC"
    then = f"DO UPDATE SET {change}" if others else "DO NOTHING"
    return sql.SQL(f"INSERT INTO {{table}} ({{names}}) {newest} ON CONFLICT ({keys}) {then}")


def _mark(cursor: psycopg.Cursor[Any], query: str, micro_batch: MicroBatch) -> None:
    done = [micro_batch.batch_id, micro_batch.plan, query]
    cursor.execute(f"UPDATE {MARKERS} SET batch = %s, plan = %s WHERE query = %s", done)


def _adapted(value: Any) -> Any:
    """Structures as JSON; everything else PostgreSQL's driver knows."""
    if hasattr(value, "asDict"):
        value = value.asDict(recursive=True)
    if isinstance(value, dict):
        return json.dumps(value, default=_json)
    return bytes(value) if isinstance(value, bytearray) else value


def _json(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
