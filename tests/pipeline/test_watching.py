"""How a pipeline is watched without Spark: progress, metrics, status, failures, and a runner over queries of our own."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructType

from ottla.pipeline.committing import Fenced, Marker, MicroBatch, Refused, SinkError, judge
from ottla.pipeline.files import failures, metrics, running, sinks, status
from ottla.pipeline.files.building import Query
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.progress import State, Telling, lag_of
from ottla.pipeline.files.running import Failed, Runner
from ottla.pipeline.files.sinks import topic_options
from ottla.pipeline.files.spec import read_object
from ottla.pipeline.needs import Missing
from ottla.pipeline.offsets import DataLoss
from ottla.pipeline.options import BadOption
from ottla.pipeline.sink import Writing


def progress(batch: int, rows: int | None = 10, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch,
        "timestamp": f"10:{batch:02}",
        "numInputRows": rows,
        "processedRowsPerSecond": 12.5,
        "durationMs": {"triggerExecution": 800},
        "sources": [],
        **more,
    }


def test_progress_is_counted_once_for_each_batch():
    state = State("p.out", "topic out", state="running")
    assert state.take(progress(0)) and state.take(progress(1)) and not state.take(progress(1))
    assert (state.rows, state.batch, state.batch_seconds) == (20, 1, 0.8)
    assert "12 rows/s  batch 1 in 0.8 s  20 rows" in state.line(8)
    assert json.loads(state.json())["rows"] == 20


def test_spark_connect_leaves_the_sums_to_us():
    """Its progress has the keys of a query as a whole, with nothing in them, and the figures of each source."""
    state = State("p.out", "topic out", state="running")
    sources = [{"numInputRows": 7, "processedRowsPerSecond": 3.5}, {"numInputRows": 4, "processedRowsPerSecond": None}]
    assert state.take(progress(0, rows=None, processedRowsPerSecond=None, sources=sources))
    assert (state.rows, state.rows_per_second) == (11, 3.5)
    idle = progress(1, rows=None, processedRowsPerSecond=None, sources=[{"numInputRows": 0}])
    assert not state.take(idle) and state.rows_per_second == 0


def test_what_came_too_late_is_counted():
    state = State("p.out", "topic out", state="running")
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}, {}]
    assert state.take(progress(0)) and "too late" not in state.line(8)
    assert state.take(progress(1, stateOperators=operators)) and state.take(progress(2, stateOperators=operators))
    assert state.late == 6 and state.line(8).endswith("30 rows  6 too late")


def test_a_query_with_nothing_to_do_does_not_hide_its_next_micro_batch():
    """Spark tells of itself meanwhile, under that one's number. A micro-batch without rows is one nevertheless."""
    state = State("p.out", "topic out", state="running")
    assert state.take(progress(0)) and not state.take(progress(1, rows=0))
    assert state.take(progress(1, rows=5)) and state.rows == 15
    assert state.take(progress(2, rows=0, durationMs={"addBatch": 3, "triggerExecution": 9})) and state.batch == 2


@pytest.mark.parametrize("shape", ["dict", "text"])
def test_lag_is_what_is_there_and_not_read(shape):
    """Offsets of every partition count, what a source notes beside them does not."""
    end = {"orders": {"0": 10, "1": 5}, "@ids": {"orders": "x"}, "@from": {"orders": {"0": 1}}}
    latest = {"orders": {"0": 15, "1": 5, "2": 7}}
    source = {"endOffset": end, "latestOffset": latest}
    if shape == "text":
        source = {name: json.dumps(value) for name, value in source.items()}
    assert lag_of([source, {"endOffset": 3, "latestOffset": None}]) == 12
    assert lag_of([{"endOffset": 3, "latestOffset": 5}]) is None
    assert lag_of([{"endOffset": None, "latestOffset": latest}]) is None


BEHIND = {"sources": [{"endOffset": {"t": {"0": 3}}, "latestOffset": {"t": {"0": 10}}}]}


def test_lag_is_as_of_what_spark_said_last():
    """It says it again while nothing is to be done; and a number that is old is none."""
    watched = running.Watched(Query("q", "", "", lambda: None))
    assert watched.take(progress(0), 100.0) and watched.state.lag is None
    for since, told, lag in [(0, "10:01", 7), (59, "10:01", 7), (61, "10:01", None), (61, "10:02", 7)]:
        assert not watched.take(progress(0, timestamp=told, **BEHIND), 100.0 + since)
        assert watched.state.lag == lag
    assert running.LAG_KNOWN_S == 60


@pytest.mark.parametrize(("took_s", "lag"), [(2, 7), (59, 7), (61, None)])
def test_the_lag_at_the_beginning_of_a_long_micro_batch_is_old_when_it_ends(took_s, lag):
    """Spark asks for the ends before a micro-batch and tells of them after it."""
    watched = running.Watched(Query("q", "", "", lambda: None))
    assert watched.take(progress(0, durationMs={"triggerExecution": took_s * 1000}, **BEHIND), 1000.0)
    assert watched.state.lag == lag


def test_nobody_knows_the_lag_of_a_query_that_does_not_run(monkeypatch):
    """Whatever it was before: it may be anything by now."""
    told: list[tuple[str, int | None]] = []
    monkeypatch.setattr(Handle, "lastProgress", property(lambda self: progress(0, **BEHIND)))
    failing = [Handle(1, "broker gone"), Handle(1)]
    runner(monkeypatch, failing, changed=lambda state: told.append((state.state, state.lag))).run()
    assert told == [("running", None), ("running", 7), ("waiting", None), ("running", None), ("done", None)]


def test_people_get_lines_and_programs_get_json():
    state = State("out", "topic out", state="running")
    lines = io.StringIO()
    Telling(lines, as_json=True).changed(state)
    assert json.loads(lines.getvalue())["name"] == "out"
    drawn = io.StringIO()
    telling = Telling(drawn, as_json=False)
    telling.draw([state])
    telling.draw([state])
    assert drawn.getvalue().count("out  running") == 2 and "\x1b[1A" in drawn.getvalue()


def test_metrics_are_served_while_the_block_runs():
    states = [State("p.out", "topic out", state="running", rows=7, lag=None)]
    with metrics.served(states, 0) as port:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert 'ottla_pipeline_rows_total{query="p.out"} 7' in text
    assert 'ottla_pipeline_up{query="p.out"} 1' in text
    assert "ottla_pipeline_lag{" not in text and "ottla_pipeline_batch{" not in text, "nobody knows them"


def test_the_lock_says_who_runs_it(tmp_path):
    assert status.pid(tmp_path) is None
    with status.running(tmp_path):
        assert status.pid(tmp_path) == os.getpid()
        with pytest.raises(status.Runs, match=f"runs already, as process {os.getpid()}"), status.running(tmp_path):
            pass
    assert status.pid(tmp_path) is None
    assert status.stop(tmp_path, 1) is None


# It takes its signal from a queue: a handler may be called only when the wait is over that it was to end.
HOLDER = """
import pathlib, signal, sys
from ottla.pipeline.files import status
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with status.running(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    signal.sigwait({signal.SIGTERM})
"""


@pytest.mark.parametrize("force", [False, True])
def test_stop_ends_the_process_that_runs_it(tmp_path, force):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        assert status.stop(tmp_path, 30, force) == process.pid
        assert process.wait(30) == (-signal.SIGKILL if force else 0)


def test_status_survives_a_reader_in_the_middle(tmp_path):
    assert status.read(tmp_path) == {}
    status.write(tmp_path, {"queries": []})
    assert status.read(tmp_path) == {"queries": []}
    (tmp_path / "status.json").write_text('{"que')
    assert status.read(tmp_path) == {}


PYTHON_FAILED = """[STREAM_FAILED] Query out [id = 1, runId = 2] terminated with exception: Job aborted. SQLSTATE: XXKST
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{line}
\tat org.apache.spark.Nowhere
"""


@pytest.mark.parametrize("error", [Refused, Fenced, DataLoss, BadOption, WrongPipeline, Missing])
def test_what_waiting_cannot_mend(error):
    """Classes are known by their names in a trace: whoever renames one shall find out here."""
    line = f"{error.__module__}.{error.__qualname__}: as it is"
    text = PYTHON_FAILED.format(line=line)
    assert failures.is_fatal(text)
    assert failures.cause(text) == line


@pytest.mark.parametrize(
    "line", ["ottla.client.cluster.Unreachable: no broker answers", "psycopg.OperationalError: connection refused"]
)
def test_what_waiting_can_mend(line):
    text = PYTHON_FAILED.format(line=line)
    assert not failures.is_fatal(text)
    assert failures.cause(text) == line


def test_the_plan_of_a_query_is_not_what_happened():
    """Spark puts it behind its words, with all that may be raised in it."""
    plan = "=== Streaming Query ===\nLogical Plan:\n~Filter raise_error(USER_RAISED_EXCEPTION, does not fit)"
    told = failures.text_of(RuntimeError(f"[STREAM_FAILED] Query [id = 1] terminated with exception: gone\n{plan}"))
    assert not failures.is_fatal(told) and failures.cause(told) == "gone"
    outer = RuntimeError(f"Exception thrown in awaitResult: \n{plan}")
    outer._cause = RuntimeError("Exception thrown in awaitResult: ")  # type: ignore[attr-defined]
    outer._cause._cause = RuntimeError("[USER_RAISED_EXCEPTION] it does not fit")  # type: ignore[attr-defined]
    told = failures.text_of(outer)
    assert failures.is_fatal(told) and failures.cause(told) == "it does not fit"
    assert failures.text_of(RuntimeError("Exception thrown in awaitResult: ")) == "Exception thrown in awaitResult: "


def test_what_spark_says_itself():
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Python worker failed to connect back. SQLSTATE: X\n"
    )
    assert failures.cause(text) == "Python worker failed to connect back."
    called = (
        "An error occurred while calling o3.start.\n: org.E: [DATA_SOURCE_NOT_FOUND] Failed to find it. SQLSTATE: 1"
    )
    assert failures.cause(called) == "Failed to find it."
    assert failures.is_fatal(called)


@pytest.mark.parametrize("marker", [None, Marker("a" * 36, 12), Marker("b" * 36, 12)])
def test_a_refusal_speaks_of_what_a_file_has(tmp_path, marker):
    """Whoever wrote one knows no sinkId and calls no method; and the advice is not cut off."""
    words = {"bootstrap": "b:1", "sources": {"s": {"topic": "t", "format": "raw"}}}
    spec = read_object({**words, "name": "p", "sinks": {"out": {"from": "s", "topic": "u"}}}, tmp_path)
    columns = StructType().add("value", BinaryType())
    with pytest.raises(Refused) as refused:
        judge(marker, MicroBatch("b" * 36, 3), Writing.of(topic_options(spec.sinks[0], spec), columns).sink)
    told = failures.cause(PYTHON_FAILED.format(line=f"ottla.pipeline.committing.Refused: {refused.value}"))
    assert "sinkId" not in told and ".option(" not in told, told
    assert f"write 'options: {{acceptCheckpoint: {'b' * 36}}}' at this sink" in told
    assert ("give one of them another 'name:'" in told) == (marker is not None and marker.query_id[0] == "a")


class Handle:
    """Stands for a StreamingQuery: makes batches while it is told to, and ends as it is told."""

    def __init__(self, batches: int, error: str | None = None, endless: bool = False) -> None:
        self.batches, self.error, self.endless = batches, error, endless
        self.looks, self.stopped = 0, False

    @property
    def isActive(self) -> bool:
        self.looks += 1
        return not self.stopped and (self.endless or self.looks < 2)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return progress(self.batches - 1) if self.batches else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [progress(number) for number in range(self.batches)]

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "", "isTriggerActive": False}

    def exception(self) -> str | None:
        return self.error

    def stop(self) -> None:
        self.stopped = True


def runner(monkeypatch: pytest.MonkeyPatch, handles: list[Handle], **more: Any) -> Runner:
    monkeypatch.setattr(running, "POLL_S", 0.001)
    monkeypatch.setattr(running, "FIRST_PAUSE_S", 0.001)
    left = iter(handles)
    return Runner([Query("out", "p.yml:3", "topic out", lambda: next(left))], **more)


def test_a_query_that_fails_is_started_again_until_it_is_done(monkeypatch):
    made = runner(monkeypatch, [Handle(1, "broker gone"), Handle(0, "broker gone"), Handle(3)])
    made.run()
    [state] = made.states
    assert (state.state, state.restarts, state.rows, state.error) == ("done", 2, 30, "")


def test_one_that_fails_for_good_ends_at_once(monkeypatch):
    made = runner(monkeypatch, [Handle(0, "x: committing.Refused: no")])
    with pytest.raises(Failed, match=r"p.yml:3: out: x: committing.Refused: no$"):
        made.run()
    assert made.states[0].state == "failed"


def test_one_that_never_gets_anywhere_is_given_up(monkeypatch):
    made = runner(monkeypatch, [Handle(0, "gone") for _ in range(5)], tries=3)
    with pytest.raises(Failed, match="for the 3th time in a row"):
        made.run()


def test_stop_ends_all_of_them(monkeypatch):
    handle = Handle(2, endless=True)
    made = runner(monkeypatch, [handle])
    thread = threading.Thread(target=made.run)
    thread.start()
    while (made.states[0].batch or 0) < 1:
        time.sleep(0.001)
    made.stop.set()
    thread.join(30)
    assert handle.stopped and made.states[0].state == "stopped"


class Gone(Handle):
    """Whoever runs it has died."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.dead = error

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        raise self.dead


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError("refused"), "Spark's own process has ended (refused)"),
        (PySparkException("no one there\n\n\tat trace"), "Spark's server does not answer any more (no one there)"),
    ],
)
def test_a_spark_that_has_died_is_told_in_one_line(monkeypatch, error, told):
    with pytest.raises(Failed, match=f"^{re.escape(told)}: start it again, and it goes on where it was$"):
        runner(monkeypatch, [Gone(error)]).run()


def test_why_it_failed_is_told_even_when_spark_dies_over_it(monkeypatch):
    made = runner(monkeypatch, [Handle(0, "x: committing.Refused: no")])
    monkeypatch.setattr(made, "_end", lambda: (_ for _ in ()).throw(PySparkException("no one there")))
    with pytest.raises(Failed, match=r"committing.Refused: no$"):
        made.run()


class Busy(Handle):
    """Always something to do: nobody sees a moment between two micro-batches."""

    asked = 0

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        self.asked += 1
        return progress(self.asked // 3)

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "", "isTriggerActive": True}


def test_one_that_always_has_something_to_do_ends_after_its_micro_batch(monkeypatch):
    """Not when its time is up: an hour, here."""
    handle = Busy(1, endless=True)
    made = runner(monkeypatch, [handle], grace_s=3600.0)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    while (made.states[0].batch or 0) < 1:
        time.sleep(0.001)
    made.stop.set()
    thread.join(60)
    assert handle.stopped and made.states[0].state == "stopped"


def test_pauses_grow_and_have_an_end():
    watched = running.Watched(Query("q", "", "", lambda: None))
    pauses = []
    for failed in (1, 2, 3, 20):
        watched.failures_in_a_row = failed
        pauses.append(watched.pause_s())
    assert pauses == [1, 2, 4, running.PAUSE_MAX_S]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_ask_for_an_end(number):
    stop, before = threading.Event(), signal.getsignal(number)
    with running.ended_by_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def raising(error: Exception) -> Any:
    def write(batch: Any, number: int) -> None:
        raise error

    return sinks._in_few_words(write)


def test_a_micro_batch_that_was_cut_off_says_so_in_few_words():
    """Spark searches the text of it with an expression that overflows the stack of a thread after some thousand letters."""
    trace = "\n".join(f"\tat org.apache.spark.Nowhere{number}" for number in range(500))
    write = raising(PySparkException(f"[SPARK_JOB_CANCELLED] Job 3 cancelled. SQLSTATE: X\n\n{trace}"))
    with pytest.raises(SinkError, match=r"^Job 3 cancelled\.$") as caught:
        write(None, 1)
    assert len("".join(traceback.format_exception(caught.value))) < 1500
    with pytest.raises(PySparkException, match=r"committing\.Refused"):
        raising(PySparkException(f"ottla.pipeline.committing.Refused: no\n{trace}"))(None, 1)


TOLD = """
import signal, sys, threading, time
from ottla.pipeline.files import running
from ottla.pipeline.files.progress import Telling
stop, telling = threading.Event(), Telling()
asked = lambda: telling.say_from_handler("stopping")
with running.ended_by_signals(stop, asked) if sys.argv[1] == "begun" else running.ended_at_once_by_signals():
    print("ready", flush=True)
    while True:
        try:
            time.sleep(0.1)  # a handler may be called only when a wait is over that it was to end
        except KeyboardInterrupt:
            pass  # as py4j does
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("begun", ["begun", "starting"])
def test_who_is_asked_says_so_and_ends_when_asked_again(number, begun):
    """While Spark starts, the first signal ends it: PySpark would swallow an exception, and go on."""
    command = [sys.executable, "-c", TOLD, begun]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        if begun == "begun":
            assert process.stderr.readline() == "stopping\n"
            assert process.poll() is None
            process.send_signal(number)
        assert process.wait(30) == -number
        assert process.stderr.read() == ""


def test_words_load_nothing_heavy():
    """The base install has no Spark: importing the words must not ask for it."""
    code = "import sys; from ottla.pipeline import Pipeline; print({'pyspark', 'yaml', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_the_example_is_right():
    from ottla.pipeline.files.spec import read_file

    spec = read_file(Path(metrics.__file__).with_name("example.yml"))
    assert [sink.name for sink in spec.sinks] == ["counts", "archive"]


def test_no_word_is_hidden_by_a_module_of_the_same_name():
    import ottla.pipeline
    import ottla.pipeline.files.building

    assert [word for word in ottla.pipeline.__all__ if not callable(getattr(ottla.pipeline, word))] == []
