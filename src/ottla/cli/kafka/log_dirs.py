"""kafka-log-dirs.sh: how much lies in which data directory of which broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.kafka.options import Failed, Options, Parser, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.cluster import Cluster

PARSER = Parser(
    "This tool helps to query log directory usage on the specified brokers.",
    takes(
        "bootstrap-server",
        "REQUIRED: the server(s) to use for bootstrapping",
        "The server(s) to use for bootstrapping",
    ),
    takes(
        "command-config",
        "Property file containing configs to be passed to Admin Client.",
        "Admin client property file",
    ),
    flag("describe", "Describe the specified log directories on the specified brokers."),
    takes(
        "topic-list",
        'The list of topics to be queried in the form "topic1,topic2,topic3". All topics will be queried if no topic list '
        "is specified",
        "Topic list",
        default="",
    ),
    takes(
        "broker-list",
        'The list of brokers to be queried in the form "0,1,2". All brokers in the cluster will be queried if no broker '
        "list is specified",
        "Broker list",
        default="",
    ),
)
ERRORS = "org.apache.kafka.common.errors."


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _run)


def _run(options: Options) -> None:
    from ottla.cli.kafka.connecting import with_cluster

    options.require("bootstrap-server", "describe")
    with_cluster(
        options.text("bootstrap-server"), options.value("command-config"), lambda cluster: _describe(cluster, options)
    )


async def _describe(cluster: Cluster, options: Options) -> None:
    from ottla.cli.text import compact

    known = sorted(broker.node_id for broker in (await cluster.metadata([])).brokers)
    wanted = _broker_ids(options.text("broker-list"))
    missing = [broker for broker in wanted if broker not in known]
    if missing:
        there = f"Current existent brokers: {_ids(known)}"
        raise Failed(f"ERROR: The given brokers do not exist from --broker-list: {_ids(missing)}. {there}")
    chosen = wanted or known
    topics = {name.strip() for name in options.text("topic-list").split(",") if name.strip()}
    print("Querying brokers for log directories information")
    found = [{"broker": broker, "logDirs": await _directories(cluster, broker, topics)} for broker in chosen]
    print(f"Received log directory information from brokers {_ids(chosen)}")
    print(compact({"brokers": found, "version": 1}).decode())


def _broker_ids(text: str) -> list[int]:
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            found.append(int(part))
        except ValueError:
            raise Failed(f'For input string: "{part}"')
    return list(dict.fromkeys(found))


def _ids(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


async def _directories(cluster: Cluster, broker: int, topics: set[str]) -> list[dict[str, Any]]:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.cluster import DescribeLogDirsRequest

    answer = await ask(cluster, DescribeLogDirsRequest(topics=None), broker)
    check(answer.error_code)
    return [
        {
            "partitions": [
                {
                    "partition": f"{topic.name}-{partition.partition_index}",
                    "size": partition.partition_size,
                    "offsetLag": partition.offset_lag,
                    "isFuture": partition.is_future_key,
                }
                for topic in directory.topics
                if not topics or topic.name in topics
                for partition in topic.partitions
            ],
            "error": _java_class(directory.error_code),
            "logDir": directory.log_dir,
        }
        for directory in answer.results
    ]


def _java_class(code: int) -> str | None:
    """An error as the name of Kafka's exception for it."""
    from ottla.client.connection import failure

    if not code:
        return None
    return ERRORS + "".join(part.capitalize() for part in failure(code).error.name.split("_")) + "Exception"
