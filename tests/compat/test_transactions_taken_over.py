"""Transactions in a directory that Apache Kafka wrote, taken over by our node, and given back after it wrote more.

The clients live on: they find another broker behind the same address, and go on with the transactions they had begun. Apache
is killed with -9, and the end of some logs is cut away, as a machine that fails may do: transactions that were
prepared are not known to be complete, and of some the marker is missing as well. OTTLA_TRANSACTIONS_ON_APACHE
puts Apache Kafka in our place.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from compat.own_process import ConfluentOnItsOwn
from compat.peers import Peer, asking
from compat.transacting import Library, Transactor, committed_offsets, every_library, finalize, until
from harness import Node, Server, free_port, stop_all
from ottla.server.coordinators import partition_of

pytestmark = pytest.mark.apache

SETTINGS = {
    "transaction.state.log.num.partitions": "16",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "offsets.topic.num.partitions": "2",
}
SECONDS = 60.0
# Topics, each of one transaction whose id is the same, and who writes it: of generation 1, and of 2.
PREPARED = {"marked-1": "confluent", "marked-2": "java-4.3", "unmarked-1": "confluent", "unmarked-2": "java-4.3"}
LARGE = "x" * 600_000


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, Library]]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    made = {**every_library(), "confluent": ConfluentOnItsOwn()}
    yield made
    for library in made.values():
        library.close()


class Brokers:
    """Servers of one directory, one after another, behind one address."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._ports = directory, (free_port(), free_port())
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.server: Server | None = None

    def apache(self) -> None:
        self._start(kafka.Apache(self.directory, self._ports[0], SETTINGS, controller_port=self._ports[1]))

    def ours(self) -> None:
        if os.environ.get("OTTLA_TRANSACTIONS_ON_APACHE"):
            self.apache()
        else:
            self._start(Node(self.directory, self._ports[0], SETTINGS))

    def _start(self, server: Server) -> None:
        self.server = server
        server.start()

    def stop(self) -> None:
        assert self.server is not None
        self.server.stop()

    def kill(self) -> None:
        assert self.server is not None
        self.server.kill()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path / "data")
    yield made
    if made.server is not None:
        stop_all([made.server])


def batches(log: Path) -> list[int]:
    """Where each batch of a segment begins, and where the last one ends."""
    data, places = log.read_bytes(), [0]
    while places[-1] + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, places[-1] + 8)
        if length == 0:
            break
        places.append(places[-1] + 12 + length)
    return places


def cut_last_batch(log: Path) -> None:
    places = batches(log)
    with log.open("r+b") as file:
        file.truncate(places[-2])


def state_log(directory: Path, transactional_id: str) -> Path:
    """The only segment of the partition that holds an id."""
    partition = partition_of(transactional_id, int(SETTINGS["transaction.state.log.num.partitions"]))
    return directory / f"__transaction_state-{partition}" / f"{0:020}.log"


class Story:
    """What was written by whom, and who still has something open."""

    def __init__(self, libraries: dict[str, Library], brokers: Brokers) -> None:
        self._libraries, self.address, self.directory = libraries, brokers.address, brokers.directory
        self.open: list[Transactor] = []
        self._producers: list[Transactor] = []
        self.admin = AdminClient({"bootstrap.servers": self.address})

    def topics(self, *names: str) -> None:
        wanted = [NewTopic(name, 1, config={"segment.bytes": "1048576"}) for name in names]
        for made in self.admin.create_topics(wanted, request_timeout=15).values():
            made.result(SECONDS)

    def producer(self, library: str, transactional_id: str) -> Transactor:
        made = self._libraries[library].producer(self.address, transactional_id, transaction_timeout_ms=600_000)
        self._producers.append(made)
        return made.init()

    def read(self, topic: str, library: str = "confluent") -> list[str]:
        found = self._libraries[library].read(self.address, topic, 1, "read_committed")
        return [each.value for each in found if each.value != LARGE]

    def offset(self, group: str) -> int:
        return committed_offsets(self.address, group, "work", 1)[0]

    def wait_for_offset(self, group: str) -> None:
        until(lambda: self.offset(group) == 7, "offsets that were in the transaction")

    def wait_for(self, topic: str, *values: str) -> None:
        until(lambda: self.read(topic) == list(values), f"{values} in {topic}")

    def wait_for_end(self, transactional_id: str) -> None:
        """What was committed can be read a moment before it is written that all of it was."""
        request = asking(65, 0, transactional_ids=[transactional_id])
        peer = Peer(self.address)
        until(lambda: peer.ask(request).transaction_states[0].transaction_state == "CompleteCommit", "the end")

    def begin(self, library: str, value: str) -> None:
        """An open transaction with an id, a record and a group of that name."""
        producer = self.producer(library, value)
        producer.wrote("work", value).offset(value, "work", 7)
        self.open.append(producer)

    def close(self) -> None:
        """While there is a broker to say goodbye to."""
        for producer in self._producers:
            producer.close()

    def commit_open(self) -> None:
        for producer in self.open:
            producer.commit()
            self.wait_for_offset(producer.transactional_id)
        self.open.clear()


def written_by_apache(story: Story) -> dict[str, Transactor]:
    """Committed and aborted transactions in several segments, and one open one of each generation."""
    story.topics("work", *PREPARED)
    ended = story.producer("confluent", "over")
    for round_ in range(3):
        ended.wrote("work", f"committed {round_}").commit()
        ended.wrote("work", f"aborted {round_}", LARGE).abort()
    prepared = {name: story.producer(library, name) for name, library in PREPARED.items()}
    story.begin("confluent", "open of generation 1")
    story.begin("java-4.3", "open of generation 2")
    for topic, producer in prepared.items():
        producer.wrote(topic, "prepared").commit()
        story.wait_for(topic, "prepared")
        story.wait_for_end(topic)
    return prepared


def make_unfinished(directory: Path) -> None:
    """These transactions lose their COMPLETE_COMMIT, some their marker too."""
    for name in PREPARED:
        cut_last_batch(state_log(directory, name))
        if name.startswith("unmarked"):
            cut_last_batch(directory / f"{name}-0" / f"{0:020}.log")


COMMITTED = [f"committed {round_}" for round_ in range(3)]
OPEN = ["open of generation 1", "open of generation 2"]


def taken_over(story: Story, prepared: dict[str, Transactor]) -> None:
    """Behind the address is another broker now."""
    assert story.read("work") == story.read("work", "java-4.3") == COMMITTED
    for topic, producer in prepared.items():
        story.wait_for(topic, "prepared")
        producer.wrote(topic, "more").commit()
    assert [story.offset(group) for group in OPEN] == [-1, -1]
    story.commit_open()
    assert story.read("work") == [*COMMITTED, *OPEN]
    ended = story.producer("kafka-python", "over")
    ended.wrote("work", "aborted by us", LARGE).abort()
    ended.wrote("work", "committed by us").commit()
    story.begin("confluent", "open again of generation 1")
    story.begin("java-4.3", "open again of generation 2")


AGAIN = ["open again of generation 1", "open again of generation 2"]


def given_back(story: Story, prepared: dict[str, Transactor]) -> None:
    before = [*COMMITTED, *OPEN, "committed by us"]
    story.wait_for("work", *before)
    assert [story.offset(group) for group in AGAIN] == [-1, -1]
    story.commit_open()
    assert story.read("work") == story.read("work", "java-4.3") == [*before, *AGAIN]
    for topic, producer in prepared.items():
        producer.wrote(topic, "most").commit()
        story.wait_for(topic, "prepared", "more", "most")


def dumped(directory: Path, transactional_id: str) -> str:
    log = state_log(directory, transactional_id)
    words = ("--transaction-log-decoder", "--print-data-log", "--files", str(log))
    return kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", *words)


def assert_decoded(said: str, generation: int) -> None:
    """Apache's tool finds the same words in what we wrote: ongoing, prepared and complete."""
    statuses = [json.loads(value)["data"]["transactionStatus"] for value in re.findall(r"payload: (.*)", said)]
    assert statuses == [0, 1, 2, 4, 1, 2, 4]
    last = json.loads(re.findall(r"payload: (.*)", said)[-1])
    assert last["version"] == ("1" if generation else "0")
    assert last["data"].get("clientTransactionVersion", 0) == (2 if generation == 2 else 0)
    assert '"transactionalId":"unmarked-2"' in said


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "generation", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(0, marks=pytest.mark.slow)]
)
def test_transactions_are_taken_over_and_given_back(
    generation: int, libraries: dict[str, Library], brokers: Brokers
) -> None:
    """TXN-07, LOG-20: __transaction_state, .txnindex and producer snapshots, with transactions open and prepared."""
    brokers.apache()
    finalize(brokers.address, generation)
    story = Story(libraries, brokers)
    prepared = written_by_apache(story)
    brokers.kill()
    make_unfinished(brokers.directory)
    brokers.ours()
    taken_over(story, prepared)
    brokers.stop()
    assert_decoded(dumped(brokers.directory, "unmarked-2"), generation)
    brokers.apache()
    given_back(story, prepared)
    ended = story.producer("aiokafka", "over")
    brokers.stop()
    brokers.ours()
    ended.wrote("work", "the last").commit()
    assert story.read("work")[-1] == "the last"
    story.close()
