"""kafka-cluster.sh: which cluster this is, who is in it, and how a broker leaves it for good."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ottla.cli.kafka.commands import Command, add_bootstrap, integer, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.cluster import Cluster

BROKERS, CONTROLLERS = 1, 2


def _parser() -> Command:
    parser = Command("kafka-cluster", description="The Kafka cluster tool.")
    commands = parser.commands()
    cluster_id = commands.add_parser("cluster-id", help="Get information about the ID of a cluster.")
    unregister = commands.add_parser("unregister", help="Unregister a broker.")
    endpoints = commands.add_parser("list-endpoints", help="List endpoints")
    versions = commands.add_parser("api-versions", help="Which versions of each API the brokers speak.")
    for command in (cluster_id, unregister, endpoints, versions):
        add_bootstrap(command, short=True)
        command.add_argument("--config", help="(DEPRECATED) Use --command-config instead.")
        command.add_argument("--command-config", "-c", help="Config properties file for the Admin client.")
    unregister.add_argument("--id", "-i", type=integer, required=True, help="The ID of the broker to unregister.")
    endpoints.add_argument(
        "--include-fenced-brokers",
        action="store_true",
        help="Whether to include fenced brokers when listing broker endpoints",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.kafka.broker_api_versions import show_all
    from ottla.cli.kafka.connecting import with_cluster

    actions = {"cluster-id": _cluster_id, "unregister": _unregister, "list-endpoints": _endpoints}
    if args.config:
        print(
            "Option --config has been deprecated and will be removed in a future version. Use --command-config instead."
        )

    async def work(cluster: Cluster) -> None:
        if args.command == "api-versions":
            await show_all(cluster)
        else:
            await actions[args.command](cluster, args)

    bootstrap, config = args.bootstrap_server or args.bootstrap_controller, args.command_config or args.config
    with_cluster(bootstrap, config, work, controllers=bool(args.bootstrap_controller))
    return 0


async def _cluster_id(cluster: Cluster, args: argparse.Namespace) -> None:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.cluster import DescribeClusterRequest

    kind = CONTROLLERS if args.bootstrap_controller else BROKERS
    answer = await ask(cluster, DescribeClusterRequest(endpoint_type=kind))
    check(answer.error_code, answer.error_message)
    print(f"Cluster ID: {answer.cluster_id}")


async def _unregister(cluster: Cluster, args: argparse.Namespace) -> None:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.errors import Error, KafkaError
    from ottla.wire.messages.brokers import UnregisterBrokerRequest

    try:
        answer = await ask(cluster, UnregisterBrokerRequest(broker_id=args.id))
        check(answer.error_code, answer.error_message)
    except KafkaError as error:
        if error.error is not Error.UNSUPPORTED_VERSION:
            raise
        print("The target cluster does not support the broker unregistration API.")
        return
    print(f"Broker {args.id} is no longer registered.")


async def _endpoints(cluster: Cluster, args: argparse.Namespace) -> None:
    from ottla.cli.kafka.asking import ask
    from ottla.cli.kafka.options import Failed
    from ottla.client.connection import check
    from ottla.wire.messages.cluster import DescribeClusterRequest

    of_controllers = bool(args.bootstrap_controller)
    if of_controllers and args.include_fenced_brokers:
        raise Failed("The option --include-fenced-brokers is only supported with --bootstrap-server option")
    kind = CONTROLLERS if of_controllers else BROKERS
    request = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=args.include_fenced_brokers)
    answer = await ask(cluster, request)
    check(answer.error_code, answer.error_message)
    nodes = sorted(answer.brokers, key=lambda broker: broker.broker_id)
    rows = [["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]]
    for node in nodes:
        state, role = "fenced" if node.is_fenced else "unfenced", "controller" if of_controllers else "broker"
        rows.append([str(node.broker_id), node.host, str(node.port), node.rack or "null", state, role])
    host, rack = (max(10 if at == 3 else 0, *(len(row[at]) for row in rows)) for at in (1, 3))
    for row in rows:
        state = "" if of_controllers else f"{row[4]:10} "
        print(f"{row[0]:10} {row[1]:{host}} {row[2]:10} {row[3]:{rack}} {state}{row[5]:15}")
