"""kafka-producer-perf-test.sh: how many records a second, and how long each takes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.commands import Command, run
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ottla.cli.measuring import Latencies, Window

ONE_OF = "Note that you must provide exactly one of --record-size, --payload-file or --payload-monotonic."
GOING = "This option will be removed in a future version. Use"
PROPERTIES = (
    "Kafka producer related configuration properties like client.id. These configs take precedence over those passed via "
    "--command-config or --producer.config."
)
EXAMPLE = "Example: --command-property linger.ms=10 batch.size=32768"
TRANSACTION_MS = 3000
ABOUT = (
    "This tool is used to verify the producer performance. To enable transactions, you can specify a transactional id or set "
    "a transaction duration using --transaction-duration-ms. There are three ways to specify the transactional id: set "
    "transactional.id=<id> via --command-property, set transactional.id=<id> in the config file via --command-config, or use "
    "--transactional-id <id>."
)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not words:
        parser.print_help()
        return 0
    return run(parser, words, lambda args: _measure(parser, args))


def _parser() -> Command:
    parser = Command("kafka-producer-perf-test", description=ABOUT)
    parser.add_argument(
        "--bootstrap-server",
        metavar="BOOTSTRAP-SERVER",
        help="The server(s) to connect to. This config takes precedence over bootstrap.servers specified via "
        "--command-property or --command-config.",
    )
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="Produce records to this topic.")
    parser.add_argument(
        "--num-records", required=True, type=int, metavar="NUM-RECORDS", help="Number of records to produce."
    )
    parser.add_argument(
        "--payload-delimiter",
        default="\\n",
        metavar="PAYLOAD-DELIMITER",
        help="Provides the delimiter to be used when --payload-file is provided. Defaults to new line. Note that this "
        "parameter will be ignored if --payload-file is not provided.",
    )
    parser.add_argument(
        "--throughput",
        required=True,
        type=float,
        metavar="THROUGHPUT",
        help="Throttle maximum record throughput to *approximately* THROUGHPUT records/sec. Set this to -1 to disable "
        "throttling.",
    )
    _add_settings(parser)
    parser.add_argument("--print-metrics", action="store_true", help="Print out metrics at the end of the test.")
    _add_transactions(parser)
    parser.add_argument(
        "--warmup-records",
        type=int,
        default=0,
        metavar="WARMUP-RECORDS",
        help="The number of records to treat as warmup. These initial records will not be included in steady-state "
        "statistics. An additional summary line will be printed describing the steady-state statistics.",
    )
    parser.add_argument(
        "--reporting-interval",
        type=int,
        default=5000,
        metavar="INTERVAL-MS",
        help="Interval in milliseconds at which to print progress info.",
    )
    _add_payloads(parser)
    return parser


def _add_settings(parser: Command) -> None:
    name = "PROP-NAME=PROP-VALUE"
    old = f"(DEPRECATED) {PROPERTIES} {GOING} --command-property instead. {EXAMPLE}"
    parser.add_argument("--producer-props", nargs="+", metavar=name, help=old)
    parser.add_argument("--command-property", nargs="+", metavar=name, help=f"{PROPERTIES} {EXAMPLE}")
    old = f"(DEPRECATED) Producer config properties file. {GOING} --command-config instead."
    parser.add_argument("--producer.config", dest="producer_config", metavar="CONFIG-FILE", help=old)
    parser.add_argument("--command-config", metavar="CONFIG-FILE", help="Producer config properties file.")


def _add_transactions(parser: Command) -> None:
    parser.add_argument(
        "--transactional-id",
        metavar="TRANSACTIONAL-ID",
        help="The transactional id to use. This config takes precedence over the transactional.id specified via "
        "--command-property or --command-config. Note that if the transactional id is not specified while "
        "--transaction-duration-ms is provided, the default value for the transactional id will be performance-producer- "
        "followed by a random uuid.",
    )
    parser.add_argument(
        "--transaction-duration-ms",
        type=int,
        metavar="TRANSACTION-DURATION",
        help="The maximum duration of each transaction. The commitTransaction will be called after this time has elapsed. "
        "The value should be greater than 0. If the transactional id is specified via --command-property, --command-config "
        "or --transactional-id but --transaction-duration-ms is not specified, the default value will be 3000.",
    )


def _add_payloads(parser: Command) -> None:
    payloads = parser.add_mutually_exclusive_group(required=True)
    payloads.add_argument("--record-size", type=int, metavar="RECORD-SIZE", help=f"Record size in bytes. {ONE_OF}")
    payloads.add_argument(
        "--payload-file",
        metavar="PAYLOAD-FILE",
        help="File to read the record payloads from. This works only for UTF-8 encoded text files. Payloads will be read "
        f"from this file and a payload will be randomly selected when sending records. {ONE_OF}",
    )
    payloads.add_argument(
        "--payload-monotonic", action="store_true", help=f"Payload is a monotonically increasing integer. {ONE_OF}"
    )


def _check(parser: Command, args: argparse.Namespace) -> None:
    given = (
        args.bootstrap_server,
        args.producer_props,
        args.command_property,
        args.producer_config,
        args.command_config,
    )
    wrong = [
        (args.num_records <= 0, "--num-records should be greater than zero."),
        (
            max(args.warmup_records, 0) >= args.num_records,
            "The value for --warmup-records must be strictly fewer than the number of records in the test, --num-records.",
        ),
        (args.record_size is not None and args.record_size <= 0, "--record-size should be greater than zero."),
        (
            not any(given),
            "At least one of --bootstrap-server, --command-property, --producer-props, --producer.config or "
            "--command-config must be specified.",
        ),
        (
            args.command_property and args.producer_props,
            "--command-property and --producer-props cannot be specified together.",
        ),
        (
            args.command_config and args.producer_config,
            "--command-config and --producer.config cannot be specified together.",
        ),
        (
            args.transaction_duration_ms is not None and args.transaction_duration_ms <= 0,
            "--transaction-duration-ms should be greater than zero.",
        ),
        (args.reporting_interval <= 0, "--reporting-interval should be greater than zero."),
    ]
    for is_wrong, why in wrong:
        if is_wrong:
            parser.error(why)


def _settings(args: argparse.Namespace) -> dict[str, str]:
    from ottla.cli.kafka.connecting import properties_of

    going = "has been deprecated and will be removed in a future version. Use"
    if args.producer_props:
        print(f"Option --producer-props {going} --command-property instead.")
    if args.producer_config:
        print(f"Option --producer.config {going} --command-config instead.")
    settings = {"client.id": "perf-producer-client"} | properties_of(args.command_config or args.producer_config)
    for text in args.command_property or args.producer_props or ():
        name, equals, value = text.partition("=")
        if not equals or "=" in value:
            raise Failed(f"Invalid property: {text}")
        settings[name] = value
    if args.bootstrap_server:
        settings["bootstrap.servers"] = args.bootstrap_server
    if args.transactional_id:
        settings["transactional.id"] = args.transactional_id
    elif args.transaction_duration_ms and not settings.get("transactional.id"):
        settings["transactional.id"] = f"performance-producer-{_any_uuid()}"
    if not settings.get("bootstrap.servers"):
        raise Failed("No bootstrap urls given in bootstrap.servers")
    return settings


def _any_uuid() -> str:
    import base64
    import random

    return base64.urlsafe_b64encode(random.SystemRandom().randbytes(16)).decode().rstrip("=")


def _transaction_ms(args: argparse.Namespace, settings: dict[str, str]) -> int | None:
    """How long each transaction lasts; None without any."""
    if not settings.get("transactional.id"):
        return None
    return args.transaction_duration_ms or TRANSACTION_MS


def _payloads(args: argparse.Namespace) -> Iterator[bytes]:
    from ottla.cli.measuring import random_payloads

    if args.payload_monotonic:
        from itertools import count

        return (str(number).encode() for number in count())
    if args.payload_file:
        return _from_file(args.payload_file, args.payload_delimiter)
    return random_payloads(args.record_size)


def _from_file(path: str, delimiter: str) -> Iterator[bytes]:
    import os
    import random

    print(f"Reading payloads from: {os.path.abspath(path)}")
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        raise Failed("File does not exist or empty file provided.")
    with open(path, "rb") as file:
        texts = file.read().split(b"\n" if delimiter == "\\n" else delimiter.encode())
    if texts and not texts[-1]:
        texts.pop()
    print(f"Number of records read: {len(texts)}")
    rng = random.Random(0)
    return iter(lambda: rng.choice(texts), None)


def _measure(parser: Command, args: argparse.Namespace) -> int:
    import asyncio

    _check(parser, args)
    settings = _settings(args)
    payloads = _payloads(args)
    asyncio.run(_run(args, settings, payloads))
    return 0


async def _run(args: argparse.Namespace, settings: dict[str, str], payloads: Iterator[bytes]) -> None:
    from ottla.cli.kafka.client_settings import producer_options, transactional_options
    from ottla.cli.kafka.connecting import cluster_of
    from ottla.cli.measuring import Latencies, Producing, produce
    from ottla.client.producer import Producer

    warmup = max(args.warmup_records, 0)
    if warmup:
        print(f"Warmup first {warmup} records. Steady state results will print after the complete test summary.")
    async with cluster_of(settings["bootstrap.servers"], settings) as cluster:
        producer = Producer(cluster, **producer_options(settings), **transactional_options(settings))
        everything = Latencies(args.num_records, args.reporting_interval, _print_window)
        steady: list[Latencies] = []

        def sinks(number: int) -> list[Latencies]:
            if warmup and number == warmup:
                everything.report = None
                steady.append(Latencies(args.num_records - warmup, args.reporting_interval, _print_window))
            return [everything, *steady]

        transaction_ms = _transaction_ms(args, settings)
        work = Producing(args.topic, args.num_records, args.throughput, payloads, transaction_ms)
        failures = await produce(producer, work, sinks)
    for failure in failures:
        print(failure, file=sys.stderr)
    _print_total(everything, "")
    for latencies in steady:
        _print_total(latencies, " steady state")
    if args.print_metrics:
        _print_metrics(settings["client.id"], producer.requests, everything, len(failures))


def _print_window(window: Window) -> None:
    rates = f"{window.per_second:.1f} records/sec ({window.megabytes_per_second:.2f} MB/sec)"
    latency = f"{window.latency_mean_ms:.1f} ms avg latency, {float(int(window.latency_max_ms)):.1f} ms max latency."
    print(f"{window.records} records sent, {rates}, {latency}", flush=True)


def _print_total(latencies: Latencies, kind: str) -> None:
    total = latencies.total()
    half, most, nearly, all_but = latencies.percentiles(0.5, 0.95, 0.99, 0.999)
    rates = f"{total.per_second:f} records/sec ({total.megabytes_per_second:.2f} MB/sec)"
    latency = f"{total.latency_mean_ms:.2f} ms avg latency, {float(int(total.latency_max_ms)):.2f} ms max latency"
    shares = f"{half} ms 50th, {most} ms 95th, {nearly} ms 99th, {all_but} ms 99.9th."
    print(f"{total.records}{kind} records sent, {rates}, {latency}, {shares}")


def _print_metrics(client_id: str, requests: int, latencies: Latencies, failed: int) -> None:
    """Those of Java's client that ours can tell."""
    print_metrics(
        client_id,
        {
            "producer-metrics:outgoing-record-bytes-total": latencies.bytes,
            "producer-metrics:record-error-total": failed,
            "producer-metrics:record-send-total": latencies.count,
            "producer-metrics:request-total": requests,
        },
    )


def print_metrics(client_id: str, values: dict[str, float]) -> None:
    """Names and values in two columns, as Kafka's tools print the metrics of a client."""
    rows = {f"{name}:{{client-id={client_id}}}": value for name, value in sorted(values.items())}
    width = max(map(len, rows))
    print(f"\n{'Metric Name'.ljust(width)}   Value")
    for name, value in rows.items():
        print(f"{name.ljust(width)} : {value:.3f}")
