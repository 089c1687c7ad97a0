"""Replaying: what each kind of record does to the picture, and what a batch costs."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from ottla.metadata import records as r
from ottla.metadata.image import BROKER, TOPIC, Delta, Image, Partition
from ottla.metadata.records import unframe
from ottla.metadata.replay import REPLAY, replay
from ottla.metadata.snapshot import records_of
from ottla.wire.records import batches, iterate
from ottla.wire.schema import Message

GOLDEN = Path(__file__).parent / "apache_4_3_1"
ID = bytes.fromhex("00112233445566778899aabbccddeeff")
OTHER = bytes.fromhex("ff112233445566778899aabbccddeeff")


def replayed(*batch: Message, on: Image | None = None) -> Image:
    base = on or Image()
    return replay(base, batch, base.offset + len(batch), 1)[0]


def topic(name: str = "t", topic_id: bytes = ID, partitions: int = 1) -> list[Message]:
    return [
        r.TopicRecord(name=name, topic_id=topic_id),
        *(
            r.PartitionRecord(
                partition_id=i, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0
            )
            for i in range(partitions)
        ),
    ]


def image_of(path: Path) -> Image:
    data = path.read_bytes()
    image = Image()
    for position, batch in batches(data):
        if not batch.is_control:
            held = [unframe(record.value or b"") for record in iterate(memoryview(data)[position:])]
            image = replay(image, held, batch.last_offset, batch.leader_epoch)[0]
    return image


def test_a_log_of_apache_kafka_becomes_the_picture_it_describes() -> None:
    """KRF-03, KRF-08, TRAP-36: topics, settings, brokers and features; proofs of life mean nothing."""
    image = image_of(GOLDEN / "00000000000000000000.log")
    assert sorted(image.topic_ids) == ["dotted.name", "plain"]
    plain = image.topic("plain")
    assert plain is not None and sorted(plain.partitions) == [0, 1, 2, 3]
    assert plain.partitions[0].elr == (1,) and plain.partitions[0].leader == -1
    assert image.configs(TOPIC, "dotted.name") == {"cleanup.policy": "compact", "retention.ms": "1000"}
    assert image.configs(BROKER, "") == {"log.retention.ms": "777777", "min.insync.replicas": "1"}
    assert image.features["metadata.version"] == 30 and image.features["transaction.version"] == 2
    assert image.brokers[1].fenced and image.brokers[1].endpoints["PLAINTEXT"].port == 39292
    assert image.next_producer_id == 1000


def test_replaying_a_log_gives_what_apache_kafka_put_into_its_own_snapshot() -> None:
    """Access rules are not served yet and must come through all the same."""
    from_log, from_snapshot = image_of(GOLDEN / "00000000000000000000.log"), image_of(next(GOLDEN.glob("*.checkpoint")))
    # The snapshot ends one record before the broker was fenced.
    fenced = from_snapshot.brokers[1]._replace(fenced=True)
    snapshot_now = dict(from_snapshot.kept.items())
    assert {1: fenced} == dict(from_log.brokers)
    assert dict(from_log.topics.items()) == dict(from_snapshot.topics.items())
    assert dict(from_log.settings.items()) == dict(from_snapshot.settings.items())
    assert dict(from_log.features) == dict(from_snapshot.features)
    assert dict(from_log.kept.items()) == snapshot_now
    assert sorted(str(key[0]) for key in snapshot_now) == ["access rule"]
    assert from_log.quotas == from_snapshot.quotas and from_log.credentials == from_snapshot.credentials
    assert len(from_log.quotas) and len(from_log.credentials) == 1


def test_a_snapshot_of_ours_replays_to_the_same_picture() -> None:
    """KRF-10."""
    image = image_of(GOLDEN / "00000000000000000000.log")
    again = replay(Image(), [record for record, _ in records_of(image)], image.offset, image.epoch)[0]
    assert again == image


def test_a_batch_says_what_it_changed() -> None:
    before = replayed(
        *topic("old", OTHER, 2), r.ConfigRecord(resource_type=TOPIC, resource_name="old", name="a", value="1")
    )
    batch = [
        *topic("new", ID, 2),
        r.RemoveTopicRecord(topic_id=OTHER),
        r.ConfigRecord(resource_type=TOPIC, resource_name="new", name="b", value="2"),
    ]
    after, delta = replay(before, batch, 10, 1)
    assert {t.name: sorted(t.partitions) for t in delta.created.values()} == {"new": [0, 1]}
    assert [t.name for t in delta.deleted.values()] == ["old"]
    assert sorted(delta.partitions) == [(ID, 0), (ID, 1)]
    assert delta.configs == {(TOPIC, "old"): {"a": None}, (TOPIC, "new"): {"b": "2"}}
    assert after.topic("old") is None and after.topic_by_id(OTHER) is None and after.configs(TOPIC, "old") == {}
    assert before.topic("old") is not None, "the picture before is untouched"


def test_the_first_delta_tells_everything() -> None:
    image = image_of(GOLDEN / "00000000000000000000.log")
    delta = Delta.everything(image)
    assert sorted(topic.name for topic in delta.created.values()) == ["dotted.name", "plain"]
    assert len(delta.partitions) == 5 and not delta.deleted
    assert delta.configs[TOPIC, "dotted.name"] == {"cleanup.policy": "compact", "retention.ms": "1000"}
    assert delta.brokers == image.brokers and delta.features == image.features


def limit(value: float | None, user: str = "u") -> Message:
    named = [r.ClientQuotaRecord.EntityData(entity_type="user", entity_name=user)]
    return r.ClientQuotaRecord(entity=named, key="producer_byte_rate", value=value or 0.0, remove=value is None)


def setting(value: str | None, of: str = "t") -> Message:
    return r.ConfigRecord(resource_type=TOPIC, resource_name=of, name="retention.ms", value=value)


# Something of every kind that a picture can hold, and a batch that takes away or changes each that can be.
EVERYTHING: list[Message] = [
    r.FeatureLevelRecord(name="metadata.version", feature_level=30),
    r.FeatureLevelRecord(name="group.version", feature_level=1),
    r.RegisterBrokerRecord(broker_id=1, broker_epoch=7, log_dirs=[ID], rack="here", fenced=False),
    r.RegisterControllerRecord(controller_id=3, incarnation_id=ID),
    *topic("old.one", OTHER),
    *topic("t"),
    setting("1"),
    limit(5.0),
    limit(6.0, "other"),
    r.UserScramCredentialRecord(name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096),
    r.AccessControlEntryRecord(id=ID, resource_type=2, resource_name="t", principal="User:u", host="*"),
    r.DelegationTokenRecord(token_id="x"),
    r.ProducerIdsRecord(broker_id=1, next_producer_id=1000),
]
CHANGES: list[Message] = [
    r.FeatureLevelRecord(name="group.version", feature_level=0),
    r.UnregisterBrokerRecord(broker_id=1),
    r.RegisterControllerRecord(controller_id=4, incarnation_id=ID),
    r.RemoveTopicRecord(topic_id=OTHER),
    *topic("new", bytes(16)),
    setting(None),
    limit(None),
    limit(7.0, "other"),
]
# What a snapshot cannot hold: it stands in its name, in control records, in the directory, or is not over yet.
BESIDE_RECORDS = {"offset", "epoch", "cluster_id", "controller_id", "kraft_version", "transaction"}


def test_every_kind_of_record_is_replayed() -> None:
    transactions = {r.BeginTransactionRecord, r.EndTransactionRecord, r.AbortTransactionRecord}
    declared = {kind for kind in vars(r).values() if isinstance(kind, type) and issubclass(kind, Message)} - {Message}
    assert REPLAY.keys() | transactions == declared == set(r.KINDS.values())


def test_whatever_a_picture_can_hold_comes_through_a_snapshot() -> None:
    """KRF-10: a field that has no example here, or that a snapshot forgets, would be lost at the next start."""
    image, nothing = replayed(*EVERYTHING), Image()
    empty = {field.name for field in fields(Image) if getattr(image, field.name) == getattr(nothing, field.name)}
    assert empty <= BESIDE_RECORDS
    assert sorted(str(key[0]) for key in image.kept) == ["access rule", "token"]
    again = replay(nothing, [record for record, _ in records_of(image)], image.offset, image.epoch)[0]
    assert again == image


def told(delta: Delta) -> dict[str, Any]:
    return {field.name: getattr(delta, field.name) for field in fields(Delta) if field.init}


def test_a_picture_that_came_as_a_snapshot_tells_no_less_than_its_records_would() -> None:
    """What is not told nobody follows: a node that was away and gets a snapshot would go on as before."""
    old = replayed(*EVERYTHING)
    new, by_records = replay(old, CHANGES, old.offset + len(CHANGES), 1)
    by_snapshot = told(Delta.between(old, new))
    for name, changes in told(by_records).items():
        assert changes, f"there is no example of a change of {name}"
        assert changes.items() <= by_snapshot[name].items(), name


def test_the_first_delta_tells_no_less_than_all_records_would() -> None:
    image, by_records = replay(Image(), EVERYTHING, len(EVERYTHING), 1)
    at_once = told(Delta.everything(image))
    for name, changes in told(by_records).items():
        assert changes or name == "deleted", f"there is no example of {name}"
        assert at_once[name] == changes, name


def test_a_topic_that_comes_and_goes_in_one_batch_was_never_there() -> None:
    _, delta = replay(Image(), [*topic(), r.RemoveTopicRecord(topic_id=ID)], 2, 1)
    assert not delta.created and not delta.deleted and not delta.partitions


def test_a_name_can_be_used_again_in_the_batch_that_deletes_it() -> None:
    before = replayed(*topic("t", OTHER), r.ConfigRecord(resource_type=TOPIC, resource_name="t", name="a", value="1"))
    after, delta = replay(before, [r.RemoveTopicRecord(topic_id=OTHER), *topic("t", ID)], 9, 1)
    assert after.topic("t") is not None and after.topic_ids["t"] == ID and after.configs(TOPIC, "t") == {}
    assert set(delta.created) == {ID} and set(delta.deleted) == {OTHER}


def test_naming_a_leader_begins_an_epoch_and_every_change_counts() -> None:
    image = replayed(*topic())
    image = replayed(r.PartitionChangeRecord(partition_id=0, topic_id=ID, isr=[1, 2]), on=image)
    assert image.topics[ID].partitions[0][:5] == Partition((1,), (1, 2), 1, 0, 1)[:5]
    image = replayed(r.PartitionChangeRecord(partition_id=0, topic_id=ID, leader=1), on=image)
    assert image.topics[ID].partitions[0][:5] == Partition((1,), (1, 2), 1, 1, 2)[:5]


def test_nothing_of_a_transaction_is_seen_before_its_end_and_nothing_of_an_aborted_one_ever() -> None:
    image = replayed(r.BeginTransactionRecord(name="x"), *topic())
    assert image.in_transaction and image.topic("t") is None
    done, delta = replay(image, [r.EndTransactionRecord()], 5, 1)
    assert not done.in_transaction and done.topic("t") is not None and set(delta.created) == {ID}
    gone = replayed(r.AbortTransactionRecord(), on=image)
    assert not gone.in_transaction and gone.topic("t") is None
    whole = replayed(r.BeginTransactionRecord(), *topic(), r.EndTransactionRecord())
    assert whole.topic("t") is not None


def test_clearing_eligible_replicas_of_one_topic_or_of_all() -> None:
    some = replayed(*topic(), *topic("u", OTHER))
    for topic_id in (ID, OTHER):
        some = replayed(
            r.PartitionChangeRecord(partition_id=0, topic_id=topic_id, eligible_leader_replicas=[1]), on=some
        )
    one = replayed(r.ClearElrRecord(topic_name="t"), on=some)
    assert one.topics[ID].partitions[0].elr == () and one.topics[OTHER].partitions[0].elr == (1,)
    assert replayed(r.ClearElrRecord(), on=some).topics[OTHER].partitions[0].elr == ()


def test_brokers_come_change_and_go() -> None:
    image = replayed(r.RegisterBrokerRecord(broker_id=1, broker_epoch=7, log_dirs=[ID], rack=None))
    assert image.brokers[1].fenced and not image.brokers[1].active
    image = replayed(r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1), on=image)
    assert image.brokers[1].active
    image = replayed(r.BrokerRegistrationChangeRecord(broker_id=1, in_controlled_shutdown=1), on=image)
    assert not image.brokers[1].active and not image.brokers[1].fenced
    image = replayed(r.FenceBrokerRecord(id=1), on=image)
    assert image.brokers[1].fenced
    image = replayed(r.UnfenceBrokerRecord(id=1), r.UnregisterBrokerRecord(broker_id=1), on=image)
    assert image.brokers == {}


def test_a_change_among_ten_thousand_topics_costs_what_it_changes() -> None:
    many = [record for i in range(10_000) for record in topic(f"topic-{i}", i.to_bytes(16, "big"))]
    image = replayed(*many)
    change = r.PartitionChangeRecord(partition_id=0, topic_id=(5).to_bytes(16, "big"), leader=1)
    took = []
    for _ in range(50):
        started = time.process_time()
        image = replayed(change, on=image)
        took.append(time.process_time() - started)
    assert min(took) < 0.0005, "copying all topics would take longer"
    assert len(image.topics) == 10_000
