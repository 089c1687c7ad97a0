"""ottla group list | describe | reset | delete | delete-offsets"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.colour import coloured
from ottla.cli.mistakes import Mistake, meant
from ottla.cli.options import add_action, cluster_of, moment_ms
from ottla.cli.text import compact, say, table

if TYPE_CHECKING:
    from ottla.cli.resetting import Way
    from ottla.client.cluster import Cluster, TopicPartition
    from ottla.client.commits import Committed
    from ottla.client.groups import GroupAdmin, GroupInfo, MemberInfo

EXAMPLES = """examples:
  ottla group list
  ottla group describe billing
  ottla group reset billing --topic orders --to earliest               shows what would happen
  ottla group reset billing --topic orders:0,1 --to 2h --execute       two hours back, and does it
  ottla group reset billing --all-topics --shift -100 --execute
  ottla group delete billing
  ottla group delete-offsets billing --topic orders:0,1                forgets how far the group was there

Offsets can be reset only while nobody is in the group, and forgotten only of topics that no member reads."""

# Partitions that are asked for, or committed, in one go.
CHUNK = 500
STATE_COLOURS = {"Stable": "green", "Empty": "dim", "Dead": "red"}


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = add_action(actions, "list", "print groups with their kind and state", "ottla group list --state stable")
    listing.add_argument("--state", action="append", help="only groups in this state; repeatable")
    describe = add_action(actions, "describe", "show members, offsets and lag", "ottla group describe billing")
    describe.add_argument("names", nargs="*", metavar="GROUP", help="all groups when none is named")
    describe.add_argument("--members", action="store_true", help="show members instead of partitions")
    reset = add_action(
        actions, "reset", "set the offsets of a group", "ottla group reset billing --all-topics --to latest"
    )
    reset.add_argument("names", nargs=1, metavar="GROUP")
    reset.add_argument("-t", "--topic", action="append", metavar="TOPIC[:0,1]", help="which partitions; repeatable")
    reset.add_argument("--all-topics", action="store_true", help="all that the group has committed")
    where = reset.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--to", metavar="WHERE", help="earliest, latest, current, or a time: 10m (ago), 2026-11-15T12:00:00Z"
    )
    where.add_argument("--to-offset", type=int, metavar="N", help="this offset, or the nearest that exists")
    where.add_argument("--shift", type=int, metavar="N", help="so many forward, or back when below zero")
    reset.add_argument("--execute", action="store_true", help="do it; without this the plan is only shown")
    delete = add_action(actions, "delete", "forget groups and their offsets", "ottla group delete billing")
    delete.add_argument("names", nargs="+", metavar="GROUP")
    forget = add_action(
        actions,
        "delete-offsets",
        "forget how far a group was in some topics",
        "ottla group delete-offsets billing --topic orders",
    )
    forget.add_argument("names", nargs=1, metavar="GROUP")
    forget.add_argument("-t", "--topic", action="append", metavar="TOPIC[:0,1]", help="which partitions; repeatable")
    forget.add_argument("--all-topics", action="store_true", help="all that the group has committed")


def run(args: argparse.Namespace) -> int:
    import asyncio

    actions = {
        "list": _list,
        "describe": _describe,
        "reset": _reset,
        "delete": _delete,
        "delete-offsets": _delete_offsets,
    }
    return asyncio.run(_connected(actions[args.action], args))


async def _connected(
    action: Callable[[GroupAdmin, argparse.Namespace], Awaitable[int]], args: argparse.Namespace
) -> int:
    from ottla.client.groups import GroupAdmin

    async with cluster_of(args) as cluster:
        return await action(GroupAdmin(cluster), args)


async def _list(groups: GroupAdmin, args: argparse.Namespace) -> int:
    found = await groups.groups(states=args.state or (), protocols=None)
    if args.json:
        shown = [{"group": g.group, "kind": g.kind.lower(), "protocol": g.protocol, "state": g.state} for g in found]
        print(compact(shown).decode())
    elif found:
        rows = [(g.group, g.kind.lower(), g.protocol or "-", g.state) for g in found]
        _print_table(("group", "kind", "protocol", "state"), rows)
    return 0


def _print_table(names: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    first, *rest = table([names, *rows]).split("\n")
    print("\n".join([coloured(first, "bold"), *rest]))


# describe


class Read(NamedTuple):
    """A partition of a group."""

    where: TopicPartition
    committed: Committed | None
    end: int
    member: MemberInfo | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else self.end - self.committed.offset


async def _describe(groups: GroupAdmin, args: argparse.Namespace) -> int:
    names = args.names or [listing.group for listing in await groups.groups()]
    described = [(group, await _partitions(groups, group)) for group in [await _found(groups, n) for n in names]]
    if args.json:
        print(compact([_as_json(group, rows) for group, rows in described]).decode())
        return 0
    for number, (group, rows) in enumerate(described):
        print(("\n" if number else "") + _headline(group, rows))
        if args.members and group.members:
            _print_table(("  member", "client", "host", "partitions"), _member_rows(group))
        elif rows and not args.members:
            names_row = ("  topic", "partition", "committed", "end", "lag", "member", "client", "host")
            _print_table(names_row, [_partition_row(row) for row in rows])
    return 0


async def _found(groups: GroupAdmin, name: str) -> GroupInfo:
    from ottla.cli.meant import note_group
    from ottla.wire.errors import KafkaError

    try:
        return await groups.describe(name)
    except KafkaError as error:
        await note_group(groups, error, name)
        raise


async def _partitions(groups: GroupAdmin, group: GroupInfo) -> list[Read]:
    from ottla.client.cluster import LATEST

    committed = await groups.offsets(group.group)
    owners = {where: member for member in group.members for where in member.assignment}
    wanted = sorted({**committed, **owners})
    ends = await groups.cluster.list_offsets(dict.fromkeys(wanted, LATEST)) if wanted else {}
    return [Read(where, committed.get(where), ends[where].offset, owners.get(where)) for where in wanted]


def _headline(group: GroupInfo, rows: list[Read]) -> str:
    lag = sum(row.lag or 0 for row in rows)
    state = coloured(group.state, STATE_COLOURS.get(group.state, "yellow"))
    assignor = f"  assignor {group.assignor}" if group.assignor else ""
    facts = f"{group.kind.lower()}  {state}  members {len(group.members)}  lag {lag}{assignor}"
    return f"{coloured(group.group, 'bold')}  {facts}"


def _partition_row(row: Read) -> tuple[object, ...]:
    committed = "-" if row.committed is None else row.committed.offset
    lag = "-" if row.lag is None else row.lag
    member = row.member
    who = ("-", "-", "-") if member is None else (member.instance_id or member.member_id, member.client_id, member.host)
    return f"  {row.where.topic}", row.where.partition, committed, row.end, lag, *who


def _member_rows(group: GroupInfo) -> list[tuple[object, ...]]:
    from ottla.client.assignors import grouped

    rows: list[tuple[object, ...]] = []
    for member in group.members:
        topics = grouped(sorted(member.assignment))
        owned = " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items())
        rows.append((f"  {member.instance_id or member.member_id}", member.client_id, member.host, owned or "-"))
    return rows


def _as_json(group: GroupInfo, rows: list[Read]) -> dict[str, Any]:
    return {
        "group": group.group,
        "kind": group.kind.lower(),
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator.node_id,
        "epoch": group.epoch,
        "lag": sum(row.lag or 0 for row in rows),
        "members": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.host,
                "epoch": member.epoch,
                "partitions": [list(where) for where in sorted(member.assignment)],
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": row.where.topic,
                "partition": row.where.partition,
                "committed": None if row.committed is None else row.committed.offset,
                "metadata": None if row.committed is None else row.committed.metadata,
                "end": row.end,
                "lag": row.lag,
                "member": None if row.member is None else row.member.member_id,
                "client": None if row.member is None else row.member.client_id,
                "host": None if row.member is None else row.member.host,
            }
            for row in rows
        ],
    }


# reset


async def _reset(groups: GroupAdmin, args: argparse.Namespace) -> int:
    from ottla.wire.errors import Error, KafkaError

    name = args.names[0]
    try:
        state = (await groups.describe(name)).state
    except KafkaError as error:
        if error.error is not Error.GROUP_ID_NOT_FOUND:
            raise
        state = "Dead"
    if state not in ("Empty", "Dead"):
        raise KafkaError(
            Error.NON_EMPTY_GROUP, f"group {name!r} is {state}: offsets can be reset only while nobody is in it"
        )
    committed = await groups.offsets(name)
    plan, notes = await _plan(groups.cluster, args, committed)
    if args.execute and plan:
        await _carry_out(groups, name, plan)
    _show_plan(args, plan, committed, notes)
    return 0


async def _plan(
    cluster: Cluster, args: argparse.Namespace, committed: dict[TopicPartition, Committed]
) -> tuple[dict[TopicPartition, int], list[str]]:
    from ottla.cli.progress import bar
    from ottla.cli.resetting import Impossible, new_offsets

    wanted = await _chosen(cluster, args, sorted(committed))
    way, notes = _way(args, cluster.now_ms()), list[str]()
    plan: dict[TopicPartition, int] = {}
    with bar("finding offsets") as progress:
        for start in range(0, len(wanted), CHUNK):
            try:
                plan |= await new_offsets(cluster, way, wanted[start : start + CHUNK], committed, notes.append)
            except Impossible as impossible:
                raise Mistake(str(impossible))
            if progress is not None:
                progress(len(plan), len(wanted))
    return plan, notes


async def _chosen(cluster: Cluster, args: argparse.Namespace, committed: list[TopicPartition]) -> list[TopicPartition]:
    if args.all_topics == bool(args.topic):
        raise Mistake("say for which partitions: --topic TOPIC, --topic TOPIC:0,1, or --all-topics")
    if args.all_topics:
        return committed
    return [where for text in args.topic for where in await partitions_of(cluster, text)]


async def partitions_of(cluster: Cluster, text: str) -> list[TopicPartition]:
    """`topic`, or `topic:0,1`."""
    from ottla.client.cluster import TopicPartition

    topic, colon, numbers = text.partition(":")
    count = await cluster.partition_count(topic)
    if not colon:
        return [TopicPartition(topic, number) for number in range(count)]
    chosen = [int(number) if number.isdigit() else -1 for number in numbers.split(",")]
    if any(not 0 <= number < count for number in chosen):
        raise Mistake(f"{text!r}: topic {topic!r} has partitions 0 to {count - 1}; write {topic}:0,1")
    return [TopicPartition(topic, number) for number in chosen]


def _way(args: argparse.Namespace, now_ms: int) -> Way:
    from ottla.cli.resetting import Way

    if args.to_offset is not None:
        return Way("offset", args.to_offset)
    if args.shift is not None:
        return Way("shift", args.shift)
    return Way(args.to) if args.to in ("earliest", "latest", "current") else Way("time", moment_ms(args.to, now_ms))


async def _carry_out(groups: GroupAdmin, name: str, plan: dict[TopicPartition, int]) -> None:
    from ottla.cli.progress import bar
    from ottla.client.commits import Committed

    todo = list(plan.items())
    with bar("committing") as progress:
        for start in range(0, len(todo), CHUNK):
            await groups.alter_offsets(name, {where: Committed(at) for where, at in todo[start : start + CHUNK]})
            if progress is not None:
                progress(start + CHUNK, len(todo))


def _show_plan(
    args: argparse.Namespace,
    plan: dict[TopicPartition, int],
    committed: dict[TopicPartition, Committed],
    notes: list[str],
) -> None:
    before = {where: committed[where].offset if where in committed else None for where in plan}
    if args.json:
        moves = [
            {"topic": where.topic, "partition": where.partition, "before": before[where], "after": after}
            for where, after in sorted(plan.items())
        ]
        print(compact({"group": args.names[0], "executed": args.execute, "offsets": moves, "notes": notes}).decode())
        return
    for note in notes:
        print(f"note: {note}")
    rows = [(*where, "-" if before[where] is None else before[where], after) for where, after in sorted(plan.items())]
    _print_table(("topic", "partition", "before", "after"), rows)
    print("done" if args.execute else "nothing was changed: add --execute to do it")


# delete


async def _delete(groups: GroupAdmin, args: argparse.Namespace) -> int:
    """All of them are tried; the code tells whether all are gone."""
    from ottla.cli.meant import note_group
    from ottla.wire.errors import KafkaError

    failed = 0
    for name in args.names:
        try:
            await groups.delete(name)
            say(args, {"group": name, "deleted": True}, f"deleted {name}")
        except KafkaError as error:
            failed += 1
            await note_group(groups, error, name)
            wrong = f"{name}: {error.message}{meant(error)} ({error.error.name})"
            say(args, {"group": name, "deleted": False, "error": error.error.name}, wrong)
    return 1 if failed else 0


async def _delete_offsets(groups: GroupAdmin, args: argparse.Namespace) -> int:
    """Each partition has a fate of its own; the code tells whether all of them were forgotten."""
    name = args.names[0]
    await _found(groups, name)
    wanted = await _chosen(groups.cluster, args, sorted(await groups.offsets(name)))
    fates = sorted((await groups.delete_offsets(name, wanted)).items()) if wanted else []
    if args.json:
        offsets = [
            {"topic": topic, "partition": index, "deleted": error is None, "error": error.error.name if error else None}
            for (topic, index), error in fates
        ]
        print(compact({"group": name, "offsets": offsets}).decode())
    else:
        rows = [
            (*where, "deleted" if error is None else f"{error.message} ({error.error.name})") for where, error in fates
        ]
        _print_table(("topic", "partition", ""), rows)
    return 1 if any(error is not None for _, error in fates) else 0
