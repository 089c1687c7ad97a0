"""kafka-consumer-perf-test.sh: how many records a second come out."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.cli.measuring import Progress

GOING = "This option will be removed in a future version. Use"
MEGABYTE = 1024 * 1024

PARSER = Parser(
    "This tool is used to verify the consumer performance.",
    takes("bootstrap-server", "REQUIRED: The server(s) to connect to.", "server to connect to"),
    takes("topic", "The topic to consume from.", "topic"),
    takes("include", "Regular expression specifying list of topics to include for consumption.", "Java regex (String)"),
    takes("group", "The group id to consume on.", "gid", default=f"perf-consumer-{secrets.randbelow(100_000)}"),
    takes(
        "fetch-size",
        "The maximum amount of data to fetch from a single partition per request.",
        "size",
        kind="Integer",
        default=1048576,
    ),
    takes(
        "command-property",
        "Kafka consumer related configuration properties like client.id. These configs take precedence over those passed via "
        "--command-config or --consumer.config.",
        "prop1=val1",
    ),
    flag(
        "from-latest",
        "If the consumer does not already have an established offset to consume from, start with the latest record present "
        "in the log rather than the earliest record.",
    ),
    takes("socket-buffer-size", "The size of the tcp RECV size.", "size", kind="Integer", default=2097152),
    takes(
        "consumer.config",
        f"(DEPRECATED) Consumer config properties file. {GOING} --command-config instead.",
        "config file",
    ),
    takes("command-config", "Config properties file.", "config file"),
    flag("print-metrics", "Print out the metrics."),
    flag(
        "show-detailed-stats",
        "If set, stats are reported for each reporting interval as configured by reporting-interval.",
    ),
    takes(
        "timeout",
        "The maximum allowed time in milliseconds between returned records.",
        "milliseconds",
        kind="Long",
        default=10000,
        is_optional=True,
    ),
    takes(
        "messages",
        f"(DEPRECATED) The number of records to consume. {GOING} --num-records instead.",
        "count",
        kind="Long",
    ),
    takes("num-records", "REQUIRED: The number of records to consume.", "count", kind="Long"),
    takes(
        "reporting-interval",
        "Interval in milliseconds at which to print progress info.",
        "interval_ms",
        kind="Long",
        default=5000,
    ),
    takes(
        "date-format",
        "The date format to use for formatting the time field. See java.text.SimpleDateFormat for options.",
        "date format",
        default="yyyy-MM-dd HH:mm:ss:SSS",
    ),
    flag("hide-header", "If set, skips printing the header for the stats."),
    mistake=Usage,
)
COLUMNS = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, "
    "fetch.nMsg.sec"
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _measure)


def _measure(options: Options) -> None:
    import asyncio

    _check(options)
    if not options.has("hide-header"):
        first = "time, threadId" if options.has("show-detailed-stats") else "start.time, end.time"
        print(f"{first}, {COLUMNS}")
    asyncio.run(_run(options, _settings(options)))


def _check(options: Options) -> None:
    for pair in (("topic", "include"), ("messages", "num-records")):
        if sum(options.has(name) for name in pair) != 1:
            raise Usage(f"Exactly one of the following arguments is required: [{pair[0]}], [{pair[1]}]")
    options.require("bootstrap-server")
    if options.has("command-config") and options.has("consumer.config"):
        raise Usage("Options --command-config and --consumer.config cannot be specified together.")
    for old, new in (("messages", "num-records"), ("consumer.config", "command-config")):
        if options.has(old):
            print(f"Warning: --{old} is deprecated. Use --{new} instead.")
    if (options.number("reporting-interval") or 0) <= 0:
        raise Failed("Reporting interval must be greater than 0.")


def _settings(options: Options) -> dict[str, str]:
    from ottla.cli.kafka.client_settings import pairs
    from ottla.cli.kafka.connecting import properties_of

    settings = {"client.id": "perf-consumer-client"}
    settings |= properties_of(options.value("command-config") or options.value("consumer.config"))
    settings |= pairs(options.values("command-property"))
    settings["group.id"] = options.text("group")
    settings["max.partition.fetch.bytes"] = str(options.number("fetch-size"))
    settings["auto.offset.reset"] = "latest" if options.has("from-latest") else "earliest"
    return settings


async def _run(options: Options, settings: dict[str, str]) -> None:
    from ottla.cli.kafka.client_settings import consumer_options
    from ottla.cli.kafka.connecting import cluster_of
    from ottla.cli.measuring import Joining, consume
    from ottla.client.group import GroupConsumer

    topic = options.value("topic")
    topics = [topic] if topic is not None else re.compile(options.text("include"))
    wanted = options.number("num-records") if options.has("num-records") else options.number("messages")
    timeout_ms = options.number("timeout") or 10_000
    async with cluster_of(options.text("bootstrap-server"), settings) as cluster:
        joining = Joining()
        report = Report(options, cluster.now_ms())
        async with GroupConsumer(
            cluster,
            settings["group.id"],
            topics,
            on_assigned=joining.assigned,
            on_revoked=joining.revoked,
            **consumer_options(settings),
        ) as consumer:
            end = await consume(consumer, joining, wanted or 0, timeout_ms, report.tell)
            ended_ms = cluster.now_ms()
    if end.records < (wanted or 0):
        print(
            f"WARNING: Exiting before consuming the expected number of records: timeout ({timeout_ms} ms) exceeded. You can "
            "use the --timeout option to increase the timeout."
        )
    report.finish(end, ended_ms)
    if options.has("print-metrics"):
        from ottla.cli.kafka.producer_perf_test import print_metrics

        name = "consumer-fetch-manager-metrics"
        totals = {
            f"{name}:bytes-consumed-total": float(end.bytes),
            f"{name}:records-consumed-total": float(end.records),
        }
        print_metrics(settings["client.id"], totals)


class Report:
    """Lines of figures: one at the end, or one per interval."""

    def __init__(self, options: Options, started_ms: int) -> None:
        self.is_detailed = options.has("show-detailed-stats")
        self.interval_ms = options.number("reporting-interval") or 5000
        self.pattern = options.text("date-format")
        self.started_ms = started_ms
        self._last: Progress | None = None
        self._first_ms: float | None = None

    def tell(self, now: Progress) -> None:
        from ottla.cli.measuring import Progress

        if self._last is None:
            self._last = Progress(0, 0, 0.0, now.now_ms - now.joining_ms)
            self._first_ms = self._last.now_ms
        if not self.is_detailed or now.now_ms - self._last.now_ms < self.interval_ms:
            return
        at_ms = self.started_ms + round(now.now_ms - (self._first_ms or now.now_ms))
        joining_ms = now.joining_ms - self._last.joining_ms
        elapsed_ms = now.now_ms - self._last.now_ms
        fresh = (now.bytes - self._last.bytes) / MEGABYTE, now.records - self._last.records
        print(
            f"{java_date(self.pattern, at_ms)}, 0, "
            + _figures(now.bytes / MEGABYTE, now.records, *fresh, elapsed_ms, joining_ms)
        )
        self._last = now

    def finish(self, end: Progress, ended_ms: int) -> None:
        if self.is_detailed:
            return
        times = f"{java_date(self.pattern, self.started_ms)}, {java_date(self.pattern, ended_ms)}"
        size = end.bytes / MEGABYTE
        elapsed_ms = max(ended_ms - self.started_ms, 1)
        print(f"{times}, {_figures(size, end.records, size, end.records, elapsed_ms, end.joining_ms)}")


def _figures(
    size: float, records: int, fresh_size: float, fresh_records: int, elapsed_ms: float, joining_ms: float
) -> str:
    fetching_ms = elapsed_ms - joining_ms
    seconds, fetching_s = elapsed_ms / 1000, max(fetching_ms, 0) / 1000
    rates = (fresh_size / fetching_s, fresh_records / fetching_s) if fetching_s else (0.0, 0.0)
    amounts = f"{size:.4f}, {fresh_size / seconds:.4f}, {records}, {fresh_records / seconds:.4f}"
    return f"{amounts}, {joining_ms:.0f}, {fetching_ms:.0f}, {rates[0]:.4f}, {rates[1]:.4f}"


def java_date(pattern: str, time_ms: int) -> str:
    """A time by the pattern of Java's SimpleDateFormat: the letters for dates and times, and text in quotes."""
    from datetime import datetime

    moment = datetime.fromtimestamp(time_ms / 1000)
    values = {
        "y": moment.year,
        "M": moment.month,
        "d": moment.day,
        "H": moment.hour,
        "h": moment.hour % 12 or 12,
        "m": moment.minute,
        "s": moment.second,
        "S": time_ms % 1000,
    }

    def shown(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("'"):
            return text[1:-1] or "'"
        number = values.get(text[0])
        if number is None:
            raise Failed(f"Illegal pattern character '{text[0]}'")
        return f"{number % 100:02}" if text == "yy" else str(number).zfill(len(text))

    return re.sub(r"'[^']*'|([a-zA-Z])\1*", shown, pattern)
