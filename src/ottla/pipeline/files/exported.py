"""What the definitions of a declarative pipeline call: the frames of a pipeline's file, made for `spark-pipelines`.

There, a query function may not ask Spark anything, not even for the columns of a frame, and definitions make no temporary
views. So all frames are made while the definitions are loaded, and a step in SQL has the views before it as common table
expressions. Sinks and groups have names of their own, since the checkpoints are others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ottla.pipeline.files import formats, sources, steps
from ottla.pipeline.files.building import quarantine_of
from ottla.pipeline.files.declarative import name_of_quarantine, quarantines
from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.sinks import topic_options
from ottla.pipeline.files.spec import Sink, Spec, Step, read_file


class Exported:
    """By the names of sinks: what each is given, and how those that are topics are reached."""

    def __init__(self, spark: SparkSession, file: str, bootstrap: str | None) -> None:
        spec = read_file(Path(file), bootstrap)
        spec = replace(spec, name=f"{spec.name}-declarative")
        views = _views(spark, spec)
        self.frames: dict[str, Any] = {sink.name: _given(views, sink, spec) for sink in spec.sinks}
        self.options = {sink.name: topic_options(sink, spec) for sink in spec.sinks if sink.kind == "topic"}
        for source in quarantines(spec):
            name = name_of_quarantine(source)
            self.frames[name] = sources.quarantined(spark, source, spec)
            self.options[name] = topic_options(quarantine_of(source, spec), spec)


def _views(spark: SparkSession, spec: Spec) -> dict[str, Any]:
    views: dict[str, Any] = {source.name: sources.frame_of(spark, source, spec) for source in spec.sources}
    for step in spec.steps:
        made = in_one_query(step, views) if step.sql else step
        views[step.name] = steps.frame_of(spark, made, views, spec.directory)
    return views


def in_one_query(step: Step, views: Mapping[str, Any]) -> Step:
    """The same step as a function, which names no view that is not in the query itself."""
    named = {name: view for name, view in views.items() if re.search(rf"\b{name}\b", step.sql, re.IGNORECASE)}
    before = ", ".join(f"{name} AS (SELECT * FROM {{{name}}})" for name in named)
    text = step.sql.strip().rstrip(";").replace("{", "{{").replace("}", "}}")
    whole = f"WITH {before} SELECT * FROM (\n{text}\n)" if named else text

    def asked(spark: SparkSession) -> Any:
        return spark.sql(whole, **named)

    return replace(step, sql="", function=asked)


def _given(views: Mapping[str, Any], sink: Sink, spec: Spec) -> Any:
    frame = views[sink.of]
    if not frame.isStreaming:
        told = f"{sink.of!r} is a table, and sink {sink.name!r} needs a stream: write 'as: stream' at a source"
        raise WrongPipeline([f"{sink.where}: {told}"])
    return formats.encoded(frame, sink.format, sink.key, spec.directory) if sink.kind == "topic" else frame
