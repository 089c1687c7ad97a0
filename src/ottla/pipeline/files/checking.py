"""A pipeline held against what is there: do the topics exist, do their records fit, does Spark understand the steps?

The answer is the plan in few words: what is read, from how many partitions and how much of it; the columns of each view;
where everything goes, how often and how surely. Nothing is written and nothing is started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.pipeline.blocking import Broker
from ottla.pipeline.files import building, formats, sinks, sources, steps
from ottla.pipeline.files.codecs import ERROR
from ottla.pipeline.files.failures import first_lines
from ottla.pipeline.files.nodes import WrongPipeline, suggestion
from ottla.pipeline.files.spec import BOOTSTRAP, Sink, Source, Spec
from ottla.pipeline.options import PROGRESS_TOPIC

BUDGET_S = 10.0
SURELY = {"exactly-once": "exactly once", "at-least-once": "at least once"}


@dataclass
class Part:
    """A source, a step or a sink, and what was found out about it."""

    kind: str
    name: str
    what: str
    notes: list[str] = field(default_factory=list)
    is_wrong: bool = False


@dataclass
class Report:
    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


Ends = dict[TopicPartition, tuple[int, int]]


class Live:
    """What the broker says of its topics."""

    def __init__(self, bootstrap: str, names: Mapping[str, int], ends: Ends) -> None:
        self.bootstrap = bootstrap
        self.names = names
        self.ends = ends

    def read_by(self, source: Source) -> list[str]:
        if source.kind == "pattern":
            return [name for name in self.names if re.search(source.target, name)]
        return [name for name in source.target.split(",") if name in self.names]

    def missing(self, source: Source) -> list[str]:
        return [] if source.kind == "pattern" else [n for n in source.target.split(",") if n not in self.names]

    def of(self, topics: Iterable[str]) -> Ends:
        wanted = set(topics)
        return {where: ends for where, ends in self.ends.items() if where.topic in wanted}


Clusters = Mapping[str, Live]


def look(spec: Spec) -> dict[str, Live]:
    """Every cluster that is read or written, by its bootstrap: what topics are there, and where those that are read end."""
    read: dict[str, list[Source]] = {}
    for source in spec.sources:
        if source.reads_topics:
            read.setdefault(spec.bootstrap_of(source.options), []).append(source)
        if source.quarantine:
            read.setdefault(spec.bootstrap_of(source.quarantine_options), [])
    for sink in spec.sinks:
        if sink.kind == "topic":
            read.setdefault(spec.bootstrap_of(sink.options), [])
    return {bootstrap: _look(bootstrap, sources_there) for bootstrap, sources_there in read.items()}


def _look(bootstrap: str, read: list[Source]) -> Live:
    """One question about topics, one about where they begin and end."""
    with Broker(bootstrap, client_id="ottla-pipeline", budget_s=BUDGET_S) as broker:
        return broker.run(_found(broker.cluster, bootstrap, read))


async def _found(cluster: Cluster, bootstrap: str, read: list[Source]) -> Live:
    found = await cluster.metadata(None)
    theirs = [topic for topic in found.topics if not topic.is_internal and topic.name != PROGRESS_TOPIC]
    names = {topic.name or "": len(topic.partitions) for topic in theirs}
    wanted = {name for source in read for name in Live(bootstrap, names, {}).read_by(source)}
    places = [TopicPartition(name, number) for name in sorted(wanted) for number in range(names[name])]
    first = await cluster.list_offsets(dict.fromkeys(places, EARLIEST)) if places else {}
    last = await cluster.list_offsets(dict.fromkeys(places, LATEST)) if places else {}
    return Live(bootstrap, names, {where: (first[where].offset, last[where].offset) for where in places})


def missing(spec: Spec, clusters: Clusters) -> list[str]:
    """Topics that are read and are not there: known without Spark."""
    read = [source for source in spec.sources if source.reads_topics]
    return [each for source in read for each in _missing(source, clusters[spec.bootstrap_of(source.options)])]


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def check(spark: SparkSession, spec: Spec, clusters: Clusters, sample: int) -> Report:
    """Everything, in the order of the file; a part that is wrong does not keep others from being looked at."""
    report = Report()
    views: dict[str, DataFrame] = {}
    building.forget(spark, spec)
    for source in spec.sources:
        part = Part("source", source.name, _reads(source))
        report.parts.append(part)
        if source.reads_topics:
            live = clusters[spec.bootstrap_of(source.options)]
            _judge_topics(source, live, part, report)
            _note_quarantine(source, clusters.get(spec.bootstrap_of(source.quarantine_options)), part)
        _build(report, part, lambda s=source: _view(views, s.name, sources.frame_of(spark, s, spec)), source.where)
        if source.reads_topics and source.may_refuse and source.name in views and sample:
            _judge_sample(spark, source, spec, live, sample, part, report)
    for step in spec.steps:
        part = Part(
            "step", step.name, "SQL" if step.sql else f"Python {getattr(step.function, '__name__', step.function)}"
        )
        report.parts.append(part)
        _build(
            report,
            part,
            lambda s=step: _view(views, s.name, steps.frame_of(spark, s, views, spec.directory)),
            step.where,
        )
    for sink in spec.sinks:
        part = Part("sink", sink.name, _writes(sink))
        report.parts.append(part)
        if sink.kind == "topic":
            _judge_target(sink, clusters[spec.bootstrap_of(sink.options)], part)
        if sink.of in views:
            _build(report, part, lambda s=sink: sinks.writer_of(views[s.of], s, spec), sink.where)
    return report


def _view(views: dict[str, DataFrame], name: str, frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView(name)
    views[name] = frame
    return frame


def _build(report: Report, part: Part, make: object, where: str) -> None:
    """Spark judges it; what it says is a problem of this part alone."""
    assert callable(make)
    try:
        made = make()
    except steps.NoView as error:
        if any(each.name == error.name and each.is_wrong for each in report.parts):
            part.notes.append(f"not judged: {error.name} is wrong")
        else:
            report.problems += error.problems
        part.is_wrong = True
    except WrongPipeline as error:
        part.is_wrong = True
        report.problems += error.problems
    except PySparkException as error:
        part.is_wrong = True
        report.problems.append(f"{where}: {part.kind} {part.name!r}: {first_lines(error)}")
    else:
        if isinstance(made, DataFrame) or hasattr(made, "schema"):
            kind = "stream" if made.isStreaming else "table"
            part.notes.append(
                f"{kind} of {', '.join(f'{f.name} {f.dataType.simpleString()}' for f in made.schema.fields)}"
            )


# Sources


def _reads(source: Source) -> str:
    form = f", {source.format.name}" if source.kind not in ("catalog", "rate") else ""
    shape = ", newest of each key" if source.as_table and source.reads_topics else ""
    shape += " in each topic" if shape and source.kind != "topic" else ""
    return f"{source.kind} {source.target}{form}{shape}"


def _missing(source: Source, live: Live) -> list[str]:
    told = []
    where = "" if live.bootstrap == BOOTSTRAP else f" -b {live.bootstrap}"
    for name in live.missing(source):
        made = f"create it with `ottla topic create {name}{where}`"
        close = suggestion(name, live.names) if live.names else ""
        close = close if "did you mean" in close else ""
        told.append(f"{source.where}: there is no topic {name!r}{close}; {made}".replace("?;", "? or"))
    return told


def _judge_topics(source: Source, live: Live, part: Part, report: Report) -> None:
    report.problems += _missing(source, live)
    for name in live.read_by(source):
        ends = live.of([name])
        records = sum(last - first for first, last in ends.values())
        part.notes.append(f"topic {name}: {counted(live.names[name], 'partition')}, {counted(records, 'offset')}")


def _note_quarantine(source: Source, live: Live | None, part: Part) -> None:
    if source.quarantine and live is not None:
        there = "" if source.quarantine in live.names else ", which is not there yet"
        part.notes.append(f"what does not fit goes to topic {source.quarantine}{there}")
    elif source.may_refuse:
        part.notes.append("a record that does not fit ends the query: name a 'quarantine' topic to go on")


def _judge_sample(
    spark: SparkSession, source: Source, spec: Spec, live: Live, sample: int, part: Part, report: Report
) -> None:
    """The last records of each partition, decoded as the query would."""
    ends = {where: (max(first, last - sample), last) for where, (first, last) in live.of(live.read_by(source)).items()}
    if not ends:
        return  # there is no topic, which is said already
    if not any(last > first for first, last in ends.values()):
        part.notes.append("nothing to try the format on: the topic is empty")
        return
    options = {
        "kafka.bootstrap.servers": spec.bootstrap,
        **sources.COMMITTED,
        **sources.of_both(source.options),
        "subscribe": ",".join(live.read_by(source)),
        "startingOffsets": _offsets({where: first for where, (first, _) in ends.items()}),
        "endingOffsets": _offsets({where: last for where, (_, last) in ends.items()}),
        "includeHeaders": "true",
    }
    decoded = formats.decoded(spark.read.format("ottla").options(**options).load(), source, spec.directory)
    seen = decoded.select(F.col(ERROR).isNotNull().alias("bad")).collect()
    bad = sum(row.bad for row in seen)
    part.notes.append(f"{len(seen) - bad} of the last {len(seen)} records fit")
    if bad:
        headers = {h.key: bytes(h.value).decode() for h in formats.bad(decoded, source, spec.directory).first().headers}  # type: ignore[union-attr]
        place = f"{headers['ottla.topic']}-{headers['ottla.partition']} offset {headers['ottla.offset']}"
        told = f"the record at {place} does not fit: {headers['ottla.error']}"
        if source.quarantine:
            part.notes.append(told)
        else:
            report.problems.append(f"{source.format.where}: {told}; set 'schema' right, or name a 'quarantine' topic")


def _offsets(positions: Mapping[TopicPartition, int]) -> str:
    table: dict[str, dict[str, int]] = {}
    for where, offset in positions.items():
        table.setdefault(where.topic, {})[str(where.partition)] = offset
    return json.dumps(table)


# Sinks


def _writes(sink: Sink) -> str:
    surely = {
        "topic": SURELY.get(sink.delivery, ""),
        "parquet": "exactly once",
        "jdbc": "exactly once" if sink.target.startswith(sinks.POSTGRES) else "at least once",
    }.get(sink.kind, "to look at")
    often = (
        f"every {sink.trigger}" if sink.trigger and sink.trigger[0].isdigit() else sink.trigger or "as fast as it can"
    )
    form = f", {sink.format.name}" if sink.kind == "topic" else ""
    return f"{sink.of} into {sink.into}{form}, {sink.mode}, {surely}, {often}"


def _judge_target(sink: Sink, live: Live, part: Part) -> None:
    count = live.names.get(sink.target)
    there = f"topic {sink.target}: {counted(count, 'partition')}" if count else f"topic {sink.target} is not there yet"
    part.notes.append(there if count else f"{there}: the broker makes it if it may (auto.create.topics.enable)")
