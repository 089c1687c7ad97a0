"""Groups in the tables of kafka-consumer-groups.sh: the same columns, as wide as Kafka's own tool makes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.cli.kafka.consumer_groups import print_error
from ottla.cli.kafka.options import Options, Usage
from ottla.client.admin import Admin
from ottla.client.assignors import grouped
from ottla.client.cluster import LATEST, TopicPartition
from ottla.client.commits import Committed
from ottla.client.groups import GroupAdmin, GroupInfo, MemberInfo

MISSING = "-"
STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
# In the orders in which Java happens to name them.
STATES_TEXT = "Reconciling, Empty, Stable, CompletingRebalance, Assigning, PreparingRebalance, Dead"
TYPES = ("Consumer", "Classic")
REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


def line(cells: Sequence[object], widths: Sequence[int]) -> str:
    """Cells side by side; a width of 0 leaves a cell as it is."""
    return " ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True))


def widest(least: int, texts: Iterable[str]) -> int:
    return max([least, *(len(text) for text in texts)])


# --list


async def list_groups(admin: Admin, options: Options) -> None:
    states = _chosen(options.value("state") or "", STATES, "state", STATES_TEXT)
    kinds = _chosen(options.value("type") or "", TYPES, "types", ", ".join(TYPES))
    found = await GroupAdmin(admin.cluster).groups(states=states, kinds=kinds)
    if not options.has("state") and not options.has("type"):
        for listing in found:
            print(listing.group)
        return
    rows = [("GROUP", "TYPE", "STATE"), *((g.group, g.kind.capitalize(), g.state) for g in found)]
    keep = [True, options.has("type"), options.has("state")]
    widths = [widest(15, (listing.group for listing in found)) + 10, 20, 20]
    for row in rows:
        cells = [(cell, width) for cell, width, kept in zip(row, widths, keep, strict=True) if kept]
        print(line([cell for cell, _ in cells], [width for _, width in cells]))


def _chosen(text: str, known: Sequence[str], what: str, shown: str) -> list[str]:
    """The ones that were named, spelled as Kafka spells them."""
    spelled = {name.lower(): name for name in known}
    names = [part.strip().lower() for part in text.split(",")] if text else []
    if any(name not in spelled for name in names):
        raise Usage(f"Invalid {what} list '{text}'. Valid {what.rstrip('s')}s are: {shown}")
    return [spelled[name] for name in names]


# --describe


async def describe_groups(admin: Admin, options: Options) -> None:
    groups = GroupAdmin(admin.cluster)
    names = sorted(dict.fromkeys(options.values("group")))
    if options.has("all-groups"):
        names = [listing.group for listing in await groups.groups()]
    described = [await groups.describe(name) for name in names]
    verbose = options.has("verbose")
    if options.has("members"):
        for group in described:
            _print_members(group, verbose)
    elif options.has("state"):
        for group in described:
            _print_state(group, verbose)
    else:
        for group in described:
            _print_offsets(group, await _offset_rows(admin, groups, group), verbose)


def _has_rows(group: GroupInfo, count: int) -> bool:
    if group.state == "Dead":
        print_error(f"Consumer group '{group.group}' does not exist.")
    elif group.state == "Empty":
        _warn(f"\nConsumer group '{group.group}' has no active members.")
    elif group.state in REBALANCING:
        _warn(f"\nWarning: Consumer group '{group.group}' is rebalancing.")
    return group.state != "Dead" and count > 0


def _warn(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr)


class Row(NamedTuple):
    """A partition of a group, and who reads it."""

    where: TopicPartition
    committed: Committed | None
    end: int | None
    member: str = MISSING
    host: str = MISSING
    client: str = MISSING

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed.offset


async def _offset_rows(admin: Admin, groups: GroupAdmin, group: GroupInfo) -> list[Row]:
    """Partitions of members, of who has most of them first; and then those that were committed and nobody has."""
    committed = await groups.offsets(group.group)
    readers = sorted((m for m in group.members if m.assignment), key=lambda member: -len(member.assignment))
    taken = {where: member for member in readers for where in member.assignment}
    free = sorted(where for where in committed if where not in taken)
    ends = await _log_ends(admin, [*taken, *free])
    rows = [
        Row(where, committed.get(where), ends.get(where), member.member_id, member.host, member.client_id)
        for member in readers
        for where in sorted(member.assignment)
    ]
    return rows + [Row(where, committed[where], ends.get(where)) for where in free]


async def _log_ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of those that have a leader."""
    if not partitions:
        return {}
    topics = await admin.describe_topics(grouped(partitions))
    leaderless = {TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader < 0}
    wanted = {where: LATEST for where in partitions if where not in leaderless}
    found = await admin.cluster.list_offsets(wanted) if wanted else {}
    return {where: offset.offset for where, offset in found.items()}


def _or_missing(value: object) -> object:
    return MISSING if value is None else value


def _print_offsets(group: GroupInfo, rows: list[Row], verbose: bool) -> None:
    if not _has_rows(group, len(rows)):
        return
    widths = [
        widest(15, [group.group]),
        widest(15, (row.where.topic for row in rows)),
        10,
        *([15] if verbose else []),
        15,
        15,
        15,
        widest(15, (row.member for row in rows)),
        widest(15, (row.host for row in rows)),
        0,
    ]
    epoch = ["LEADER-EPOCH"] if verbose else []
    names = ["GROUP", "TOPIC", "PARTITION", *epoch, "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    print("\n" + line([*names, "CONSUMER-ID", "HOST", "CLIENT-ID"], widths), end="")
    for row in rows:
        print("\n" + line(_offset_cells(group.group, row, verbose), widths), end="")
    print()


def _offset_cells(group: str, row: Row, verbose: bool) -> list[object]:
    committed = row.committed
    epoch = None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch
    offset = None if committed is None else committed.offset
    front = [group, row.where.topic, row.where.partition, *([_or_missing(epoch)] if verbose else [])]
    return [*front, *map(_or_missing, (offset, row.end, row.lag)), row.member, row.host, row.client]


def _print_state(group: GroupInfo, verbose: bool) -> None:
    if not _has_rows(group, 1):
        return
    node = group.coordinator
    coordinator = f"{node.host}:{node.port}  ({node.node_id})"
    widths = [widest(15, [group.group]), widest(25, [coordinator]), 20, 20, *([15, 25] if verbose else []), 0]
    names = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    epochs = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"] if verbose else []
    values = [_or_missing(group.epoch), _or_missing(group.target_epoch)] if verbose else []
    print("\n" + line([*names, *epochs, "#MEMBERS"], widths), end="")
    cells = [group.group, coordinator, group.assignor or MISSING, group.state, *values, len(group.members)]
    print("\n" + line(cells, widths))


def _print_members(group: GroupInfo, verbose: bool) -> None:
    members = group.members
    shown = members if _has_rows(group, len(members)) else []
    has_instances = any(member.instance_id for member in shown)
    mixed = {member.is_upgraded for member in shown} >= {True, False}
    widths = [
        widest(15, [group.group] if shown else []),
        widest(15, (member.member_id for member in shown)),
        *([widest(17, (member.instance_id or "" for member in shown))] if has_instances else []),
        widest(15, (member.host for member in shown)),
        widest(15, (member.client_id for member in shown)),
        15,
    ]
    instance = ["GROUP-INSTANCE-ID"] if has_instances else []
    names = ["GROUP", "CONSUMER-ID", *instance, "HOST", "CLIENT-ID", "#PARTITIONS"]
    more = _verbose_cells(group, shown, mixed) if verbose else [""] * (len(members) + 1)
    print("\n" + line(names, widths) + " " + more[0])
    for member, end in zip(members, more[1:], strict=True):
        own = [member.instance_id or ""] if has_instances else []
        cells = [group.group, member.member_id, *own, member.host, member.client_id, len(member.assignment)]
        print(line(cells, widths) + " " + end)


def _verbose_cells(group: GroupInfo, members: list[MemberInfo], mixed: bool) -> list[str]:
    """What --verbose adds to the line of names, and to the line of each member."""
    current = [assignment_text(member.assignment) for member in members]
    target = [assignment_text(member.target) for member in members]
    widths = [15, widest(20, current), 15, widest(20, target), *([0] if mixed else [])]
    upgraded = ["UPGRADED"] if mixed else []
    lines = [line(["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", *upgraded], widths)]
    for member, now, then in zip(members, current, target, strict=True):
        is_new = [_or_missing(None if member.is_upgraded is None else str(member.is_upgraded).lower())]
        cells = [_or_missing(member.epoch), now, _or_missing(group.target_epoch), then, *(is_new if mixed else [])]
        lines.append(line(cells, widths))
    return lines


def assignment_text(partitions: list[TopicPartition]) -> str:
    """`a:0,1;b:2`, or a dash for nothing."""
    topics = grouped(sorted(partitions))
    parts = sorted(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics.items())
    return ";".join(parts) or MISSING
