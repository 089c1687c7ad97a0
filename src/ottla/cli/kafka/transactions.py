"""kafka-transactions.sh: which transactions there are, which of them hang, and ending those."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka import KAFKA_VERSION
from ottla.cli.kafka.commands import Command, integer, long_integer, run, short_integer
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ottla.client.cluster import TopicPartition
    from ottla.client.transaction_admin import (
        Abortion,
        OpenTransaction,
        ProducerInfo,
        TransactionAdmin,
        TransactionInfo,
    )
    from ottla.wire.errors import KafkaError

    Work = Callable[[TransactionAdmin, argparse.Namespace], Awaitable[None]]

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
LONGEST_MINUTES = 15
NO_EPOCH = -1


class _Version(argparse.Action):
    """Java's tool also prints the commit that it was built from."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(KAFKA_VERSION)
        parser.exit(0)


class _Help(argparse._HelpAction):
    """This tool ends with 1 after its help, as Kafka's does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.print_help()
        parser.exit(1)


class _Transactions(Command):
    def __init__(self, prog: str, **more: object) -> None:
        super().__init__(prog, add_help=False, **more)
        self.add_argument("-h", "--help", action=_Help, help="show this help message and exit")


def _parser() -> Command:
    parser = _Transactions(
        "kafka-transactions.sh",
        description="This tool is used to analyze the transactional state of producers in the cluster. It can be used to "
        "detect and recover from hanging transactions.",
    )
    parser.add_argument("-v", "--version", nargs=0, action=_Version, help="show the version and exit")
    parser.add_argument("--command-config", metavar="FILE", help="property file containing configs of the admin client")
    parser.add_argument(
        "--bootstrap-server", metavar="host:port", required=True, help="hostname and port for the broker to connect to"
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Transactions)
    for name, (what, add_arguments, _) in COMMANDS.items():
        add_arguments(commands.add_parser(name, help=what))
    return parser


def _list_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--duration-filter", type=long_integer, help="only transactions running longer than this (ms); all if < 0"
    )
    command.add_argument("--transactional-id-pattern", help="Transactional id regular expression pattern to filter by")


def _describe_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--transactional-id", required=True, help="transactional id")


def _producers_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--broker-id", type=integer, help="optional broker id to ask a specific replica")
    command.add_argument("--topic", required=True, help="topic name")
    command.add_argument("--partition", type=integer, required=True, help="partition number")


def _abort_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--topic", required=True, help="topic name")
    command.add_argument("--partition", type=integer, required=True, help="partition number")
    newer = command.add_argument_group("Brokers on versions 3.0 and above", "Only the start offset is required")
    newer.add_argument("--start-offset", type=long_integer, help="start offset of the transaction to abort")
    older = command.add_argument_group("Brokers on versions older than 3.0", "You must provide all of these arguments")
    older.add_argument("--producer-id", type=long_integer, help="producer id")
    older.add_argument("--producer-epoch", type=short_integer, help="producer epoch")
    older.add_argument("--coordinator-epoch", type=integer, help="coordinator epoch")


def _hanging_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--broker-id", type=integer, help="broker id to search for hanging transactions")
    command.add_argument(
        "--max-transaction-timeout",
        type=integer,
        default=LONGEST_MINUTES,
        help=f"maximum transaction timeout in minutes to limit the scope of the search ({LONGEST_MINUTES} by default)",
    )
    command.add_argument("--topic", help="topic name to limit search to (required if --partition is specified)")
    command.add_argument("--partition", type=integer, help="partition number")


def _terminate_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--transactionalId", dest="transactional_id", required=True, help="transactional id")


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.kafka.connecting import NoSuchFile, with_cluster
    from ottla.client.transaction_admin import TransactionAdmin

    _, _, work = COMMANDS[args.command]
    try:
        with_cluster(args.bootstrap_server, args.command_config, lambda cluster: work(TransactionAdmin(cluster), args))
    except NoSuchFile as missing:
        raise Failed(_detailed("Failed to load admin client properties", str(missing)))
    return 0


def _detailed(what: str, why: str) -> str:
    return f"{what}: {why}. Enable debug logging for additional detail."


def _where(args: argparse.Namespace) -> TopicPartition:
    from ottla.client.cluster import TopicPartition

    return TopicPartition(args.topic, args.partition)


def _name(where: TopicPartition) -> str:
    return f"{where.topic}-{where.partition}"


def _print(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from ottla.cli.kafka.columns import pretty

    sys.stdout.write(pretty(headings, [[str(cell) for cell in row] for row in rows]) + "\n")


# list, describe


async def _list(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    from ottla.client.transaction_admin import NO_DURATION
    from ottla.wire.errors import KafkaError

    longer_than_ms = NO_DURATION if args.duration_filter is None else args.duration_filter
    try:
        found = await admin.transactions(longer_than_ms=longer_than_ms, pattern=args.transactional_id_pattern)
    except KafkaError as error:
        raise Failed(_detailed("Failed to list transactions", _list_failure(error, admin)))
    _print(LISTED, found)


def _list_failure(error: KafkaError, admin: TransactionAdmin) -> str:
    from ottla.wire.errors import Error

    if error.error is Error.UNSUPPORTED_VERSION:
        return error.message
    node_id = min(admin.cluster.brokers, default=NO_EPOCH)
    why = {Error.COORDINATOR_NOT_AVAILABLE: "because the coordinator is shutting down"}
    return f"ListTransactions request sent to broker {node_id} failed " + why.get(
        error.error, "with an unexpected exception"
    )


async def _describe(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    from ottla.wire.errors import KafkaError

    name = args.transactional_id
    try:
        found = await admin.describe(name)
    except KafkaError as error:
        what = f"Failed to describe transaction state of transactional-id `{name}`"
        raise Failed(_detailed(what, _describe_failure(error, name)))
    _print(DESCRIBED, [_described(found, admin.cluster.now_ms())])


def _described(found: TransactionInfo, now_ms: int) -> list[object]:
    began = ["None", "None"] if found.start_ms is None else [found.start_ms, now_ms - found.start_ms]
    return [
        *(found.coordinator, found.transactional_id, found.producer_id, found.epoch, found.state, found.timeout_ms),
        *began,
        ",".join(map(_name, found.partitions)),
    ]


def _describe_failure(error: KafkaError, name: str) -> str:
    from ottla.wire.errors import Error

    why = {
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "due to authorization failure",
        Error.TRANSACTIONAL_ID_NOT_FOUND: "because the ID could not be found",
    }
    reason = why.get(error.error, "due to unexpected error")
    return f"DescribeTransactions request for transactionalId `{name}` failed {reason}"


# describe-producers


async def _describe_producers(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    from ottla.wire.errors import KafkaError

    where, broker = _where(args), args.broker_id
    try:
        found = (await admin.producers([where], broker))[where]
    except KafkaError as error:
        at = "leader" if broker is None else f"broker {broker}"
        what = f"Failed to describe producers for partition {_name(where)} on {at}"
        raise Failed(_detailed(what, _producers_failure(error, where, broker)))
    _print(PRODUCERS, map(_producer_row, found))


def _producer_row(found: ProducerInfo) -> list[object]:
    coordinator = NO_EPOCH if found.coordinator_epoch is None else found.coordinator_epoch
    start = "None" if found.start_offset is None else found.start_offset
    return [found.producer_id, found.epoch, coordinator, found.last_sequence, found.last_timestamp_ms, start]


def _producers_failure(error: KafkaError, where: TopicPartition, broker: int | None) -> str:
    from ottla.wire.errors import Error

    of = f"Failed to describe active producers for partition {_name(where)}"
    if error.error is Error.NOT_LEADER_OR_FOLLOWER and broker is not None:
        return f"{of} on brokerId {broker}"
    if error.error is Error.TOPIC_AUTHORIZATION_FAILED:
        return f"{of} due to authorization failure on topic `{where.topic}`"
    if error.error is Error.INVALID_TOPIC_EXCEPTION:
        return f"Failed to fetch metadata for partition {_name(where)} due to invalid topic `{where.topic}`"
    is_known = error.error in (Error.UNKNOWN_TOPIC_OR_PARTITION, Error.BROKER_NOT_AVAILABLE)
    return error.message if is_known else f"{of} due to unexpected error"


# abort


async def _abort(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    from ottla.wire.errors import KafkaError

    what = await _abortion(admin, args)
    try:
        await admin.abort(what)
    except KafkaError as error:
        spec = _spec(what)
        raise Failed(_detailed(f"Failed to abort transaction {spec}", _abort_failure(error, what)))


async def _abortion(admin: TransactionAdmin, args: argparse.Namespace) -> Abortion:
    from ottla.client.transaction_admin import Abortion

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
    from ottla.client.transaction_admin import abortion_of
    from ottla.wire.errors import KafkaError

    where = _where(args)
    try:
        found = await admin.open_at(where, args.start_offset)
    except KafkaError as error:
        what = f"Failed to validate producer state for partition {_name(where)}"
        raise Failed(_detailed(what, _producers_failure(error, where, None)))
    if found is None:
        raise Failed(
            f"Could not find any open transactions starting at offset {args.start_offset} on partition {_name(where)}"
        )
    return abortion_of(found)


def _spec(what: Abortion) -> str:
    return (
        f"AbortTransactionSpec(topicPartition={_name(what.where)}, producerId={what.producer_id}, "
        f"producerEpoch={what.epoch}, coordinatorEpoch={what.coordinator_epoch})"
    )


def _abort_failure(error: KafkaError, what: Abortion) -> str:
    from ottla.cli.kafka.java_errors import java_message
    from ottla.wire.errors import Error

    fenced = f"since the provided coordinator epoch {what.coordinator_epoch} has been fenced by the active coordinator"
    why = {
        Error.CLUSTER_AUTHORIZATION_FAILED: "due to cluster authorization error",
        Error.INVALID_PRODUCER_EPOCH: "due an invalid producer epoch",
        Error.TRANSACTION_COORDINATOR_FENCED: fenced,
    }
    reason = why.get(error.error) or f"due to unexpected error: {java_message(error)}"
    return f"WriteTxnMarkers request with {_spec(what)} failed {reason}"


# find-hanging


async def _find_hanging(admin: TransactionAdmin, args: argparse.Namespace) -> None:
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
    from ottla.client.admin import Admin
    from ottla.client.cluster import TopicPartition
    from ottla.wire.errors import KafkaError

    if args.partition is not None:
        return [_where(args)]
    try:
        topics = await Admin(admin.cluster).describe_topics(None if args.topic is None else [args.topic])
    except KafkaError as error:
        from ottla.cli.kafka.java_errors import java_message

        raise Failed(_detailed("Failed to describe 1 topics", java_message(error)))
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


async def _force_terminate(admin: TransactionAdmin, args: argparse.Namespace) -> None:
    from ottla.wire.errors import KafkaError

    try:
        await admin.fence(args.transactional_id)
    except KafkaError as error:
        what = f"Failed to force terminate transactionalId `{args.transactional_id}`"
        raise Failed(_detailed(what, _fence_failure(error, args.transactional_id)))


def _fence_failure(error: KafkaError, name: str) -> str:
    from ottla.wire.errors import Error

    why = {
        Error.CLUSTER_AUTHORIZATION_FAILED: "due to cluster authorization failure",
        Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "due to transactional ID authorization failure",
    }
    return f"InitProducerId request for transactionalId `{name}` failed " + why.get(
        error.error, "due to unexpected error"
    )


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Work]] = {
    "list": ("list transactions", _list_arguments, _list),
    "describe": ("describe the state of an active transactional-id", _describe_arguments, _describe),
    "describe-producers": (
        "describe the states of active producers for a topic partition",
        _producers_arguments,
        _describe_producers,
    ),
    "abort": ("abort a hanging transaction (requires administrative privileges)", _abort_arguments, _abort),
    "find-hanging": ("find hanging transactions", _hanging_arguments, _find_hanging),
    "forceTerminateTransaction": (
        "Force abort an ongoing transaction on transactionalId (requires administrative privileges)",
        _terminate_arguments,
        _force_terminate,
    ),
}
