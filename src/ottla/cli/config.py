"""ottla config show | set | unset"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, cluster_of, pairs
from ottla.cli.text import compact, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.cli.kafka.configs import Entities
    from ottla.client.cluster import Cluster

EXAMPLES = """examples:
  ottla config show topic clicks                       what was set on the topic
  ottla config show broker 1 --all                     every setting, and where its value comes from
  ottla config set topic clicks retention.ms=60000 cleanup.policy=compact,delete
  ottla config unset topic clicks retention.ms
  ottla config set broker --default log.retention.ms=86400000
  ottla config set user alice producer_byte_rate=1048576
  ottla config set user alice SCRAM-SHA-256=password=secret"""

# What people call them, and what they are called inside.
KINDS = {
    "topic": "topics",
    "broker": "brokers",
    "logger": "broker-loggers",
    "group": "groups",
    "client-metrics": "client-metrics",
    "user": "users",
    "client": "clients",
    "ip": "ips",
}
BY_QUOTA = ("users", "clients", "ips")
WITH_DEFAULT = ("brokers", *BY_QUOTA)


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = _action(actions, "show", "print settings", "ottla config show topic clicks")
    show.add_argument("--all", action="store_true", help="also those that have their default")
    put = _action(
        actions, "set", "change settings; others stay as they are", "ottla config set topic clicks segment.ms=9"
    )
    put.add_argument("values", nargs="+", metavar="NAME=VALUE")
    unset = _action(actions, "unset", "go back to the default", "ottla config unset topic clicks retention.ms")
    unset.add_argument("values", nargs="+", metavar="SETTING")


def _action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, what, example)
    parser.add_argument("kind", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one (not with --default)")
    parser.add_argument("--default", action="store_true", help="what holds for all of that kind that say nothing else")
    return parser


def run(args: argparse.Namespace) -> int:
    import asyncio

    kind = KINDS[args.kind]
    if args.default and args.name is not None:
        # With --default there is no name: what stands in its place is the first of the values.
        args.values = [args.name, *getattr(args, "values", [])]
        args.name = None
    if args.default and kind not in WITH_DEFAULT:
        raise Mistake(f"a {args.kind} has no --default; there is one for broker, user, client and ip")
    if args.name is None and not args.default and args.action != "show":
        raise Mistake(f"which {args.kind}? Name one, or say --default")
    asyncio.run(_connected(args, kind))
    return 0


async def _connected(args: argparse.Namespace, kind: str) -> None:
    async with cluster_of(args) as cluster:
        if args.action == "show":
            await _show(cluster, args, kind)
        else:
            await _change(cluster, args, kind)


# Showing.


async def _show(cluster: Cluster, args: argparse.Namespace, kind: str) -> None:
    if kind in BY_QUOTA:
        rows = await _limits(cluster, _entities(args, kind))
    else:
        rows = await _settings(cluster, args, kind)
    if args.json:
        print(compact(rows).decode())
        return
    if not rows:
        more = args.action == "show" and kind not in BY_QUOTA
        print("nothing was set" + ("; --all shows what counts, and where it comes from" if more else ""))
        return
    for name, group in _grouped(rows):
        print(f"{args.kind} {name}" if name else f"default of every {args.kind}")
        print(table([(f"  {row['setting']}", _shown(row["value"]), row["source"]) for row in group]))


def _shown(value: object) -> object:
    return "-" if value is None else value


def _grouped(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    names = dict.fromkeys(str(row["name"]) for row in rows)
    return [(name, [row for row in rows if row["name"] == name]) for name in names]


async def _settings(cluster: Cluster, args: argparse.Namespace, kind: str) -> list[dict[str, Any]]:
    from ottla.cli.kafka.config_resources import configs_of, existing
    from ottla.client.admin import SOURCES
    from ottla.client.cluster import NoTopic

    names = [""] if args.default else [args.name] if args.name is not None else await existing(cluster, kind)
    if kind == "topics" and args.name is not None and args.name not in await existing(cluster, kind):
        raise NoTopic(args.name)
    rows = []
    for name in names:
        for config in await configs_of(cluster, kind, name, everything=args.all):
            source = SOURCES.get(config.config_source, "unknown")
            rows.append({"name": name, "setting": config.name, "value": config.value, "source": source})
    return rows


def _entities(args: argparse.Namespace, kind: str) -> Entities:
    from ottla.cli.kafka.configs import Entities

    return Entities([kind], [""] if args.default else [] if args.name is None else [args.name])


async def _limits(cluster: Cluster, entities: Entities) -> list[dict[str, Any]]:
    from ottla.cli.kafka.config_entities import credentials_of, quotas_of

    rows: list[dict[str, Any]] = []
    for entry in await quotas_of(cluster, entities):
        name = " ".join(part.entity_name or "" for part in entry.entity)
        rows += [
            {"name": name, "setting": value.key, "value": value.value, "source": "quota"}
            for value in sorted(entry.values, key=lambda value: value.key)
        ]
    if entities.types == ["users"] and "" not in entities.names:
        for user, mechanism, iterations in await credentials_of(cluster, entities.names):
            rows.append({"name": user, "setting": mechanism, "value": f"iterations={iterations}", "source": "password"})
    return rows


# Changing.


async def _change(cluster: Cluster, args: argparse.Namespace, kind: str) -> None:
    from ottla.cli.kafka import config_entities, config_resources
    from ottla.cli.kafka.options import Failed
    from ottla.cli.meant import note_settings
    from ottla.client.cluster import NoTopic
    from ottla.config.settings import GROUP_SETTINGS, NODE_SETTINGS, TOPIC_SETTINGS
    from ottla.wire.errors import Error, KafkaError

    known = {"topics": TOPIC_SETTINGS, "brokers": NODE_SETTINGS, "groups": GROUP_SETTINGS}
    put: Mapping[str, str] = pairs(args.values, "") if args.action == "set" else {}
    delete = [] if args.action == "set" else list(args.values)
    try:
        if kind in BY_QUOTA:
            await config_entities.alter(cluster, _entities(args, kind), put, delete)
        else:
            await config_resources.alter(cluster, kind, args.name or "", put, delete)
    except Failed as refusal:
        raise Mistake(str(refusal))
    except KafkaError as error:
        if kind == "topics" and error.error is Error.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoTopic(args.name)
        note_settings(error, [*put, *delete], known.get(kind, {}))
        raise
    whose = f"{args.kind} {args.name}" if args.name is not None else f"every {args.kind}"
    if args.json:
        print(compact({"kind": args.kind, "name": args.name, "set": dict(put), "unset": delete}).decode())
    else:
        print(f"changed {whose}: {', '.join([*put, *delete])}")
