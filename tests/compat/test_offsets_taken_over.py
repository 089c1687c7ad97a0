"""Committed offsets in a directory that Apache Kafka wrote: commits, transactions that ended either way, and an open one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.peers import Peer, asking
from harness import Node, stop_all

pytestmark = pytest.mark.apache

TOPIC, SECONDS = "work", 60.0


def eventually(probe: Callable[[], object]) -> object:
    """Topics and coordinators come a moment after a broker first answers."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return probe()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def transactional(address: str, name: str) -> Producer:
    # The open one has to be open still when another broker has taken over.
    settings = {"transactional.id": name, "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **settings})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    return producer


def send(address: str, producer: Producer, group: str, offset: int) -> None:
    """An offset that counts if the transaction is committed."""
    reader = Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], reader.consumer_group_metadata(), SECONDS)
    reader.close()


def commit(address: str, group: str, offset: int, note: str = "") -> None:
    reader = Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    reader.assign([TopicPartition(TOPIC, 0)])
    there = [TopicPartition(TOPIC, 0, offset, metadata=note)]
    eventually(lambda: reader.commit(offsets=there, asynchronous=False))
    reader.close()


def written_by_apache(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(SECONDS)
    commit(address, "plain", 5, "a note")
    for group, ends in (("committed", Producer.commit_transaction), ("aborted", Producer.abort_transaction)):
        commit(address, group, 1)
        producer = transactional(address, group)
        send(address, producer, group, 7)
        ends(producer, SECONDS)
    overtaken = transactional(address, "overtaken")
    send(address, overtaken, "overtaken", 7)
    commit(address, "overtaken", 8)
    overtaken.commit_transaction(SECONDS)
    commit(address, "open", 2)
    send(address, transactional(address, "open"), "open", 9)
    commit(address, "deleted", 3)
    admin.delete_consumer_groups(["deleted"])["deleted"].result(SECONDS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    server = kafka.Apache(tmp_path_factory.mktemp("taken") / "data")
    try:
        written_by_apache(server.start().address)
    finally:
        stop_all([server])
    yield server.directory


def told(admin: AdminClient, group: str) -> int:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, 0)])
    found = admin.list_consumer_group_offsets([asked])[group].result(SECONDS)
    (partition,) = found.topic_partitions
    assert partition.error is None
    return int(partition.offset)


def test_offsets_in_transactions_are_read_as_apache_meant_them(directory: Path) -> None:
    """OFF-02, TRAP-53: what a transaction sent counts if it was committed, and if nothing later was."""
    node = Node(directory)
    try:
        admin = AdminClient({"bootstrap.servers": node.start().address})
        groups = {"plain": 5, "committed": 7, "aborted": 1, "overtaken": 8, "open": 2, "deleted": -1001}
        found = eventually(lambda: {group: told(admin, group) for group in groups})
        assert found == groups
        listed = {group.group_id for group in admin.list_consumer_groups().result(SECONDS).valid}
        assert listed == set(groups) - {"deleted"}
        wanted = [{"group_id": group, "topics": [{"name": TOPIC, "partition_indexes": [0]}]} for group in groups]
        answer = Peer(node.address).ask(asking(9, 8, groups=wanted, require_stable=True))
        errors = {group.group_id: group.topics[0].partitions[0].error_code.name for group in answer.groups}
        assert errors == {**dict.fromkeys(groups, "none"), "open": "unstable_offset_commit"}
    finally:
        stop_all([node])
