"""`ottla transaction`, as people type it, on a node where transactions can be made to hang.

OTTLA_TRANSACTIONS_ON_APACHE=1 asks a node of Apache Kafka instead of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from apache import kafka
from by_hand import Hand
from harness import Node, Server, stop_all
from ottla.cli.main import main
from ottla.cli.transaction import span
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster

# A partition that nobody checks with the coordinator is how transactions come to hang.
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "2",
    "transaction.two.phase.commit.enable": "true",
}
ON_APACHE = bool(os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE"))
STRANGER, LONG_AGO_MS = 777_000, 1_700_000_000_000


async def _prepare(address: str) -> None:
    async with Cluster(address) as cluster:
        await Admin(cluster).create_topic("orders", partitions=2, configs={"retention.ms": "-1"})
        await Hand(cluster, "idle").init()
        done = await Hand(cluster, "done").init()
        await done.write("orders", 0)
        await done.end(True)
        live = await Hand(cluster, "live").init(600_000)
        for partition in range(2):
            await live.write("orders", partition, timestamp=LONG_AGO_MS)
        await Hand(cluster, "nobody", STRANGER).write("orders", 1, timestamp=LONG_AGO_MS, added=False)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("transaction-verbs") / "data"
    server: Server = kafka.Apache(directory, settings=SETTINGS) if ON_APACHE else Node(directory, settings=SETTINGS)
    try:
        address = server.start().address
        asyncio.run(_prepare(address))
        yield address
    finally:
        stop_all([server])


def said(address: str, words: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ended = main(["transaction", *words.split(), "-b", address])
        except SystemExit as end:
            ended = int(end.code or 0)
    assert ended == code, f"{words}: {ended}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue() or err.getvalue()


def as_json(address: str, words: str, code: int = 0) -> Any:
    return json.loads(said(address, f"{words} --json", code))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ["done", "idle", "live"]),
        ("--state ongoing", ["live"]),
        ("--state empty --state completecommit", ["done", "idle"]),
        ("--longer-than 1h", []),
        ("--longer-than 0s", ["live"]),
        ("--pattern .*e", ["done", "idle", "live"]),
        ("--pattern i.*", ["idle"]),
    ],
)
def test_lists(address: str, words: str, found: list[str]) -> None:
    assert [each["transactional_id"] for each in as_json(address, f"list {words}")] == found
    assert [line.split()[0] for line in said(address, f"list {words}").splitlines()[1:]] == found


def test_where_an_id_stands(address: str) -> None:
    (live,) = as_json(address, "describe live")
    assert (live["state"], live["timeout_ms"], live["two_phase"]) == ("Ongoing", 600_000, False)
    assert live["partitions"] == [["orders", 0], ["orders", 1]]
    text = said(address, "describe live idle")
    assert "live  Ongoing  producer" in text and "timeout 10m" in text and "partitions orders:0 orders:1" in text
    assert "idle  Empty" in text
    assert "TRANSACTIONAL_ID_NOT_FOUND" in said(address, "describe nowhere", code=1)


def test_what_a_partition_remembers(address: str) -> None:
    rows = as_json(address, "producers orders:1")
    assert {row["producer_id"] == STRANGER: row["start_offset"] for row in rows} == {False: 0, True: 1}
    assert len(as_json(address, "producers orders")) == 4
    assert "open since offset" in said(address, "producers orders:0")


def test_one_that_hangs_is_found_and_aborted(address: str) -> None:
    """The transaction of a live id is not among them, however old its records are."""
    (hanging,) = as_json(address, "find-hanging")
    assert (hanging["topic"], hanging["partition"], hanging["producer_id"]) == ("orders", 1, STRANGER)
    advice = said(address, "find-hanging orders --longer-than 1d").splitlines()[-1]
    command = advice.partition("ottla transaction ")[2]
    assert command == "abort --partition orders:1 --start-offset 1"
    assert said(address, command) == "aborted in orders:1\n"
    assert said(address, "find-hanging") == "no transaction has been hanging for 15m\n"
    assert "no transaction that began at offset 1 is open in orders:1" in said(address, command, code=1)


def test_a_live_one_is_aborted(address: str) -> None:
    """Its producer is shut out; an id that nobody uses is not made by that."""

    async def begin() -> None:
        async with Cluster(address) as cluster:
            await (await Hand(cluster, "stuck").init()).write("orders", 0)

    asyncio.run(begin())
    assert said(address, "abort stuck") == "aborted stuck; its producer is fenced\n"
    assert said(address, "abort stuck") == "nothing was open under stuck; its producer is fenced\n"
    assert as_json(address, "abort nowhere", code=1)["error"] == "TRANSACTIONAL_ID_NOT_FOUND"
    assert "nowhere" not in said(address, "list")


@pytest.mark.parametrize(
    "words",
    [
        "abort",
        "abort live --partition orders:0",
        "abort --partition orders:0",
        "abort --partition orders --start-offset 1",
        "list --state gone",
        "list --longer-than soon",
        "describe",
    ],
)
def test_mistakes(address: str, words: str) -> None:
    assert said(address, words, code=2)


@pytest.mark.skipif(ON_APACHE, reason="Apache Kafka has no two-phase commit")
def test_one_that_waits_for_an_outside_coordinator(address: str) -> None:
    """It has no timeout and does not hang, however long it is open."""

    async def prepare() -> None:
        async with Cluster(address) as cluster:
            hand = await Hand(cluster, "prepared").init(two_phase=True)
            await hand.write("orders", 0, timestamp=LONG_AGO_MS)

    asyncio.run(prepare())
    assert {each["transactional_id"]: each["two_phase"] for each in as_json(address, "list --state ongoing")} == {
        "live": False,
        "prepared": True,
    }
    lines = said(address, "list").splitlines()[1:]
    assert [line.split()[0] for line in lines if "Ongoing, two-phase" in line] == ["prepared"]
    (described,) = as_json(address, "describe prepared")
    assert (described["state"], described["two_phase"]) == ("Ongoing", True)
    assert "no timeout, an outside coordinator ends it" in said(address, "describe prepared")
    assert described["producer_id"] not in [each["producer_id"] for each in as_json(address, "find-hanging")]
    assert "--force aborts it anyway" in said(address, "abort prepared", code=1)
    assert as_json(address, "describe prepared")[0]["state"] == "Ongoing", "it may have been decided elsewhere"
    assert said(address, "abort prepared --force") == "aborted prepared; its producer is fenced\n"


def test_spans() -> None:
    assert [span(ms) for ms in (0, 1500, 60_000, 5_400_000, 172_800_000)] == ["0s", "1.5s", "1m", "1.5h", "2d"]
