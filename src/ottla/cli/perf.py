"""ottla perf produce | consume: how fast records go in and out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, cluster_of
from ottla.cli.text import compact, table

if TYPE_CHECKING:
    from ottla.cli.measuring import Latencies, Progress

EXAMPLES = """examples:
  ottla perf produce speed --records 100000 --size 100
  ottla perf produce speed --records 10000 --rate 1000 --acks 1 --codec lz4
  ottla perf produce speed --transaction-ms 100
  ottla perf consume speed --records 100000 --read-committed

Records are capital letters at random. Each run of `consume` reads from the beginning, in a group of its own."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = {"0": 0, "1": 1, "all": -1}
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}
MEGABYTE = 1024 * 1024
REPORT_MS = 200


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    produce = _action(actions, "produce", "write records and time them", "ottla perf produce speed -n 100000")
    produce.add_argument("-s", "--size", type=int, default=100, help="bytes of each record (default 100)")
    produce.add_argument("--rate", type=float, default=-1, help="records per second (default: as fast as it goes)")
    produce.add_argument("-a", "--acks", choices=ACKS, default="all")
    produce.add_argument("-z", "--codec", choices=CODECS, default="none", help="how batches are compressed")
    produce.add_argument("--linger-ms", type=float, default=5, help="how long a batch waits for more (default 5)")
    produce.add_argument("--batch-bytes", type=int, default=16384, help="a batch is sent at this size (default 16384)")
    produce.add_argument(
        "--transaction-ms", type=float, help="write in transactions, and commit each after so many milliseconds"
    )
    consume = _action(actions, "consume", "read records and time it", "ottla perf consume speed -n 100000")
    consume.add_argument("--timeout", type=float, default=10, help="give up after so many seconds without records")
    consume.add_argument("--read-committed", action="store_true", help="leave out aborted and open transactions")
    consume.add_argument("--protocol", choices=("classic", "consumer"), default="classic", help="of the group")


def _action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, what, example)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("-n", "--records", type=int, default=100_000, help="how many (default 100000)")
    return parser


def run(args: argparse.Namespace) -> int:
    import asyncio

    if args.records < 1 or (args.action == "produce" and args.size < 1):
        raise Mistake("--records and --size must be at least 1")
    if args.action == "produce" and args.transaction_ms is not None and args.acks != "all":
        raise Mistake("transactions need --acks all")
    return asyncio.run(_produce(args) if args.action == "produce" else _consume(args))


async def _produce(args: argparse.Namespace) -> int:
    from ottla.cli.measuring import Latencies, Producing, produce, random_payloads
    from ottla.cli.progress import bar
    from ottla.client.producer import Producer

    acks = ACKS[args.acks]
    async with cluster_of(args) as cluster:
        producer = Producer(
            cluster,
            acks=acks,
            codec=CODECS.index(args.codec),
            linger_ms=args.linger_ms,
            batch_bytes=args.batch_bytes,
            idempotent=acks == -1,
            transactional_id=None
            if args.transaction_ms is None
            else f"ottla-perf-{cluster.rng.randrange(1 << 32):08x}",
        )
        with bar("writing") as progress:
            latencies = Latencies(
                args.records,
                REPORT_MS,
                None if progress is None else lambda _window: progress(latencies.count, args.records),
            )
            payloads = random_payloads(args.size)
            work = Producing(args.topic, args.records, args.rate, payloads, args.transaction_ms)
            failures = await produce(producer, work, lambda _number: [latencies])
    if failures:
        raise failures[0]
    _show(args, _figures(latencies) | {"requests": producer.requests})
    return 0


def _figures(latencies: Latencies) -> dict[str, float]:
    total = latencies.total()
    shares = dict(zip(SHARES, latencies.percentiles(*SHARES.values()), strict=True))
    return {
        "records": total.records,
        "seconds": round(total.elapsed_ms / 1000, 3),
        "records_per_second": round(total.per_second, 1),
        "megabytes_per_second": round(total.megabytes_per_second, 2),
        "mean_ms": round(total.latency_mean_ms, 2),
        **shares,
        "max_ms": round(total.latency_max_ms),
    }


async def _consume(args: argparse.Namespace) -> int:
    from ottla.cli.measuring import Joining, clock_ms, consume
    from ottla.cli.progress import bar
    from ottla.client.cluster import EARLIEST
    from ottla.client.group import GroupConsumer

    joining = Joining()
    async with cluster_of(args) as cluster:
        await cluster.partition_count(args.topic)
        group = f"ottla-perf-{cluster.rng.randrange(1 << 32):08x}"
        with bar("reading") as progress:

            def tell(now: Progress) -> None:
                if progress is not None:
                    progress(now.records, args.records)

            started = clock_ms()
            async with GroupConsumer(
                cluster,
                group,
                [args.topic],
                protocol=args.protocol,
                auto_commit_ms=None,
                reset=EARLIEST,
                read_committed=args.read_committed,
                on_assigned=joining.assigned,
                on_revoked=joining.revoked,
            ) as consumer:
                end = await consume(consumer, joining, args.records, args.timeout * 1000, tell)
    seconds = max(end.now_ms - started - end.joining_ms, 1) / 1000
    figures = {
        "records": end.records,
        "seconds": round(seconds, 3),
        "records_per_second": round(end.records / seconds, 1),
        "megabytes_per_second": round(end.bytes / MEGABYTE / seconds, 2),
        "joining_ms": round(end.joining_ms),
    }
    _show(args, figures)
    return 0 if end.records >= args.records else 1


def _show(args: argparse.Namespace, figures: dict[str, float]) -> None:
    if args.json:
        print(compact(figures).decode())
    else:
        print(table([(name.replace("_", " "), value) for name, value in figures.items()]))
