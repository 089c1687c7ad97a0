"""Deciding: topics, partitions, settings, brokers and elections, all as functions of a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest

from ottla.metadata import controller
from ottla.metadata.controller import Decision, MorePartitions, NewTopic, Registration, Rules
from ottla.metadata.features import SERVED
from ottla.metadata.image import DIRECTORY_UNASSIGNED, TOPIC, Endpoint, Image, Topic
from ottla.metadata.leaders import UNCLEAN, elect_leaders
from ottla.metadata.records import ClearElrRecord, FeatureLevelRecord
from ottla.metadata.replay import replay
from ottla.wire.errors import Error, KafkaError

T = TypeVar("T")
RULES = Rules()
DIRECTORY = b"directory of one"
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092, 0)


def apply(image: Image, decision: Decision[T]) -> Image:
    held = [record for record, _ in decision.records]
    return replay(image, held, image.offset + len(held), 1)[0]


def cluster(brokers: Iterable[int] = (1,), *, elr: bool = True) -> Image:
    image = apply(Image(), controller.bootstrap(Image(), [], RULES))
    if not elr:
        image = replace(image, features={"metadata.version": 30})
    for broker in brokers:
        image = apply(image, controller.register_broker(image, registration(broker), RULES))
        image = apply(image, controller.unfence(image, broker, RULES))
    return image


def registration(broker: int, **more: object) -> Registration:
    return Registration(broker, bytes([broker]) * 16, [ENDPOINT], [DIRECTORY[:-1] + bytes([broker])])._replace(**more)  # type: ignore[arg-type]


def back(image: Image, broker: int, **more: object) -> Image:
    """The broker died without a farewell; its next process registers and is let in."""
    who = registration(broker, incarnation=bytes([broker]) * 15 + b"x", **more)
    image = apply(image, controller.register_broker(image, who, RULES))
    return apply(image, controller.unfence(image, broker, RULES))


def led_by_three() -> Image:
    """A partition that all three have, and the third leads."""
    image, _ = created(cluster([1, 2, 3]), NewTopic("a", assignments=[(0, [3, 1, 2])]))
    return image


def created(image: Image, *wanted: NewTopic, rules: Rules = RULES) -> tuple[Image, dict[str, Topic | KafkaError]]:
    decision = controller.create_topics(image, wanted, rules, Random(1))
    return apply(image, decision), decision.reply


def error_of(outcome: object) -> Error:
    assert isinstance(outcome, KafkaError), outcome
    return outcome.error


class TestCreate:
    def test_defaults_come_from_the_rules_and_the_records_make_the_topic(self) -> None:
        """KRF-02."""
        rules = Rules(partitions=3)
        image, reply = created(cluster(), NewTopic("a", configs={"retention.ms": "5"}), rules=rules)
        topic = image.topic("a")
        assert topic is not None and topic == reply["a"]
        assert [p.leader for p in topic.partitions.values()] == [1, 1, 1]
        assert topic.partitions[0].directories == (DIRECTORY[:-1] + b"\x01",)
        assert image.configs(TOPIC, "a") == {"retention.ms": "5"}

    @pytest.mark.parametrize(
        ("new", "error"),
        [
            (NewTopic(""), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("."), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic(".."), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("a" * 250), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("a/b"), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("é"), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("is_there"), Error.TOPIC_ALREADY_EXISTS),
            (NewTopic("is.there"), Error.INVALID_TOPIC_EXCEPTION),
            (NewTopic("n", partitions=0), Error.INVALID_PARTITIONS),
            (NewTopic("n", partitions=-2), Error.INVALID_PARTITIONS),
            (NewTopic("n", partitions=0, replication_factor=0), Error.INVALID_REPLICATION_FACTOR),
            (NewTopic("n", replication_factor=2), Error.INVALID_REPLICATION_FACTOR),
            (NewTopic("n", configs={"a": None}), Error.INVALID_CONFIG),
            (NewTopic("n", configs={"bad": "x"}), Error.INVALID_CONFIG),
            (NewTopic("n", 1, -1, [(0, [1])]), Error.INVALID_REQUEST),
            (NewTopic("n", -1, 1, [(0, [1])]), Error.INVALID_REQUEST),
            (NewTopic("n", assignments=[(0, [1]), (0, [1])]), Error.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("n", assignments=[(1, [1])]), Error.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("n", assignments=[(0, [])]), Error.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("n", assignments=[(0, [9])]), Error.INVALID_REPLICA_ASSIGNMENT),
            (NewTopic("n", assignments=[(0, [1, 1])]), Error.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_what_is_refused_and_why(self, new: NewTopic, error: Error) -> None:
        def check(configs: object) -> None:
            if "bad" in configs:  # type: ignore[operator]
                raise KafkaError(Error.INVALID_CONFIG, "no such config")

        image, _ = created(cluster(), NewTopic("is_there"))
        after, reply = created(image, new, rules=Rules(check_topic_configs=check))
        assert error_of(reply[new.name]) is error
        assert len(after.topics) == 1

    def test_one_that_fails_does_not_stop_the_others_and_validation_writes_nothing(self) -> None:
        image, reply = created(cluster(), NewTopic("bad name"), NewTopic("good"))
        assert error_of(reply["bad name"]) is Error.INVALID_TOPIC_EXCEPTION and image.topic("good") is not None
        decision = controller.create_topics(cluster(), [NewTopic("x")], RULES, Random(1), validate_only=True)
        assert decision.records == [] and isinstance(decision.reply["x"], Topic)

    def test_by_hand(self) -> None:
        image, _ = created(cluster([1, 2]), NewTopic("a", assignments=[(1, [2, 1]), (0, [1, 2])]))
        topic = image.topic("a")
        assert topic is not None and [p.replicas for p in topic.partitions.values()] == [(1, 2), (2, 1)]
        assert [p.leader for p in topic.partitions.values()] == [1, 2]

    def test_replicas_are_spread(self) -> None:
        image, _ = created(cluster([1, 2, 3]), NewTopic("a", 9, 2))
        topic = image.topic("a")
        assert topic is not None
        leaders = [p.leader for p in topic.partitions.values()]
        assert sorted(leaders) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert all(len(set(p.replicas)) == 2 for p in topic.partitions.values())

    def test_nobody_there(self) -> None:
        image = cluster()
        image = apply(image, controller.fence(image, 1, RULES))
        for new in (NewTopic("a"), NewTopic("a", assignments=[(0, [1])])):
            assert isinstance(created(image, new)[1]["a"], KafkaError)

    def test_a_request_has_a_limit(self) -> None:
        with pytest.raises(KafkaError) as refused:
            created(cluster(), NewTopic("a", 6000), NewTopic("b", 6000))
        assert refused.value.error is Error.POLICY_VIOLATION

    def test_a_broker_with_two_directories_is_asked_where(self) -> None:
        image = cluster([])
        image = apply(
            image, controller.register_broker(image, registration(1, directories=[DIRECTORY, b"b" * 16]), RULES)
        )
        image = apply(image, controller.unfence(image, 1, RULES))
        image, _ = created(image, NewTopic("a"))
        topic = image.topic("a")
        assert topic is not None and topic.partitions[0].directories == (DIRECTORY_UNASSIGNED,)
        epoch, places = image.brokers[1].epoch, [(DIRECTORY, [(topic.id, 0)])]
        image = apply(image, controller.assign_replicas(image, 1, epoch, places, RULES))
        partition = image.topics[topic.id].partitions[0]
        assert partition.directories == (DIRECTORY,) and partition.leader_epoch == 0


class TestPartitions:
    @pytest.mark.parametrize(
        ("more", "error"),
        [
            (MorePartitions("none", 3), Error.UNKNOWN_TOPIC_OR_PARTITION),
            (MorePartitions("a", 2), Error.INVALID_PARTITIONS),
            (MorePartitions("a", 1), Error.INVALID_PARTITIONS),
            (MorePartitions("a", -1), Error.INVALID_PARTITIONS),
            (MorePartitions("a", 3, [[1], [1]]), Error.INVALID_REPLICA_ASSIGNMENT),
            (MorePartitions("a", 3, []), Error.INVALID_REPLICA_ASSIGNMENT),
            (MorePartitions("a", 3, [[1, 2]]), Error.INVALID_REPLICA_ASSIGNMENT),
            (MorePartitions("a", 3, [[7]]), Error.INVALID_REPLICA_ASSIGNMENT),
            (MorePartitions("a", 20_000), Error.POLICY_VIOLATION),
        ],
    )
    def test_refused(self, more: MorePartitions, error: Error) -> None:
        image, _ = created(cluster([1, 2]), NewTopic("a", 2, 1))
        decision = controller.add_partitions(image, [more], Random(1))
        assert decision.records == [] and error_of(decision.reply[more.name]) is error

    def test_added(self) -> None:
        image, _ = created(cluster(), NewTopic("a"))
        for more in (MorePartitions("a", 3), MorePartitions("a", 4, [[1]])):
            image = apply(image, controller.add_partitions(image, [more], Random(1)))
        topic = image.topic("a")
        assert topic is not None and list(topic.partitions) == [0, 1, 2, 3]


def test_deleting() -> None:
    image, reply = created(cluster(), NewTopic("a"))
    topic = reply["a"]
    assert isinstance(topic, Topic)
    decision = controller.delete_topics(image, [topic.id, bytes(16)])
    assert decision.reply[topic.id] is None and error_of(decision.reply[bytes(16)]) is Error.UNKNOWN_TOPIC_ID
    assert apply(image, decision).topic("a") is None


def test_settings_are_set_and_taken_away() -> None:
    image, _ = created(cluster(), NewTopic("a", configs={"x": "1", "y": "2"}))
    resource = (TOPIC, "a")
    image = apply(image, controller.incremental_alter_configs(image, {resource: {"x": None, "z": "3"}}))
    assert image.configs(*resource) == {"y": "2", "z": "3"}
    assert controller.incremental_alter_configs(image, {resource: {"z": "3"}}).records == []


def test_a_new_minimum_in_sync_starts_eligibility_over() -> None:
    """As 4.3.1 writes it: a ClearElrRecord right after the setting."""
    image, _ = created(cluster(), NewTopic("a"))
    decision = controller.incremental_alter_configs(image, {(TOPIC, "a"): {"min.insync.replicas": "2"}})
    assert [type(record).__name__ for record, _ in decision.records] == ["ConfigRecord", "ClearElrRecord"]
    assert decision.records[1][0] == ClearElrRecord(topic_name="a")


def test_no_block_of_producer_ids_goes_beyond_the_last_number() -> None:
    image = replace(cluster(), next_producer_id=2**63 - 1000)
    with pytest.raises(KafkaError, match="Exhausted"):
        controller.next_producer_ids(image, 1, image.brokers[1].epoch)


def test_producer_ids_come_in_blocks() -> None:
    image = cluster()
    first = controller.next_producer_ids(image, 1, image.brokers[1].epoch)
    second = controller.next_producer_ids(apply(image, first), 1, image.brokers[1].epoch)
    assert (first.reply, second.reply) == ((0, 1000), (1000, 1000))


class TestBrokers:
    def test_the_epoch_is_the_offset_where_the_registration_begins(self) -> None:
        image = cluster([])
        decision = controller.register_broker(image, registration(1), RULES)
        assert decision.reply == image.offset + 1
        assert apply(image, decision).brokers[1].epoch == decision.reply

    def test_reserved_and_shared_directories_are_refused(self) -> None:
        """TRAP-35."""
        for directories in ([bytes(15) + b"\x63"], [DIRECTORY, DIRECTORY]):
            with pytest.raises(KafkaError):
                controller.register_broker(cluster([]), registration(1, directories=directories), RULES)
        with pytest.raises(KafkaError):
            controller.register_broker(cluster([1]), registration(2, directories=registration(1).directories), RULES)

    def test_who_is_about_to_stop_leads_no_new_partition_and_is_in_sync_with_none(self) -> None:
        image = cluster((1, 2))
        image = apply(image, controller.begin_shutdown(image, 2, RULES))
        image, _ = created(image, NewTopic("a", assignments=[(0, (2, 1))]))
        partition = next(image.topics.values()).partitions[0]
        assert (partition.replicas, partition.isr, partition.leader) == ((2, 1), (1,), 1)

    def test_who_is_about_to_stop_is_so_although_it_registers_again(self) -> None:
        """The same process asks again when an answer was lost: that is no way back."""
        image = cluster((1, 2))
        image = apply(image, controller.begin_shutdown(image, 2, RULES))
        image = apply(image, controller.register_broker(image, registration(2), RULES))
        broker = image.brokers[2]
        assert (broker.in_controlled_shutdown, broker.fenced) == (True, False)

    @pytest.mark.parametrize("elr", [True, False])
    def test_a_clean_stop_and_start_keeps_the_partition_and_raises_its_epoch(self, elr: bool) -> None:
        image, _ = created(cluster(elr=elr), NewTopic("a"))
        epoch = image.brokers[1].epoch
        image = apply(image, controller.begin_shutdown(image, 1, RULES))
        partition = next(image.topics.values()).partitions[0]
        assert partition.leader == -1 and partition.leader_epoch == 1
        assert (partition.isr, partition.elr, partition.last_known_elr) == (((), (1,), (1,)) if elr else ((1,), (), ()))
        image = apply(image, controller.fence(image, 1, RULES))
        image = apply(
            image,
            controller.register_broker(image, registration(1, incarnation=b"next" * 4, previous_epoch=epoch), RULES),
        )
        image = apply(image, controller.unfence(image, 1, RULES))
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.leader_epoch, partition.isr, partition.elr) == (1, 2, (1,), ())
        assert not partition.recovering and partition.last_known_elr == ()

    @pytest.mark.parametrize("elr", [True, False])
    def test_after_a_kill_the_last_known_leader_leads_again(self, elr: bool) -> None:
        """TRAP-40, TRAP-41: at one replica a kill empties both sets, and the partition must not stay offline."""
        image, _ = created(cluster(elr=elr), NewTopic("a"))
        image = apply(image, controller.fence(image, 1, RULES))
        image = apply(image, controller.register_broker(image, registration(1, incarnation=b"next" * 4), RULES))
        partition = next(image.topics.values()).partitions[0]
        assert partition.leader == -1 and partition.elr == ()
        image = apply(image, controller.unfence(image, 1, RULES))
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))
        assert partition.recovering is elr and partition.last_known_elr == ()

    def test_a_last_known_leader_that_lost_its_disk_does_not_lead(self) -> None:
        """The disk of the leader is gone, and before anybody notices the others die without a farewell: each is put out of the
        in-sync set when it comes back. Nobody can say then who has everything, and that the leader has nothing is certain:
        somebody must ask for a leader. (Apache Kafka 4.3 writes the same records.)"""
        image = apply(led_by_three(), controller.fence(led_by_three(), 2, RULES))
        image = back(back(image, 2), 1)
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.isr, partition.elr) == (3, (3,), ())
        image = apply(image, controller.fence(image, 3, RULES))
        image = back(image, 3, directories=[b"another one's id"])
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (-1, (), (), (3,))
        image = apply(image, elect_leaders(image, None, UNCLEAN, RULES))
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.isr, partition.recovering) == (1, (1,), True)

    @pytest.mark.parametrize("order", [(1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 3, 2)])
    def test_once_a_lost_disk_is_noticed_everybody_may_die(self, order: tuple[int, ...]) -> None:
        """Somebody else leads by then, and so the last one known has everything, in whatever order they come back."""
        image = apply(led_by_three(), controller.fence(led_by_three(), 3, RULES))
        for broker in order:
            image = back(image, broker, **({"directories": [b"another one's id"]} if broker == 3 else {}))
        partition = next(image.topics.values()).partitions[0]
        assert partition.leader in (1, 2) and partition.isr == (partition.leader,)

    def test_leadership_moves_to_who_is_in_sync(self) -> None:
        image, _ = created(cluster([1, 2, 3]), NewTopic("a", assignments=[(0, [1, 2, 3])]))
        image = apply(image, controller.fence(image, 1, RULES))
        partition = next(image.topics.values()).partitions[0]
        assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2, 3), 1)

    def test_unclean_election_only_where_it_is_allowed(self) -> None:
        base, _ = created(cluster([1, 2], elr=False), NewTopic("a", assignments=[(0, [1, 2])]))
        base = apply(base, controller.fence(base, 2, RULES))
        for allowed in ("true", "false"):
            rules = {(TOPIC, "a"): {"unclean.leader.election.enable": allowed}}
            image = apply(base, controller.incremental_alter_configs(base, rules))
            image = apply(image, controller.fence(image, 1, RULES))
            image = apply(image, controller.unfence(image, 2, RULES))
            partition = next(image.topics.values()).partitions[0]
            assert partition.leader == (2 if allowed == "true" else -1)
            assert partition.recovering is (allowed == "true")


def test_bootstrap_finalises_what_is_served_inside_one_transaction() -> None:
    """TRAP-29, TRAP-31."""
    decision = controller.bootstrap(Image(), [], RULES)
    assert [type(record).__name__ for record, _ in decision.records] == [
        "BeginTransactionRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "ConfigRecord",
        "EndTransactionRecord",
    ]
    image = apply(Image(), decision)
    assert all(SERVED[name][0] <= level <= SERVED[name][1] for name, level in image.features.items())
    assert controller.bootstrap(image, [], RULES).records == []


def test_bootstrap_takes_what_the_directory_was_formatted_with() -> None:
    formatted = [(FeatureLevelRecord(name="metadata.version", feature_level=7), 0)]
    decision = controller.bootstrap(Image(), formatted, RULES)  # type: ignore[arg-type]
    assert decision.records == formatted, "metadata.version 7 knows no transactions"
