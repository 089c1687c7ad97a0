"""A directory that goes from our node to Apache Kafka and back, twice: committed offsets with their notes, groups of both
protocols, static members too, in a log that was rolled and compacted in between. Both dump tools say the same of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from apache.tools import ApacheTools, Ran
from compat.both_tools import ours
from compat.members import wait_until
from compat.test_offsets_taken_over import eventually
from harness import Node, Server

pytestmark = pytest.mark.apache

TOPIC, PARTITIONS, SECONDS = "work", 2, 30.0
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": str(1 << 20),  # Apache takes no smaller ones
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "20000000",
    "group.initial.rebalance.delay.ms": "0",
    # Static members have to be there still when another broker has taken over.
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
}
MANY, NOTE = 2000, "x" * 1000  # more than a segment
STAYS = {"session.timeout.ms": 300_000, "group.instance.id": "one"}
NEW = {"group.protocol": "consumer"}
# Members by the group that they are in.
MEMBERS: dict[str, dict[str, object]] = {
    "classic": {},
    "static": STAYS,
    "consumer": NEW,
    "static-consumer": {**NEW, "group.instance.id": "two"},
}
# Apache calls the first record of every later segment a gap behind offset -1, and heads that with the name of the file.
GAP = re.compile(r"  -1 is followed by \d+|Non-consecutive offsets in .*")


class Turn:
    """What clients do while one of the brokers has the directory."""

    def __init__(self, address: str, number: int) -> None:
        self.address, self.number = address, number
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def consumer(self, group: str, **settings: object) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )

    def commits(self, consumer: Consumer, *offsets: int, note: str = "") -> None:
        there = [TopicPartition(TOPIC, n, offset, metadata=note) for n, offset in enumerate(offsets)]
        eventually(lambda: consumer.commit(offsets=there, asynchronous=False))

    def is_played(self) -> None:
        for group in (f"only-{self.number}", "every"):
            reader = self.consumer(group)
            self.commits(reader, self.number, 10 + self.number, note=f"of turn {self.number} ü")
            reader.close()
        for group, settings in MEMBERS.items():
            self.joins(group, settings)
        self.commits_often()

    def joins(self, group: str, settings: dict[str, object]) -> None:
        member = self.consumer(group, **settings)
        member.subscribe([TOPIC])
        wait_until(lambda: (member.poll(0.1), len(member.assignment()))[1] == PARTITIONS, f"all for {group}")
        self.commits(member, self.number, 20 + self.number)
        member.close()

    def commits_often(self) -> None:
        reader = self.consumer("busy")
        for offset in range(MANY):
            reader.commit(offsets=[TopicPartition(TOPIC, 0, offset, metadata=NOTE)], asynchronous=True)
        self.commits(reader, MANY + self.number, 1, note="the end")
        reader.close()

    def found(self) -> dict[str, Any]:
        """Everything that admins are told of the groups."""
        return {group: self.told(group) for group in self.groups()}

    def groups(self) -> list[str]:
        listed = self.admin.list_consumer_groups().result(SECONDS)
        if listed.errors:  # while coordinators load
            raise KafkaException(listed.errors[0])
        return sorted(each.group_id for each in listed.valid)

    def has(self, groups: list[str]) -> bool:
        return eventually(self.groups) == groups

    def told(self, group: str) -> tuple[object, ...]:
        about = self.admin.describe_consumer_groups([group])[group].result(SECONDS)
        members = sorted(
            (each.group_instance_id or "", sorted(at.partition for at in each.assignment.topic_partitions))
            for each in about.members
        )
        asked = [ConsumerGroupTopicPartitions(group)]
        offsets = self.admin.list_consumer_group_offsets(asked)[group].result(SECONDS).topic_partitions
        where = sorted((at.topic, at.partition, at.offset, at.metadata) for at in offsets)
        return about.state.name, about.type.name, about.partition_assignor, members, where


@pytest.fixture
def tools() -> Iterator[ApacheTools]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    made = ApacheTools()
    yield made
    made.close()


def cleaned_up_to(data: Path) -> int:
    """How far the partitions of offsets were compacted, in all."""
    path = data / "cleaner-offset-checkpoint"
    text = path.read_text() if path.exists() else ""
    return sum(int(offset) for offset in re.findall(r"^__consumer_offsets \d (\d+)$", text, re.MULTILINE))


def was_cleaned(data: Path, beyond: int) -> bool:
    return cleaned_up_to(data) > beyond


def check_dumps(tools: ApacheTools, data: Path) -> None:
    """Batches, keys and values of every segment, line by line."""
    kinds: set[str] = set()
    for path in sorted(data.glob("__consumer_offsets-*/*.log")):
        words = ("--offsets-decoder", "--files", str(path))
        theirs, mine = dumped(tools.run("kafka-dump-log", *words)), dumped(ours("kafka-dump-log", *words))
        assert mine == theirs, "\n".join(difflib.unified_diff(theirs, mine, "apache", "ours", lineterm="", n=1))
        text = "\n".join(mine)
        assert "isvalid: false" not in text
        kinds |= set(re.findall(r'"type":"(\d+)"', text))
    assert kinds >= {"1", "2", "3", "5", "6", "7", "8"}, (
        "offsets, classic groups, groups of the newer protocol with members"
    )


def dumped(ran: Ran) -> list[str]:
    assert ran.code == 0
    complaints = [line for line in ran.err.splitlines() if line and not GAP.fullmatch(line)]
    return [*ran.out.splitlines(), *complaints]


def test_offsets_and_groups_change_hands(data: Path, servers: list[Server], tools: ApacheTools) -> None:
    """OFF-02, OFF-08, OFF-09, CLI-12, TRAP-53, TRAP-54: the same state each time, the same of every segment."""
    before: dict[str, Any] = {}
    for number, broker in enumerate((Node, kafka.Apache, Node, kafka.Apache)):
        server: Server = broker(data, settings=SETTINGS)
        servers.append(server)
        cleaned = cleaned_up_to(data)
        turn = Turn(server.start().address, number)
        if before:
            wait_until(partial(turn.has, list(before)), "every group")  # they come with the partition that they are in
            assert eventually(turn.found) == before
        else:
            turn.admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(SECONDS)
        turn.is_played()
        before = turn.found()
        assert len(before) == number + 1 + len(("every", "busy")) + len(MEMBERS)
        if broker is Node:
            wait_until(partial(was_cleaned, data, beyond=cleaned + MANY // 2), "a round of compaction")
        server.stop()
        check_dumps(tools, data)
