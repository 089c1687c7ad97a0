"""ottla pipeline run | check | init | status | stop | export"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.colour import coloured
from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_bare_action, add_json, pairs
from ottla.cli.text import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.pipeline.files.checking import Clusters, Report
    from ottla.pipeline.files.progress import State, Telling
    from ottla.pipeline.files.running import Runner
    from ottla.pipeline.files.spec import Spec

EXAMPLES = """examples:
  ottla pipeline init                                    an example with comments, as pipeline.yml
  ottla pipeline check pipeline.yml                      is it right, and do the topics fit?
  ottla pipeline run pipeline.yml                        until Ctrl-C; the next run goes on where this one was
  ottla pipeline run pipeline.yml --master spark://host:7077
  ottla pipeline run pipeline.yml --remote sc://host:15002
  ottla pipeline run pipeline.yml --metrics-port 9100
  ottla pipeline status pipeline.yml
  ottla pipeline stop pipeline.yml
  ottla pipeline export pipeline.yml DIRECTORY           for `spark-pipelines run`, where what is there is done once

It needs PySpark (in a clone: pip install '.[spark]') and Java 17 or later."""

FILE = "pipeline.yml"
SAMPLE = 20
# A run tells of itself every second.
SILENT_S = 10.0
STOPPING = (
    "stopping: each query finishes its micro-batch, up to {:g} s; Ctrl-C again ends now, and loses nothing either"
)
LEVELS = ("fatal", "error", "warn", "info", "debug")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = _action(actions, "run", "run a pipeline until it is done or stopped", "ottla pipeline run pipeline.yml")
    _spark_arguments(run)
    run.add_argument(
        "--available-now", action="store_true", help="only what is there now, whatever the triggers say, and then end"
    )
    run.add_argument("--metrics-port", type=int, metavar="PORT", help="serve metrics for Prometheus on 127.0.0.1:PORT")
    run.add_argument(
        "--tries", type=int, default=10, metavar="N", help="give up when a query fails N times in a row (10)"
    )
    run.add_argument(
        "--grace", type=float, default=30.0, metavar="SECONDS", help="how long a micro-batch may take to finish (30)"
    )
    add_json(run, "print progress as lines of JSON, as is done when the output is not a terminal")
    check = _action(actions, "check", "hold a pipeline against the live topics", "ottla pipeline check pipeline.yml")
    _spark_arguments(check)
    check.add_argument(
        "--sample",
        type=int,
        default=SAMPLE,
        metavar="N",
        help=f"try the formats on the last N of each partition ({SAMPLE})",
    )
    check.add_argument("--explain", action="store_true", help="print Spark's plan of each sink as well")
    add_json(check)
    init = add_bare_action(actions, "init", "write an example with comments", "ottla pipeline init")
    init.add_argument("file", nargs="?", default=FILE, metavar="FILE", help=f"where to ({FILE})")
    init.add_argument("--force", action="store_true", help="write over a file that is there")
    status = _action(actions, "status", "show how a pipeline goes", "ottla pipeline status pipeline.yml")
    add_json(status)
    stop = _action(actions, "stop", "end a pipeline that runs", "ottla pipeline stop pipeline.yml")
    stop.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="how long to wait for its end (60)"
    )
    stop.add_argument("--force", action="store_true", help="end it at once; its next run repeats the last micro-batch")
    export = _action(
        actions,
        "export",
        "write a pipeline down for Spark Declarative Pipelines",
        "ottla pipeline export pipeline.yml declarative",
    )
    export.add_argument("directory", metavar="DIRECTORY", help="where to; what it has written there before is replaced")


def _action(actions: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_bare_action(actions, name, what, example)
    parser.add_argument("file", metavar="FILE", help="the pipeline")
    parser.add_argument(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="a broker to begin with, instead of the one the file names",
    )
    return parser


def _spark_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--master", metavar="URL", help="where Spark runs: spark://host:7077, local[2] (default local[*])"
    )
    where.add_argument("--remote", metavar="URL", help="a server of Spark Connect: sc://host:15002")
    parser.add_argument("--conf", action="append", metavar="NAME=VALUE", help="a setting of Spark; repeatable")
    parser.add_argument(
        "--spark-log", choices=LEVELS, default="fatal", help="how much of Spark's own log to show (fatal)"
    )


def run(args: argparse.Namespace) -> int:
    actions = {
        "run": _run,
        "check": _check,
        "init": _init,
        "status": _status,
        "stop": _stop,
        "export": _export,
    }
    return _told(lambda: actions[args.action](args))


def _told(work: Callable[[], int]) -> int:
    """What can be wrong with a pipeline, as what is wrong with a command."""
    from ottla.pipeline.needs import Missing, modules

    try:
        modules({"yaml": "spark"})
        from ottla.pipeline.files.nodes import WrongPipeline
        from ottla.pipeline.files.status import Runs

        try:
            return work()
        except (WrongPipeline, Runs) as error:
            raise Mistake(str(error))
    except Missing as error:
        raise Mistake(str(error))


def _spec(args: argparse.Namespace) -> Spec:
    from ottla.pipeline.files.spec import read_file

    path = Path(args.file)
    if not path.is_file():
        raise Mistake(f"there is no file {path}: `ottla pipeline init {path}` writes an example")
    return read_file(path, args.bootstrap_server)


def _session(args: argparse.Namespace, spec: Spec) -> SparkSession:
    from ottla.pipeline import needs

    needs.check(remote=args.remote is not None)
    from ottla.pipeline.session import session

    conf = {**spec.settings, **pairs(args.conf, "--conf")}
    return session(spec.name, master=args.master, remote=args.remote, conf=conf, log_level=args.spark_log)


# run


def _run(args: argparse.Namespace) -> int:
    from ottla.pipeline import needs
    from ottla.pipeline.files import status

    spec = _with_trigger(_spec(args), args.available_now)
    needs.check(remote=args.remote is not None)
    from ottla.pipeline.files.running import ended_at_once_by_signals

    with status.running(spec.state_directory), ended_at_once_by_signals():
        began = time.perf_counter()
        if args.remote is None:  # Spark elsewhere may see a broker that nobody sees from here
            _look_first(spec)
        _say(f"starting Spark for {spec.name} ...")
        spark = _session(args, spec)
        try:
            return _keep_running(args, spec, spark, began)
        finally:
            spark.stop()


def _look_first(spec: Spec) -> Clusters:
    """What is known in a moment is not left for after Spark has started."""
    from ottla.pipeline.files import checking

    clusters = checking.look(spec)
    for problem in checking.missing(spec, clusters):
        _say(coloured(problem, "red"))
    return clusters


def _say(text: str) -> None:
    """What is no result: for whoever looks on, wherever the results go."""
    print(text, file=sys.stderr, flush=True)


def _with_trigger(spec: Spec, available_now: bool) -> Spec:
    from dataclasses import replace

    from ottla.pipeline.files.spec import AVAILABLE_NOW

    if not available_now:
        return spec
    return replace(spec, sinks=tuple(replace(sink, trigger=AVAILABLE_NOW) for sink in spec.sinks))


def _keep_running(args: argparse.Namespace, spec: Spec, spark: SparkSession, began: float) -> int:
    from ottla.pipeline.files import metrics, status
    from ottla.pipeline.files.building import queries_of, views_of
    from ottla.pipeline.files.progress import Telling
    from ottla.pipeline.files.running import Failed, Runner, ended_by_signals

    telling = Telling(as_json=True if args.json else None)
    queries = queries_of(spark, spec, views_of(spark, spec))
    notes = status.Notes(spec.state_directory, spec.name)

    def looked(states: Sequence[State]) -> None:
        telling.draw(states)
        notes.looked(states)

    runner = Runner(queries, telling.changed, looked, tries=args.tries, grace_s=args.grace)
    asked = partial(telling.say_from_handler, STOPPING.format(args.grace))
    with ended_by_signals(runner.stop, asked), metrics.served(runner.states, args.metrics_port) as port:
        _say_where(telling, spec, spark, port, began)
        try:
            runner.run()
        except Failed as error:
            print(f"ottla: {error}", file=sys.stderr)
            return 1
        finally:
            notes.ended(runner.states)
    _say_end(telling, runner)
    return 0


def _say_where(telling: Telling, spec: Spec, spark: SparkSession, port: int | None, began: float) -> None:
    metrics = f", metrics on http://127.0.0.1:{port}/metrics" if port else ""
    took = f"{time.perf_counter() - began:.1f} s"
    telling.say(f"{spec.name} runs on Spark {spark.version} after {took}{metrics}. Ctrl-C stops it.")


def _say_end(telling: Telling, runner: Runner) -> None:
    rows = sum(state.rows for state in runner.states)
    how = "done" if all(state.state == "done" for state in runner.states) else "stopped; the next run goes on from here"
    telling.say(f"{how}: {rows:,} rows read")


# check


def _check(args: argparse.Namespace) -> int:
    from ottla.pipeline import needs

    spec = _spec(args)
    needs.check(remote=args.remote is not None)
    from ottla.pipeline.files.running import ended_at_once_by_signals

    with ended_at_once_by_signals():
        report = _report(args, spec)
        _print_report(spec, report, args.json)
    return 1 if report.problems else 0


def _report(args: argparse.Namespace, spec: Spec) -> Report:
    from ottla.pipeline.files import checking

    clusters = _look_first(spec)
    _say("starting Spark, which judges the rest ...")
    spark = _session(args, spec)
    try:
        report = checking.check(spark, spec, clusters, args.sample)
        if args.explain and not report.problems:
            _explain(spark, spec)
    finally:
        spark.stop()
    return report


def _explain(spark: SparkSession, spec: Spec) -> None:
    from ottla.pipeline.files.building import views_of

    views = views_of(spark, spec)
    for sink in spec.sinks:
        print(coloured(f"-- {sink.name}", "bold"))
        views[sink.of].explain("formatted")


def _print_report(spec: Spec, report: Report, as_json: bool) -> None:
    if as_json:
        parts = [vars(part) for part in report.parts]
        print(json.dumps({"name": spec.name, "parts": parts, "problems": report.problems}))
        return
    from ottla.pipeline.files.checking import counted

    print(coloured(f"pipeline {spec.name} on {spec.bootstrap}", "bold"))
    for part in report.parts:
        print(f"{part.kind:7} {coloured(part.name, 'bold')}: {part.what}")
        for note in part.notes:
            print(f"          {note}")
    for problem in report.problems:
        print(coloured(problem, "red"), file=sys.stderr)
    print(counted(len(report.problems), "problem") if report.problems else "all right")


# init, status, stop, export


def _init(args: argparse.Namespace) -> int:
    from importlib.resources import files

    path = Path(args.file)
    if path.exists() and not args.force:
        raise Mistake(f"{path} is there already: name another file, or write over it with --force")
    path.write_text(files("ottla.pipeline.files").joinpath("example.yml").read_text())
    print(f"wrote {path}: change it, then `ottla pipeline check {path}`")
    return 0


def _status(args: argparse.Namespace) -> int:
    from ottla.pipeline.files import status

    directory = _spec(args).state_directory
    pid = status.pid(directory)
    found = status.read(directory) if pid is None else status.read_now(directory)
    if args.json:
        print(json.dumps({**found, "running": pid is not None, "pid": pid}))
        return 0
    if not found:
        print(f"it {'starts, as process ' + str(pid) if pid else 'has not run yet'}")
        return 0
    print(f"{found['name']} {_since_when(found['at'], pid)}")
    rows = [_status_row(query, running=pid is not None) for query in found["queries"]]
    first, *rest = table(
        [("query", "state", "rows/s", "lag", "batch", "seconds", "rows", "late", "restarts"), *rows]
    ).split("\n")
    print("\n".join([coloured(first, "bold"), *rest]))
    for query in found["queries"]:
        if query["error"]:
            print(f"{query['name']}: {query['error']}")
    return 0


def _since_when(told_at: float, pid: int | None) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told_at))
    if pid is None:
        return f"does not run; it did until {when}"
    silent = time.time() - told_at > SILENT_S
    return f"runs as process {pid}" + (f", which has told nothing since {when}" if silent else "")


def _status_row(query: dict[str, Any], running: bool) -> tuple[object, ...]:
    """What is not known yet is left empty."""
    state = query["state"] if running or query["state"] in ("failed", "done") else "stopped"
    speed, took = "", ""
    if query["batch"] is not None:
        speed, took = f"{query['rows_per_second']:.0f}", f"{query['batch_seconds']:.1f}"
    done = query["batch"], took, query["rows"], query.get("late", 0), query["restarts"]
    return tuple("" if cell is None else cell for cell in (query["name"], state, speed, query["lag"], *done))


def _stop(args: argparse.Namespace) -> int:
    from ottla.pipeline.files import status

    try:
        ended = status.stop(_spec(args).state_directory, args.timeout, args.force)
    except TimeoutError as error:
        print(f"ottla: {error}", file=sys.stderr)
        return 1
    print(f"process {ended} has ended" if ended else "it does not run")
    return 0


def _export(args: argparse.Namespace) -> int:
    from ottla.pipeline import needs

    needs.modules({"pyspark": "spark"})
    from ottla.pipeline.files import declarative

    spec, directory = _spec(args), Path(args.directory)
    for note in declarative.export(spec, Path(args.file), args.bootstrap_server, directory):
        print(note)
    print(f"wrote {directory}. To run it, with `pip install 'ottla[connect]'`:\n{declarative.command(directory)}")
    return 0
