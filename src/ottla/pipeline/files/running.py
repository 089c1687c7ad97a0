"""Keeps the queries of a pipeline alive until they are done or somebody ends them.

A query that fails is started again after a pause that grows, from its checkpoint; a pause begins small again after a batch
that worked. What waiting cannot mend, and what failed too often in a row, ends the whole pipeline: half of one would look
alive. Somebody who ends it lets each query finish its micro-batch first; cut off in the middle it would lose nothing, but
has to do it again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ottla.pipeline.files import failures
from ottla.pipeline.files.building import Query
from ottla.pipeline.files.progress import State

POLL_S = 0.25
FIRST_PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
TRIES = 10
GRACE_S = 30.0
# Spark tells how far the ends are with every micro-batch, and every ten seconds when there is none.
LAG_KNOWN_S = 60.0
# What Spark says of a query until it knows from where to where its first micro-batch goes.
BEGINNING = ("Initializing", "Getting offsets")

# The JVM that this process has started.
GONE = (Py4JError, ConnectionError)
GOES_ON = ": start it again, and it goes on where it was"


class Failed(Exception):
    """A query cannot go on; the text says which, and why."""


class Watched:
    """A query, how it goes, and when to try again."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.state = State(query.name, query.into)
        self.handle: Any = None
        self.failures_in_a_row = 0
        self.start_at = 0.0
        self._told, self._told_at = "", 0.0

    def start(self) -> None:
        self.state.state, self.state.error = "running", ""
        self.handle = self.query.start()

    def take(self, progress: Mapping[str, Any], now: float) -> bool:
        """What Spark said last; False if that is nothing new."""
        is_new = self.state.take(progress)
        self._doubt_lag(progress, now)
        return is_new

    def _doubt_lag(self, progress: Mapping[str, Any], now: float) -> None:
        """The lag is as of the moment when the micro-batch began: after a long one, while the next is under way, or while a
        trigger has not come, it may have grown to anything, and a number that stays would look like one that is true."""
        if progress["timestamp"] != self._told:
            took_s = float((progress.get("durationMs") or {}).get("triggerExecution") or 0) / 1000
            self._told, self._told_at = progress["timestamp"], now - took_s
        if now - self._told_at > LAG_KNOWN_S:
            self.state.lag = None

    def rest(self, state: str) -> None:
        """It does not run any more, or not now: nobody asks how far the ends are."""
        self.state.state, self.state.lag = state, None

    def pause_s(self) -> float:
        return min(PAUSE_MAX_S, FIRST_PAUSE_S * 2.0 ** (self.failures_in_a_row - 1))


class Runner:
    """All queries of one pipeline."""

    def __init__(
        self,
        queries: Sequence[Query],
        changed: Callable[[State], None] = lambda state: None,
        looked: Callable[[Sequence[State]], None] = lambda states: None,
        tries: int = TRIES,
        grace_s: float = GRACE_S,
    ) -> None:
        self.watched = [Watched(query) for query in queries]
        self.stop = threading.Event()
        self._changed, self._looked = changed, looked
        self._tries, self._grace_s = tries, grace_s

    @property
    def states(self) -> list[State]:
        return [each.state for each in self.watched]

    def run(self) -> None:
        """Until all are done, or `stop` is set. Raises Failed if one of them cannot go on."""
        try:
            while not self.stop.is_set() and not all(each.state.state == "done" for each in self.watched):
                for each in self.watched:
                    self._look_after(each)
                self._looked(self.states)
                self.stop.wait(POLL_S)
            self._end()
        except Failed:
            with suppress(*GONE, PySparkException):  # why it failed is what counts
                self._end()
            raise
        except GONE as error:
            raise Failed(f"Spark's own process has ended ({error}){GOES_ON}")
        except PySparkException as error:  # the server of Spark Connect, or the session there
            raise Failed(f"Spark's server does not answer any more ({failures.first_lines(error)}){GOES_ON}")
        finally:
            self._looked(self.states)

    def _look_after(self, each: Watched) -> None:
        if each.state.state in ("starting", "waiting"):
            if time.monotonic() >= each.start_at and not any(map(_is_beginning, self.watched)):
                self._start(each)
        elif each.state.state == "running":
            self._take_progress(each)
            if not each.handle.isActive:
                self._take_end(each)

    def _start(self, each: Watched) -> None:
        try:
            each.start()
        except Exception as error:  # of Spark, of a source, of whatever runs inside of them
            self._failed(each, failures.text_of(error))
        else:
            self._changed(each.state)

    def _take_progress(self, each: Watched) -> None:
        last = each.handle.lastProgress
        if last is None:
            return
        # More than one batch since we last looked: each has rows to be counted.
        several = each.state.batch is not None and int(last["batchId"]) > each.state.batch + 1
        for progress in each.handle.recentProgress if several else [last]:
            if each.take(progress, time.monotonic()):
                each.failures_in_a_row = 0
                self._changed(each.state)

    def _take_end(self, each: Watched) -> None:
        error = each.handle.exception()
        self._take_progress(each)
        if error is None:
            each.rest("done")
            self._changed(each.state)
        else:
            self._failed(each, failures.text_of(error))

    def _failed(self, each: Watched, text: str) -> None:
        each.failures_in_a_row += 1
        each.state.error = failures.cause(text)
        fatal = failures.is_fatal(text)
        if fatal or each.failures_in_a_row >= self._tries:
            each.rest("failed")
            self._changed(each.state)
            often = "" if fatal else f" (for the {each.failures_in_a_row}th time in a row)"
            raise Failed(f"{each.query.where}: {each.state.name}: {each.state.error}{often}".lstrip(": "))
        each.rest("waiting")
        each.state.restarts += 1
        each.start_at = time.monotonic() + each.pause_s()
        self._changed(each.state)

    def _end(self) -> None:
        """Each is asked to end when it has finished its micro-batch, or when its time is up."""
        deadline = time.monotonic() + self._grace_s
        active = [each for each in self.watched if each.handle is not None and each.handle.isActive]
        last = {each.state.name: _last_batch(each.handle) for each in active}
        while active:
            for each in list(active):
                if _has_finished(each.handle, last[each.state.name]) or time.monotonic() > deadline:
                    self._stop(each)
                    active.remove(each)
            time.sleep(0.01)

    def _stop(self, each: Watched) -> None:
        each.handle.stop()
        self._take_progress(each)
        each.rest("stopped")
        self._changed(each.state)


def _is_beginning(each: Watched) -> bool:
    """One at a time: each starts processes of its own, and Spark gives them ten seconds to come up. And who is started first
    must know where it begins before the next does."""
    active = each.handle is not None and each.state.state == "running" and each.handle.isActive
    return bool(active and each.handle.status.get("message", "").startswith(BEGINNING))


def _has_finished(handle: Any, last: int) -> bool:
    """Between two micro-batches, or in one that began only now: where there is always something to do, the next begins so
    soon that nobody would see the moment between them."""
    busy = handle.isActive and handle.status.get("isTriggerActive")
    return not busy or _last_batch(handle) > last


def _last_batch(handle: Any) -> int:
    progress = handle.lastProgress
    return -1 if progress is None else int(progress["batchId"])


@contextmanager
def ended_by_signals(stop: threading.Event, asked: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGINT and SIGTERM set `stop`, and call `asked`; a second one ends the process there and then."""

    def told(number: int, frame: object) -> None:
        if stop.is_set():
            end_now(number, frame)
        stop.set()
        asked()

    with _handled(told):
        yield


@contextmanager
def ended_at_once_by_signals() -> Iterator[None]:
    """While nothing has begun. An exception would not do: PySpark and py4j take it for one of theirs, or answer it with
    pages of log, and go on."""
    with _handled(end_now):
        yield


def end_now(number: int, frame: object) -> None:
    """As if nobody handled it, and without waiting for any thread. Spark's process ends when it finds ours gone."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)
