"""Payments that are in a database and in topics, or in neither: two-phase commit over PostgreSQL and a Kafka transaction.

This program is the coordinator of both. Each payment goes through seven steps:

    1 insert    a row, in a database transaction
    2 post      two records, in a Kafka transaction
    3 prepare   everything is written to the topics and waits; the broker names the transaction
    4 vote      PREPARE TRANSACTION: the database promises that it can commit, whatever happens
    5 decide    the name goes into a file, and to the disk: from here on the payment is made
    6 row       COMMIT PREPARED
    7 records   the Kafka transaction is committed

Killed at any moment, it finds out at its next start what was decided: whatever both sides still hold is committed if the
file says so, and rolled back if not. The name of a transaction never comes back, so an old decision cannot commit a new one.

    python payments.py localhost:9092 "host=/tmp dbname=postgres" decisions 10
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import psycopg

from ottla.client.cluster import Cluster
from ottla.client.producer import Producer
from ottla.client.transactions import NOTHING, Outcome, Prepared

DEBITS, CREDITS = "debits", "credits"
STEPS = ("insert", "post", "prepare", "vote", "decide", "row", "records")


class Decisions:
    """A file with a line for each payment that was decided: its number, and the name of its Kafka transaction."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a+", encoding="ascii")  # noqa: SIM115 - it stays open
        self._file.seek(0)
        whole = self._file.read().rpartition("\n")[0]
        # A line that was cut off decides nothing: nobody had been told to commit.
        self._file.truncate(len(whole) + 1 if whole else 0)
        lines = (line.split() for line in whole.splitlines())
        self.made = {int(number): Prepared.read(name) for number, name in lines}

    @property
    def last(self) -> Prepared:
        return self.made[max(self.made)] if self.made else NOTHING

    def decide(self, number: int, prepared: Prepared) -> None:
        self._file.write(f"{number} {prepared}\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.made[number] = prepared


def open_database(where: str) -> psycopg.Connection:
    database = psycopg.connect(where, autocommit=True)
    database.execute("CREATE TABLE IF NOT EXISTS payments (number int PRIMARY KEY)")
    return database


def recover_rows(database: psycopg.Connection, decisions: Decisions) -> None:
    """What the database still holds is committed if that was decided, and rolled back if not."""
    for (name,) in database.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'payment-%'").fetchall():
        number = int(name.removeprefix("payment-"))
        database.execute(f"{'COMMIT' if number in decisions.made else 'ROLLBACK'} PREPARED '{name}'")


async def recover_records(producer: Producer, decisions: Decisions) -> Outcome:
    await producer.init(keep_prepared=True)
    return await producer.complete(decisions.last)


async def pay(
    number: int,
    database: psycopg.Connection,
    producer: Producer,
    decisions: Decisions,
    reached: Callable[[int, str], None],
) -> None:
    database.execute("BEGIN")
    database.execute("INSERT INTO payments VALUES (%s)", (number,))
    reached(number, "insert")
    producer.begin()
    posted = [await producer.post(topic, str(number).encode()) for topic in (DEBITS, CREDITS)]
    reached(number, "post")
    prepared = await producer.prepare()
    await asyncio.gather(*posted)
    reached(number, "prepare")
    database.execute(f"PREPARE TRANSACTION 'payment-{number}'")
    reached(number, "vote")
    decisions.decide(number, prepared)
    reached(number, "decide")
    database.execute(f"COMMIT PREPARED 'payment-{number}'")
    reached(number, "row")
    await producer.commit()
    reached(number, "records")


async def make_payments(
    broker: str, where: str, path: str, count: int, reached: Callable[[int, str], None] = lambda number, step: None
) -> None:
    """Go on where the last run ended, and make so many payments more."""
    decisions = Decisions(path)
    with open_database(where) as database:
        recover_rows(database, decisions)
        async with (
            Cluster(broker) as cluster,
            Producer(cluster, transactional_id="payments", two_phase_commit=True) as producer,
        ):
            print("left behind:", (await recover_records(producer, decisions)).value, flush=True)
            first = max(decisions.made, default=0) + 1
            for number in range(first, first + count):
                await pay(number, database, producer, decisions, reached)


if __name__ == "__main__":
    broker, where, path, count = sys.argv[1:]
    asyncio.run(make_payments(broker, where, path, int(count)))
