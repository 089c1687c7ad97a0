"""A cluster that is nothing but a picture: decisions are made and replayed, and nothing else happens."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from ottla.metadata import controller
from ottla.metadata.controller import Decision, NewTopic, Registration, Rules
from ottla.metadata.heartbeats import Standing, heartbeat, noted
from ottla.metadata.image import BROKER, TOPIC, Endpoint, Image, Partition
from ottla.metadata.in_sync import alter_partition
from ottla.metadata.periodic import fence_silent
from ottla.metadata.reassignments import Wanted, reassign
from ottla.metadata.records import ConfigRecord, FeatureLevelRecord
from ottla.metadata.replay import replay
from ottla.metadata.sessions import Sessions
from ottla.wire.errors import Error
from ottla.wire.messages.brokers import AlterPartitionRequest, AlterPartitionResponse, BrokerHeartbeatRequest
from ottla.wire.schema import Message

T = TypeVar("T")
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092, 0)
CLUSTER_ID = "a cluster of pictures"
TIMEOUT_MS = 9_000
Altered = AlterPartitionResponse.Topic.Partition


def directory(broker_id: int, which: int = 0) -> bytes:
    return bytes([which + 1, broker_id]) * 8


class Pictured:
    """Brokers with ids and maybe racks; one topic `t` for most purposes. Time stands still until it is set."""

    def __init__(self, *brokers: int, racks: str = "", elr: bool = True, min_isr: int = 1, seed: int = 1) -> None:
        self.rules = Rules()
        self.rng = Random(seed)
        self.now_ms = 1_000_000
        self.sessions = Sessions(TIMEOUT_MS)
        self.image = Image(cluster_id=CLUSTER_ID, controller_id=1)
        self.written: list[tuple[Message, int]] = []
        self._lives = 0
        self.apply(controller.bootstrap(self.image, [], self.rules))
        if not elr:
            self.replay(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0))
        self.setting("min.insync.replicas", str(min_isr))
        self.sessions.begin(self.image, self.now_ms)
        for broker_id, rack in zip(brokers, racks or " " * len(brokers), strict=True):
            self.start(broker_id, rack=rack.strip() or None)

    def apply(self, decision: Decision[T]) -> T:
        self.written = decision.records
        self.replay(*(record for record, _ in decision.records))
        return decision.reply

    def replay(self, *records: Message) -> None:
        self.image = replay(self.image, records, self.image.offset + len(records), 1)[0]

    def setting(self, name: str, value: str, topic: str | None = None) -> None:
        kind, resource = (BROKER, "") if topic is None else (TOPIC, topic)
        self.replay(ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value))

    # --- brokers

    def registration(self, broker_id: int, **more: Any) -> Registration:
        """A new process, unless an incarnation is given."""
        self._lives += 1
        incarnation = self._lives.to_bytes(16, "big")
        who = Registration(broker_id, incarnation, [ENDPOINT], [directory(broker_id)], cluster_id=CLUSTER_ID)
        return who._replace(**more)

    def register(self, who: Registration) -> int:
        old = self.image.broker(who.id)
        in_session = old is not None and self.sessions.is_live(who.id, old.epoch, self.now_ms)
        decision = controller.register_broker(self.image, who, self.rules, in_session=in_session)
        at = self.image.offset + len(decision.records)
        self.sessions.registered(who.id, decision.reply, at, self.now_ms)
        return self.apply(decision)

    def start(self, broker_id: int, **more: Any) -> None:
        self.register(self.registration(broker_id, **more))
        self.beat(broker_id)

    def beat(self, broker_id: int, read: int | None = None, **wants: Any) -> Standing:
        """A heartbeat of a broker that has read everything, unless it is said how much."""
        offset = self.image.offset if read is None else read
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=wants.pop("epoch", None) or self._epoch(broker_id),
            current_metadata_offset=offset,
            **{"cordoned_log_dirs": [], **wants},
        )
        decision = heartbeat(self.image, request, self.sessions, self.rules)
        noted(self.sessions, request, decision.reply, self.now_ms)
        return self.apply(decision)

    def silence(self, broker_id: int) -> None:
        self.apply(fence_silent(self.image, broker_id, self.image.brokers[broker_id].epoch, self.rules))
        self.sessions.end(broker_id)

    # --- partitions

    def topic(self, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> None:
        """One partition for each tuple."""
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(name, assignments=list(enumerate(replicas)), configs=dotted)
        made = self.apply(controller.create_topics(self.image, [new], self.rules, self.rng))
        assert not isinstance(made[name], Exception), made[name]

    def spread(self, count: int, factor: int, name: str = "t") -> list[tuple[int, ...]]:
        new = NewTopic(name, count, factor)
        made = self.apply(controller.create_topics(self.image, [new], self.rules, self.rng))[name]
        if isinstance(made, Exception):
            raise made
        return [partition.replicas for partition in made.partitions.values()]

    def partition(self, index: int = 0, name: str = "t") -> Partition:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.partitions[index]

    def reassign(self, *replicas: int) -> Error | None:
        """Without replicas: stop what is under way."""
        wanted = Wanted(0, replicas or None)
        ((_, ((_, error),)),) = self.apply(reassign(self.image, [("t", [wanted])], self.rules))
        return None if error is None else error.error

    def alter(self, *isr: int | tuple[int, int], **more: int) -> Altered:
        """The leader says who is in sync with partition 0; what it would say can be changed."""
        topic, partition = self.image.topic("t"), self.partition()
        assert topic is not None
        kind = AlterPartitionRequest.Topic.Partition
        states = [each if isinstance(each, tuple) else (each, self._epoch(each)) for each in isr]
        leader = more.pop("broker_id", partition.leader)
        epoch = more.pop("broker_epoch", self._epoch(leader))
        asked = kind(
            partition_index=more.pop("partition_index", 0),
            leader_epoch=more.pop("leader_epoch", partition.leader_epoch),
            partition_epoch=more.pop("partition_epoch", partition.partition_epoch),
            new_isr_with_epochs=[kind.BrokerState(broker_id=b, broker_epoch=e) for b, e in states],
            **more,
        )
        topics = [AlterPartitionRequest.Topic(topic_id=topic.id, partitions=[asked])]
        request = AlterPartitionRequest(broker_id=leader, broker_epoch=epoch, topics=topics)
        response = self.apply(alter_partition(self.image, request, self.rules))
        return response.topics[0].partitions[0]

    def _epoch(self, broker_id: int) -> int:
        broker = self.image.broker(broker_id)
        return -1 if broker is None else broker.epoch
