"""One partition gets nearly everything, and its reader does not keep up: who else notices, and where it shows."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from cluster.apart import send
from cluster.loads import Writer
from cluster.nodes import Cluster, eventually
from operations.speaking import ottla

PARTITIONS, HOT = 4, 3
FLOOD, SIZE = 20_000, 500
GROUP = "hot-readers"


def lags(nodes: Cluster) -> dict[int, int]:
    """What the group has not read yet, by partition, as an operator sees it."""
    ran = ottla("group", "describe", GROUP, "--json", "--bootstrap", nodes.members[1].address, seconds=60)
    assert ran.returncode == 0, ran.stderr
    found: Any = json.loads(ran.stdout)
    rows = (found[0] if isinstance(found, list) else found)["partitions"]
    return {int(row["partition"]): int(row["lag"]) for row in rows}


def test_a_hot_partition_holds_up_nobody_else(three: Cluster) -> None:
    """OPS-05 (hot partition), REP-16, REP-18: its lag shows for that partition alone, the others are written and read on, all
    replicas stay in sync, and in the end every record was read once."""
    three.create("hot", PARTITIONS)
    consumer = Consumer(
        {
            "bootstrap.servers": three.bootstrap,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    hot = TopicPartition("hot", HOT)
    read = [0] * PARTITIONS

    def take(messages: list[Message]) -> None:
        for message in messages:
            assert message.error() is None and message.offset() == read[message.partition() or 0]
            read[message.partition() or 0] += 1
        if messages:
            consumer.commit(offsets=[TopicPartition("hot", n, at) for n, at in enumerate(read)], asynchronous=False)

    def has_read(wanted: list[int]) -> bool:
        take(consumer.consume(5000, 0.2))
        return read == wanted

    try:
        consumer.assign([TopicPartition("hot", n, 0) for n in range(PARTITIONS)])
        consumer.pause([hot])  # as one that is too slow for it
        with Writer(three.bootstrap, "hot", HOT) as writer:
            writer.wait_for(50)
            options = {"linger.ms": 20, "queue.buffering.max.messages": 2 * FLOOD}
            assert set(send(three, "hot", [bytes(SIZE)] * FLOOD, partition=HOT, **options)) == {0}
            writer.wait_for(50)
            writer.finish()
        eventually(lambda: has_read([*writer.sent, 0]), "all but the hot one are read")
        assert lags(three) == {0: 0, 1: 0, 2: 0, HOT: FLOOD}
        three.wait_in_sync("hot")
        consumer.resume([hot])
        eventually(lambda: has_read([*writer.sent, FLOOD]), "the hot one is read as well")
        assert set(lags(three).values()) == {0}
    finally:
        consumer.close()
    assert not writer.errors
