"""What a pipeline is: sources, steps, sinks, and a few words about all of them. Read from nodes, judged, never half right.

Everything that can be known without Spark and without a broker is checked here; `checking` asks the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ottla.pipeline.files.nodes import Node, Problems, Section, from_file, from_object, suggestion

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DURATION = re.compile(r"(\d+)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?)")
UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
DURATIONS = "5 seconds, 10 minutes or 1 hour"

BOOTSTRAP = "localhost:9092"
BOOTSTRAP_OPTION = "kafka.bootstrap.servers"
STARTS = ("earliest", "latest")
FORMATS = ("json", "avro", "protobuf", "csv", "raw")
FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
KEYS = ("string", "raw")
MODES = ("append", "update", "complete")
DELIVERIES = ("exactly-once", "at-least-once")
WHOLE = ("sources", "sinks")
AVAILABLE_NOW, ONCE = "available-now", "once"

SOURCE_KINDS = ("topic", "topics", "pattern", "files", "catalog", "rate")
SINK_KINDS = ("topic", "parquet", "jdbc", "console", "memory")
# Words people will try, and what they are told.
NOT_SINKS = {
    "delta": "Delta Lake has no release for this version of Spark (delta-spark wants pyspark <= 4.2): write 'parquet'",
    "iceberg": "Iceberg has no runtime for this version of Spark: write 'parquet', or 'topic' and another program",
    "kafka": "write 'topic'",
}


@dataclass(frozen=True)
class Format:
    """How bytes become columns and columns become bytes."""

    name: str
    schema: str = ""
    message: str = ""  # protobuf: which of the messages in the schema
    skip_bytes: int = 0  # what stands before the record itself, such as the 5 bytes of a registry's header
    options: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    writers: Mapping[int, str] = field(default_factory=dict)  # avro: what a registry's numbers stand for, to read with


@dataclass(frozen=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True)
class Source:
    name: str
    where: str
    kind: str
    target: str  # topics with commas between, a pattern, a path, a table of the catalog, or rows per second
    format: Format
    key: str
    as_table: bool  # what is there now, looked at anew for each micro-batch; not a stream
    start: str
    quarantine: str
    watermark: Watermark | None
    options: Mapping[str, str]
    quarantine_options: Mapping[str, str] = field(default_factory=dict)  # of the sink that writes to it

    @property
    def reads_topics(self) -> bool:
        return self.kind in ("topic", "topics", "pattern")

    @property
    def may_refuse(self) -> bool:
        """Whether there can be a record that does not fit: bytes are what they are, but a table needs keys."""
        return self.format.name != "raw" or self.as_table


@dataclass(frozen=True)
class Deduplicate:
    columns: tuple[str, ...]
    within_watermark: bool


@dataclass(frozen=True)
class Step:
    name: str
    where: str
    sql: str
    function: Callable[..., Any] | str | None
    arguments: Mapping[str, Any]
    watermark: Watermark | None
    deduplicate: Deduplicate | None


@dataclass(frozen=True)
class Sink:
    name: str
    where: str
    of: str
    kind: str
    target: str
    format: Format
    key: str
    mode: str
    trigger: str
    delivery: str
    table: str
    keys: tuple[str, ...]
    user: str
    password: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]

    @property
    def into(self) -> str:
        """Where to, for people and logs: the address of a database may hold a password, and is not told."""
        if self.kind == "jdbc":
            return f"{self.target.split(':')[1]} {self.table}"
        return f"{self.kind} {self.target}".strip()


@dataclass(frozen=True)
class Spec:
    name: str
    where: str
    directory: Path  # where relative paths begin
    bootstrap: str
    checkpoints: str
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]

    def path(self, text: str) -> str:
        """A path of the file, seen from where the command runs; an address stays as it is."""
        return text if "://" in text else str(self.directory / text)

    def bootstrap_of(self, options: Mapping[str, str]) -> str:
        """The cluster that a source or a sink with these options means: its own, or that of the pipeline."""
        own = [value for name, value in options.items() if name.lower() == BOOTSTRAP_OPTION]
        return own[-1] if own else self.bootstrap

    @property
    def state_directory(self) -> Path:
        """What is known of a run on this machine: who runs it, and how it goes."""
        return self.directory / ".ottla" / self.name

    @property
    def checkpoint_root(self) -> str:
        return self.path(self.checkpoints) if self.checkpoints else str(self.state_directory / "checkpoints")


def read_file(path: Path, bootstrap: str | None = None) -> Spec:
    problems = Problems()
    root = from_file(path, problems)
    return _spec(root, path.parent.resolve(), path.stem, bootstrap, problems)


def read_object(value: Mapping[str, Any], directory: Path, needs: Sequence[str] = WHOLE) -> Spec:
    """The same from Python: `value` has the shape of the file. Whoever only looks at views needs no sinks."""
    return _spec(from_object(value), directory, "pipeline", None, Problems(), needs)


def _spec(
    root: Node, directory: Path, name: str, bootstrap: str | None, problems: Problems, needs: Sequence[str] = WHOLE
) -> Spec:
    top = Section(root, "a pipeline", problems)
    quarantine, trigger = (top.text("quarantine"), top.options("quarantine_options")), _trigger(top, "")
    spec = Spec(
        name=top.text("name", name),
        where=top.where,
        directory=directory,
        bootstrap=bootstrap or top.text("bootstrap", BOOTSTRAP),
        checkpoints=top.text("checkpoints"),
        settings=top.options("spark"),
        sources=tuple(_source(key, each, *quarantine) for key, each in top.each("sources", "source {!r}".format)),
        steps=tuple(_step(key, each) for key, each in top.each("steps", "step {!r}".format)),
        sinks=tuple(_sink(key, each, trigger) for key, each in top.each("sinks", "sink {!r}".format)),
    )
    top.node("bootstrap")
    top.end()
    _judge_as_a_whole(spec, top, needs)
    problems.raise_any()
    return spec


# Sources


def _source(name: str, section: Section, quarantine: str, quarantine_options: Mapping[str, str]) -> Source:
    kind = _one_of(section, SOURCE_KINDS, {}, "topic: NAME")
    topics = kind in ("topic", "topics", "pattern")
    target = ",".join(section.words(kind)) if kind else ""
    if kind and not target:
        section.wrong(f"{kind!r} is empty: write what to read", kind)
    source = Source(
        name=name,
        where=section.where,
        kind=kind,
        target=target,
        format=_source_format(section, topics) if kind in _WITH_FORMAT else Format("raw"),
        key=section.choice("key", KEYS, "string") if topics else "",
        as_table=section.choice("as", ("stream", "table"), _usual_shape(kind)) == "table",
        start=section.choice("start", STARTS, "earliest") if topics else "",
        quarantine=section.text("quarantine", quarantine) if topics else "",
        watermark=_watermark(section),
        options=section.options("options"),
        quarantine_options={**quarantine_options, **section.options("quarantine_options")} if topics else {},
    )
    if source.as_table and source.watermark:
        section.wrong("a table has no watermark: leave it out, or write 'as: stream'", "watermark")
    if kind == "rate" and (source.as_table or not target.isdigit()):
        section.wrong("'rate' makes a stream of so many rows in a second: write rate: 10", "rate")
    section.end()
    return source


_WITH_FORMAT = ("topic", "topics", "pattern", "files")


def _usual_shape(kind: str) -> str:
    return "table" if kind in ("files", "catalog") else "stream"


def _one_of(section: Section, kinds: Iterable[str], told: Mapping[str, str], advice: str) -> str:
    """Exactly one of these keys says what kind of thing it is."""
    found = [kind for kind in kinds if section.has(kind)]
    for word, what in told.items():
        if section.has(word):
            section.node(word)
            section.wrong(what, word)
            return ""
    if len(found) == 1:
        return found[0]
    if found:
        section.wrong(f"{section.title} is {' and '.join(map(repr, found))} at once: keep one of them", found[1])
    else:
        section.wrong(f"{section.title} does not say what it is: write {advice}, or one of {', '.join(kinds)}")
    for kind in kinds:
        section.node(kind)
    return ""


def _source_format(section: Section, topics: bool) -> Format:
    made = _format(section, FORMATS if topics else FILE_FORMATS, topics)
    return replace(made, writers=_writers(section, made.skip_bytes)) if made.name == "avro" else made


def _writers(section: Section, skip_bytes: int) -> dict[int, str]:
    found = section.options("writers")
    if not all(number.isdecimal() for number in found):
        section.wrong("'writers' are schemas by their numbers in the registry: write {1: first.avsc}", "writers")
        return {}
    if found and skip_bytes:
        section.wrong("'writers' read the header that 'skip_bytes' passes over: keep one of them", "skip_bytes")
    return {int(number): text for number, text in found.items()}


def _format(section: Section, among: tuple[str, ...], topics: bool) -> Format:
    name = section.choice("format", among, among[0]) if topics or section.has("format") else among[0]
    made = Format(
        name=name,
        schema=_schema(section),
        message=section.text("message") if name == "protobuf" else "",
        skip_bytes=section.number("skip_bytes", 0) if name in ("avro", "protobuf") else 0,
        options=section.options("format_options"),
        where=section.where_of("schema" if section.has("schema") else "format"),
    )
    wanted = {
        "json": "its columns, such as 'user STRING, at TIMESTAMP'",
        "csv": "its columns, such as 'user STRING, at TIMESTAMP'",
        "avro": "the path of an .avsc file, or the schema itself",
        "protobuf": "the path of a descriptor set (protoc --include_imports --descriptor_set_out=FILE)",
    }
    if topics and name in wanted and not made.schema:
        section.wrong(f"{section.title} needs 'schema': write {wanted[name]}")
    if topics and name == "protobuf" and not made.message:
        section.wrong(f"{section.title} needs 'message': write the full name of the message, such as shop.Order")
    return made


def _schema(section: Section) -> str:
    """Spark's words in one text, or a mapping of columns to types."""
    node = section.node("schema")
    if node is not None and isinstance(node.value, dict):
        return ", ".join(f"`{column}` {each.value}" for column, each in node.value.items())
    return section.text("schema")


def _watermark(section: Section) -> Watermark | None:
    inner = section.inner("watermark")
    if inner is None:
        return None
    column = inner.text("column", needed="the column with the time of the event")
    delay = _duration(inner, "delay", inner.text("delay", needed=DURATIONS))
    inner.end()
    return Watermark(column, delay)


def _duration(section: Section, key: str, text: str) -> str:
    """As Spark writes it; people also write 5s."""
    if not text:
        return ""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        section.wrong(f"{key!r} is not a length of time: {text!r}; write {DURATIONS}", key)
        return ""
    return f"{match[1]} {UNITS.get(match[2], match[2])}"


# Steps


def _step(name: str, section: Section) -> Step:
    kind = _one_of(section, ("sql", "python"), {}, "sql: SELECT ...")
    python = section.node("python") if kind == "python" else None
    function = python.value if python is not None else None
    if python is not None and not callable(function) and ":" not in str(function):
        section.wrong(f"'python' must name a file or module and a function: steps.py:{function}", "python")
    step = Step(
        name=name,
        where=section.where,
        sql=section.text("sql") if kind == "sql" else "",
        function=function,
        arguments=section.values("arguments") if kind == "python" else {},
        watermark=_watermark(section),
        deduplicate=_deduplicate(section),
    )
    if kind == "sql" and not step.sql.strip():
        section.wrong("'sql' is empty: write SELECT ...", "sql")
    section.end()
    return step


def _deduplicate(section: Section) -> Deduplicate | None:
    inner = section.inner("deduplicate")
    if inner is None:
        return None
    columns = inner.words("columns")
    if not columns:
        inner.wrong("'deduplicate' needs 'columns': write those that tell two rows apart")
    made = Deduplicate(columns, inner.flag("within_watermark", True))
    inner.end()
    return made


# Sinks


def _sink(name: str, section: Section, trigger: str) -> Sink:
    kind = _one_of(section, SINK_KINDS, NOT_SINKS, "topic: NAME")
    sink = Sink(
        name=name,
        where=section.where,
        of=section.text("from", needed="the name of a source or a step"),
        kind=kind,
        target=section.text(kind) if kind else "",
        format=_sink_format(section) if kind == "topic" else Format("raw"),
        key=section.text("key") if kind == "topic" else "",
        mode=section.choice("mode", MODES, "append"),
        trigger=_trigger(section, trigger),
        delivery=section.choice("delivery", DELIVERIES, "exactly-once") if kind == "topic" else "",
        table=section.text("table", needed="the table to write to") if kind == "jdbc" else "",
        keys=section.words("keys") if kind == "jdbc" else (),
        user=section.text("user") if kind == "jdbc" else "",
        password=section.text("password") if kind == "jdbc" else "",
        partition_by=section.words("partition_by") if kind == "parquet" else (),
        options=section.options("options"),
    )
    _judge_sink(sink, section)
    section.end()
    return sink


def _sink_format(section: Section) -> Format:
    """Like a source's, but JSON and CSV need no schema: the columns say it all."""
    name = section.choice("format", FORMATS, "json")
    if name in ("avro", "protobuf"):
        return _format(section, FORMATS, True)
    return Format(name, options=section.options("format_options"), where=section.where_of("format"))


def _judge_sink(sink: Sink, section: Section) -> None:
    if sink.kind in ("topic", "parquet", "jdbc") and not sink.target:
        section.wrong(f"{sink.kind!r} is empty: write where to", sink.kind)
    if sink.kind == "parquet" and sink.mode != "append":
        section.wrong("files are only added to: write 'mode: append' (with a watermark, for an aggregate)", "mode")
    if sink.kind == "jdbc" and sink.target and not sink.target.startswith("jdbc:"):
        section.wrong("an address of JDBC begins with jdbc: write jdbc:postgresql://HOST:5432/DATABASE", "jdbc")
    if sink.kind == "jdbc" and sink.mode == "update" and not sink.keys:
        section.wrong("'mode: update' needs 'keys': write the columns of the table's primary key", "mode")


def _trigger(section: Section, default: str) -> str:
    text = section.text("trigger", default)
    if text in ("", AVAILABLE_NOW, ONCE):
        return text
    if text in ("continuous", "real-time", "realtime"):
        section.wrong("Spark has real-time and continuous triggers only for its own connectors: write a length of time")
        return ""
    if not DURATION.fullmatch(text.strip()):
        section.wrong(f"'trigger' cannot be {text!r}: write 5 seconds, {AVAILABLE_NOW} or {ONCE}", "trigger")
        return ""
    return _duration(section, "trigger", text)


# The whole


def _judge_as_a_whole(spec: Spec, top: Section, needs: Sequence[str]) -> None:
    if not NAME.fullmatch(spec.name.replace("-", "_")):
        top.wrong(f"'name' cannot be {spec.name!r}: write letters, digits, - and _", "name")
    for word in needs:
        if not getattr(spec, word):
            top.wrong(f"a pipeline needs {word!r}: write at least one; `ottla pipeline init` shows how")
    seen: dict[str, str] = {}
    for name, where in [(each.name, each.where) for each in spec.sources] + [
        (each.name, each.where) for each in spec.steps
    ]:
        _judge_name(name, where, seen, top)
    sinks: dict[str, str] = {}
    for sink in spec.sinks:
        _judge_name(sink.name, sink.where, sinks, top)
        if sink.of and sink.of not in seen:
            top.wrong_at(sink.where, f"there is no source or step {sink.of!r}{suggestion(sink.of, seen)}")
    _judge_directories(spec, top)


def _judge_name(name: str, where: str, seen: dict[str, str], top: Section) -> None:
    if not NAME.fullmatch(name):
        top.wrong_at(where, f"{name!r} cannot be a name: write letters, digits and _, so that SQL can say it")
    if name in seen:
        top.wrong_at(where, f"{name!r} is taken by {seen[name]}: SQL knows sources and steps by name; choose another")
    seen[name] = where


def _judge_directories(spec: Spec, top: Section) -> None:
    """Two streams that add to one directory share one log of files, and lose data without a word."""
    seen: dict[str, str] = {}
    for sink in spec.sinks:
        place = os.path.normpath(spec.path(sink.target))
        if sink.kind == "parquet" and place in seen:
            top.wrong_at(sink.where, f"{seen[place]!r} writes to {sink.target} too: UNION them in a step")
        if sink.kind == "parquet":
            seen[place] = sink.name
