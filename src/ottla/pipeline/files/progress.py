"""How a query goes: what Spark's progress says in few words, as a line for people or as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

CLEAR_DOWN, UP = "\x1b[J", "\x1b[{}A"


@dataclass
class State:
    """One query as of now."""

    name: str
    into: str
    state: str = "starting"  # starting, running, waiting (to be started again), stopped, failed, done
    batch: int | None = None  # until the first has ended
    rows: int = 0  # so far, in this run
    late: int = 0  # rows that came after the watermark had passed them, and were left out
    rows_per_second: float = 0.0
    lag: int | None = None  # None when nobody knows: no source tells, or what was told is old
    batch_seconds: float = 0.0
    restarts: int = 0
    error: str = ""

    def take(self, progress: Mapping[str, Any]) -> bool:
        """What Spark says of a micro-batch; False if it says nothing new."""
        batch = int(progress["batchId"])
        self.rows_per_second = float(_of_all(progress, "processedRowsPerSecond"))
        self.lag = lag_of(progress.get("sources") or ())
        durations, rows = progress.get("durationMs") or {}, int(_of_all(progress, "numInputRows"))
        # Every ten seconds when there is nothing to do Spark tells the ends as of then, under the number of the micro-batch
        # that comes next: taken for that one, it would hide it when it comes.
        is_idle = rows == 0 and "addBatch" not in durations
        if is_idle or (self.batch is not None and batch <= self.batch):
            return False
        self.batch = batch
        self.rows += rows
        self.late += late_in(progress)
        self.batch_seconds = float(durations.get("triggerExecution") or 0) / 1000
        return True

    def json(self) -> str:
        return json.dumps({"at": round(time.time(), 3), **asdict(self)})

    def line(self, width: int) -> str:
        """counts    3,201 rows/s   lag 12   batch 17 in 0.4 s   120,000 rows"""
        lag = "" if self.lag is None else f"  lag {self.lag:,}"
        if self.state == "running" and self.batch is not None:
            late = f"  {self.late:,} too late" if self.late else ""
            speed, took = f"{self.rows_per_second:>9,.0f} rows/s", f"{self.batch_seconds:.1f} s"
            text = f"{speed}{lag}  batch {self.batch} in {took}  {self.rows:,} rows{late}"
        else:
            text = f"{self.state}{': ' + self.error if self.error else ''}"
        return f"{self.name:{width}}  {text}"


def _of_all(progress: Mapping[str, Any], figure: str) -> float:
    """Spark Connect leaves the sum over all sources to whoever asks."""
    whole = progress.get(figure)
    if whole is None:
        whole = sum(each.get(figure) or 0 for each in progress.get("sources") or ())
    return whole or 0


def late_in(progress: Mapping[str, Any]) -> int:
    """As the steps with state count them: a group has added up what it could before it looks at the time."""
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in progress.get("stateOperators") or ())


def lag_of(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """Offsets that are there and were not read, over all partitions; None where no source knows."""
    known = [_lag(source.get("endOffset"), source.get("latestOffset")) for source in sources]
    numbers = [each for each in known if each is not None]
    return sum(numbers) if numbers else None


def _lag(end: Any, latest: Any) -> int | None:
    there, read = _positions(latest), _positions(end)
    if not there or end is None:  # a query that has not begun does not say from where
        return None
    return sum(max(0, offset - read.get(where, 0)) for where, offset in there.items())


def _positions(value: Any) -> dict[str, int]:
    """Numbers by the path to them, of whatever shape the source gives its offsets."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    found: dict[str, int] = {}
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, int) and not isinstance(each, bool):
                found[key] = each
            elif isinstance(each, dict) and not key.startswith("@"):
                found |= {f"{key}/{name}": number for name, number in _positions(each).items()}
    return found


class Telling:
    """Tells whoever watches: lines that are drawn over on a terminal, JSON elsewhere."""

    def __init__(self, out: TextIO | None = None, as_json: bool | None = None) -> None:
        self._out = out or sys.stdout
        self._as_json = not self._out.isatty() if as_json is None else as_json
        self._drawn = 0

    def changed(self, state: State) -> None:
        if self._as_json:
            self._print(state.json())

    def draw(self, states: Sequence[State]) -> None:
        if self._as_json:
            return
        width = max((len(each.name) for each in states), default=0)
        up = UP.format(self._drawn) if self._drawn else ""
        self._out.write(up + "\r" + CLEAR_DOWN + "".join(f"{each.line(width)}\n" for each in states))
        self._out.flush()
        self._drawn = len(states)

    def say(self, text: str) -> None:
        """A line that stays; programs get it on standard error."""
        if self._as_json:
            print(text, file=sys.stderr, flush=True)
        else:
            self._drawn = 0
            self._print(text)

    def say_from_handler(self, text: str) -> None:
        """A line at once, on standard error and past every buffer: whoever handles a signal may have cut off a write."""
        self._drawn = 0
        echo = "\r" if sys.stderr.isatty() else ""  # over the ^C that the terminal shows
        os.write(sys.stderr.fileno(), f"{echo}{text}\n".encode())

    def _print(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()
