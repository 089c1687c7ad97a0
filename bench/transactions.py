"""Transactions, in both generations: how many are committed, how much later read_committed has a record, and the loop.

librdkafka speaks generation 1 (`c/transactions.c`), Kafka's Java clients speak generation 2 (`java/Transactions.java`): each
is what its users have, with its own waits between attempts. Both programs count in the end what the log has gained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import client, drivers
from bench.drivers import Figures
from bench.lines import GENERATIONS
from bench.scenes import PARTITIONS, Size, Tally, attempt, costed
from harness import Server

CROWD = 50
CROWD_RECORDS = 10
LOOP_RECORDS = 100
RATES = {"1": (1, 1), "10": (1, 10), "1000": (1, 1000), "crowd": (CROWD, CROWD_RECORDS)}
DELAYS = {
    "added-p50": "added_p50_us",
    "added-p99": "added_p99_us",
    "committed-p50": "committed_p50_us",
    "uncommitted-p50": "uncommitted_p50_us",
}
Load = Callable[..., Figures]
PROGRAMS: dict[str, Load] = {"gen1": drivers.librdkafka_transactions, "gen2": drivers.java_transactions}


def transactions(server: Server, size: Size, tally: Tally) -> None:
    server.start()
    for topic in ("transacted", "input", "output"):
        client.make_topic(server, topic, PARTITIONS)
    client.make_topic(server, "delayed")
    for generation in GENERATIONS:
        if tally.wants(*_keys(generation)):
            with attempt(tally, f"txn-{generation}"):
                one_generation(generation, server, size, tally)
    server.stop(60)


def one_generation(generation: str, server: Server, size: Size, tally: Tally) -> None:
    """A crowd warms the broker up; each load then warms itself up before its clock starts."""
    load = partial(PROGRAMS[generation], server)
    load("rate", "transacted", size.seconds, size.seconds * 2, PARTITIONS, CROWD, CROWD_RECORDS)
    for name, (producers, records) in RATES.items():
        given = ("rate", "transacted", size.seconds, size.seconds, PARTITIONS, producers, records)
        rate(f"txn-{generation}-{name}", partial(load, *given), server, size, tally)
    if tally.wants(f"txn-{generation}-loop"):
        drivers.bulk(server, "produce", "input", PARTITIONS, size.messages_100 // 3, 100)
    given = ("loop", "output", size.seconds, size.seconds, PARTITIONS, "input", LOOP_RECORDS)
    rate(f"txn-{generation}-loop", partial(load, *given), server, size, tally)
    delays(generation, load, size, tally)


def rate(key: str, load: Callable[[], Figures], server: Server, size: Size, tally: Tally) -> None:
    """Committed transactions in a second; what one costs the client is told, because only then one knows who is measured."""
    if not tally.wants(key):
        return
    with attempt(tally, key):
        for _ in range(size.repeats):
            figures = costed(server, load)
            tally.add_rate(key, figures)
            tally.say(f"{key} broker {figures['cpu_us_each']:,.0f} us, client {figures['client_us_each']:,.0f} us each")


def delays(generation: str, load: Load, size: Size, tally: Tally) -> None:
    """One record in each transaction, its ack, the commit; a reader of each kind notes when it has the record."""
    keys = {f"txn-{generation}-{name}": figure for name, figure in DELAYS.items()}
    if not tally.wants(*keys):
        return
    with attempt(tally, f"txn-{generation}-added"):
        for _ in range(size.repeats):
            figures = load("delay", "delayed", size.seconds, size.latency_seconds)
            for key, figure in keys.items():
                tally.add(key, figures[figure])


def _keys(generation: str) -> list[str]:
    return [f"txn-{generation}-{name}" for name in (*RATES, "loop", *DELAYS)]


LINES = frozenset(key for generation in GENERATIONS for key in _keys(generation))
