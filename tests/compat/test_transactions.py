"""Transactions of real clients, in both generations: what is seen of them by whom, and when.

Generation 1 is KIP-98 with what came to it until KIP-691; generation 2 is KIP-890, which of these libraries only Java's of 4.x
speaks: the others do as they always did, on a broker that knows both. OTTLA_TRANSACTIONS_ON_APACHE runs the same on Apache
Kafka, to tell a client's habits from our mistakes.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.transacting import Library, Refused, Transactor, committed_offsets, every_library, finalize, until
from harness import Node, Server, stop_all

# Which library on which generation. To those that know nothing of the second, both brokers are much the same.
PAIRS = [
    *((2, name) for name in ("confluent", "kafka-python", "aiokafka", "java-4.3", "java-3.9")),
    *((1, name) for name in ("confluent", "java-4.3")),
]
TIMEOUT_MAX_MS = 100_000
SETTINGS = {
    "transaction.max.timeout.ms": str(TIMEOUT_MAX_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
}
# What the libraries call it when another producer has taken their place.
FENCED = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "ProducerFencedError",
    "InvalidProducerEpochError",
    "ProducerFenced",
    "InvalidProducerEpoch",
    "ProducerFencedException",
    "InvalidProducerEpochException",
}

pytestmark = pytest.mark.apache


class Topic(NamedTuple):
    name: str
    partitions: int


Read = Callable[..., list[str]]
Produce = Callable[..., Transactor]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("transactions") / "data"
    on_apache = os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE")
    server: Server = kafka.Apache(directory, settings=SETTINGS) if on_apache else Node(directory, settings=SETTINGS)
    try:
        yield server.start().address
    finally:
        stop_all([server])


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, Library]]:
    made = every_library()
    yield made
    for library in made.values():
        library.close()


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: f"{pair[1]}-on-{pair[0]}")
def library(libraries: dict[str, Library], address: str, request: pytest.FixtureRequest) -> Library:
    generation, name = request.param
    if reason := libraries[name].why_missing():
        pytest.skip(reason)
    finalize(address, generation)
    return libraries[name]


@pytest.fixture(scope="module")
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


@pytest.fixture(scope="module")
def topic(admin: AdminClient) -> Callable[..., Topic]:
    numbers = itertools.count()

    def make(partitions: int = 1) -> Topic:
        name = f"events-{next(numbers)}"
        admin.create_topics([NewTopic(name, partitions)], request_timeout=15)[name].result()
        return Topic(name, partitions)

    return make


@pytest.fixture
def produce(library: Library, address: str, request: pytest.FixtureRequest) -> Iterator[Produce]:
    """Opens producers of the library under test, with an id of the test's own."""
    opened: list[Transactor] = []

    def make(**settings: Any) -> Transactor:
        opened.append(library.producer(address, request.node.name, **settings))
        return opened[-1]

    yield make
    for producer in opened:
        producer.close()


@pytest.fixture
def committed(library: Library, address: str) -> Read:
    """The values that a reader of the library sees at read_committed, in the order of partitions."""
    return lambda topic: values_of(library, address, topic, "read_committed")


@pytest.fixture
def uncommitted(library: Library, address: str) -> Read:
    return lambda topic: values_of(library, address, topic, "read_uncommitted")


def values_of(library: Library, address: str, topic: Topic, isolation: str) -> list[str]:
    return [found.value for found in sorted(library.read(address, *topic, isolation))]


def test_transactions_are_committed_and_aborted(
    topic: Callable[..., Topic], produce: Produce, committed: Read, uncommitted: Read
) -> None:
    """TXN-01, TXN-02, TXN-04, TXN-09: open and aborted ones are hidden at read_committed only, and life goes on."""
    orders = topic()
    producer = produce().init()
    producer.wrote(orders.name, "a", "b")
    assert (committed(orders), uncommitted(orders)) == ([], ["a", "b"])
    producer.commit()
    assert committed(orders) == uncommitted(orders) == ["a", "b"]
    producer.wrote(orders.name, "c", "d").abort()
    assert (committed(orders), uncommitted(orders)) == (["a", "b"], ["a", "b", "c", "d"])
    for value in ("e", "f", "g"):
        producer.wrote(orders.name, value).commit()
    assert committed(orders) == ["a", "b", "e", "f", "g"]
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()


def test_all_partitions_or_none(topic: Callable[..., Topic], produce: Produce, committed: Read) -> None:
    """TXN-03: two topics of three partitions each, one after another with the same and with others."""
    first, second = topic(3), topic(3)
    producer = produce().init()
    for round_, ends in enumerate((producer.commit, producer.abort, producer.commit)):
        before = committed(first), committed(second)
        producer.begin()
        for where, partition in itertools.product((first, second), range(3)):
            producer.send(where.name, f"{round_}", partition)
        producer.flush()
        assert (committed(first), committed(second)) == before
        ends()
    assert committed(first) == committed(second) == ["0", "2"] * 3


def offset_of(address: str, group: str, topic: Topic) -> int:
    return committed_offsets(address, group, topic.name, 1)[0]


def test_offsets_are_part_of_a_transaction(
    address: str, topic: Callable[..., Topic], produce: Produce, committed: Read
) -> None:
    """TXN-05, TXN-11: committed offsets move with the records, or not at all; by the group's id."""
    orders = topic()
    producer, group = produce().init(), f"group-of-{orders.name}"
    producer.wrote(orders.name, "a").offset(group, orders.name, 7)
    assert offset_of(address, group, orders) == -1
    producer.commit()
    until(lambda: offset_of(address, group, orders) == 7, "the marker in the group's log")
    producer.wrote(orders.name, "b").offset(group, orders.name, 9)
    producer.abort()
    producer.begin()
    producer.offset(group, orders.name, 8)
    producer.commit()
    until(lambda: offset_of(address, group, orders) == 8, "a transaction of nothing but offsets")
    assert committed(orders) == ["a"]


def test_offsets_of_a_member_are_part_of_a_transaction(
    library: Library, address: str, topic: Callable[..., Topic], produce: Produce
) -> None:
    """TXN-05 by group metadata (KIP-447)."""
    if not library.knows_members:
        pytest.skip("it has only the group's id")
    orders = topic()
    producer, group = produce().init(), f"group-of-{orders.name}"
    with library.member(address, group, orders.name) as member:
        producer.wrote(orders.name, "a").offset(group, orders.name, 5, member=member)
        producer.commit()
        until(lambda: offset_of(address, group, orders) == 5, "the marker in the group's log")


def test_a_second_producer_fences_the_first(topic: Callable[..., Topic], produce: Produce, committed: Read) -> None:
    """TXN-08: what the first had begun is aborted, and it cannot commit any more; the second goes on."""
    orders = topic()
    first = produce().init()
    first.wrote(orders.name, "a").commit()
    first.wrote(orders.name, "b")
    second = produce().init()
    second.wrote(orders.name, "c")
    with pytest.raises(Refused) as refused:
        first.commit()
    assert refused.value.why in FENCED
    second.commit()
    assert committed(orders) == ["a", "c"]


def test_a_timeout_above_the_maximum(produce: Produce) -> None:
    """INVALID_TRANSACTION_TIMEOUT; the maximum itself is allowed."""
    produce(transaction_timeout_ms=TIMEOUT_MAX_MS).init()
    with pytest.raises(Refused) as refused:
        produce(transaction_timeout_ms=TIMEOUT_MAX_MS + 1).init()
    told = refused.value.why.upper() + str(refused.value).upper()
    assert "TIMEOUT" in told and ("LARGER" in told or "INVALID" in told), told


def test_a_transaction_is_aborted_after_its_timeout(
    topic: Callable[..., Topic], produce: Produce, committed: Read, libraries: dict[str, Library], address: str
) -> None:
    """TXN-09: readers do not wait for one that went away, it cannot commit what was aborted, and its id can be used again."""
    orders, timeout_s = topic(), 2.0
    slow = produce(transaction_timeout_ms=int(timeout_s * 1000)).init()
    began = time.monotonic()
    slow.wrote(orders.name, "a")
    plain = confluent_kafka.Producer({"bootstrap.servers": address})
    plain.produce(orders.name, "b", "k")
    plain.flush()
    before = committed(orders)
    assert before == [] or time.monotonic() - began > timeout_s  # on a busy machine its time may be up by now
    until(lambda: values_of(libraries["confluent"], address, orders, "read_committed") == ["b"], "the abort")
    with pytest.raises(Refused):
        slow.commit()
    produce().init().wrote(orders.name, "c").commit()
    assert committed(orders) == ["b", "c"]


def joined(address: str, group: str, topic: Topic, **settings: Any) -> confluent_kafka.Consumer:
    """A member of confluent's that owns the topic."""
    common = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    member = confluent_kafka.Consumer({**common, "auto.offset.reset": "earliest", **settings})
    member.subscribe([topic.name])
    until(lambda: member.poll(0.05) or member.assignment(), "an assignment")
    return member


def test_a_member_of_an_earlier_generation_cannot_commit(
    address: str, topic: Callable[..., Topic], libraries: dict[str, Library]
) -> None:
    """TXN-10, KIP-447: who lost its partitions to a rebalance is refused, and its transaction can only be aborted."""
    orders, group = topic(), "generations"
    late = libraries["confluent"].producer(address, "late").init()
    before = joined(address, group, orders)
    late.wrote(orders.name, "a")
    known = before.consumer_group_metadata()
    before.close()
    after = joined(address, group, orders)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        there = [confluent_kafka.TopicPartition(orders.name, 0, 5)]
        late.producer.send_offsets_to_transaction(there, known, 15)  # type: ignore[attr-defined]
    assert refused.value.args[0].txn_requires_abort()
    late.abort()
    assert offset_of(address, group, orders) == -1
    late.wrote(orders.name, "b").offset(group, orders.name, 6, member=after)
    late.commit()
    until(lambda: offset_of(address, group, orders) == 6, "the offset of a member of the new generation")
    after.close()
    late.close()


def test_who_takes_over_a_partition_waits_for_its_offsets(
    address: str, topic: Callable[..., Topic], libraries: dict[str, Library]
) -> None:
    """TXN-10, KIP-447: while offsets are in an open transaction, a member does not begin where the one before it had begun."""
    orders, group = topic(), "takers"
    plain = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(10):
        plain.produce(orders.name, f"{number}", "k")
    assert plain.flush(15) == 0
    slow = libraries["confluent"].producer(address, "slow").init()
    slow.begin()
    slow.offset(group, orders.name, 7)
    successor = joined(address, group, orders, **{"isolation.level": "read_committed"})
    assert successor.poll(0.3) is None
    slow.commit()
    first: list[confluent_kafka.Message] = []
    until(lambda: first.extend(filter(None, [successor.poll(0.1)])) or first, "a record")
    assert (first[0].error(), first[0].value()) == (None, b"7")
    successor.close()
    slow.close()


def test_libraries_fence_each_other(address: str, topic: Callable[..., Topic], libraries: dict[str, Library]) -> None:
    """TXN-08: a transactional id belongs to whoever came last, whatever it is written in."""
    orders, previous = topic(), None
    for name, library in libraries.items():
        producer = library.producer(address, "shared").init()
        producer.wrote(orders.name, name)
        if previous is not None:
            with pytest.raises(Refused) as refused:
                previous.commit()
            assert refused.value.why in FENCED
            previous.close()
        previous = producer
    assert previous is not None
    previous.commit()
    previous.close()
    assert values_of(libraries["confluent"], address, orders, "read_committed") == [name]


@pytest.mark.parametrize("name", ["confluent", "java-4.3"])
def test_the_generation_changes_while_a_transaction_is_open(
    name: str, address: str, topic: Callable[..., Topic], libraries: dict[str, Library]
) -> None:
    """TXN-02: both ways, and producers that had begun go on, whichever generation they began with."""
    orders, library = topic(), libraries[name]
    producers = []
    for generation, next_generation in ((2, 1), (1, 2)):
        finalize(address, generation)
        producers.append(library.producer(address, f"{name}-{generation}").init())
        for at, producer in enumerate(producers):
            producer.wrote(orders.name, f"{at} on {generation}")
        finalize(address, next_generation)
        for at, producer in enumerate(producers):
            producer.commit()
            producer.wrote(orders.name, f"{at} aborted").abort()
            producer.wrote(orders.name, f"{at} after {generation}").commit()
    for producer in producers:
        producer.close()
    found = values_of(library, address, orders, "read_committed")
    assert sorted(found) == ["0 after 1", "0 after 2", "0 on 1", "0 on 2", "1 after 1", "1 on 1"]
