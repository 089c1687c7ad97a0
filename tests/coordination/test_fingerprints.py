"""The hash of a group's topics is the number that Apache Kafka writes."""

from __future__ import annotations

import pytest

from ottla.coordination.fingerprints import group_hash, signed, xxh3
from ottla.metadata.image import Image
from ottla.metadata.records import PartitionRecord, RegisterBrokerRecord, TopicRecord
from ottla.metadata.replay import replay

DATA = bytes((i * 7 + 3) & 255 for i in range(1000))

# Computed by hash4j 0.22, which Apache Kafka 4.3.1 uses.
EXPECTED = {
    0: 3244421341483603138,
    1: 1433843135270481901,
    3: -6266602912829716452,
    4: 7895465118229274323,
    8: 6941064856527638883,
    9: -72226354546400344,
    16: -5131753158909839995,
    17: 8163341949877205007,
    64: 2917965298538373825,
    128: 7440608504995537343,
    129: -4150982730466284604,
    200: 8389308914288017243,
    240: 7229805477010515663,
    241: -8364630114420064745,
    300: -172648679454408153,
    512: -756038794506822371,
    1000: 7804479483783519874,
}


@pytest.mark.parametrize("size", EXPECTED)
def test_xxh3_is_the_one_that_apache_uses(size: int) -> None:
    assert signed(xxh3(DATA[:size])) == EXPECTED[size]


def picture(partitions: int, rack: str | None = None) -> Image:
    records = [RegisterBrokerRecord(broker_id=1, rack=rack), TopicRecord(name="t", topic_id=bytes(15) + b"\x07")]
    parts = [
        PartitionRecord(partition_id=i, topic_id=bytes(15) + b"\x07", replicas=[1], isr=[1], leader=1)
        for i in range(partitions)
    ]
    return replay(Image(), [*records, *parts], 10, 1)[0]


def test_the_hash_knows_partitions_and_racks_and_nothing_of_topics_that_do_not_exist() -> None:
    hashes = [group_hash(image, ["t", "x"], {}) for image in (picture(1), picture(2), picture(1, "a"))]
    assert len(set(hashes)) == 3
    assert group_hash(picture(1), ["t"], {}) == hashes[0]
    assert group_hash(picture(1), ["x"], {}) == group_hash(picture(1), [], {}) == 0


def test_what_is_known_of_a_topic_counts_only_while_the_topic_is_the_same() -> None:
    known: dict[str, tuple[object, int]] = {}
    first, second = picture(1), picture(2)
    one = group_hash(first, ["t"], known)  # type: ignore[arg-type]
    assert group_hash(first, ["t"], known) == one != group_hash(second, ["t"], known)  # type: ignore[arg-type]


def test_a_hash_that_apache_wrote() -> None:
    """Seen in `__consumer_offsets` of a 4.3.1 broker, for a topic of four partitions without racks."""
    topic_id = bytes.fromhex("dee68b29de2d4ccb9bdf2757d6c0dd8f")
    partitions = [PartitionRecord(partition_id=i, topic_id=topic_id, replicas=[1], isr=[1], leader=1) for i in range(4)]
    image, _ = replay(Image(), [TopicRecord(name="pa", topic_id=topic_id), *partitions], 5, 1)
    assert group_hash(image, ["pa"], {}) == 9082441962579045489
