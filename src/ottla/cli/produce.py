"""ottla produce TOPIC: one record per line of standard input; prints where each went, in order."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_bootstrap, add_json, cluster_of, pairs
from ottla.cli.text import compact, data_of

if TYPE_CHECKING:
    from ottla.client.producer import Producer, Sent
    from ottla.wire.records import Headers

CHUNK_BYTES = 1 << 16
UNDER_WAY_MAX = 10_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}

EXAMPLES = """examples:
  echo hello | ottla produce greetings
  printf 'alice:1\\nbob:2\\n' | ottla produce clicks --key-separator :
  echo '{"key": "alice", "value": {"page": "/"}, "headers": {"source": "web"}}' | ottla produce clicks --json
  ottla consume clicks --from-beginning --no-follow | ottla produce copy --json --repartition
  ottla produce orders --transactional-id import-7 < orders.txt

With --json each line is an object with value and, if wanted, key, headers, partition, timestamp. Text is text, null is
null (a null value is a tombstone), {"base64": "..."} stands for bytes, anything else is written as JSON."""


class Line(NamedTuple):
    """A record as a line of input describes it."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None
    timestamp: int | None


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    add_bootstrap(parser)
    add_json(parser, "lines are JSON objects, as `ottla consume` prints them; answers are printed as JSON")
    parser.add_argument("-k", "--key", help="the key of every record that brings none")
    parser.add_argument("-s", "--key-separator", metavar="TEXT", help="what stands between key and value in a line")
    parser.add_argument("-H", "--header", action="append", metavar="NAME=VALUE", help="a header; repeatable")
    parser.add_argument("-p", "--partition", type=int, help="write here, whatever the key")
    parser.add_argument("--repartition", action="store_true", help="with --json: choose partitions anew, by key")
    parser.add_argument("-z", "--codec", choices=CODECS, default="none", help="how batches are compressed")
    parser.add_argument("-a", "--acks", choices=ACKS, default="all", help="who must have a record: nobody, leader, all")
    parser.add_argument("--linger-ms", type=float, default=5, help="how long a batch waits for more (default 5)")
    parser.add_argument("--batch-bytes", type=int, default=16384, help="a batch is sent at this size (default 16384)")
    parser.add_argument(
        "-t",
        "--transactional-id",
        metavar="ID",
        help="all lines in one transaction: none counts before the end, which must come within a minute",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")


def run(args: argparse.Namespace) -> int:
    asyncio.run(_produce(args))
    return 0


async def _produce(args: argparse.Namespace) -> None:
    from ottla.client.producer import Producer

    headers = tuple((name, value.encode()) for name, value in pairs(args.header, "--header").items())
    acks = ACKS[args.acks]
    if args.transactional_id and acks != -1:
        raise Mistake("a transaction needs --acks all")
    if sys.stdin.isatty() and not args.quiet:
        print("one record per line; Ctrl-D ends", file=sys.stderr)
    async with cluster_of(args) as cluster:
        producer = Producer(
            cluster,
            acks=acks,
            codec=CODECS.index(args.codec),
            linger_ms=args.linger_ms,
            batch_bytes=args.batch_bytes,
            idempotent=acks == -1,
            transactional_id=args.transactional_id,
        )
        if args.transactional_id:
            await producer.init()
            producer.begin()
        sent: asyncio.Queue[asyncio.Future[Sent] | None] = asyncio.Queue(UNDER_WAY_MAX)
        try:
            await _both(_read(args, headers, producer, sent), _tell(args, sent))
        finally:
            await producer.close()


async def _both(reading: Any, telling: Any) -> None:
    """Run both; when one fails, stop the other and raise what it said."""
    tasks = [asyncio.create_task(reading), asyncio.create_task(telling)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _read(
    args: argparse.Namespace, headers: Headers, producer: Producer, sent: asyncio.Queue[asyncio.Future[Sent] | None]
) -> None:
    number = 0
    async for text in lines(sys.stdin.fileno()):
        number += 1
        try:
            line = parsed_json(text) if args.json else parsed_plain(text, args.key_separator)
        except Mistake as mistake:
            raise Mistake(f"line {number}: {mistake}")
        key = args.key.encode() if line.key is None and args.key is not None else line.key
        partition = args.partition
        if partition is None and not args.repartition:
            partition = line.partition
        await sent.put(
            await producer.post(args.topic, line.value, key, headers + line.headers, partition, line.timestamp)
        )
    await (producer.commit() if args.transactional_id else producer.flush())
    await sent.put(None)


async def _tell(args: argparse.Namespace, sent: asyncio.Queue[asyncio.Future[Sent] | None]) -> None:
    from ottla.wire.errors import KafkaError

    number = 0
    while (future := await sent.get()) is not None:
        number += 1
        try:
            partition, offset, timestamp = await future
        except KafkaError as error:
            raise KafkaError(error.error, f"line {number}: {error.message}")
        if args.quiet:
            continue
        if args.json:
            answer = {"topic": args.topic, "partition": partition, "offset": offset, "timestamp": timestamp}
            sys.stdout.write(compact(answer).decode() + "\n")
        else:
            sys.stdout.write(f"partition={partition} offset={offset} timestamp={timestamp}\n")
        if sent.empty():
            sys.stdout.flush()


async def lines(fd: int) -> AsyncIterator[bytes]:
    """Lines of a descriptor, without their ends, while the loop goes on."""
    held = b""
    async for chunk in _chunks(fd):
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
    if held:
        yield held


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    while True:
        await _readable(fd)
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(fd: int) -> None:
    """Wait for a pipe or terminal. The kernel does not let anybody wait for files: they are always readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def parsed_plain(text: bytes, separator: str | None) -> Line:
    if not separator:
        return Line(text, None, (), None, None)
    key, found, value = text.partition(separator.encode())
    if not found:
        raise Mistake(f"there is no {separator!r} between key and value")
    return Line(value, key, (), None, None)


def parsed_json(text: bytes) -> Line:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise Mistake(f"not JSON: {error}")
    if not isinstance(record, dict) or "value" not in record:
        raise Mistake('not a record: write an object such as {"key": "k", "value": "v"}')
    return Line(
        data_of(record["value"]),
        data_of(record.get("key")),
        _headers(record.get("headers") or {}),
        _number(record, "partition"),
        _number(record, "timestamp"),
    )


def _headers(found: Any) -> Headers:
    """{"name": value}, or [{"key": name, "value": value}] where a name may come twice."""
    if isinstance(found, dict):
        return tuple((name, data_of(value)) for name, value in found.items())
    try:
        return tuple((str(header["key"]), data_of(header.get("value"))) for header in found)
    except (TypeError, KeyError, AttributeError):
        raise Mistake('headers: write {"name": "value"} or [{"key": "name", "value": "value"}]')


def _number(record: dict[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise Mistake(f"{name}: {value!r} is not a whole number")
    return value
