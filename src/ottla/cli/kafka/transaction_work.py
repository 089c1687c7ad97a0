"""What kafka-transactions.sh does, command by command, and the tables it prints."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Sequence

from ottla.cli.kafka.columns import pretty
from ottla.cli.kafka.java_errors import java_message
from ottla.cli.kafka.options import Failed
from ottla.cli.kafka.transaction_failures import (
    detailed,
    of_aborting,
    of_describing,
    of_fencing,
    of_listing,
    of_producers,
    partition_name,
    spec,
)
from ottla.client.admin import Admin
from ottla.client.cluster import TopicPartition
from ottla.client.transaction_admin import (
    NO_DURATION,
    Abortion,
    OpenTransaction,
    ProducerInfo,
    TransactionAdmin,
    TransactionInfo,
    abortion_of,
)
from ottla.wire.errors import KafkaError

LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBED = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs"),
    *("CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions"),
)
PRODUCERS = (
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset",
)
HANGING = (
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp"),
    "Duration(min)",
)
MINUTE_MS = 60_000
NO_EPOCH = -1


def _where(args: argparse.Namespace) -> TopicPartition:
    return TopicPartition(args.topic, args.partition)


def _print(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(pretty(headings, [[str(cell) for cell in row] for row in rows]))


# list, describe


async def list_all(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    longer_than_ms = NO_DURATION if args.duration_filter is None else args.duration_filter
    try:
        found = await admin.transactions(longer_than_ms=longer_than_ms, pattern=args.transactional_id_pattern)
    except KafkaError as error:
        raise Failed(detailed("Failed to list transactions", of_listing(error, min(admin.cluster.brokers, default=-1))))
    _print(LISTED, found)


async def describe(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    name = args.transactional_id
    try:
        found = await admin.describe(name)
    except KafkaError as error:
        what = f"Failed to describe transaction state of transactional-id `{name}`"
        raise Failed(detailed(what, of_describing(error, name)))
    _print(DESCRIBED, [_described(found, admin.cluster.now_ms())])


def _described(found: TransactionInfo, now_ms: int) -> list[object]:
    began = ["None", "None"] if found.start_ms is None else [found.start_ms, now_ms - found.start_ms]
    return [
        *(found.coordinator, found.transactional_id, found.producer_id, found.epoch, found.state, found.timeout_ms),
        *began,
        ",".join(map(partition_name, found.partitions)),
    ]


# describe-producers


async def describe_producers(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    where, broker = _where(args), args.broker_id
    try:
        found = (await admin.producers([where], broker))[where]
    except KafkaError as error:
        at = "leader" if broker is None else f"broker {broker}"
        what = f"Failed to describe producers for partition {partition_name(where)} on {at}"
        raise Failed(detailed(what, of_producers(error, where, broker)))
    _print(PRODUCERS, map(_producer_row, found))


def _producer_row(found: ProducerInfo) -> list[object]:
    coordinator = NO_EPOCH if found.coordinator_epoch is None else found.coordinator_epoch
    start = "None" if found.start_offset is None else found.start_offset
    return [found.producer_id, found.epoch, coordinator, found.last_sequence, found.last_timestamp_ms, start]


# abort


async def abort(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    what = await _abortion(admin, args)
    try:
        await admin.abort(what)
    except KafkaError as error:
        raise Failed(detailed(f"Failed to abort transaction {spec(what)}", of_aborting(error, what)))


async def _abortion(admin: TransactionAdmin, args: argparse.Namespace) -> Abortion:
    if args.start_offset is not None:
        return await _abortion_at(admin, args)
    if args.producer_id is None:
        raise Failed(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or with "
            "--producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    for option in ("producer_epoch", "coordinator_epoch"):
        if getattr(args, option) is None:
            raise Failed(f"Missing required argument --{option.replace('_', '-')}")
    # -1 stands in the output of describe-producers for a producer that never ended a transaction.
    return Abortion(_where(args), args.producer_id, args.producer_epoch, max(0, args.coordinator_epoch))


async def _abortion_at(admin: TransactionAdmin, args: argparse.Namespace) -> Abortion:
    where = _where(args)
    try:
        found = await admin.open_at(where, args.start_offset)
    except KafkaError as error:
        what = f"Failed to validate producer state for partition {partition_name(where)}"
        raise Failed(detailed(what, of_producers(error, where, None)))
    if found is None:
        raise Failed(
            f"Could not find any open transactions starting at offset {args.start_offset} on partition {partition_name(where)}"
        )
    return abortion_of(found)


# find-hanging


async def find_hanging(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    if args.topic is None and args.broker_id is None:
        raise Failed(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if args.partition is not None and args.topic is None:
        raise Failed("The --partition argument requires --topic to be provided")
    partitions = await _searched(admin, args)
    found = await admin.hanging(partitions, args.max_transaction_timeout * MINUTE_MS, args.broker_id)
    _print(HANGING, [_hanging_row(each, admin.cluster.now_ms()) for each in found])


async def _searched(admin: TransactionAdmin, args: argparse.Namespace) -> list[TopicPartition]:
    if args.partition is not None:
        return [_where(args)]
    try:
        topics = await Admin(admin.cluster).describe_topics(None if args.topic is None else [args.topic])
    except KafkaError as error:
        raise Failed(detailed("Failed to describe 1 topics", java_message(error)))
    return [
        TopicPartition(topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if args.broker_id is None or args.broker_id in partition.replicas
    ]


def _hanging_row(found: OpenTransaction, now_ms: int) -> list[object]:
    producer = found.producer
    coordinator = NO_EPOCH if producer.coordinator_epoch is None else producer.coordinator_epoch
    minutes = (now_ms - producer.last_timestamp_ms) // MINUTE_MS
    return [
        *(*found.where, producer.producer_id, producer.epoch, coordinator),
        *(producer.start_offset, producer.last_timestamp_ms, minutes),
    ]


# forceTerminateTransaction


async def force_terminate(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    try:
        await admin.fence(args.transactional_id)
    except KafkaError as error:
        what = f"Failed to force terminate transactionalId `{args.transactional_id}`"
        raise Failed(detailed(what, of_fencing(error, args.transactional_id)))


WORK: dict[str, Callable[[TransactionAdmin, argparse.Namespace], Awaitable[None]]] = {
    "list": list_all,
    "describe": describe,
    "describe-producers": describe_producers,
    "abort": abort,
    "find-hanging": find_hanging,
    "forceTerminateTransaction": force_terminate,
}
