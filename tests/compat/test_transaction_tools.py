"""kafka-transactions.sh: ours beside Apache's, on one node, with transactions in every state and two that hang.

OTTLA_TRANSACTIONS_ON_APACHE=1 asks a node of Apache Kafka instead of ours.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator

import pytest

from apache import kafka
from apache.tools import Ran
from by_hand import Hand
from compat.both_tools import Both, Said, ours
from harness import Node, Server, stop_all
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.transaction_admin import TransactionAdmin, TransactionInfo

pytestmark = pytest.mark.apache

TOOL = "kafka-transactions"
# A partition that nobody checks with the coordinator is how transactions come to hang.
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "5",
    "transaction.two.phase.commit.enable": "true",
}
ON_APACHE = bool(os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE"))
STRANGER = 777_000
LONG_AGO_MS = 1_700_000_000_000


async def _prepare(address: str) -> None:
    async with Cluster(address) as cluster:
        for topic, partitions in {"orders": 3, "quiet": 1}.items():
            await Admin(cluster).create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
        await Hand(cluster, "idle").init()
        for name, committed in {"committed": True, "aborted": False}.items():
            hand = await Hand(cluster, name).init()
            await hand.write("orders", 0)
            await hand.end(committed)
        forgotten = await Hand(cluster, "late").init()
        await forgotten.write("orders", 1)
        await forgotten.end(True)
        await forgotten.write("orders", 1, timestamp=LONG_AGO_MS, added=False)
        live = await Hand(cluster, "open").init(600_000)
        for partition in range(2):
            await live.write("orders", partition, timestamp=LONG_AGO_MS)
        await Hand(cluster, "nobody", STRANGER, 3).write("orders", 2, timestamp=LONG_AGO_MS, added=False)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("transaction-tools") / "data"
    server: Server = kafka.Apache(directory, settings=SETTINGS) if ON_APACHE else Node(directory, settings=SETTINGS)
    try:
        address = server.start().address
        asyncio.run(_prepare(address))
        yield address
    finally:
        stop_all([server])


def asked(address: str, question: Callable[[TransactionAdmin], Awaitable[object]]) -> object:
    async def connected() -> object:
        async with Cluster(address) as cluster:
            return await question(TransactionAdmin(cluster))

    return asyncio.run(connected())


def steady(line: str) -> str:
    """Without how long it took until now; partitions come in the order of a hash table."""
    *cells, last = line.rstrip("\t").split("\t")
    if len(cells) == 8 and cells[7].strip().isdigit():
        cells[7] = re.sub(r"\d+", "N", cells[7].strip())
        last = ",".join(sorted(last.strip().split(",")))
    return "\t".join([*(cell.rstrip() for cell in cells), last.rstrip()])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", {"idle", "committed", "aborted", "late", "open"}),
        ("--duration-filter -1", {"idle", "committed", "aborted", "late", "open"}),
        ("--duration-filter 0", {"idle", "committed", "aborted", "late", "open"}),
        ("--duration-filter 3600000", {"idle"}),
        ("--transactional-id-pattern .*ed", {"committed", "aborted"}),
        ("--transactional-id-pattern late|idle", {"late", "idle"}),
        ("--transactional-id-pattern ed", set()),
    ],
)
def test_lists(both: Both, words: str, found: set[str]) -> None:
    """All ids, those whose last transaction began long ago (or that never began one, as Kafka counts), those that a pattern
    matches as a whole."""
    said = both.same(TOOL, "list", *words.split())
    assert {line.split()[0] for line in said.out} == found | {"TransactionalId"}


@pytest.mark.parametrize("name", ["idle", "committed", "aborted", "late", "open", "never-used"])
def test_descriptions(both: Both, name: str) -> None:
    """State, timeout and partitions of an id; what is not known is said in Kafka's words, with exit code 1."""
    said = both.same(TOOL, "describe", "--transactional-id", name, normal=steady)
    assert said.code == (name == "never-used")
    assert any("orders-0,orders-1" in line for line in said.out) == (name == "open")


@pytest.mark.parametrize("where", ["orders 0", "orders 1", "orders 2", "quiet 0", "orders 2 --broker-id 1"])
def test_producers_of_a_partition(both: Both, where: str) -> None:
    topic, partition, *more = where.split()
    both.same(TOOL, "describe-producers", "--topic", topic, "--partition", partition, *more)


@pytest.mark.parametrize(
    "words",
    [
        "--topic orders",
        "--topic orders --partition 1",
        "--broker-id 1",
        "--broker-id 1 --topic orders --max-transaction-timeout 1",
        "--topic quiet",
        "--topic orders --max-transaction-timeout 99999999",
    ],
)
def test_those_that_hang(both: Both, words: str) -> None:
    """An open transaction of a live id is none of them, however old; one that its coordinator does not count in is."""
    said = both.same(TOOL, "find-hanging", *words.split())
    hanging = {tuple(line.split()[:2]) for line in said.out if line.startswith("orders")}
    expected = {("orders", "1"), ("orders", "2")}
    if "--partition 1" in words:
        expected = {("orders", "1")}
    assert hanging == (set() if "quiet" in words or "999" in words else expected)


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "",
        "list --help",
        "find-hanging",
        "find-hanging --partition 0",
        "find-hanging --topic nowhere",
        "find-hanging --topic orders --partition x",
        "find-hanging --topic orders --max-transaction-timeout 99999999999",
        "describe",
        "describe-producers --topic orders",
        "describe-producers --partition 0",
        "abort --topic orders --partition 0",
        "abort --topic orders --partition 0 --producer-id 5",
        "abort --topic orders --partition 0 --producer-id 5 --producer-epoch 1",
        "abort --topic orders --partition 0 --start-offset 99999",
        "abort --topic orders --partition 0 --start-offset x",
        "abort --topic orders --partition 0 --producer-id 5 --producer-epoch 70000 --coordinator-epoch 0",
        "abort --topic orders --partition 2 --producer-id 777000 --producer-epoch 2 --coordinator-epoch 0",
        "list --duration-filter soon",
        "list --transactional-id-pattern (",
        "list --foo",
        "forceTerminateTransaction",
        "force-terminate",
        "--command-config /nowhere/at/all list",
    ],
)
def test_mistakes(both: Both, words: str) -> None:
    """The same words for what is wrong, and the same exit code; nothing is ended by any of them."""
    theirs, mine = (spoken(run(TOOL, *both.bootstrap, *words.split())) for run in (both.apache.run, ours))
    assert mine == theirs
    assert mine.code == 1


def spoken(ran: Ran) -> Said:
    """Of argparse4j's text the message alone, with its blanks evened out; usage is laid out in another way."""
    err = "\n".join(line for line in ran.err.splitlines() if "ERROR" not in line and not line.startswith("\tat "))
    message = re.search(r"error:\s+(.*?)(?:\s+Did you mean:.*)?$", err, re.DOTALL)
    told = " ".join((message[1] if message else err).split()).replace("-- ", "--")
    return Said(ran.code, [] if "usage:" in ran.out else ran.out.splitlines(), [told])


def test_without_an_address(both: Both) -> None:
    for words in ("list", "--bootstrap-server nonsense list"):
        theirs, mine = (run(TOOL, *words.split()) for run in (both.apache.run, ours))
        assert mine.code == theirs.code == 1
    assert ours(TOOL, "--version").out == "4.3.1\n"
    assert both.apache.run(TOOL, "--version").out.startswith("4.3.1")


@pytest.mark.parametrize("tool", ["apache", "ours"])
def test_hanging_transactions_are_aborted(both: Both, address: str, tool: str) -> None:
    """By the offset at which they began, and by producer; then nothing hangs, and readers of committed records go on."""
    run = both.apache.run if tool == "apache" else ours
    partition = TopicPartition("quiet", 0)

    async def hang() -> None:
        async with Cluster(address) as cluster:
            for number in range(2):
                stranger = Hand(cluster, "nobody", STRANGER + 10 * len(tool) + number)
                await stranger.write("quiet", 0, timestamp=LONG_AGO_MS, added=False)

    async def open_ones(admin: TransactionAdmin) -> list[tuple[int, int]]:
        found = (await admin.producers([partition]))[partition]
        return [(each.start_offset, each.producer_id) for each in found if each.start_offset is not None]

    asyncio.run(hang())
    (first, _), (_, producer) = sorted(asked(address, open_ones))  # type: ignore[call-overload]
    at = [*both.bootstrap, "abort", "--topic", "quiet", "--partition", "0"]
    by_offset = run(TOOL, *at, "--start-offset", str(first))
    assert by_offset == Ran(0, "", "")
    words = f"--producer-id {producer} --producer-epoch 0 --coordinator-epoch -1".split()
    assert run(TOOL, *at, *words) == Ran(0, "", "")
    assert asked(address, open_ones) == []
    assert both.same(TOOL, "find-hanging", "--topic", "quiet").out[0].startswith("Topic")


@pytest.mark.parametrize("tool", ["apache", "ours"])
def test_a_live_transaction_is_ended_by_force(both: Both, address: str, tool: str) -> None:
    """Its producer is shut out; an id that nobody used before is no mistake."""
    run = both.apache.run if tool == "apache" else ours
    name = f"forced-by-{tool}"

    async def begin() -> None:
        async with Cluster(address) as cluster:
            hand = await Hand(cluster, name).init()
            await hand.write("quiet", 0)

    async def state(admin: TransactionAdmin) -> tuple[str, int]:
        info = await admin.describe(name)
        return info.state, info.epoch

    asyncio.run(begin())
    assert asked(address, state) == ("Ongoing", 0)
    for transactional_id in (name, f"{name}-for-the-first-time"):
        ended = run(TOOL, *both.bootstrap, "forceTerminateTransaction", "--transactionalId", transactional_id)
        assert ended == Ran(0, "", "")
    assert asked(address, state) == ("Empty", 2)


@pytest.mark.skipif(ON_APACHE, reason="Apache Kafka has no two-phase commit")
def test_one_that_waits_for_an_outside_coordinator(both: Both, address: str) -> None:
    """KIP-939: it is open, with the longest timeout there is, and does not hang, however old. Only force ends it."""

    async def prepare() -> None:
        async with Cluster(address) as cluster:
            hand = await Hand(cluster, "prepared").init(two_phase=True)
            await hand.write("quiet", 0, timestamp=LONG_AGO_MS)

    asyncio.run(prepare())
    listed = both.same(TOOL, "list", "--transactional-id-pattern", "prepared")
    assert [line.split()[0] for line in listed.out if "Ongoing" in line] == ["prepared"]
    described = both.same(TOOL, "describe", "--transactional-id", "prepared", normal=steady)
    assert any("2147483647" in line and "quiet-0" in line for line in described.out)
    hanging = both.same(TOOL, "find-hanging", "--topic", "quiet", "--max-transaction-timeout", "1")
    assert not any(line.startswith("quiet") for line in hanging.out)
    assert (
        both.apache.run(TOOL, *both.bootstrap, "forceTerminateTransaction", "--transactionalId", "prepared").code == 0
    )
    info = asked(address, lambda admin: admin.describe("prepared"))
    assert isinstance(info, TransactionInfo) and info.state == "Empty"
