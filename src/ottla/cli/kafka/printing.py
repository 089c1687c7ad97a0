"""Records read from a cluster and written to standard output until there is a reason to stop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ottla.cli.kafka.client_settings import consumer_options, reading_options
from ottla.cli.kafka.connecting import cluster_of
from ottla.cli.kafka.deserializers import Undecodable
from ottla.cli.kafka.formatters import Formatter
from ottla.client.cluster import Cluster, TopicPartition
from ottla.client.consumer import Consumed, Consumer
from ottla.client.group import GroupConsumer
from ottla.wire.codec import Malformed
from ottla.wire.errors import KafkaError

SIGNAL_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
Source = Consumer | GroupConsumer


class Printing(NamedTuple):
    """What to read, where to start and when to stop."""

    bootstrap: str
    settings: Mapping[str, str]
    topics: list[str] | re.Pattern[str]
    partition: int | None
    start: int
    records_max: int | None
    timeout_s: float | None
    formatter: Formatter
    skips_errors: bool


class Unprintable(Exception):
    """A record that the formatter cannot write."""


def consume(printing: Printing) -> int:
    printer = Printer(printing)
    try:
        asyncio.run(printer.run())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Unprintable as error:
        print(f"ERROR Unknown error when running consumer: {error}", file=sys.stderr)
        printer.code = 1
    except KafkaError as error:
        print(f"ERROR Error processing message, terminating consumer process: {error.message}", file=sys.stderr)
    print(f"Processed a total of {printer.count} messages", file=sys.stderr)
    return printer.code


class Printer:
    def __init__(self, printing: Printing) -> None:
        self.printing = printing
        self.count = 0
        self.code = 0

    async def run(self) -> None:
        """Until the end, or until a signal or the end of who listens stops it; the group hears of it in any case."""
        task = asyncio.ensure_future(self._read())
        loop = asyncio.get_running_loop()
        for number in SIGNAL_CODES:
            loop.add_signal_handler(number, self._stop, task, number)
        if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
            loop.add_reader(sys.stdout.fileno(), self._leave_unheard, task)
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise

    def _stop(self, task: asyncio.Future[None], number: signal.Signals) -> None:
        self.code = SIGNAL_CODES[number]
        task.cancel()

    def _leave_unheard(self, task: asyncio.Future[None]) -> None:
        self._nobody_listens()
        task.cancel()

    def _nobody_listens(self) -> None:
        """Said and heeded once: a cancellation from here on would hit the leaving of the group."""
        asyncio.get_running_loop().remove_reader(sys.stdout.fileno())
        print("Unable to write to standard out, closing consumer.", file=sys.stderr)

    async def _read(self) -> None:
        async with cluster_of(self.printing.bootstrap, self.printing.settings) as cluster:
            source = self._source(cluster)
            try:
                await self._print_all(source)
            except BrokenPipeError:
                self._nobody_listens()
                raise
            finally:
                await _close(source)

    def _source(self, cluster: Cluster) -> Source:
        printing = self.printing
        if printing.partition is not None and isinstance(printing.topics, list):
            where = TopicPartition(printing.topics[0], printing.partition)
            return Consumer(cluster, {where: printing.start}, **reading_options(printing.settings))
        return GroupConsumer(
            cluster, printing.settings["group.id"], printing.topics, **consumer_options(printing.settings)
        )

    async def _print_all(self, source: Source) -> None:
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while self.printing.records_max is None or self.count < self.printing.records_max:
            left_s = None if self.printing.timeout_s is None else self.printing.timeout_s - (loop.time() - heard_at)
            records = await _fetch(source, left_s)
            if records is None:
                return
            if records:
                self._print(source, records)
                heard_at = loop.time()

    def _print(self, source: Source, records: list[Consumed]) -> None:
        most = self.printing.records_max
        wanted = records if most is None else records[: most - self.count]
        _put_back(source, records[len(wanted) :])
        for place, record in enumerate(wanted, 1):
            self.count += 1
            try:
                sys.stdout.buffer.write(self._formatted(record))
            except BrokenPipeError:
                _put_back(source, wanted[place:])
                raise
        sys.stdout.buffer.flush()

    def _formatted(self, record: Consumed) -> bytes:
        try:
            return self.printing.formatter(record)
        except (Undecodable, Malformed) as error:
            if not self.printing.skips_errors:
                sys.stdout.buffer.flush()
                raise Unprintable(str(error))
            print(f"ERROR Error processing message, skipping this message: {error}", file=sys.stderr)
            return b""


async def _fetch(source: Source, seconds: float | None) -> list[Consumed] | None:
    """The next records; None when none came in time."""
    if seconds is not None and seconds <= 0:
        return None
    task = asyncio.ensure_future(source.fetch())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return task.result() if done else None


def _put_back(source: Source, records: list[Consumed]) -> None:
    """What is not printed must not be committed."""
    for record in reversed(records):
        source.seek(TopicPartition(record.topic, record.partition), record.offset)


async def _close(source: Source) -> None:
    if isinstance(source, GroupConsumer):
        await source.close()
    else:
        source.close()
