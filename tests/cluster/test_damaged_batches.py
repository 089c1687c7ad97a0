"""A bit that flips on one node's disk: nobody who reads may notice while another node has the batch."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cluster.loads import Writer
from cluster.nodes import Cluster, Member, eventually
from operations.speaking import Line
from ottla.wire.messages.placement import ElectLeadersRequest, ElectLeadersResponse
from ottla.wire.records import batches

PREFERRED = 0


def flip_in_the_middle(path: Path) -> int:
    """The offset of the batch that is damaged."""
    data = bytearray(path.read_bytes())
    found = list(batches(bytes(data)))
    position, head = found[len(found) // 2]
    data[position + head.size - 3] ^= 0x10
    path.write_bytes(data)
    return head.base_offset


def elect(line: Line, topic: str, partition: int) -> ElectLeadersResponse:
    partitions = [ElectLeadersRequest.Topic(topic=topic, partitions=[partition])]
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=partitions, timeout_ms=10_000)
    answer: ElectLeadersResponse = line.ask(request, ElectLeadersResponse, 2)
    return answer


def damage_the_leader(nodes: Cluster, topic: str, partition: int = 0) -> tuple[Member, Path, int]:
    """Its disk is damaged while it is down; afterwards it leads again. Where the batch is, and its offset."""
    leader = nodes.leader(topic, partition)
    node = nodes.members[leader]
    path = node.directory / f"{topic}-{partition}" / "00000000000000000000.log"
    node.stop()
    offset = flip_in_the_middle(path)
    node.start()
    nodes.wait_in_sync(topic)

    def leads() -> bool:
        nodes.ask(lambda line: elect(line, topic, partition))
        return nodes.leader(topic, partition) == leader

    eventually(leads, "it leads again")
    return node, path, offset


def test_a_damaged_leader_gets_the_batch_from_a_follower(three: Cluster) -> None:
    """REP-20, LOG-05: a leader that found damage refused that batch for ever, and readers stayed with it."""
    three.create("damaged", 1)
    with Writer(three.bootstrap, "damaged", 1) as writer:
        writer.wait_for(300)
        writer.finish()
    node, path, offset = damage_the_leader(three, "damaged")
    assert writer.check(three.bootstrap) >= 300
    assert f"damaged-0: damaged at offset {offset}, mended as broker" in node.log_text()
    followers = [member.directory / "damaged-0" / path.name for member in three.members.values() if member is not node]
    assert [copy.read_bytes() for copy in followers] == [path.read_bytes()] * 2


def test_a_damaged_coordinator_can_be_loaded(three: Cluster) -> None:
    """OFF-02, REP-20: the offsets of its groups lie behind the damage, and its members must not wait for them for ever."""
    three.create("read", 1)
    for offset in range(20):
        committed(three, offset)
    sizes = {index: three.members[1].directory / f"__consumer_offsets-{index}" for index in range(3)}
    partition = max(sizes, key=lambda index: (sizes[index] / "00000000000000000000.log").stat().st_size)
    node, _, offset = damage_the_leader(three, "__consumer_offsets", partition)
    eventually(lambda: is_committed(three, 19), "the group's offset is there")
    assert f"damaged at offset {offset}, mended as broker" in node.log_text()


def committed(nodes: Cluster, offset: int | None = None) -> int:
    """Commit an offset, or tell which one is committed."""
    consumer = Consumer({"bootstrap.servers": nodes.bootstrap, "group.id": "readers", "log_level": 0})
    try:
        if offset is not None:
            consumer.commit(offsets=[TopicPartition("read", 0, offset)], asynchronous=False)
        return int(consumer.committed([TopicPartition("read", 0)], timeout=30)[0].offset)
    finally:
        consumer.close()


def is_committed(nodes: Cluster, offset: int) -> bool:
    """librdkafka asks once: it tells of a coordinator that has just moved, and does not look for the new one."""
    try:
        return committed(nodes) == offset
    except KafkaException as failed:
        if failed.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return False
