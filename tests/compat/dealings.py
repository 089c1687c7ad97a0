"""Transactional producers played by hand, to see what a broker tells them: a script is run on two brokers, and what was said
is compared.

Each producer has a connection of its own and remembers the id, the epoch and the sequences that it would have as a client.
Producer ids are chance: in what was said they are replaced by who was first told them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from compat.parties import NAMES, Line
from ottla.coordination.transactions.records import unpack
from ottla.wire.errors import Error
from ottla.wire.messages.commits import OffsetDeleteRequest, OffsetFetchRequest
from ottla.wire.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.offsets import ListOffsetsRequest
from ottla.wire.messages.produce import ProduceRequest
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicPartitions,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from ottla.wire.records import Record, build
from ottla.wire.schema import Message, Struct

SECONDS = 60.0
THEN_MS = int(time.time() - 3600) * 1000  # so young that retention looks at it in neither
TRANSACTION = 1
MASKED = (
    *("throttle_time_ms", "error_message", "transaction_start_time_ms", "last_timestamp", "log_append_time_ms"),
    *("transaction_last_update_timestamp_ms", "transaction_start_timestamp_ms"),
)
# When a broker writes the markers is its own affair.
UNDECIDED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
BUSY = (
    Error.CONCURRENT_TRANSACTIONS,
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    Error.COORDINATOR_NOT_AVAILABLE,
    Error.NOT_COORDINATOR,
)
BUSY_CODES = {error.code for error in BUSY}


class Dealer:
    """A producer as its client sees it."""

    def __init__(self) -> None:
        self.id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}


class Dealings:
    """One transactional id on one broker, a topic and a group of the same name, and who deals with them."""

    def __init__(self, address: str, name: str) -> None:
        self.address, self.name = address, name
        self.lines: dict[str, Line] = {}
        self.dealers: dict[str, Dealer] = {}
        self.names: dict[int, str] = {}
        self.said: list[tuple[str, Message]] = []
        self._await_coordinator()

    # --- speaking

    def tell(self, who: str, request: Message, version: int) -> Any:
        """Say it and hear the answer, which goes into the comparison."""
        answer = self.aside(who, request, version)
        self.said.append((who, answer))
        return answer

    def aside(self, who: str, request: Message, version: int) -> Any:
        if who not in self.lines:
            self.lines[who] = Line(self.address)
        self.lines[who].send(request, version)
        return self.lines[who].hear()

    def dealer(self, who: str) -> Dealer:
        return self.dealers.setdefault(who, Dealer())

    def init(self, who: str, version: int = 5, *, again: bool = False, is_known: bool = False, **more: Any) -> Any:
        """Ask for an id: `again` until nobody is in the way, and with the id that the producer has where it `is_known`."""
        dealer = self.dealer(who)
        own = {"producer_id": dealer.id, "producer_epoch": dealer.epoch} if is_known else {}
        values = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **own, **more}
        answer = self.tell(who, InitProducerIdRequest(**values), version)
        while again and answer.error_code in BUSY_CODES:
            time.sleep(0.02)
            self.said.pop()
            answer = self.tell(who, InitProducerIdRequest(**values), version)
        self._learn(who, answer)
        return answer

    def _learn(self, who: str, answer: Any) -> None:
        if answer.error_code == 0 and answer.producer_id >= 0:
            dealer = self.dealer(who)
            dealer.id, dealer.epoch, dealer.sequences = answer.producer_id, answer.producer_epoch, {}
            self.names.setdefault(answer.producer_id, f"id of {who}")

    def _as(self, who: str, more: dict[str, Any]) -> dict[str, Any]:
        dealer = self.dealer(who)
        own = {
            "transactional_id": self.name,
            "producer_id": dealer.id,
            "producer_epoch": dealer.epoch + more.pop("off", 0),
        }
        return {**own, **more}

    def add(self, who: str, *indexes: int, version: int = 3, topic: str | None = None, **more: Any) -> Any:
        """Add partitions as a client does, or from version 4 on as a broker does."""
        topics = [TopicPartitions(name=self.name if topic is None else topic, partitions=list(indexes))]
        values = self._as(who, more)
        if version >= 4:
            transaction = AddPartitionsToTxnRequest.Transaction(**{"topics": topics, **values})
            return self.tell(who, AddPartitionsToTxnRequest(transactions=[transaction]), version)
        old = {f"v3_and_below_{name}": value for name, value in {"topics": topics, **values}.items()}
        return self.tell(who, AddPartitionsToTxnRequest(**old), version)

    def add_group(self, who: str, version: int = 4, **more: Any) -> Any:
        return self.tell(who, AddOffsetsToTxnRequest(**{"group_id": self.name, **self._as(who, more)}), version)

    def end(self, who: str, committed: bool = True, version: int = 4, **more: Any) -> Any:
        answer = self.tell(who, EndTxnRequest(**{"committed": committed, **self._as(who, more)}), version)
        if version >= 5:
            self._learn(who, answer)
        return answer

    def produce(self, who: str, index: int = 0, version: int = 11, *, sequence: int | None = None, **more: Any) -> Any:
        dealer, topic = self.dealer(who), more.pop("topic", self.name)
        values = self._as(who, more)
        first = dealer.sequences.get((topic, index), 0) if sequence is None else sequence
        batch = build(
            [Record(-1, THEN_MS, b"k", b"v")],
            producer_id=values["producer_id"],
            producer_epoch=values["producer_epoch"],
            base_sequence=first,
            transactional=True,
        )
        kind, said = ProduceRequest.Topic, values["transactional_id"]
        topics = [kind(name=topic, partition_data=[kind.Partition(index=index, records=bytes(batch))])]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics, transactional_id=said)
        answer = self.tell(who, request, version)
        if sequence is None and answer.responses[0].partition_responses[0].error_code == 0:
            dealer.sequences[(topic, index)] = first + 1
        return answer

    def offsets(self, who: str, *indexes: int, version: int = 4, offset: int = 5, **more: Any) -> Any:
        kind = TxnOffsetCommitRequest.Topic
        parts = [
            kind.Partition(partition_index=i, committed_offset=offset, committed_metadata="note")
            for i in indexes or (0,)
        ]
        topics = [kind(name=more.pop("topic", self.name), partitions=parts)]
        values = {"group_id": self.name, "topics": topics, **self._as(who, more)}
        return self.tell(who, TxnOffsetCommitRequest(**values), version)

    def mark(self, who: str, *indexes: int, committed: bool = False, version: int = 1, **more: Any) -> Any:
        """End a transaction in a partition as a coordinator does, or an administrator."""
        dealer, kind = self.dealer(who), WriteTxnMarkersRequest.Marker
        topics = [kind.Topic(name=more.pop("topic", self.name), partition_indexes=list(indexes or (0,)))]
        values = {
            "producer_id": dealer.id,
            "producer_epoch": dealer.epoch + more.pop("off", 0),
            "coordinator_epoch": 0,
            "transaction_result": committed,
            "topics": topics,
            **more,
        }
        return self.tell(who, WriteTxnMarkersRequest(markers=[kind(**values)]), version)

    # --- looking on

    def look(self) -> None:
        """What administrators and readers see: of the transaction, of the group, of two partitions."""
        self.tell("admin", DescribeTransactionsRequest(transactional_ids=[self.name]), 0)
        self.listed(producer_id_filters=[dealer.id for dealer in self.dealers.values()])
        asked = DescribeProducersRequest.Topic(name=self.name, partition_indexes=[0, 1])
        self.tell("admin", DescribeProducersRequest(topics=[asked]), 0)
        self.ends()
        for stable in (False, True):
            self.tell("admin", OffsetFetchRequest(groups=[self._wanted()], require_stable=stable), 9)

    def listed(self, version: int = 2, **filters: Any) -> None:
        self.tell("admin", ListTransactionsRequest(**filters), version)

    def ends(self) -> None:
        """Where readers of both kinds stop."""
        for level in (0, 1):
            kind = ListOffsetsRequest.Topic
            parts = [kind.Partition(partition_index=index, timestamp=-1) for index in (0, 1)]
            request = ListOffsetsRequest(
                replica_id=-1, isolation_level=level, topics=[kind(name=self.name, partitions=parts)]
            )
            self.tell("admin", request, 7)

    def _wanted(self) -> OffsetFetchRequest.Group:
        topic = OffsetFetchRequest.Group.Topic(name=self.name, partition_indexes=[0, 1])
        return OffsetFetchRequest.Group(group_id=self.name, topics=[topic])

    def forget_offset(self, index: int = 0) -> None:
        kind = OffsetDeleteRequest.Topic
        topics = [kind(name=self.name, partitions=[kind.Partition(partition_index=index)])]
        self.tell("admin", OffsetDeleteRequest(group_id=self.name, topics=topics), 0)

    def forget_group(self) -> None:
        self.tell("admin", DeleteGroupsRequest(groups_names=[self.name]), 2)

    # --- waiting

    def settle(self) -> None:
        """Wait until what was decided is done."""
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        until(lambda: self.aside("", request, 0).transaction_states[0].transaction_state not in UNDECIDED)

    def until_state(self, state: str) -> None:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        until(lambda: self.aside("", request, 0).transaction_states[0].transaction_state == state)

    def _await_coordinator(self) -> None:
        find = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[self.name])
        end = EndTxnRequest(transactional_id=self.name, producer_id=0, producer_epoch=0)
        until(lambda: self.aside("", find, 4).coordinators[0].error_code == 0)
        until(lambda: self.aside("", end, 4).error_code not in BUSY_CODES)
        ids = InitProducerIdRequest(transactional_id=None)
        until(lambda: self.aside("", ids, 4).error_code == 0)
        groups = FindCoordinatorRequest(coordinator_keys=[self.name])
        until(lambda: self.aside("", groups, 4).coordinators[0].error_code == 0)
        fetch = OffsetFetchRequest(groups=[self._wanted()])
        until(lambda: self.aside("", fetch, 9).groups[0].error_code not in BUSY_CODES)
        topics = MetadataRequest(topics=[MetadataRequest.Topic(name=self.name)], allow_auto_topic_creation=True)
        until(lambda: self._is_led(self.aside("", topics, 9)))

    def _is_led(self, answer: Any) -> bool:
        return all(not topic.error_code and topic.partitions for topic in answer.topics) and all(
            each.error_code == 0 for each in self._latest()
        )

    def _latest(self) -> Iterable[Any]:
        kind = ListOffsetsRequest.Topic
        parts = [kind.Partition(partition_index=index, timestamp=-1) for index in (0, 1)]
        request = ListOffsetsRequest(replica_id=-1, topics=[kind(name=self.name, partitions=parts)])
        return list(self.aside("", request, 7).topics[0].partitions)

    def close(self) -> None:
        for line in self.lines.values():
            line.close()

    # --- comparing

    def minutes(self) -> list[tuple[str, str, Any]]:
        """Who was told what, without what is chance."""
        return [(who, type(answer).__name__, self.comparable(answer)) for who, answer in self.said]

    def records(self, log: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
        """What the broker wrote down about the transactional id."""
        found = []
        for key, value in log:
            record = unpack(key, value)
            if record is not None and getattr(record.key, "transactional_id", None) == self.name:
                found.append((None if value is None else value[:2], self.comparable(record.value)))
        return found

    def comparable(self, value: Any, name: str = "") -> Any:
        if isinstance(value, (Message, Struct)):
            told = {f.name: getattr(value, f.name) for f in type(value).fields if f.name not in MASKED}
            return {each: self.comparable(what, each) for each, what in told.items()}
        if isinstance(value, list):
            return sorted((self.comparable(each) for each in value), key=repr)
        if name.endswith("producer_id"):
            return self.names.get(value, value)
        return NAMES[value] if name.endswith("error_code") else value


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline, "the broker does not get there"
        time.sleep(0.02)
