"""ottla transaction list | describe | producers | find-hanging | abort"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.cli.colour import coloured
from ottla.cli.group import partitions_of
from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, cluster_of, duration_ms
from ottla.cli.text import compact, say, table

if TYPE_CHECKING:
    from ottla.client.cluster import TopicPartition
    from ottla.client.transaction_admin import (
        OpenTransaction,
        ProducerInfo,
        TransactionAdmin,
        TransactionInfo,
        TransactionListing,
    )

EXAMPLES = """examples:
  ottla transaction list --state ongoing --longer-than 5m
  ottla transaction describe order-processor-1
  ottla transaction producers orders:0
  ottla transaction find-hanging
  ottla transaction abort --partition orders:0 --start-offset 4711     one that hangs, in that partition alone
  ottla transaction abort order-processor-1                            one that is alive; shuts its producer out

A transaction hangs when a partition holds it open and its coordinator knows nothing of it: readers of committed records
wait for it for ever."""

# As long as brokers allow a transaction to last by default (transaction.max.timeout.ms).
LONGEST = "15m"
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence")
OPEN = "Ongoing"
# Those in which something is open or not ended everywhere.
RUNNING = (OPEN, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
UNITS_S = (("d", 86_400), ("h", 3_600), ("m", 60))


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = add_action(
        actions, "list", "print transactional ids with their state", "ottla transaction list --state ongoing"
    )
    listing.add_argument("--state", action="append", help="only ids in this state; repeatable")
    listing.add_argument("--longer-than", metavar="TIME", help="only those whose transaction runs longer: 30s, 5m, 1h")
    listing.add_argument("--pattern", metavar="REGEX", help="only ids that match this regular expression as a whole")
    describe = add_action(
        actions, "describe", "show where transactional ids stand", "ottla transaction describe order-processor-1"
    )
    describe.add_argument("names", nargs="+", metavar="ID")
    producers = add_action(
        actions, "producers", "show what partitions remember of producers", "ottla transaction producers orders:0"
    )
    producers.add_argument("names", nargs="+", metavar="TOPIC[:0,1]")
    hanging = add_action(
        actions, "find-hanging", "find transactions that nobody will end", "ottla transaction find-hanging orders"
    )
    hanging.add_argument("names", nargs="*", metavar="TOPIC[:0,1]", help="where to look; everywhere when none is named")
    hanging.add_argument(
        "--longer-than", default=LONGEST, metavar="TIME", help=f"open for longer than that (default {LONGEST})"
    )
    abort = add_action(actions, "abort", "end transactions without their producer", "ottla transaction abort ID")
    abort.add_argument("names", nargs="*", metavar="ID", help="abort what is open under this id and fence its producer")
    abort.add_argument(
        "--partition",
        metavar="TOPIC:N",
        help="where one that find-hanging names is to be aborted; one that is alive would lose what it wrote there, "
        "although its producer is told that it committed",
    )
    abort.add_argument(
        "--force", action="store_true", help="abort also what waits for an outside coordinator's decision"
    )
    abort.add_argument("--start-offset", type=int, metavar="N", help="the offset at which it began")


def run(args: argparse.Namespace) -> int:
    import asyncio

    actions = {
        "list": _list,
        "describe": _describe,
        "producers": _producers,
        "find-hanging": _find_hanging,
        "abort": _abort,
    }
    return asyncio.run(_connected(actions[args.action], args))


async def _connected(
    action: Callable[[TransactionAdmin, argparse.Namespace], Awaitable[int]], args: argparse.Namespace
) -> int:
    from ottla.client.transaction_admin import TransactionAdmin

    async with cluster_of(args) as cluster:
        return await action(TransactionAdmin(cluster), args)


def _print_table(names: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    first, *rest = table([names, *rows]).split("\n")
    print("\n".join([coloured(first, "bold"), *rest]))


def _partition_text(where: TopicPartition) -> str:
    return f"{where.topic}:{where.partition}"


# list


async def _list(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    from ottla.client.transaction_admin import NO_DURATION

    found = await admin.transactions(
        states=[_state(text) for text in args.state or ()],
        longer_than_ms=duration_ms(args.longer_than) if args.longer_than else NO_DURATION,
        pattern=args.pattern,
    )
    if args.longer_than:
        # Kafka counts those that never began a transaction as very old ones, and those that ended one as still running.
        found = [each for each in found if each.state in RUNNING]
    waiting = await admin.two_phase(each for each in found if each.state == OPEN)
    rows = [(each, each.transactional_id in waiting) for each in found]
    if args.json:
        print(compact([each._asdict() | {"two_phase": waits} for each, waits in rows]).decode())
    elif found:
        _print_table(("transactional id", "state", "producer", "coordinator"), [_listed(*row) for row in rows])
    return 0


def _state(text: str) -> str:
    """In whatever case it was typed."""
    from ottla.cli.parsing import suggestion

    known = {state.lower(): state for state in STATES}
    if text.lower() not in known:
        raise Mistake(f"there is no state {text!r}{suggestion(text.lower(), known) or ': write ' + ', '.join(STATES)}")
    return known[text.lower()]


def _listed(found: TransactionListing, is_two_phase: bool) -> tuple[object, ...]:
    state = f"{found.state}, two-phase" if is_two_phase else found.state
    return found.transactional_id, state, found.producer_id, found.coordinator


# describe


async def _describe(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    found = [await _find(admin, name) for name in args.names]
    if args.json:
        print(compact([_as_json(each) for each in found]).decode())
        return 0
    for each in found:
        print("\n".join(_described(each, admin.cluster.now_ms())))
    return 0


async def _find(admin: TransactionAdmin, name: str) -> TransactionInfo:
    from ottla.wire.errors import KafkaError

    try:
        return await admin.describe(name)
    except KafkaError as error:
        raise KafkaError(error.error, f"{name}: {error.message}") from None


def _as_json(found: TransactionInfo) -> dict[str, Any]:
    partitions = [list(where) for where in found.partitions]
    return found._asdict() | {"two_phase": found.is_two_phase, "partitions": partitions}


def _described(found: TransactionInfo, now_ms: int) -> list[str]:
    state = coloured(found.state, "yellow" if found.state in RUNNING else "dim")
    limit = "no timeout, an outside coordinator ends it" if found.is_two_phase else f"timeout {span(found.timeout_ms)}"
    facts = f"producer {found.producer_id} epoch {found.epoch}  coordinator {found.coordinator}  {limit}"
    lines = [f"{coloured(found.transactional_id, 'bold')}  {state}  {facts}"]
    if found.start_ms is not None:
        lines.append(f"  began {span(now_ms - found.start_ms)} ago")
    if found.partitions:
        lines.append(f"  partitions {' '.join(map(_partition_text, found.partitions))}")
    return lines


def span(milliseconds: int) -> str:
    """`3m`, `1.5h`: in the largest unit that leaves at least one."""
    seconds = milliseconds / 1000
    for unit, size in UNITS_S:
        if seconds >= size:
            return f"{seconds / size:.4g}{unit}"
    return f"{seconds:.4g}s"


# producers, find-hanging


async def _chosen(admin: TransactionAdmin, names: Iterable[str]) -> list[TopicPartition]:
    return [where for text in names for where in await partitions_of(admin.cluster, text)]


async def _producers(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    found = await admin.producers(await _chosen(admin, args.names))
    rows = [(where, producer) for where, producers in sorted(found.items()) for producer in producers]
    if args.json:
        print(compact([_producer_json(where, producer) for where, producer in rows]).decode())
    elif rows:
        names = ("partition", "producer", "epoch", "last sequence", "last written", "open since offset")
        now_ms = admin.cluster.now_ms()
        _print_table(names, [_producer_row(where, producer, now_ms) for where, producer in rows])
    return 0


def _producer_json(where: TopicPartition, producer: ProducerInfo) -> dict[str, Any]:
    return {"topic": where.topic, "partition": where.partition} | producer._asdict()


def _producer_row(where: TopicPartition, producer: ProducerInfo, now_ms: int) -> tuple[object, ...]:
    age = "-" if producer.last_timestamp_ms < 0 else f"{span(max(0, now_ms - producer.last_timestamp_ms))} ago"
    sequence = "-" if producer.last_sequence < 0 else producer.last_sequence
    start = "-" if producer.start_offset is None else producer.start_offset
    return _partition_text(where), producer.producer_id, producer.epoch, sequence, age, start


async def _find_hanging(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    """Exit code 0 whether or not there are any: this is a question, not a check."""
    longer_than_ms = duration_ms(args.longer_than)
    found = await admin.hanging(await _searched(admin, args.names), longer_than_ms)
    if args.json:
        print(compact([_producer_json(*each) for each in found]).decode())
        return 0
    if not found:
        print(f"no transaction has been hanging for {args.longer_than}")
        return 0
    _print_table(("partition", "producer", "epoch", "start offset", "last written"), _hanging_rows(admin, found))
    first = found[0]
    print(
        f"to abort the first: ottla transaction abort --partition {_partition_text(first.where)} "
        f"--start-offset {first.producer.start_offset}"
    )
    return 0


def _hanging_rows(admin: TransactionAdmin, found: list[OpenTransaction]) -> list[tuple[object, ...]]:
    now_ms = admin.cluster.now_ms()
    rows = [_producer_row(*each, now_ms) for each in found]
    return [(where, producer, epoch, start, age) for where, producer, epoch, _, age, start in rows]


async def _searched(admin: TransactionAdmin, names: list[str]) -> list[TopicPartition]:
    from ottla.client.cluster import TopicPartition

    if names:
        return await _chosen(admin, names)
    topics = (await admin.cluster.metadata(None)).topics
    return sorted(
        TopicPartition(topic.name or "", partition.partition_index)
        for topic in topics
        for partition in topic.partitions
        if partition.leader_id >= 0
    )


# abort


async def _abort(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    is_hanging = args.partition is not None or args.start_offset is not None
    if is_hanging == bool(args.names) or is_hanging != (args.partition is not None and args.start_offset is not None):
        raise Mistake("say which: a transactional id, or --partition TOPIC:N with --start-offset N (see find-hanging)")
    return await (_abort_hanging(admin, args) if is_hanging else _abort_live(admin, args))


async def _abort_hanging(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    from ottla.client.transaction_admin import abortion_of
    from ottla.wire.errors import Error, KafkaError

    wanted = await partitions_of(admin.cluster, args.partition)
    if len(wanted) != 1:
        raise Mistake(f"--partition {args.partition!r}: write one partition, as {wanted[0].topic}:0")
    found = await admin.open_at(wanted[0], args.start_offset)
    if found is None:
        what = f"no transaction that began at offset {args.start_offset} is open in {_partition_text(wanted[0])}"
        raise KafkaError(Error.INVALID_TXN_STATE, what)
    await admin.abort(abortion_of(found))
    say(args, _producer_json(*found) | {"aborted": True}, f"aborted in {_partition_text(found.where)}")
    return 0


async def _abort_live(admin: TransactionAdmin, args: argparse.Namespace) -> int:
    """All of them are tried; the code tells whether all are ended."""
    from ottla.wire.errors import Error, KafkaError

    failed = 0
    for name in args.names:
        try:
            before = await admin.describe(name)  # an id that nobody uses would be made by fencing it
            if before.is_two_phase and before.state in RUNNING and not args.force:
                why = (
                    "it waits for an outside coordinator, which may have decided to commit it: --force aborts it anyway"
                )
                raise KafkaError(Error.INVALID_TXN_STATE, why)
            await admin.fence(name)
            what = "aborted" if before.state in RUNNING else "nothing was open under"
            say(args, {"transactional_id": name, "fenced": True}, f"{what} {name}; its producer is fenced")
        except KafkaError as error:
            failed += 1
            wrong = f"{name}: {error.message} ({error.error.name})"
            say(args, {"transactional_id": name, "fenced": False, "error": error.error.name}, wrong, failed=True)
    return 1 if failed else 0
