"""kafka-topics.sh: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ottla.cli.kafka.options import Failed, Option, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.cli.kafka.asking import Config, Described, Moving
    from ottla.client.cluster import Cluster

ACTIONS = ("create", "list", "alter", "describe", "delete")
# Kafka walks a hash table here, and so names the first of these when several are wrong.
ACTIONS_AS_CHECKED = ("list", "delete", "create", "alter", "describe")
REPORTS = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
CONFIGS_TOOL = " (To alter topic configurations, the kafka-configs tool can be used.)"
COLLISIONS = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. "
    "To avoid issues it is best to use either, but not both."
)
REPLICATION_FACTOR_MAX = 32767
TIMEOUT_MS = 60_000
PAGE = 2000


def _about_config() -> str:
    from ottla.config.settings import TOPIC_SETTINGS

    names = "\n".join(f"\t{name}" for name, setting in sorted(TOPIC_SETTINGS.items()) if not setting.internal)
    return (
        "A topic configuration override for the topic being created. The following is a list of valid configurations: "
        f"\n{names}\nSee the Kafka documentation for full details on the topic configs. It is supported only in "
        f"combination with --create.{CONFIGS_TOOL}"
    )


def _options() -> tuple[Option, ...]:
    partitions = (
        "The number of partitions for the topic being created or altered. If not supplied with --create, the topic uses "
        "the cluster default. (WARNING: If partitions are increased for a topic that has a key, the partition logic or "
        "ordering of the messages will be affected)."
    )
    assignment = (
        "broker_id_for_part1_replica1 : broker_id_for_part1_replica2 , "
        "broker_id_for_part2_replica1 : broker_id_for_part2_replica2 , ..."
    )
    only = "If set when describing topics, only show"
    return (
        takes("bootstrap-server", "REQUIRED: The Kafka server to connect to.", "server to connect to"),
        takes(
            "command-config",
            "Property file containing configs to be passed to Admin Client.",
            "command config property file",
        ),
        flag("list", "List all available topics."),
        flag("create", "Create a new topic."),
        flag("delete", "Delete a topic."),
        flag("alter", f"Alter the number of partitions and replica assignment.{CONFIGS_TOOL}"),
        flag("describe", "List details for the given topics."),
        takes(
            "topic",
            "The topic to create, alter, describe or delete. It also accepts a regular expression, except for --create "
            "option.",
            "topic",
        ),
        takes("topic-id", "The topic-id to describe.", "topic-id"),
        takes("config", _about_config, "name=value"),
        takes("delete-config", "This option is no longer supported and has been deprecated since 4.0", "name"),
        takes("partitions", partitions, "# of partitions", kind="Integer"),
        takes(
            "replication-factor",
            "The replication factor for each partition in the topic being created. If not supplied, the topic uses the "
            "cluster default.",
            "replication factor",
            kind="Integer",
        ),
        takes(
            "replica-assignment",
            "A list of manual partition-to-broker assignments for the topic being created or altered.",
            assignment,
        ),
        flag("under-replicated-partitions", f"{only} under-replicated partitions."),
        flag("unavailable-partitions", f"{only} partitions whose leader is not available."),
        flag("under-min-isr-partitions", f"{only} partitions whose isr count is less than the configured minimum."),
        flag("at-min-isr-partitions", f"{only} partitions whose isr count is equal to the configured minimum."),
        flag("topics-with-overrides", f"{only} topics that have overridden configs."),
        *_conditions(),
    )


def _conditions() -> tuple[Option, ...]:
    return (
        flag(
            "if-exists",
            "If set when altering or deleting or describing topics, the action will only execute if the topic exists.",
        ),
        flag(
            "if-not-exists",
            "If set when creating topics, the create request will not fail if the topic already exists, but the request "
            "will still be sent.",
        ),
        flag(
            "exclude-internal",
            "Exclude internal topics when listing or describing topics. By default, the internal topics are included.",
        ),
        takes(
            "partition-size-limit-per-response",
            "The maximum partition size to be included in one DescribeTopicPartitions response.",
            "maximum number of partitions per response",
            kind="Integer",
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    what = "create, delete, describe, or change a topic."
    parser = Parser(f"This tool helps to {what}" if words else what.capitalize(), *_options())
    return run(parser, words, _run)


def _run(options: Options) -> int:
    from ottla.cli.kafka.connecting import with_cluster

    _check(options)
    actions = {"create": _create, "list": _list, "alter": _alter, "describe": _describe, "delete": _delete}
    action = next(actions[name] for name in ACTIONS if options.has(name))

    async def work(cluster: Cluster) -> int:
        from ottla.wire.errors import KafkaError

        try:
            await action(cluster, options)
        except (KafkaError, Failed, ValueError) as error:
            print(f"Error while executing topic command : {getattr(error, 'message', error)}")
            return 1
        return 0

    return with_cluster(options.text("bootstrap-server"), options.value("command-config"), work)


# Which options go together.


def _check(options: Options) -> None:
    if sum(options.has(action) for action in ACTIONS) != 1:
        raise Usage("Command must include exactly one action: --list, --describe, --create, --alter or --delete")
    if options.has("delete-config"):
        what = "delete-config option is no longer supported and deprecated since version 4.0."
        print(f"{what} The config will be fully removed in future releases.", file=sys.stderr)
    if not options.has("bootstrap-server"):
        raise Failed("--bootstrap-server must be specified")
    _check_needed(options)
    _check_combinations(options)


def _check_needed(options: Options) -> None:
    if options.has("describe") and options.has("if-exists"):
        if not options.has("topic") and not options.has("topic-id"):
            raise Usage("--topic or --topic-id is required to describe a topic")
        if options.has("topic") and options.has("topic-id"):
            both = "Only topic id will be used when both --topic and --topic-id are specified"
            print(f"{both} and topicId is not Uuid.ZERO_UUID")
    if not options.has("list") and not options.has("describe"):
        options.require("topic")
    if options.has("alter"):
        if options.has("config"):
            combination = 'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]"'
            raise Usage(combination + CONFIGS_TOOL)
        options.require("partitions")


def _check_combinations(options: Options) -> None:
    allowed = {
        "config": ("alter", "create"),
        "partitions": ("alter", "create"),
        "replication-factor": ("create",),
        "replica-assignment": ("alter", "create"),
    }
    _only_with(options, allowed)
    if options.has("create"):
        options.forbid("replica-assignment", "partitions", "replication-factor")
    for report in REPORTS:
        _only_with(options, {report: ("describe",)})
        options.forbid(report, "topics-with-overrides")
    _only_with(
        options,
        {
            "topics-with-overrides": ("describe",),
            "if-exists": ("alter", "delete", "describe"),
            "if-not-exists": ("create",),
            "exclude-internal": ("list", "describe"),
        },
    )


def _only_with(options: Options, allowed: dict[str, tuple[str, ...]]) -> None:
    for name, actions in allowed.items():
        options.forbid(name, *(action for action in ACTIONS_AS_CHECKED if action not in actions))


# The actions.


async def _create(cluster: Cluster, options: Options) -> None:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.errors import Error
    from ottla.wire.messages.topics import CreateTopicsRequest

    name, topic = options.text("topic"), CreateTopicsRequest.Topic
    partitions, factor = options.number("partitions"), options.number("replication-factor")
    assignment, configs = _assignment(options), _configs(options)
    if "." in name or "_" in name:
        print(COLLISIONS)
    if factor is not None and not 1 <= factor <= REPLICATION_FACTOR_MAX:
        raise Failed(f"The replication factor must be between 1 and {REPLICATION_FACTOR_MAX} inclusive")
    if partitions is not None and partitions < 1:
        raise Failed("The partitions must be greater than 0")
    wanted = topic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if factor is None else factor,
        assignments=[topic.Assignment(partition_index=n, broker_ids=ids) for n, ids in enumerate(assignment)],
        configs=[topic.Config(name=key, value=value) for key, value in configs.items()],
    )
    answer = await ask(cluster, CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS))
    made = answer.topics[0]
    if made.error_code == Error.TOPIC_ALREADY_EXISTS.code and options.has("if-not-exists"):
        return
    check(made.error_code, made.error_message)
    print(f"Created topic {name}.")


def _assignment(options: Options) -> list[list[int]]:
    """The brokers of each partition: `1:2,2:3` are two partitions with two replicas each."""
    text = options.value("replica-assignment")
    rows: list[list[int]] = []
    for part in text.split(",") if text else ():
        row = [_broker_id(piece.strip()) for piece in part.split(":")]
        twice = [str(broker) for broker in dict.fromkeys(row) if row.count(broker) > 1]
        if twice:
            raise Failed(f"Partition replica lists may not contain duplicate entries: {','.join(twice)}")
        rows.append(row)
        if len(row) != len(rows[0]):
            raise Failed(f"Partition {len(rows) - 1} has different replication factor: {row}")
    return rows


def _broker_id(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Failed(f'For input string: "{text}"')


def _configs(options: Options) -> dict[str, str]:
    found = {}
    for text in options.values("config"):
        parts = [part.strip() for part in text.split("=")]
        while parts and not parts[-1]:
            parts.pop()  # as Java's split forgets empty ends
        if len(parts) != 2:
            what = 'all configs to be added must be in the format "key=val".'
            raise Failed(f"requirement failed: Invalid topic config: {what}")
        found[parts[0]] = parts[1]
    if found:
        from ottla.config.topics import validate_topic_configs

        validate_topic_configs({name: value for name, value in found.items() if name != "remote.storage.enable"})
    return found


async def _list(cluster: Cluster, options: Options) -> None:
    print("\n".join(await _matching(cluster, options)))


async def _matching(cluster: Cluster, options: Options) -> list[str]:
    """The topics that --topic names: one, several, or a pattern; all without it."""
    import re

    from ottla.cli.kafka.asking import topic_ids

    pattern = options.value("topic")
    names = list(await topic_ids(cluster, internal=not options.has("exclude-internal")))
    if pattern is None:
        return names
    pattern = re.sub(r"^[\"']+|[\"']+$", "", pattern.strip().replace(",", "|").replace(" ", ""))
    try:
        compiled = re.compile(pattern)
    except re.error:
        raise Failed(f"{pattern} is an invalid regex.")
    return [name for name in names if compiled.fullmatch(name)]


async def _existing(cluster: Cluster, options: Options) -> list[str]:
    names = await _matching(cluster, options)
    if options.value("topic") and not names and not options.has("if-exists"):
        raise Failed(f"Topic '{options.value('topic')}' does not exist as expected")
    return names


async def _alter(cluster: Cluster, options: Options) -> None:
    from ottla.cli.kafka.asking import ask, describe_topics
    from ottla.client.connection import check
    from ottla.wire.messages.topics import CreatePartitionsRequest

    topic, count, assignment = CreatePartitionsRequest.Topic, options.number("partitions") or 0, _assignment(options)
    wanted = []
    for described in await describe_topics(cluster, await _existing(cluster, options)):
        new = [topic.Assignment(broker_ids=ids) for ids in assignment[len(described.partitions) :]]
        wanted.append(topic(name=described.name or "", count=count, assignments=new if assignment else None))
    if not wanted:
        return
    answer = await ask(cluster, CreatePartitionsRequest(topics=wanted, timeout_ms=TIMEOUT_MS))
    for result in answer.results:
        check(result.error_code, result.error_message)


async def _delete(cluster: Cluster, options: Options) -> None:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.topics import DeleteTopicsRequest

    names = await _existing(cluster, options)
    topics = [DeleteTopicsRequest.Topic(name=name) for name in names]
    # Which of the two fields goes out depends on the version.
    answer = await ask(cluster, DeleteTopicsRequest(topics=topics, topic_names=names, timeout_ms=TIMEOUT_MS))
    for result in answer.responses:
        check(result.error_code, result.error_message)


# Describing.


async def _describe(cluster: Cluster, options: Options) -> None:
    from ottla.cli.kafka import asking

    names = await _to_describe(cluster, options)
    page = options.number("partition-size-limit-per-response") or PAGE
    described = sorted(await asking.describe_topics(cluster, names, page), key=lambda topic: topic.name or "")
    configs = await asking.configs(cluster, asking.TOPIC, [topic.name or "" for topic in described])
    live = {broker.node_id for broker in (await cluster.metadata([])).brokers}
    wanted = {topic.name or "": [p.partition_index for p in topic.partitions] for topic in described}
    moving = await asking.reassignments(cluster, wanted) if wanted else {}
    for topic in described:
        _print_topic(topic, configs[topic.name or ""], moving, live, options)


async def _to_describe(cluster: Cluster, options: Options) -> list[str]:
    from ottla.cli.kafka.asking import topic_ids
    from ottla.wire.schema import ZERO_UUID

    text = options.value("topic-id")
    wanted = ZERO_UUID if text is None else _topic_id(text)
    if wanted == ZERO_UUID:
        return await _existing(cluster, options)
    ids = await topic_ids(cluster, internal=not options.has("exclude-internal"))
    names = [name for name, topic_id in ids.items() if topic_id == wanted]
    if not names and not options.has("if-exists"):
        raise Failed(f"TopicId '{text}' does not exist as expected")
    return names


def _topic_id(text: str) -> bytes:
    from ottla.cli.kafka.identities import uuid_of

    return uuid_of(text)


def _print_topic(
    topic: Described, configs: list[Config], moving: dict[tuple[str, int], Moving], live: set[int], options: Options
) -> None:
    from ottla.cli.kafka.asking import DEFAULT_SOURCE

    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    overridden = sorted((config for config in configs if config.config_source != DEFAULT_SOURCE), key=lambda c: c.name)
    overrides = [f"{config.name}={config.value}" for config in overridden]
    only_overrides, reports = options.has("topics-with-overrides"), [name for name in REPORTS if options.has(name)]
    if not reports and (overrides or not only_overrides):
        first = _factor(partitions[0], moving.get((topic.name or "", partitions[0].partition_index)))
        print(_topic_line(topic, first, overrides))
    if only_overrides:
        return
    min_isr = next(int(config.value or 1) for config in configs if config.name == "min.insync.replicas")
    for partition in partitions:
        reassignment = moving.get((topic.name or "", partition.partition_index))
        if not reports or any(_reported(name, partition, reassignment, min_isr, live) for name in reports):
            print(_partition_line(topic.name or "", partition, reassignment))


def _topic_line(topic: Described, factor: int, overrides: list[str]) -> str:
    from ottla.wire.ids import uuid_text
    from ottla.wire.schema import ZERO_UUID

    topic_id = f"\tTopicId: {uuid_text(topic.topic_id)}" if topic.topic_id != ZERO_UUID else ""
    counts = f"\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {factor}"
    return f"Topic: {topic.name}{topic_id}{counts}\tConfigs: {','.join(overrides)}"


def _factor(partition: Any, moving: Moving | None) -> int:
    """How many replicas there shall be; those that are only on their way do not count."""
    if moving and set(partition.replica_nodes) & {*moving.adding_replicas, *moving.removing_replicas}:
        return len(moving.replicas) - len(moving.adding_replicas)
    return len(partition.replica_nodes)


def _reported(report: str, partition: Any, moving: Moving | None, min_isr: int, live: set[int]) -> bool:
    in_sync = len(partition.isr_nodes)
    if report == "under-replicated-partitions":
        return _factor(partition, moving) > in_sync
    if report == "under-min-isr-partitions":
        return partition.leader_id < 0 or in_sync < min_isr
    if report == "at-min-isr-partitions":
        return in_sync == min_isr
    return partition.leader_id not in live


def _partition_line(name: str, partition: Any, moving: Moving | None) -> str:
    parts = {
        "Topic": name,
        "Partition": str(partition.partition_index),
        "Leader": str(partition.leader_id) if partition.leader_id >= 0 else "none",
        "Replicas": _ids(partition.replica_nodes),
        "Isr": _ids(partition.isr_nodes),
    }
    if moving is not None:
        parts["Adding Replicas"] = _ids(moving.adding_replicas)
        parts["Removing Replicas"] = _ids(moving.removing_replicas)
    eligible, last_known = partition.eligible_leader_replicas, partition.last_known_elr
    parts["Elr"] = "N/A" if eligible is None else _ids(eligible)
    parts["LastKnownElr"] = "N/A" if last_known is None else _ids(last_known)
    return "".join(f"\t{what}: {value}" for what, value in parts.items())


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
