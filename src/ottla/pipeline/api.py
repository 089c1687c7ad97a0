"""A pipeline from Python, with the words of the file.

Every word is put down as the file would have it and read by the same reader, so that there is one set of rules and one set
of messages. What needs Spark is loaded when it is first used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipeline.files.progress import State
    from ottla.pipeline.files.running import Runner
    from ottla.pipeline.files.spec import Spec

Words = dict[str, Any]
FILES = "ottla.pipeline.files"


def topic(name: str | Sequence[str], **words: Any) -> Words:
    """A stream of the records of a topic, or of several: `topic("orders", format="json", schema="id INT, ...")`."""
    return {"topic": name, **words} if isinstance(name, str) else {"topics": list(name), **words}


def table(name: str, **words: Any) -> Words:
    """The newest record of each key of a topic, looked at anew for each micro-batch."""
    return {"topic": name, "as": "table", **words}


def from_files(path: str, **words: Any) -> Words:
    """What is in a file or a directory; with `stream=True` also what comes into it."""
    return {"files": path, "as": "stream" if words.pop("stream", False) else "table", **words}


def catalog(name: str, **words: Any) -> Words:
    """A table of Spark's catalog."""
    return {"catalog": name, **words}


def rate(rows_per_second: int, **words: Any) -> Words:
    """Rows out of nowhere, to try things with."""
    return {"rate": rows_per_second, **words}


def to_topic(name: str, **words: Any) -> Words:
    """Records, once each: `to_topic("counts", key="page", mode="update")`."""
    return {"topic": name, **words}


def to_parquet(path: str, **words: Any) -> Words:
    return {"parquet": path, **words}


def to_jdbc(address: str, **words: Any) -> Words:
    return {"jdbc": address, **words}


def to_console(**words: Any) -> Words:
    return {"console": "", **words}


def to_memory(name: str = "", **words: Any) -> Words:
    """A table in the driver's memory, for tests."""
    return {"memory": name, **words}


class Pipeline:
    """Sources, steps and sinks, and what runs of them."""

    def __init__(
        self,
        name: str,
        *,
        bootstrap: str | None = None,
        quarantine: str | None = None,
        quarantine_options: Mapping[str, str] | None = None,
        trigger: str | None = None,
        checkpoints: str | None = None,
        spark: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self._words: Words = {
            "name": name,
            "bootstrap": bootstrap,
            "quarantine": quarantine,
            "quarantine_options": dict(quarantine_options or {}),
            "trigger": trigger,
            "checkpoints": checkpoints,
            "spark": dict(spark or {}),
            "sources": {},
            "steps": {},
            "sinks": {},
        }
        self._directory = Path(directory or Path.cwd())
        self._file: Path | None = None
        self._session: SparkSession | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> Pipeline:
        """The pipeline of a file, to be looked at and run from here."""
        made = cls(Path(path).stem, directory=Path(path).parent)
        made._file = Path(path)
        return made

    def source(self, name: str, what: Words) -> Pipeline:
        self._words["sources"][name] = what
        return self

    def sql(self, name: str, text: str, **words: Any) -> Pipeline:
        """A step in SQL over the views that are there already."""
        self._words["steps"][name] = {"sql": text, **words}
        return self

    def step(self, name: str, function: Callable[..., Any] | str, **words: Any) -> Pipeline:
        """A step in Python: the views come as parameters of the same names."""
        self._words["steps"][name] = {"python": function, **words}
        return self

    def sink(self, name: str, what: Words, *, of: str) -> Pipeline:
        self._words["sinks"][name] = {"from": of, **what}
        return self

    @property
    def spec(self) -> Spec:
        """All of it, judged; raises WrongPipeline with every mistake."""
        return self._judged()

    def _judged(self, **what: Any) -> Spec:
        reader, directory = import_module(f"{FILES}.spec"), self._directory.resolve()
        found: Spec = reader.read_file(self._file) if self._file else reader.read_object(self._words, directory, **what)
        return found

    def session(self, *, master: str | None = None, remote: str | None = None) -> SparkSession:
        """The session it runs in: the one that is there, or a new one with the settings of the pipeline."""
        if self._session is None:
            spec = self._judged(needs=())
            make = import_module("ottla.pipeline.session").session
            self._session = make(spec.name, master=master, remote=remote, conf=spec.settings)
        return self._session

    def views(self) -> dict[str, DataFrame]:
        """Every source and step as a frame, to look at; sinks need not be there yet."""
        spec = self._judged(needs=("sources",))
        made: dict[str, DataFrame] = import_module(f"{FILES}.building").views_of(self.session(), spec)
        return made

    def start(self) -> Running:
        """Begin, and give the cell back; `stop()` ends it, `wait()` waits until it has ended. One that runs already, here or
        as `ottla pipeline run`, is not started a second time: status.Runs is raised."""
        spec, building, status = self.spec, import_module(f"{FILES}.building"), import_module(f"{FILES}.status")
        adopt = import_module("ottla.pipeline.session").adopt
        with ExitStack() as held:
            held.enter_context(status.running(spec.state_directory))
            notes = status.Notes(spec.state_directory, spec.name)
            queries = building.queries_of(self.session(), spec, building.views_of(self.session(), spec))
            runner = import_module(f"{FILES}.running").Runner(queries, looked=notes.looked)
            held.callback(lambda: notes.ended(runner.states))
            return Running(runner, lambda: adopt(self.session()), held.pop_all())

    def run(self) -> None:
        """Begin, and wait until it has ended: for a pipeline with `trigger="available-now"`, until everything is done."""
        self.start().wait()


class Running:
    """A pipeline that runs beside the caller."""

    def __init__(self, runner: Runner, prepare: Callable[[], None], held: ExitStack) -> None:
        self._runner = runner
        self._prepare = prepare
        self._held = held  # let go when it has ended
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ottla pipeline", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._held:
                self._prepare()
                self._runner.run()
        except BaseException as error:  # told to whoever waits
            self._error = error

    @property
    def states(self) -> list[State]:
        """How each query goes."""
        return self._runner.states

    def wait(self, timeout_s: float | None = None) -> bool:
        """True when it has ended; what made it fail is raised here."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Finish the micro-batches, and end."""
        self._runner.stop.set()
        self.wait()

    def __repr__(self) -> str:
        return "\n".join(state.line(max(len(each.name) for each in self.states)) for state in self.states)
