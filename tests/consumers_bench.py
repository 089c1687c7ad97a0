"""Consumers of KIP-848 without sockets: each remembers what it was told, as a real one does, and uses what it was given.

`Crowd` is a bench with topics and consumers on it. A consumer's `uses` is what it would read from at this moment. It drops
what an answer leaves out before it says so, and then takes up what the answer adds; a slow one goes on with what it had
until `catch_up`, and says nothing about it meanwhile.
"""

from __future__ import annotations

from groups_bench import GroupsBench
from ottla.coordination import doors
from ottla.coordination.consumer_group import ConsumerGroup
from ottla.metadata.features import GROUP_VERSION
from ottla.metadata.image import Image
from ottla.metadata.records import FeatureLevelRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from ottla.metadata.replay import replay
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ottla.wire.schema import Message

GROUP = "workers"
REBALANCE_TIMEOUT_MS = 30_000

Request = ConsumerGroupHeartbeatRequest


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\x01")


class Crowd(GroupsBench):
    def __init__(self, topics: dict[str, int], **settings: object) -> None:
        super().__init__(Image(), **settings)
        self._change(FeatureLevelRecord(name=GROUP_VERSION, feature_level=1))
        for name, partitions in topics.items():
            self.make(name, partitions)

    def make(self, name: str, partitions: int) -> None:
        self._change(TopicRecord(name=name, topic_id=topic_id(name)), *self._partitions(name, range(partitions)))

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self._change(*self._partitions(name, range(len(topic.partitions), partitions)))

    def delete(self, name: str) -> None:
        self._change(RemoveTopicRecord(topic_id=topic_id(name)))

    @staticmethod
    def _partitions(name: str, indexes: range) -> list[PartitionRecord]:
        return [
            PartitionRecord(partition_id=i, topic_id=topic_id(name), replicas=[1], isr=[1], leader=1) for i in indexes
        ]

    def _change(self, *records: Message) -> None:
        self.image, delta = replay(self.image, records, self.image.offset + len(records), 1)
        self.carry_out_all(self.coordinator.follow(self.image, delta, self.moment))

    def group(self, group_id: str = GROUP) -> ConsumerGroup:
        group = self.groups.by_id[group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def settle(self, *consumers: Consumer, rounds: int = 12) -> None:
        """Heartbeats of everybody, a second apart, until nothing is left to be done."""
        for _ in range(rounds):
            self.pass_ms(1000)
            for consumer in consumers:
                consumer.beat()


class Consumer:
    def __init__(
        self,
        crowd: Crowd,
        member_id: str,
        topics: list[str] | None = None,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.crowd, self.id, self.instance_id, self.assignor = crowd, member_id, instance_id, assignor
        self.topics = topics if topics is not None or regex is not None else ["t"]
        self.regex = regex
        self.epoch = 0
        self.uses: set[tuple[bytes, int]] = set()
        self.told: set[tuple[bytes, int]] | None = None  # what it is to use, and does not yet
        self.misses_an_answer = False

    # --- speaking

    def request(self, **said: object) -> Request:
        request = Request(group_id=GROUP, member_id=self.id, member_epoch=self.epoch, instance_id=self.instance_id)
        for name, value in said.items():
            setattr(request, name, value)
        return request

    def full(self) -> Request:
        return self.request(
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=self.topics,
            subscribed_topic_regex=self.regex,
            server_assignor=self.assignor,
            topic_partitions=self.owned(),
        )

    def owned(self) -> list[Request.TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic, partition in sorted(self.uses):
            by_topic.setdefault(topic, []).append(partition)
        return [Request.TopicPartitions(topic_id=topic, partitions=those) for topic, those in by_topic.items()]

    def send(self, request: Request, version: int = 1) -> ConsumerGroupHeartbeatResponse | KafkaError:
        reply = self.crowd.ask(doors.consumer_heartbeat, request, version).reply
        assert isinstance(reply, ConsumerGroupHeartbeatResponse | KafkaError)
        return reply

    def refused(self, request: Request, version: int = 1) -> tuple[Error, str | None]:
        reply = self.send(request, version)
        assert isinstance(reply, KafkaError), reply
        return reply.error, reply.message

    # --- living

    def join(self) -> Consumer:
        self._begin_anew()
        self._heed(self.send(self.full()))
        return self

    def beat(self, is_lost: bool = False, is_slow: bool = False) -> None:
        """A heartbeat that says what the consumer owns; its answer may be lost on the way, or heeded late."""
        # Whoever misses an answer says everything again, as real ones do: only then is everything told again.
        says_all = self.told is None and (self.epoch == 0 or self.misses_an_answer)
        owned = self.owned() if self.told is None else None
        reply = self.send(self.full() if says_all else self.request(topic_partitions=owned))
        self.misses_an_answer = is_lost or (self.misses_an_answer and not says_all)
        if not is_lost:
            self._heed(reply, is_slow)

    def catch_up(self) -> None:
        if self.told is not None:
            self.uses, self.told = self.told, None

    def _begin_anew(self) -> None:
        self.epoch, self.uses, self.told, self.misses_an_answer = 0, set(), None, False

    def leave(self) -> None:
        epoch = -1 if self.instance_id is None else -2
        assert not isinstance(self.send(self.request(member_epoch=epoch)), KafkaError)
        self.uses = set()

    def _heed(self, reply: ConsumerGroupHeartbeatResponse | KafkaError, is_slow: bool = False) -> None:
        if isinstance(reply, KafkaError):
            assert reply.error in (Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID, Error.GROUP_ID_NOT_FOUND), reply
            self._begin_anew()
            return
        assert reply.member_epoch >= self.epoch
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.told = {(t.topic_id, p) for t in reply.assignment.topic_partitions for p in t.partitions}
        if not is_slow:
            self.catch_up()

    def partitions(self, topic: str = "t") -> list[int]:
        return sorted(partition for of, partition in self.uses if of == topic_id(topic))
