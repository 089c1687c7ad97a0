"""ottla offsets show | trim"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, cluster_of, moment_ms
from ottla.cli.text import compact, table

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.cluster import TopicPartition

EXAMPLES = """examples:
  ottla offsets show clicks                      where each partition begins and ends
  ottla offsets show clicks --at 1h              and the first offset of the last hour
  ottla offsets trim clicks --before 1000        delete all records before offset 1000 in each partition
  ottla offsets trim clicks:0 --before end       delete all records of partition 0

What is trimmed is gone for good; the offsets that remain do not change."""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = add_action(actions, "show", "show offsets of partitions", "ottla offsets show clicks --at 10m")
    show.add_argument("topics", nargs="*", metavar="TOPIC[:0,1]", help="all topics when none is named")
    show.add_argument("--at", metavar="TIME", help="also the first offset of this time: 10m (ago), ISO, milliseconds")
    trim = add_action(actions, "trim", "delete records before an offset", "ottla offsets trim clicks --before 1000")
    trim.add_argument("topics", nargs="+", metavar="TOPIC[:0,1]")
    trim.add_argument("--before", required=True, metavar="OFFSET", help="the first offset to keep; `end` keeps none")


def run(args: argparse.Namespace) -> int:
    import asyncio

    asyncio.run(_connected(args))
    return 0


async def _connected(args: argparse.Namespace) -> None:
    from ottla.client.admin import Admin

    async with cluster_of(args) as cluster:
        await (_show if args.action == "show" else _trim)(Admin(cluster), args)


async def _chosen(admin: Admin, texts: list[str]) -> list[TopicPartition]:
    from ottla.cli.group import partitions_of

    names = texts or [topic.name for topic in await admin.describe_topics() if not topic.is_internal]
    return [where for text in names for where in await partitions_of(admin.cluster, text)]


async def _show(admin: Admin, args: argparse.Namespace) -> None:
    from ottla.client.cluster import EARLIEST, LATEST

    chosen = await _chosen(admin, args.topics)
    marks = {"begin": EARLIEST, "end": LATEST}
    if args.at is not None:
        marks["at"] = moment_ms(args.at, admin.cluster.now_ms())
    found = {
        name: await admin.cluster.list_offsets(dict.fromkeys(chosen, mark)) if chosen else {}
        for name, mark in marks.items()
    }
    if args.json:
        rows = [{**where._asdict(), **{name: _number(found[name][where].offset) for name in marks}} for where in chosen]
        print(compact(rows).decode())
    elif chosen:
        lines = [(*where, *(_text(found[name][where].offset) for name in marks)) for where in chosen]
        print(table([("topic", "partition", *marks), *lines]))


def _number(offset: int) -> int | None:
    return None if offset < 0 else offset


def _text(offset: int) -> str:
    return "-" if offset < 0 else str(offset)


async def _trim(admin: Admin, args: argparse.Namespace) -> None:
    if args.before != "end" and not args.before.isdigit():
        raise Mistake(f"--before {args.before!r}: write an offset, or `end` for all records")
    before = -1 if args.before == "end" else int(args.before)
    starts = await admin.delete_records(dict.fromkeys(await _chosen(admin, args.topics), before))
    if args.json:
        print(compact([{**where._asdict(), "begin": begin} for where, begin in starts.items()]).decode())
    else:
        print(table([("topic", "partition", "begin"), *((*where, begin) for where, begin in starts.items())]))
