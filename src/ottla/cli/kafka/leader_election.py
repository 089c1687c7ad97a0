"""kafka-leader-election.sh: have partitions led by their preferred replica, or by any that lives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka.options import Failed, Option, Options, Parser, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.cluster import Cluster

TYPES = {"PREFERRED": 0, "UNCLEAN": 1}
ERRORS = "org.apache.kafka.common.errors."
EXAMPLE = '{"partitions":\n\t[{"topic": "foo", "partition": 1},\n\t {"topic": "foobar", "partition": 2}]\n}'
WHICH = ("topic", "all-topic-partitions", "path-to-json-file")
TIMEOUT_MS = 30_000

PARSER = Parser(
    "This tool attempts to elect a new leader for a set of topic partitions. The type of elections supported are "
    "preferred replicas and unclean replicas.",
    takes(
        "bootstrap-server",
        "A hostname and port for the broker to connect to, in the form host:port. Multiple comma separated URLs can be "
        "given. REQUIRED.",
        "host:port",
    ),
    takes(
        "admin.config",
        "(DEPRECATED) Configuration properties files to pass to the admin client. This option will be removed in a "
        "future version. Use --command-config instead.",
        "config file",
    ),
    takes("command-config", "Config properties file to pass to the admin client.", "Config file"),
    takes(
        "path-to-json-file",
        "The JSON file with the list  of partition for which leader elections should be performed. This is an example "
        f"format. \n{EXAMPLE}\nNot allowed if --all-topic-partitions or --topic flags are specified.",
        "Path to JSON file",
    ),
    takes(
        "topic",
        "Name of topic for which to perform an election. Not allowed if --path-to-json-file or --all-topic-partitions is "
        "specified.",
        "topic name",
    ),
    takes(
        "partition",
        "Partition id for which to perform an election. REQUIRED if --topic is specified.",
        "partition id",
        kind="Integer",
    ),
    flag(
        "all-topic-partitions",
        "Perform election on all of the eligible topic partitions based on the type of election (see the --election-type "
        "flag). Not allowed if --topic or --path-to-json-file is specified.",
    ),
    Option(
        "election-type",
        'Type of election to attempt. Possible values are "preferred" for preferred leader election or "unclean" for '
        "unclean leader election. If preferred election is selection, the election is only performed if the current "
        "leader is not the preferred leader for the topic partition. If unclean election is selected, the election is "
        "only performed if there are no leader for the topic partition. REQUIRED.",
        "[PREFERRED,UNCLEAN]",
        "election type",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _run)


def _run(options: Options) -> None:
    from ottla.cli.kafka.connecting import with_cluster

    _check(options)
    kind = options.text("election-type").upper()
    if kind not in TYPES:
        raise Failed(f"Cannot parse argument '{options.value('election-type')}' of option election-type")
    wanted = _wanted(options)
    config = options.value("command-config") or options.value("admin.config")
    with_cluster(options.text("bootstrap-server"), config, lambda cluster: _elect(cluster, kind, wanted))


def _check(options: Options) -> None:
    missing = [name for name in ("bootstrap-server", "election-type") if not options.has(name)]
    if missing:
        raise Failed(f"Missing required option(s): {', '.join(missing)}")
    if sum(options.has(name) for name in WHICH) != 1:
        raise Failed(f"One and only one of the following options is required: {', '.join(WHICH)}")
    if options.has("topic") and not options.has("partition"):
        raise Failed("Missing required option(s): partition")
    if options.has("partition") and not options.has("topic"):
        raise Failed("Option partition is only allowed if topic is used")


def _wanted(options: Options) -> list[tuple[str, int]] | None:
    """Topics and partitions; None for all there are."""
    if options.has("all-topic-partitions"):
        return None
    if options.has("topic"):
        return [(options.text("topic"), options.number("partition") or 0)]
    found = _read(options.text("path-to-json-file"))
    twice = sorted({each for each in found if found.count(each) > 1})
    if twice:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in twice)
        raise Failed(f"Replica election data contains duplicate partitions: [{names}]")
    return found


def _read(path: str) -> list[tuple[str, int]]:
    try:
        with open(path, encoding="utf-8") as file:
            data: Any = json.load(file)
    except OSError:
        raise Failed(f"Unable to read file {path}")
    except ValueError:
        raise Failed("Replica election data is empty")
    if not isinstance(data, dict) or "partitions" not in data:
        raise Failed('Replica election data is missing "partitions" field')
    try:
        return [(str(each["topic"]), int(each["partition"])) for each in data["partitions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(f"{path}: every partition needs a topic and a partition ({error})")


async def elections(
    cluster: Cluster, kind: str, wanted: list[tuple[str, int]] | None
) -> list[tuple[str, int, str | None]]:
    """What became of each partition: its name, an error code, and why."""
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.placement import ElectLeadersRequest

    topics = None
    if wanted is not None:
        names = dict.fromkeys(topic for topic, _ in wanted)
        topics = [
            ElectLeadersRequest.Topic(topic=name, partitions=[at for topic, at in wanted if topic == name])
            for name in names
        ]
    request = ElectLeadersRequest(election_type=TYPES[kind], topic_partitions=topics, timeout_ms=TIMEOUT_MS)
    answer = await ask(cluster, request)
    check(answer.error_code)
    return [
        (f"{topic.topic}-{result.partition_id}", result.error_code, result.error_message)
        for topic in answer.replica_election_results
        for result in topic.partition_result
    ]


async def _elect(cluster: Cluster, kind: str, wanted: list[tuple[str, int]] | None) -> None:
    from ottla.client.connection import failure
    from ottla.wire.errors import Error

    results = await elections(cluster, kind, wanted)
    elected = [name for name, code, _ in results if not code]
    if elected:
        print(f"Successfully completed leader election ({kind}) for partitions {', '.join(elected)}")
    # Who asks for all of them does not want to hear of those where nothing was to be done.
    idle = [name for name, code, _ in results if code == Error.ELECTION_NOT_NEEDED.code and wanted is not None]
    if idle:
        print(f"Valid replica already elected for partitions {', '.join(idle)}")
    failed = [
        (name, failure(code, text)) for name, code, text in results if code not in (0, Error.ELECTION_NOT_NEEDED.code)
    ]
    for name, error in failed:
        java = "".join(part.capitalize() for part in error.error.name.split("_"))
        print(
            f"Error completing leader election ({kind}) for partition: {name}: {ERRORS}{java}Exception: {error.message}"
        )
    if failed:
        raise Failed(f"{len(failed)} replica(s) could not be elected")
