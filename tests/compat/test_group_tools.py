"""kafka-consumer-groups.sh, kafka-get-offsets.sh and kafka-delete-records.sh: ours beside Apache's, on one node."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from apache import kafka
from compat.both_tools import Both, ours
from harness import Node, Server, stop_all
from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, Cluster, TopicPartition
from ottla.client.commits import Committed
from ottla.client.group import GroupConsumer
from ottla.client.groups import GroupAdmin
from ottla.client.membership import Manners
from ottla.client.producer import Producer
from ottla.wire.errors import KafkaError

pytestmark = pytest.mark.apache

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}
LONG_TOPIC = "a-topic-with-a-rather-long-name"
TOPICS = {"orders": 4, "items": 2, "empty": 1, LONG_TOPIC: 1}
START_MS = 1_700_000_000_000
# Group, protocol, topics, instance id: one member each.
MEMBERS = (
    ("plain", "classic", ["orders", "items"], None),
    ("plain", "classic", ["orders"], None),
    ("still", "classic", ["orders"], "instance-1"),
    ("modern", "consumer", ["orders", "items"], None),
    ("modern", "consumer", ["orders"], None),
    ("a-group-with-a-rather-long-name", "consumer", [LONG_TOPIC, "orders"], "i"),
)


class Crew:
    """Members on a loop of their own, in a thread: they stay while the tools look at them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.settled = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Crew:
        self._thread.start()
        assert self.settled.wait(60), "the members did not settle"
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(30)

    def _run(self) -> None:
        try:
            self._main = self._loop.create_task(self._live())
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as failure:
            self.failure = failure
        finally:
            self.settled.set()

    async def _live(self) -> None:
        async with Cluster(self.address, client_id="crew") as cluster:
            members = [
                GroupConsumer(
                    cluster,
                    group,
                    topics,
                    protocol=protocol,
                    manners=Manners(heartbeat_ms=200, instance_id=instance),
                    reset=EARLIEST,
                    wait_ms=100,
                    auto_commit_ms=100,
                )
                for group, protocol, topics, instance in MEMBERS
            ]
            readers = [asyncio.create_task(_read(consumer)) for consumer in members]
            try:
                while not await _is_settled(cluster):
                    for reader in readers:
                        if reader.done():
                            reader.result()
                    await asyncio.sleep(0.1)
                self.settled.set()
                await asyncio.gather(*readers)
            finally:
                for reader in readers:
                    reader.cancel()
                await asyncio.wait(readers)
                for consumer in members:
                    await consumer.close()


async def _read(consumer: GroupConsumer) -> None:
    while True:
        await consumer.fetch()


async def _is_settled(cluster: Cluster) -> bool:
    """Everybody owns what the others leave, and everything that was read is committed."""
    groups = GroupAdmin(cluster)
    for group in dict.fromkeys(member[0] for member in MEMBERS):
        topics = {topic for member in MEMBERS if member[0] == group for topic in member[2]}
        try:
            info = await groups.describe(group)
        except KafkaError:
            return False
        owned = [where for member in info.members for where in member.assignment]
        committed = await groups.offsets(group)
        count = sum(TOPICS[topic] for topic in topics)
        expected = sum(1 for member in MEMBERS if member[0] == group)
        if (info.state, len(info.members), len(owned), len(committed)) != ("Stable", expected, count, count):
            return False
        if any(what.offset != (10 if where.topic == "orders" else 0) for where, what in committed.items()):
            return False
    return True


async def _prepare(address: str) -> None:
    async with Cluster(address) as cluster:
        admin = Admin(cluster)
        for topic, partitions in TOPICS.items():
            await admin.create_topic(topic, partitions=partitions, configs={"retention.ms": "-1"})
        async with Producer(cluster) as producer:
            for i in range(40):
                await producer.post("orders", b"%d" % i, partition=i % 4, timestamp=START_MS + 1000 * i)
        offsets = {TopicPartition("orders", 0): Committed(4), TopicPartition("orders", 1): Committed(7, 0, "note")}
        await GroupAdmin(cluster).alter_offsets("idle", offsets | {TopicPartition("empty", 0): Committed(0)})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("group-tools") / "data"
    on_apache = os.environ.get("OTTLA_GROUPS_ON_APACHE")
    server: Server = kafka.Apache(directory, settings=QUICK) if on_apache else Node(directory, settings=QUICK)
    try:
        address = server.start().address
        asyncio.run(_prepare(address))
        with Crew(address):
            yield address
    finally:
        stop_all([server])


GROUPS = "kafka-consumer-groups"


@pytest.mark.parametrize("words", ["", "--state", "--state --type", "--state stable,Empty", "--type classic"])
def test_lists(both: Both, words: str) -> None:
    """CLI-07"""
    said = both.same(GROUPS, "--list", *words.split())
    assert any("modern" in line for line in said.out) == ("classic" not in words)


@pytest.mark.parametrize(
    "view", ["", "--offsets --verbose", "--members", "--members --verbose", "--state", "--state --verbose"]
)
def test_descriptions(both: Both, view: str) -> None:
    """CLI-08, GRP-28: assignment, current offset, log end and lag; members; state. In the same order of lines, too."""
    groups = ("plain", "still", "modern", "a-group-with-a-rather-long-name", "idle")
    names = [word for group in groups for word in ("--group", group)]
    said = both.same(GROUPS, "--describe", *names, *view.split(), sorts=False)
    told = [group for group in groups if any(line.startswith(group) for line in said.out)]
    assert told == [group for group in groups if group != "idle" or "--members" not in view]


def test_descriptions_of_all_and_of_none(both: Both) -> None:
    both.same(GROUPS, "--describe", "--all-groups", "--state", sorts=False)
    said = both.same(GROUPS, "--describe", "--group", "nobody")
    assert any("Group nobody not found" in line for line in said.out)


@pytest.mark.parametrize(
    "words",
    [
        "--to-earliest --topic orders",
        "--to-latest --topic orders:1,3 --export",
        "--to-offset 6 --topic orders --topic empty",
        "--to-current --all-topics",
        "--to-current --topic orders",
        "--shift-by 2 --all-topics",
        "--shift-by -2 --topic orders:0,1 --export",
        "--to-datetime 2023-11-14T22:13:50.000 --topic orders",
        "--to-datetime 2023-11-14T23:13:50.000+01:00 --topic orders",
        "--to-datetime 2040-01-01T00:00:00.000 --topic orders",
        "--by-duration P9000D --topic orders --topic empty",
        "--by-duration PT0.5S --topic orders:0",
    ],
)
def test_plans_of_resets(both: Both, words: str) -> None:
    """CLI-09, CLI-10, OFF-11: every way to say where to, as a table and as CSV; nothing is written by a dry run."""
    before = ours(GROUPS, *both.bootstrap, "--describe", "--group", "idle").out
    said = both.same(GROUPS, "--reset-offsets", "--group", "idle", "--dry-run", *words.split())
    assert any("orders" in line for line in said.out)
    assert ours(GROUPS, *both.bootstrap, "--describe", "--group", "idle").out == before


def test_plans_from_files(both: Both, tmp_path: Path) -> None:
    """What --export wrote, --from-file takes: for one group without its name, for several with it."""
    one, several = tmp_path / "one.csv", tmp_path / "several.csv"
    reset = [*both.bootstrap, "--reset-offsets", "--dry-run", "--export", "--to-offset", "3", "--topic", "orders"]
    one.write_text(ours(GROUPS, *reset, "--group", "idle").out.rstrip("\n") + "\n")
    several.write_text(ours(GROUPS, *reset, "--group", "idle", "--group", "other").out.rstrip("\n") + "\n")
    for path, groups in ((one, ["idle"]), (several, ["idle", "other"]), (several, ["third", "idle"])):
        names = [word for group in groups for word in ("--group", group)]
        both.same(GROUPS, "--reset-offsets", *names, "--from-file", path, "--dry-run")


def test_resets_that_are_carried_out(both: Both) -> None:
    """OFF-10, CLI-09: of a group that nobody is in; refused while somebody is."""
    for group in ("written-a", "written-b"):
        reset = ["--reset-offsets", "--group", group, "--topic", "orders", "--to-offset", "5", "--execute"]
        tool = (
            both.apache.run(GROUPS, *both.bootstrap, *reset)
            if group[-1] == "a"
            else ours(GROUPS, *both.bootstrap, *reset)
        )
        assert tool.code == 0
    first, second = (
        ours(GROUPS, *both.bootstrap, "--describe", "--group", group).out.replace(group, "written")
        for group in ("written-a", "written-b")
    )
    assert first == second and "5               10              5" in first
    said = both.same(GROUPS, "--reset-offsets", "--group", "plain", "--topic", "orders", "--to-earliest", "--execute")
    assert any("can only be reset if the group 'plain' is inactive" in line for line in said.out)


def test_deletions(both: Both) -> None:
    """Refused of groups with members, and told of groups that are not there; those of idle ones are done."""
    both.same(GROUPS, "--delete", "--group", "plain")
    both.same(GROUPS, "--delete", "--group", "nobody", "--group", "modern")
    both.same(
        GROUPS, "--delete-offsets", "--group", "plain", "--topic", "orders", "--topic", "nowhere", "--topic", "empty:0"
    )
    both.same(GROUPS, "--delete-offsets", "--group", "nobody", "--topic", "orders")
    for group in ("gone-a", "gone-b"):
        ours(GROUPS, *both.bootstrap, *f"--reset-offsets --group {group} --topic orders --to-latest --execute".split())
    runs = {"gone-a": both.apache.run, "gone-b": ours}
    for words in ("--delete-offsets --topic orders:0,2", "--delete"):
        texts = [
            run(GROUPS, *both.bootstrap, *words.split(), "--group", g).out.replace(g, "g") for g, run in runs.items()
        ]
        assert texts[0] == texts[1] != ""
    assert "gone" not in ours(GROUPS, *both.bootstrap, "--list").out


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--describe",
        "--describe --group a --members --state",
        "--describe --group a --state stable",
        "--list --group a",
        "--list --describe",
        "--delete --group a --topic b",
        "--delete-offsets --group a",
        "--reset-offsets --group a --dry-run",
        "--reset-offsets --group a --topic orders --to-earliest --to-latest --dry-run",
        "--reset-offsets --group a --topic orders --to-earliest --dry-run --execute",
        "--reset-offsets --group a --topic orders:x --to-earliest --dry-run",
        "--reset-offsets --group a --topic orders:9 --to-earliest --dry-run",
        "--reset-offsets --group a --topic nowhere --to-earliest --dry-run",
        "--reset-offsets --group idle --topic orders:3 --shift-by 1 --dry-run",
        "--reset-offsets --group a --topic orders --to-datetime yesterday --dry-run",
        "--reset-offsets --group a --topic orders --by-duration 10d --dry-run",
        "--reset-offsets --group a --topic orders --to-offset many --dry-run",
        "--reset-offsets --group a --topic orders --to-datetime 2023-13-44T22:13:50.000 --dry-run",
        "--reset-offsets --group a --from-file /nowhere/plan.csv --dry-run",
        "--reset-offsets --group a --topic orders --delete-offsets",
        "--list --type grand",
        "--list --timeout soon",
        "--describe --group idle --timeout soon",
        "--list --verbose",
        "--list --group a --offsets",
        "--delete --group a --state",
        "--group a --verbose --members",
        "--verbose --help",
        "--colour",
        "--describe --group",
        "--help",
    ],
)
def test_mistakes(both: Both, words: str) -> None:
    """CLI-20: the same words for what is wrong, the same usage text, the same exit code."""

    def normal(line: str) -> str:
        """Java's sets come in any order."""
        return re.sub(r"((?:types are|options): )(.*)", lambda m: m[1] + ", ".join(sorted(m[2].split(", "))), line)

    said = both.same(GROUPS, *words.split(), normal=normal)
    assert said.out or said.err


@pytest.mark.parametrize("pattern", ["a.*b", "a(b", "a)", "[a", "*", "(?=a)b", r"(a)\1", "[z-a]", "a{9999}"])
def test_regular_expressions_are_checked(both: Both, pattern: str) -> None:
    both.same(GROUPS, "--validate-regex", pattern, connects=False)


@pytest.mark.parametrize(
    "words",
    [
        "--topic orders",
        "--topic orders --partitions 1,2 --time -2",
        "--topic ord.*,items --time latest",
        "--topic-partitions orders:1-3,items,:3",
        "--topic-partitions or.*:-2",
        "--topic orders --time 1700000010000",
        "--topic orders --time 1900000010000",
        "--topic orders --time max-timestamp",
        "--topic orders --time earliest-local",
        "--exclude-internal-topics",
        "--topic nowhere",
        "--topic orders --time soon",
        "--topic orders --partitions one",
        "--topic orders --topic-partitions items",
        "--topic orders --partitions 0,",
        "--topic",
        "--colour",
    ],
)
def test_offsets_of_partitions(both: Both, words: str) -> None:
    both.same("kafka-get-offsets", *words.split(), sorts=False)


def test_records_are_deleted(both: Both, tmp_path: Path) -> None:
    def plan(*rows: tuple[str, int, int]) -> Path:
        path = tmp_path / "plan.json"
        partitions = [{"topic": topic, "partition": number, "offset": offset} for topic, number, offset in rows]
        path.write_text(json.dumps({"partitions": partitions, "version": 1}))
        return path

    both.same("kafka-delete-records", "--offset-json-file", plan(("orders", 3, 2), ("orders", 2, 99)))
    both.same("kafka-delete-records", "--offset-json-file", plan(("orders", 3, -1)))
    both.same("kafka-delete-records", "--help", connects=False)
    twice = ours("kafka-delete-records", *both.bootstrap, "--offset-json-file", str(plan(("a", 0, 1), ("a", 0, 2))))
    assert (twice.code, twice.err) == (1, "Offset json file contains duplicate topic partitions: a-0\n")
    assert "orders:3:10" in ours("kafka-get-offsets", *both.bootstrap, "--topic", "orders", "--time", "earliest").out
