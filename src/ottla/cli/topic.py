"""ottla topic create | list | describe | alter | delete"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, cluster_of, pairs
from ottla.cli.text import compact, say, table
from ottla.wire.ids import uuid_text

if TYPE_CHECKING:
    from ottla.client.admin import Admin, PartitionInfo, Setting, TopicInfo

EXAMPLES = """examples:
  ottla topic create clicks --partitions 6 --config retention.ms=86400000
  ottla topic list 'click*'
  ottla topic describe clicks
  ottla topic alter clicks --partitions 12 --config cleanup.policy=compact --delete-config retention.ms
  ottla topic delete clicks"""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = add_action(actions, "create", "make topics", "ottla topic create clicks --partitions 6")
    create.add_argument("names", nargs="+", metavar="NAME")
    create.add_argument(
        "-p", "--partitions", type=int, default=-1, help="how many (default: the broker's num.partitions)"
    )
    create.add_argument("-r", "--replication-factor", type=int, default=-1, help="copies (default: the broker's)")
    create.add_argument(
        "-c", "--config", action="append", metavar="NAME=VALUE", help="a setting of the topic; repeatable"
    )
    create.add_argument("--if-not-exists", action="store_true", help="do nothing for a topic that exists")
    create.add_argument("--dry-run", action="store_true", help="let the cluster check everything, and make nothing")
    listing = add_action(actions, "list", "print the names of topics", "ottla topic list")
    listing.add_argument("pattern", nargs="?", metavar="PATTERN", help="only names that match, with * and ?")
    listing.add_argument("--internal", action="store_true", help="show the cluster's own topics too")
    describe = add_action(actions, "describe", "show partitions, offsets and settings", "ottla topic describe clicks")
    describe.add_argument("names", nargs="*", metavar="NAME", help="all topics when none is named")
    describe.add_argument("--all-configs", action="store_true", help="show settings that have their default, too")
    describe.add_argument(
        "--unhealthy", action="store_true", help="only partitions without a leader, or with copies that are not in sync"
    )
    alter = add_action(
        actions, "alter", "change settings, add partitions", "ottla topic alter clicks -c retention.ms=60000"
    )
    alter.add_argument("names", nargs=1, metavar="NAME")
    alter.add_argument("-p", "--partitions", type=int, help="the new number in all; it can only grow")
    alter.add_argument("-c", "--config", action="append", metavar="NAME=VALUE", help="set a setting; repeatable")
    alter.add_argument("--delete-config", action="append", metavar="NAME", help="back to the default; repeatable")
    delete = add_action(actions, "delete", "remove topics and all their records", "ottla topic delete clicks")
    delete.add_argument("names", nargs="+", metavar="NAME")
    delete.add_argument("--if-exists", action="store_true", help="do nothing for a topic that does not exist")


def run(args: argparse.Namespace) -> int:
    import asyncio

    actions = {"create": _create, "list": _list, "describe": _describe, "alter": _alter, "delete": _delete}
    asyncio.run(_connected(actions[args.action], args))
    return 0


async def _connected(action: Callable[[Admin, argparse.Namespace], Awaitable[None]], args: argparse.Namespace) -> None:
    from ottla.client.admin import Admin

    async with cluster_of(args) as cluster:
        await action(Admin(cluster), args)


async def _create(admin: Admin, args: argparse.Namespace) -> None:
    from ottla.cli.meant import note_settings
    from ottla.config.settings import TOPIC_SETTINGS
    from ottla.wire.errors import Error, KafkaError

    configs = pairs(args.config, "--config")
    for name in args.names:
        try:
            made = await admin.create_topic(
                name,
                partitions=args.partitions,
                replication_factor=args.replication_factor,
                configs=configs,
                validate_only=args.dry_run,
            )
        except KafkaError as error:
            if error.error is Error.TOPIC_ALREADY_EXISTS and args.if_not_exists:
                say(args, {"topic": name, "created": False}, f"{name} exists already")
                continue
            note_settings(error, configs, TOPIC_SETTINGS)
            raise
        counts = {"partitions": made.num_partitions, "replication_factor": made.replication_factor}
        verb = "could create" if args.dry_run else "created"
        text = f"{verb} {name}: partitions {made.num_partitions}, copies {made.replication_factor}"
        say(args, {"topic": name, "created": not args.dry_run, "id": uuid_text(made.topic_id), **counts}, text)


async def _list(admin: Admin, args: argparse.Namespace) -> None:
    from fnmatch import fnmatchcase

    topics = [topic for topic in await admin.describe_topics() if args.internal or not topic.is_internal]
    if args.pattern is not None:
        topics = [topic for topic in topics if fnmatchcase(topic.name, args.pattern)]
    if args.json:
        print(compact([topic.name for topic in topics]).decode())
        return
    for topic in topics:
        print(topic.name)


async def _describe(admin: Admin, args: argparse.Namespace) -> None:
    described = []
    for topic in await admin.describe_topics(args.names or None):
        if args.unhealthy:
            topic = topic._replace(partitions=[partition for partition in topic.partitions if _is_ill(partition)])
            if not topic.partitions:
                continue
        settings = await admin.configs(topic.name)
        if not args.all_configs:
            settings = [setting for setting in settings if setting.source != "default"]
        described.append((topic, settings, await _extent(admin, topic)))
    if args.json:
        print(compact([_as_json(*parts) for parts in described]).decode())
        return
    if args.unhealthy and not described:
        print("every partition has a leader, and all copies are in sync")
    else:
        print("\n\n".join(_as_text(*parts) for parts in described))


def _is_ill(partition: PartitionInfo) -> bool:
    return partition.leader < 0 or len(partition.isr) < len(partition.replicas)


async def _extent(admin: Admin, topic: TopicInfo) -> dict[int, tuple[int, int]]:
    """Where each partition begins and ends; those without a leader are left out."""
    from ottla.client.cluster import EARLIEST, LATEST, TopicPartition

    led = [TopicPartition(topic.name, p.partition) for p in topic.partitions if p.leader >= 0]
    begins = await admin.cluster.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = await admin.cluster.list_offsets(dict.fromkeys(led, LATEST))
    return {where.partition: (begins[where].offset, ends[where].offset) for where in led}


def _as_json(topic: TopicInfo, settings: list[Setting], extent: dict[int, tuple[int, int]]) -> dict[str, Any]:
    partitions = []
    for partition in topic.partitions:
        begin, end = extent.get(partition.partition, (None, None))
        partitions.append({**partition._asdict(), "begin_offset": begin, "end_offset": end})
    return {
        "topic": topic.name,
        "id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
        "configs": {setting.name: setting.value for setting in settings},
        "partitions": partitions,
    }


def _as_text(topic: TopicInfo, settings: list[Setting], extent: dict[int, tuple[int, int]]) -> str:
    head = f"{topic.name}  id {uuid_text(topic.topic_id)}  partitions {len(topic.partitions)}"
    lines = [f"  {setting.name}={setting.value}  ({setting.source})" for setting in settings]
    rows: list[tuple[object, ...]] = [("  partition", "leader", "replicas", "in sync", "begin", "end")]
    for partition in topic.partitions:
        begin, end = extent.get(partition.partition, ("-", "-"))
        replicas, isr = (",".join(map(str, nodes)) for nodes in (partition.replicas, partition.isr))
        leader = partition.leader if partition.leader >= 0 else "none"
        rows.append((f"  {partition.partition}", leader, replicas, isr or "-", begin, end))
    return "\n".join([head + ("  internal" if topic.is_internal else ""), *lines, table(rows)])


async def _alter(admin: Admin, args: argparse.Namespace) -> None:
    from ottla.cli.meant import note_settings
    from ottla.config.settings import TOPIC_SETTINGS
    from ottla.wire.errors import KafkaError

    name = args.names[0]
    put, delete = pairs(args.config, "--config"), args.delete_config or []
    if not put and not delete and args.partitions is None:
        raise Mistake("nothing to change: give --partitions, --config or --delete-config")
    await admin.describe_topics([name])
    if put or delete:
        try:
            await admin.alter_configs(name, put=put, delete=delete)
        except KafkaError as error:
            note_settings(error, [*put, *delete], TOPIC_SETTINGS)
            raise
    if args.partitions is not None:
        await admin.create_partitions(name, args.partitions)
    say(args, {"topic": name, "altered": True}, f"altered {name}")


async def _delete(admin: Admin, args: argparse.Namespace) -> None:
    from ottla.client.cluster import NoTopic

    for name in args.names:
        try:
            await admin.delete_topic(name)
        except NoTopic:
            if not args.if_exists:
                raise
            say(args, {"topic": name, "deleted": False}, f"{name} does not exist")
        else:
            say(args, {"topic": name, "deleted": True}, f"deleted {name}")
