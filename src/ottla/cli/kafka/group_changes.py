"""What kafka-consumer-groups.sh changes: groups deleted, offsets reset or forgotten."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ottla.cli.kafka.consumer_groups import print_error
from ottla.cli.kafka.group_tables import MISSING, line, widest
from ottla.cli.kafka.java_errors import java_message, java_text
from ottla.cli.kafka.options import Failed, Options, Usage
from ottla.cli.resetting import Unreadable, Way, duration_ms, moment_ms, new_offsets, within
from ottla.client.admin import Admin
from ottla.client.cluster import TopicPartition
from ottla.client.commits import Committed
from ottla.client.groups import GroupAdmin
from ottla.wire.errors import Error, KafkaError

Plan = dict[str, dict[TopicPartition, int]]
INACTIVE = ("Empty", "Dead")
# Jackson puts longer texts into quotes without looking at them.
UNQUOTED_MAX = 24


async def _names(admin: Admin, options: Options) -> list[str]:
    if options.has("all-groups"):
        return [listing.group for listing in await GroupAdmin(admin.cluster).groups()]
    return list(dict.fromkeys(options.values("group")))


# --delete


async def delete_groups(admin: Admin, options: Options) -> None:
    groups = GroupAdmin(admin.cluster)
    deleted: list[str] = []
    failed: dict[str, str] = {}
    for name in await _names(admin, options):
        try:
            await groups.delete(name)
            deleted.append(f"'{name}'")
        except KafkaError as error:
            failed[name] = java_text(error)
    if not failed:
        print(f"Deletion of requested consumer groups ({', '.join(deleted)}) was successful.")
        return
    print_error("Deletion of some consumer groups failed:")
    for name, why in failed.items():
        print(f"* Group '{name}' could not be deleted due to: {why}")
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: {', '.join(deleted)}")


# --delete-offsets

TOLD_AS_THEY_ARE = {
    Error.INVALID_GROUP_ID,
    Error.GROUP_ID_NOT_FOUND,
    Error.GROUP_AUTHORIZATION_FAILED,
    Error.NON_EMPTY_GROUP,
}
OF_PARTITIONS = {Error.GROUP_SUBSCRIBED_TO_TOPIC, Error.TOPIC_AUTHORIZATION_FAILED, Error.UNKNOWN_TOPIC_OR_PARTITION}


async def delete_offsets(admin: Admin, options: Options) -> None:
    group = options.text("group")
    results: dict[TopicPartition, KafkaError | None] = {}
    partitions: list[TopicPartition] = []
    for topic in options.values("topic"):
        try:
            partitions += await _partitions(admin, topic)
        except KafkaError as error:
            results[TopicPartition(topic, -1)] = error
    whole: KafkaError | None = None
    try:
        found = await GroupAdmin(admin.cluster).delete_offsets(group, partitions)
        results.update(found)
        whole = next((error for error in found.values() if error is not None), None)
    except KafkaError as error:
        whole = error
        results.update(dict.fromkeys(partitions, error))
    _tell_deletion(group, whole)
    _print_deletions(results)


def _tell_deletion(group: str, error: KafkaError | None) -> None:
    if error is None:
        print(f"Request succeeded for deleting offsets from group {group}.")
    elif error.error in TOLD_AS_THEY_ARE:
        print_error(java_message(error))
    elif error.error in OF_PARTITIONS:
        print_error("Encountered some partition-level error, see the follow-up details.")
    else:
        print_error(f"Encountered some unknown error: {error.error.name}")


def _print_deletions(results: dict[TopicPartition, KafkaError | None]) -> None:
    widths = [widest(15, (where.topic for where in results)), 10, 15]
    print("\n" + line(["TOPIC", "PARTITION", "STATUS"], widths), end="")
    for where in sorted(results, key=lambda where: f"{where.topic}{where.partition}"):
        error = results[where]
        status = "Successful" if error is None else f"Error: {java_text(error)}"
        number = where.partition if where.partition >= 0 else MISSING
        print("\n" + line([where.topic, number, status], widths), end="")
    print()


# --reset-offsets


async def reset_offsets(admin: Admin, options: Options) -> None:
    groups = GroupAdmin(admin.cluster)
    plan: Plan = {}
    for name in await _names(admin, options):
        state = await _state(groups, name)
        if state in INACTIVE:
            plan[name] = await _planned(admin, groups, name, options)
            if options.has("execute") and plan[name]:
                await groups.alter_offsets(name, {where: Committed(at) for where, at in plan[name].items()})
        else:
            print_error(
                f"Assignments can only be reset if the group '{name}' is inactive, but the current state is {state}."
            )
            plan[name] = {}
    if options.has("export"):
        print(_csv(plan, with_group=len(options.values("group")) != 1))
    else:
        _print_plan(plan)


async def _state(groups: GroupAdmin, name: str) -> str:
    try:
        return (await groups.describe(name)).state
    except KafkaError as error:
        if error.error is not Error.GROUP_ID_NOT_FOUND:
            raise
        return "Dead"


async def _planned(admin: Admin, groups: GroupAdmin, name: str, options: Options) -> dict[TopicPartition, int]:
    if options.has("from-file"):
        from_file = _read_plan(options.text("from-file"), options.values("group"))
        if name not in from_file:
            print_error(f"No reset plan for group {name} found")
            return {}
        return await within(admin.cluster, from_file[name], _warn)
    committed = await groups.offsets(name)
    if options.has("all-topics"):
        wanted = sorted(committed)
    else:
        wanted = [where for topic in options.values("topic") for where in await _partitions(admin, topic)]
        await _check_existence(admin, wanted)
    tell = _say if options.has("to-datetime") or options.has("by-duration") else _warn
    return await new_offsets(admin.cluster, _way(options, admin.cluster.now_ms()), wanted, committed, tell)


def _say(text: str) -> None:
    print(f"\nWarn: {text}")


def _warn(text: str) -> None:
    print(f"WARN {text}", file=sys.stderr)


def _way(options: Options, now_ms: int) -> Way:
    if options.has("to-offset"):
        return Way("offset", options.number("to-offset") or 0)
    if options.has("shift-by"):
        return Way("shift", options.number("shift-by") or 0)
    if options.has("to-datetime"):
        return Way("time", _moment_ms(options.text("to-datetime")))
    if options.has("by-duration"):
        return Way("time", now_ms - duration_ms(options.text("by-duration")))
    return Way(next(name for name in ("earliest", "latest", "current") if options.has(f"to-{name}")))


def _moment_ms(text: str) -> int:
    try:
        return moment_ms(text)
    except Unreadable as wrong:
        raise Unreadable(f"java.text.ParseException: {wrong}")


async def _partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    """`topic`, or `topic:0,1`."""
    name, colon, numbers = topic.partition(":")
    if not colon:
        found = await admin.describe_topics([name])
        return [TopicPartition(name, partition.partition) for partition in found[0].partitions]
    if not numbers or ":" in numbers:
        raise Usage(f"Invalid topic arg '{topic}', expected topic name and partitions")
    for number in numbers.split(","):
        if not number.lstrip("-").isdigit():
            raise Usage(f"Invalid partition '{number}' specified in topic arg '{topic}''")
    return [TopicPartition(name, int(number)) for number in numbers.split(",")]


async def _check_existence(admin: Admin, wanted: list[TopicPartition]) -> None:
    topics = {topic.name: topic for topic in await admin.describe_topics(dict.fromkeys(w.topic for w in wanted))}
    missing = [where for where in wanted if not 0 <= where.partition < len(topics[where.topic].partitions)]
    if missing:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f'The partitions "{_listed(missing)}" do not exist')
    led = {TopicPartition(t.name, p.partition) for t in topics.values() for p in t.partitions if p.leader >= 0}
    leaderless = [where for where in wanted if where not in led]
    if leaderless:
        raise KafkaError(Error.LEADER_NOT_AVAILABLE, f'The partitions "{_listed(leaderless)}" have no leader')


def _listed(partitions: list[TopicPartition]) -> str:
    return ",".join(f"{where.topic}-{where.partition}" for where in partitions)


def _print_plan(plan: Plan) -> None:
    widths = [
        widest(15, plan),
        widest(15, (where.topic for offsets in plan.values() for where in offsets)),
        10,
        0,
    ]
    if plan:
        print("\n" + line(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], widths), end="")
    for group in sorted(plan):
        for where, offset in sorted(plan[group].items()):
            print("\n" + line([group, *where, offset], widths), end="")
    print()


# Plans as CSV: topic,partition,offset for one group; with several groups, the group's name stands before it.


def _csv(plan: Plan, *, with_group: bool) -> str:
    rows = []
    for group in sorted(plan):
        for where, offset in sorted(plan[group].items()):
            front = [_quoted(group)] if with_group else []
            rows.append(",".join([*front, _quoted(where.topic), str(where.partition), str(offset)]) + "\n")
    return "".join(rows)


def _quoted(text: str) -> str:
    if len(text) <= UNQUOTED_MAX and all(char >= "-" for char in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _read_plan(path: str, groups: Sequence[str]) -> Plan:
    import csv

    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError:
        raise Failed(f"java.io.IOException: Unable to read file {path}")
    plan: Plan = {}
    for row in rows:
        if len(rows[0]) == 3 and len(groups) == 1:
            row = [groups[0], *row]
        try:
            group, topic, partition, offset = row
            plan.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            raise Failed(f"{path}: {','.join(row)} is no line of a plan: write topic,partition,offset")
    return plan
