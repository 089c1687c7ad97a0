"""What each client is sent to do for the table of clients and APIs: all that it has, but for logins and access rules.

An errand is called with the client and its node's address, and fails when the node does not do what the client wanted. A
refusal is an answer too where nothing but a refusal is right: on one node there is no other leader to elect.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka as confluent
import kafka as kafka_python  # type: ignore[import-untyped]
from aiokafka import admin as aiokafka_admin
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaKind
from confluent_kafka import admin as confluent_admin
from kafka import admin as kafka_python_admin
from kafka.errors import NoError  # type: ignore[import-untyped]

from compat.clients import Client, Confluent, Java
from compat.corpus import CODECS, EPOCH_MS, Record, corpus
from compat.members import Jvm, Troop, wait_until
from compat.transacting import every_library

Errand = Callable[[Any, str], None]

ERRANDS_SOURCE = Path(__file__).resolve().parent / "java" / "Errands.java"
SECONDS = 30.0
RECORDS = 30
# Topics that are there from the beginning: one for each codec, and one for transactions. READ is what groups read.
READ, PAID = CODECS[0], "paid"
TOPICS = (*CODECS, PAID)
CLASSIC, MODERN, SIMPLE = "classic-group", "modern-group", "simple-group"
# An open transaction, for those who administrate.
OPEN = "open-transaction"
SEVERAL_BEATS_S = 1.0
BEATING = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 200}
RANGE = {"partition.assignment.strategy": "range", **BEATING}
IN_CLASSIC, IN_MODERN = "group.protocol=classic,heartbeat.interval.ms=200", "group.protocol=consumer"


# --- what several of them do


def write_and_read(client: Client, address: str) -> None:
    for codec in CODECS:
        records = [record for record in corpus(f"{client.name}/{codec}") if client.carries(record)]
        records = [record for record in records if len(record.value or b"") < 100_000][:RECORDS]
        client.produce(codec, 0, records, codec)
        assert len(client.consume(codec, 0, 0, len(records))) == len(records)


def write_once(client: Any, address: str) -> None:
    """The two Python clients and librdkafka are no idempotent producers unless they are told."""
    name = "enable.idempotence" if isinstance(client, Confluent) else "enable_idempotence"
    client.produce(READ, 0, [Record(b"k", b"once")], "none", **{name: True})


def transact(client: Client, address: str) -> None:
    """One transaction with offsets that is committed, one that is aborted, and one that administrators look at."""
    library = every_library()[client.name]
    with library.member(address, "payers", PAID) if library.knows_members else nullcontext() as member:
        producer = library.producer(address, "payer").init().wrote(PAID, "kept")
        producer.offset("payers", PAID, 1, member=member)
        producer.commit()
        producer.wrote(PAID, "dropped").abort()
    assert [found.value for found in library.read(address, PAID, 1, "read_committed")] == ["kept"]
    left = library.producer(address, OPEN).init().wrote(PAID, "left")
    if isinstance(client, Java):
        with errands_of(client) as jvm:
            jvm.order("transactions", OPEN, PAID)
    elif client.name == "kafka-python":
        kafka_python_ends_a_transaction(address)
    for each in (producer, left):
        each.close()
    library.close()


def read_in_a_group(client: Client, address: str, group: str, settings: Mapping[str, Any]) -> None:
    """One member reads everything, and another goes on from what it committed."""
    for has_something in (True, False):
        take_part(client.name, Troop(Jvm, address, group, READ, **settings), has_something)


def take_part(name: str, troop: Troop, has_something: bool) -> None:
    """Reads what there is, stays until heartbeats and commits were due, and leaves."""
    member = troop.add(name)
    try:
        wait_until(lambda: member.owns == [0] and bool(member.read) >= has_something, lambda: str(troop.told()))
        time.sleep(SEVERAL_BEATS_S)
        assert bool(member.read) == has_something
    finally:
        troop.leave(member)


def read_in_a_classic_group(client: Client, address: str) -> None:
    read_in_a_group(client, address, CLASSIC, RANGE)


def read_in_a_modern_group(client: Client, address: str) -> None:
    read_in_a_group(client, address, MODERN, {"group.protocol": "consumer"})


# --- librdkafka, by confluent's binding


def of(answers: Mapping[Any, Future[Any]]) -> list[Any]:
    return [answer.result(SECONDS) for answer in answers.values()]


def confluent_manages_topics(client: Client, address: str) -> None:
    admin, name = confluent_admin.AdminClient({"bootstrap.servers": address, "log_level": 0}), "managed"
    of(admin.create_topics([confluent_admin.NewTopic(name, 1, 1)]))
    of(admin.create_partitions([confluent_admin.NewPartitions(name, 3)]))
    of(admin.describe_topics(confluent.TopicCollection([name])))
    of(admin.describe_configs([confluent_admin.ConfigResource("topic", name)]))
    of(admin.alter_configs([confluent_admin.ConfigResource("topic", name, set_config={"retention.ms": "7000000"})]))
    setting = confluent_admin.AlterConfigOpType.SET
    entry = confluent_admin.ConfigEntry("retention.ms", "8000000", incremental_operation=setting)
    of(admin.incremental_alter_configs([confluent_admin.ConfigResource("topic", name, incremental_configs=[entry])]))
    of(admin.delete_topics([name]))


def confluent_looks_at_offsets(client: Client, address: str) -> None:
    admin, where = confluent_admin.AdminClient({"bootstrap.servers": address, "log_level": 0}), (READ, 0)
    latest, by_time = confluent_admin.OffsetSpec.latest(), confluent_admin.OffsetSpec.for_timestamp(EPOCH_MS)
    for spec in (latest, by_time):
        of(admin.list_offsets({confluent.TopicPartition(*where): spec}))
    consumer = confluent.Consumer({"bootstrap.servers": address, "group.id": "nobody"})
    assert consumer.offsets_for_times([confluent.TopicPartition(*where, EPOCH_MS)], SECONDS)[0].offset == 0
    consumer.close()
    of(admin.delete_records([confluent.TopicPartition(*where, 1)]))


def confluent_manages_groups(client: Client, address: str) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
    listed = {group.group_id for group in admin.list_consumer_groups().result(SECONDS).valid}
    assert {CLASSIC, MODERN} <= listed
    of(admin.describe_consumer_groups([CLASSIC, MODERN]))
    assert [group.id for group in admin.list_groups(CLASSIC, SECONDS)] == [CLASSIC]
    asked = confluent.ConsumerGroupTopicPartitions(CLASSIC, [confluent.TopicPartition(READ, 0, 1)])
    of(admin.alter_consumer_group_offsets([asked]))
    of(admin.list_consumer_group_offsets([confluent.ConsumerGroupTopicPartitions(CLASSIC)]))
    of(admin.delete_consumer_groups([CLASSIC, MODERN]))


def confluent_manages_the_cluster(client: Client, address: str) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": address, "log_level": 0})
    assert len(admin.describe_cluster().result(SECONDS).nodes) == 1
    admin.elect_leaders(confluent.ElectionType.PREFERRED, [confluent.TopicPartition(READ, 0)]).result(SECONDS)
    how = confluent_admin.ScramCredentialInfo(confluent_admin.ScramMechanism.SCRAM_SHA_256, 4096)
    of(admin.alter_user_scram_credentials([confluent_admin.UserScramCredentialUpsertion("somebody", how, b"password")]))
    of(admin.describe_user_scram_credentials(["somebody"]))


# --- aiokafka


def aiokafka_looks_at_offsets(client: Client, address: str) -> None:
    async def look() -> None:
        consumer, where = aiokafka.AIOKafkaConsumer(bootstrap_servers=address), aiokafka.TopicPartition(READ, 0)
        await consumer.start()
        await consumer.end_offsets([where])
        assert (await consumer.offsets_for_times({where: EPOCH_MS}))[where].offset == 0
        await consumer.stop()

    asyncio.run(look())


def aiokafka_administrates(client: Client, address: str) -> None:
    async def administrate() -> None:
        admin = aiokafka_admin.AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await aiokafka_does_all(admin)
        finally:
            await admin.close()

    asyncio.run(administrate())


async def aiokafka_does_all(admin: Any) -> None:
    name = "managed"
    await admin.create_topics([aiokafka_admin.NewTopic(name, 1, 1)])
    await admin.create_partitions({name: aiokafka_admin.NewPartitions(3)})
    assert len((await admin.describe_topics([name]))[0]["partitions"]) == 3
    await admin.alter_configs([AiokafkaResource(AiokafkaKind.TOPIC, name, {"retention.ms": "7000000"})])
    (told,) = await admin.describe_configs([AiokafkaResource(AiokafkaKind.TOPIC, name)])
    assert "7000000" in str(told)
    await admin.delete_topics([name])
    assert name not in await admin.list_topics()
    await admin.delete_records({aiokafka.TopicPartition(READ, 0): aiokafka_admin.RecordsToDelete(1)})
    assert (CLASSIC, "consumer") in await admin.list_consumer_groups()
    await admin.describe_consumer_groups([CLASSIC])
    assert await admin.list_consumer_group_offsets(CLASSIC)
    await admin.describe_cluster()


# --- kafka-python


def by_kafka_python(does: Callable[[Any], None]) -> Errand:
    @wraps(does)
    def errand(client: Client, address: str) -> None:
        admin = kafka_python.KafkaAdminClient(bootstrap_servers=address)
        try:
            does(admin)
        finally:
            admin.close()

    return errand


def went_well(fates: Mapping[Any, Any]) -> None:
    """Many calls raise nothing when they fail: they tell what became of each thing they were asked for."""
    assert set(fates.values()) <= {None, "OK", NoError}, fates


def kafka_python_manages_topics(admin: Any) -> None:
    name = "managed"
    admin.create_topics([kafka_python_admin.NewTopic(name, 1, 1)])
    admin.create_partitions({name: 3})
    admin.describe_topics([name])
    admin.describe_topic_partitions([name])
    admin.describe_configs([kafka_python_admin.ConfigResource("TOPIC", name)])
    wanted = kafka_python_admin.ConfigResource("TOPIC", name, {"retention.ms": "7000000"})
    for incremental in (False, True):
        went_well(admin.alter_configs([wanted], incremental=incremental)["topic"])
    admin.list_config_resources()
    admin.delete_topics([name])


def kafka_python_looks_at_offsets(client: Client, address: str) -> None:
    consumer, where = kafka_python.KafkaConsumer(bootstrap_servers=address), kafka_python.TopicPartition(READ, 0)
    assert consumer.offsets_for_times({where: EPOCH_MS})[where].offset == 0
    consumer.close()


def kafka_python_manages_groups(admin: Any) -> None:
    where = kafka_python.TopicPartition(READ, 0)
    admin.list_partition_offsets({where: kafka_python_admin.OffsetSpec.MAX_TIMESTAMP})
    admin.delete_records({where: 1})
    assert CLASSIC in {group["group_id"] for group in admin.list_groups()}
    admin.describe_groups([CLASSIC])
    went_well(admin.alter_group_offsets(SIMPLE, {where: kafka_python.OffsetAndMetadata(1, "", -1)}))
    assert admin.list_group_offsets(SIMPLE)
    went_well(admin.delete_group_offsets(SIMPLE, [where]))
    went_well(admin.delete_groups([CLASSIC]))


def kafka_python_manages_the_cluster(admin: Any) -> None:
    admin.describe_cluster()
    admin.describe_features()
    went_well(admin.update_features({"transaction.version": 2}, validate_only=True))
    admin.describe_metadata_quorum()
    (directory, *_) = admin.describe_log_dirs()[0]["log_dirs"]
    went_well(admin.alter_replica_log_dirs({(READ, 0, 1): directory["log_dir"]}))
    admin.elect_leaders(0, {READ: [0]}, raise_errors=False)
    went_well(admin.alter_partition_reassignments({kafka_python.TopicPartition(READ, 0): [1]}))
    admin.list_partition_reassignments()
    wanted = kafka_python_admin.UserScramCredentialUpsertion("somebody", "SCRAM-SHA-256", "password")
    went_well(admin.alter_user_scram_credentials([wanted]))
    admin.describe_user_scram_credentials()


def kafka_python_ends_a_transaction(address: str) -> None:
    admin, where = kafka_python.KafkaAdminClient(bootstrap_servers=address), kafka_python.TopicPartition(PAID, 0)
    try:
        admin.list_transactions()
        its = admin.describe_transactions([OPEN])[OPEN]
        admin.describe_producers([where])
        admin.abort_transaction(kafka_python_admin.AbortTransactionSpec(where, its.producer_id, its.producer_epoch))
    finally:
        admin.close()


# --- kcat


def kcat(address: str, *words: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(
        ["kcat", "-b", address, *words], input=stdin, stdout=subprocess.PIPE, timeout=SECONDS, check=True
    ).stdout


def kcat_does_all(client: Client, address: str) -> None:
    assert PAID.encode() in kcat(address, "-L")
    assert b"offset 0" in kcat(address, "-Q", "-t", f"{READ}:0:{EPOCH_MS}")
    for setting in ("enable.idempotence=true", "transactional.id=payer"):
        kcat(address, "-P", "-t", PAID, "-X", setting, stdin=b"paid")
    # It leaves as soon as it has read enough, so what it reads is kept back until heartbeats are due.
    slowly = ("-X", "fetch.min.bytes=1000000", "-X", "fetch.wait.max.ms=1000", "-X", "heartbeat.interval.ms=200")
    assert kcat(address, "-q", "-G", CLASSIC, "-X", "auto.offset.reset=earliest", *slowly, "-c", "1", READ)


# --- Java


def errands_of(client: Java) -> closing[Java]:
    """A JVM more, for what its other program cannot do."""
    return closing(Java(client.address, client.jars, client.name, ERRANDS_SOURCE))


def java_manages_topics(client: Java, address: str) -> None:
    name = "managed"
    client.order("create", name, 1, "")
    client.order("partitions", name, 3)
    client.order("describe", name)
    client.order("configs", "TOPIC", name)
    client.order("alter", name, "SET", "retention.ms", "8000000")
    with errands_of(client) as jvm:
        jvm.order("settings", name)
    client.order("delete", name)


def java_looks_at_offsets(client: Java, address: str) -> None:
    for spec in ("earliest", "latest", "max", "earliest-local", "latest-tiered", EPOCH_MS):
        client.order("offset", READ, 0, spec)
    client.order("times", READ, 0, EPOCH_MS)
    client.order("deleterecords", READ, 0, 1)


def java_reads_in_groups(client: Java, address: str) -> None:
    with errands_of(client) as jvm:
        for group, settings in ((CLASSIC, IN_CLASSIC), (MODERN, IN_MODERN)):
            for count in (1, 0):
                jvm.order("read", group, READ, count, settings)
        jvm.order("groups", CLASSIC, MODERN, READ)


def java_manages_the_cluster(client: Java, address: str) -> None:
    client.order("cluster")
    client.order("logdirs")
    with errands_of(client) as jvm:
        jvm.order("users")
        jvm.order("replicas", READ)
        assert len(jvm.order("quorum")) == 3, "all that would change the cluster is to be refused"


JAVA: list[Errand] = [
    *(write_and_read, transact, java_looks_at_offsets, java_reads_in_groups),
    *(java_manages_topics, java_manages_the_cluster),
]
ERRANDS: dict[str, list[Errand]] = {
    "confluent": [
        *(write_and_read, write_once, transact, read_in_a_classic_group, read_in_a_modern_group),
        *(confluent_manages_groups, confluent_looks_at_offsets),
        *(confluent_manages_topics, confluent_manages_the_cluster),
    ],
    "aiokafka": [
        *(write_and_read, write_once, transact, read_in_a_classic_group),
        *(aiokafka_looks_at_offsets, aiokafka_administrates),
    ],
    "kafka-python": [
        *(write_and_read, write_once, transact, read_in_a_classic_group, kafka_python_looks_at_offsets),
        *map(by_kafka_python, (kafka_python_manages_groups, kafka_python_manages_topics)),
        by_kafka_python(kafka_python_manages_the_cluster),
    ],
    "kcat": [write_and_read, kcat_does_all],
    "java-4.3": JAVA,
    "java-3.9": JAVA,
}
