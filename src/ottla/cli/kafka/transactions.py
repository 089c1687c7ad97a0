"""kafka-transactions.sh: which transactions there are, which of them hang, and ending those."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ottla.cli.kafka import KAFKA_VERSION
from ottla.cli.kafka.commands import Command, integer, long_integer, run, short_integer
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_MINUTES = 15


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
    for name, (what, add_arguments) in COMMANDS.items():
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
    from ottla.cli.kafka.transaction_failures import detailed
    from ottla.cli.kafka.transaction_work import WORK
    from ottla.client.transaction_admin import TransactionAdmin

    work = WORK[args.command]
    try:
        with_cluster(args.bootstrap_server, args.command_config, lambda cluster: work(TransactionAdmin(cluster), args))
    except NoSuchFile as missing:
        raise Failed(detailed("Failed to load admin client properties", missing.path))
    return 0


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "list": ("list transactions", _list_arguments),
    "describe": ("describe the state of an active transactional-id", _describe_arguments),
    "describe-producers": (
        "describe the states of active producers for a topic partition",
        _producers_arguments,
    ),
    "abort": ("abort a hanging transaction (requires administrative privileges)", _abort_arguments),
    "find-hanging": ("find hanging transactions", _hanging_arguments),
    "forceTerminateTransaction": (
        "Force abort an ongoing transaction on transactionalId (requires administrative privileges)",
        _terminate_arguments,
    ),
}
