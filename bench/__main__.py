"""Ottla and Apache Kafka 4.3.1 one after the other, under the same loads, on this machine.

python -m bench                          everything (the better part of an hour)
python -m bench small-produce kill       these lines; also by the start of a name: txn, txn-gen2
python -m bench --quick                  some minutes, to see that all loads run; its figures mean nothing
python -m bench --list
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from apache import kafka
from bench import cluster, commands, compaction, drivers, groups, report, spark, testing, transactions
from bench.lines import LINES
from bench.scenes import QUICK, SCENES, Size, Tally
from harness import TREE, DidNotStart, Node, Server

RESULTS = Path(__file__).resolve().parent / "results"
FILES_WANTED = 65_536
PLAYED = {
    **SCENES,
    "groups": (groups.groups, groups.LINES),
    "compaction": (compaction.compaction, compaction.LINES),
    "transactions": (transactions.transactions, transactions.LINES),
    "testing": (testing.testing, testing.LINES),
    "commands": (commands.commands, commands.LINES),
    "spark": (spark.spark, spark.LINES),
    "cluster": (cluster.cluster, cluster.LINES),
    "cluster-metadata": (cluster.cluster_metadata, cluster.METADATA_LINES),
}

Values = dict[str, dict[str, list[float]]]

# Page cache that is written once before each scene.
MEMORY_BYTES = 6 << 30


def main() -> int:
    options = parse()
    if options.list:
        print("\n".join(f"{line.key:26}{line.title} [{line.unit}] {line.goal or line.own_goal}" for line in LINES))
        return 0
    try:
        options.wanted = chosen([*options.lines, *filter(None, map(str.strip, options.only.split(",")))])
        drivers.build()
        drivers.librdkafka()
        if "apache" in options.servers and (reason := kafka.why_missing()):
            raise drivers.CannotMeasure(f"{reason}; or measure Ottla alone: --servers ottla")
    except drivers.CannotMeasure as error:
        print(error, file=sys.stderr)
        return 1
    allow_many_files()
    measured, costs = measure(options)
    found = report.rows(measured, costs)
    print("\n" + (report.markdown if options.markdown else report.table)(found))
    if not options.quick:
        keep(found, measured, costs, options.name)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lines", nargs="*", help="lines to measure, by key or by the start of it; all without any")
    parser.add_argument("--only", default="", help="the same, separated by commas")
    parser.add_argument("--servers", default="ottla,apache", help="which of the two to measure")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition, nothing is kept")
    parser.add_argument("--repeat", type=int, help="repetitions after the warm-up (3)")
    parser.add_argument(
        "--data", type=Path, default=TREE / ".cache" / "bench", help="where the servers keep their data"
    )
    parser.add_argument("--name", default=datetime.date.today().isoformat(), help="name of the files in bench/results")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/performance.md has it")
    parser.add_argument("--list", action="store_true", help="show the lines and their goals")
    return parser.parse_args()


def chosen(words: list[str]) -> frozenset[str]:
    """A word is a line's key, or else the beginning of several."""
    keys = [line.key for line in LINES]
    found = {
        word: [key for key in keys if key == word] or [key for key in keys if key.startswith(word)] for word in words
    }
    if unknown := [word for word, matching in found.items() if not matching]:
        raise drivers.CannotMeasure(f"no line is called {', '.join(unknown)}: python -m bench --list")
    return frozenset(key for matching in found.values() for key in matching) if words else frozenset(keys)


def measure(options: argparse.Namespace) -> tuple[Values, Values]:
    """Figures and costs, by server and line."""
    wanted, servers = options.wanted, options.servers.split(",")
    size = QUICK if options.quick else Size(repeats=options.repeat or 3)
    measured: Values = {name: {} for name in servers}
    costs: Values = {name: {} for name in servers}
    for scene, (play, lines) in PLAYED.items():
        if not wanted & lines:
            continue
        for name in servers:
            back_memory(options.data, MEMORY_BYTES >> 4 if options.quick else MEMORY_BYTES)
            tally = Tally(wanted, partial(announce, name))
            print(f"{scene} on {name}", flush=True)
            with_server(name, options.data, partial(play, size=size, tally=tally))
            measured[name].update(tally.figures)
            costs[name].update(tally.costs)
    return measured, costs


def back_memory(directory: Path, size: int) -> None:
    """Fill the page cache once and let it go.

    On a virtual machine memory that was never used before costs ten times as much to write into (2.3 ms/MB against 0.24
    measured): whoever is measured first would pay for both.
    """
    directory.mkdir(parents=True, exist_ok=True)
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(size >> 20):
            file.write(piece)


def announce(name: str, text: str) -> None:
    print(f"  {name:8}{text}", flush=True)


def with_server(name: str, data: Path, play: Callable[[Server], None]) -> None:
    """Plays a scene on a fresh directory, and leaves neither process nor file behind."""
    data.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=data))
    server = make_server(name, own / name)
    try:
        play(server)
    except (drivers.CannotMeasure, DidNotStart, AssertionError, KafkaException, OSError, EOFError) as error:
        print(f"  {name:8}the scene ended early: {error}", flush=True)
    finally:
        server.kill()
        shutil.rmtree(own, ignore_errors=True)


def make_server(name: str, directory: Path) -> Server:
    return Node(directory) if name == "ottla" else kafka.Apache(directory, flags=kafka.MEASURED)


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES_WANTED)), hard))


def keep(found: list[report.Row], measured: Values, costs: Values, name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    about = {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
    report.write_json(RESULTS / f"{name}.json", found, measured, costs, about)
    report.write_svg(RESULTS / f"{name}.svg", found, f"Ottla beside Apache Kafka, {name}")
    print(f"\nkept in bench/results/{name}.json and .svg")


if __name__ == "__main__":
    sys.exit(main())
