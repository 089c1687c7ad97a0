"""ottla consume TOPIC: records as lines of JSON."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.cli.interrupted import fall_silent
from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_bootstrap, add_json, cluster_of, moment_ms
from ottla.cli.text import compact, header_name, shown

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster, TopicPartition
    from ottla.client.consumer import Consumed, Consumer
    from ottla.client.group import GroupConsumer

    Places = dict[TopicPartition, int]

EXAMPLES = """examples:
  ottla consume clicks --from-beginning
  ottla consume clicks --partition 0 --offset 100 --to-offset 200
  ottla consume clicks --offset -10 --no-follow        the last ten of each partition
  ottla consume clicks --since 10m --until 2026-11-15T12:00:00Z
  ottla consume clicks --from-beginning --max-messages 5
  ottla consume clicks --group billing                 share the partitions with others, go on where the group was

Each line has topic, partition, offset, timestamp (milliseconds), key, value and headers. Keys and values that are not
UTF-8 are shown as {"base64": "..."}. Without a place to start, only records that come from now on are shown; without
an end, it goes on until Ctrl-C. With --group, what was printed is committed, and --from-beginning counts for partitions
of which the group has no offset."""

# Options that name places; in a group, places are the group's business.
PLACES = ("partition", "offset", "since", "to_offset", "until")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_bootstrap(parser)
    add_json(parser, "print JSON lines; this is what it does anyway")
    parser.add_argument("-p", "--partition", type=int, action="append", help="only this one; repeatable")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-beginning", action="store_true", help="start with the oldest record")
    start.add_argument("-o", "--offset", type=int, help="start here; below zero: so many before the end")
    start.add_argument("--since", metavar="TIME", help="start with records of this time: 10m (ago), ISO, milliseconds")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--to-offset", type=int, help="stop before this offset")
    end.add_argument("--until", metavar="TIME", help="stop before the first record of this time or later")
    parser.add_argument("-n", "--max-messages", type=int, help="stop after so many records")
    parser.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        help="wait for more records (default unless an end is given); --no-follow stops at what is the end now",
    )
    parser.add_argument("-g", "--group", help="read as a member of this group")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")
    parser.add_argument("--read-committed", action="store_true", help="leave out aborted and open transactions")


def run(args: argparse.Namespace) -> int:
    try:
        asyncio.run(_consume(args))
    except KeyboardInterrupt:
        fall_silent()
        sys.stdout.flush()
    return 0


async def _consume(args: argparse.Namespace) -> None:
    from ottla.client.consumer import Consumer

    if args.max_messages is not None and args.max_messages < 1:
        return
    if args.group is not None:
        await _consume_in_group(args)
        return
    async with cluster_of(args) as cluster:
        start, end = await _range(args, cluster)
        _explain_silence(args)
        consumer = Consumer(cluster, start, ends=end, read_committed=args.read_committed)
        try:
            await _unless_nobody_listens(_print(consumer, args.max_messages))
        finally:
            consumer.close()


def _explain_silence(args: argparse.Namespace) -> None:
    """To a person who waits for records that are there already."""
    is_from_the_end = not args.from_beginning and args.offset is None and args.since is None
    if is_from_the_end and args.follow is not False and sys.stdout.isatty() and sys.stderr.isatty():
        print("waiting for new records; --from-beginning shows the old ones, Ctrl-C ends", file=sys.stderr)


async def _consume_in_group(args: argparse.Namespace) -> None:
    from ottla.client.cluster import EARLIEST, LATEST
    from ottla.client.group import GroupConsumer

    named = [f"--{name.replace('_', '-')}" for name in PLACES if getattr(args, name) is not None]
    if named or args.follow is False:
        raise Mistake(f"--group decides what is read: leave out {' and '.join(named) or '--no-follow'}")
    async with cluster_of(args) as cluster:
        await cluster.partition_count(args.topic)
        reset = EARLIEST if args.from_beginning else LATEST
        options = {"protocol": args.protocol, "reset": reset, "read_committed": args.read_committed}
        async with GroupConsumer(cluster, args.group, [args.topic], **options) as consumer:
            await _unless_nobody_listens(_print(consumer, args.max_messages))


async def _unless_nobody_listens(printing: Coroutine[Any, Any, None]) -> None:
    """Whoever reads our pipe may leave (`| head -1`) while we wait for records: then there is nothing left to do."""
    task = asyncio.ensure_future(printing)
    loop, fd = asyncio.get_running_loop(), sys.stdout.fileno()

    def leave() -> None:
        loop.remove_reader(fd)  # once is enough, and a second time would hit what is done on leaving
        task.cancel()

    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        loop.add_reader(fd, leave)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


async def _print(consumer: Consumer | GroupConsumer, records_max: int | None) -> None:
    from ottla.client.consumer import Consumer

    left = records_max
    while not isinstance(consumer, Consumer) or consumer.open_partitions():
        records = await consumer.fetch()
        if left is not None:
            _put_back(consumer, records[left:])
            records = records[:left]
            left -= len(records)
        if records:
            _write(consumer, records)
        if left == 0:
            return


def _write(consumer: Consumer | GroupConsumer, records: list[Consumed]) -> None:
    for place, record in enumerate(records, 1):
        try:
            sys.stdout.buffer.write(compact(as_json(record)) + b"\n")
        except BrokenPipeError:
            _put_back(consumer, records[place:])
            raise
    sys.stdout.buffer.flush()


def _put_back(consumer: Consumer | GroupConsumer, records: list[Consumed]) -> None:
    """What is not printed must not be committed."""
    from ottla.client.cluster import TopicPartition

    for record in reversed(records):
        consumer.seek(TopicPartition(record.topic, record.partition), record.offset)


async def _range(args: argparse.Namespace, cluster: Cluster) -> tuple[Places, Places | None]:
    """Where to start in each partition, and where to end; no end means to go on for ever."""
    from ottla.client.cluster import EARLIEST, LATEST, TopicPartition

    count = await cluster.partition_count(args.topic)
    for partition in args.partition or ():
        if not 0 <= partition < count:
            raise Mistake(f"topic {args.topic!r} has partitions 0 to {count - 1}, but no {partition}")
    places = [TopicPartition(args.topic, partition) for partition in args.partition or range(count)]
    begins = await _offsets(args, cluster, places, EARLIEST)
    ends = await _offsets(args, cluster, places, LATEST)
    start = await _start(args, cluster, begins, ends)
    if args.follow and (args.to_offset is not None or args.until is not None):
        raise Mistake("--follow has no end: leave out --to-offset and --until")
    if args.to_offset is not None:
        return start, dict.fromkeys(places, args.to_offset)
    if args.until is not None:
        until = await _at_time(args, cluster, ends, args.until)
        return start, until
    follow = args.follow is not False
    return start, None if follow else ends


async def _start(args: argparse.Namespace, cluster: Cluster, begins: Places, ends: Places) -> Places:
    if args.from_beginning:
        return begins
    if args.since is not None:
        return await _at_time(args, cluster, ends, args.since)
    if args.offset is None:
        return ends
    if args.offset < 0:
        return {where: max(begins[where], end + args.offset) for where, end in ends.items()}
    for where, begin in begins.items():
        if not begin <= args.offset <= ends[where]:
            place = f"{where.topic}-{where.partition}"
            raise Mistake(f"{place} begins at {begin} and ends before {ends[where]}: there is no offset {args.offset}")
    return dict.fromkeys(begins, args.offset)


async def _at_time(args: argparse.Namespace, cluster: Cluster, ends: Places, text: str) -> Places:
    """The first offset of that time in each partition, or its end when nothing is as young."""
    found = await _offsets(args, cluster, list(ends), moment_ms(text, cluster.now_ms()))
    return {where: end if found[where] < 0 else found[where] for where, end in ends.items()}


async def _offsets(args: argparse.Namespace, cluster: Cluster, places: list[TopicPartition], timestamp: int) -> Places:
    found = await cluster.list_offsets(dict.fromkeys(places, timestamp), read_committed=args.read_committed)
    return {where: found[where].offset for where in places}


def as_json(record: Consumed) -> dict[str, object]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [{"key": header_name(name), "value": shown(value)} for name, value in record.headers],
    }
