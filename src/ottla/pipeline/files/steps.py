"""Steps: SQL over the views that stand before it, or a function of Python that is given them by the names of its parameters.

A function gets the view `orders` as the parameter `orders`, the session as `spark`, and anything else from `arguments`; it
answers with a frame. It comes from a file beside the pipeline (`steps.py:enrich`) or from a module (`shop.steps:enrich`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ottla.pipeline.files.failures import first_lines
from ottla.pipeline.files.nodes import WrongPipeline, suggestion
from ottla.pipeline.files.spec import Step


def frame_of(spark: SparkSession, step: Step, views: Mapping[str, Any], directory: Path) -> Any:
    """The view that later steps and sinks know by the step's name."""
    try:
        frame = spark.sql(step.sql) if step.sql else _called(spark, step, views, directory)
        return _finished(frame, step)
    except PySparkException as error:
        if missing := _missing_view(error):
            raise NoView(missing, step, f"step {step.name!r} reads {missing!r}", views)
        raise WrongPipeline([f"{step.where}: step {step.name!r}: {first_lines(error)}"])


class NoView(WrongPipeline):
    """A step asks for what is not there, or stands further down, or is wrong itself."""

    def __init__(self, name: str, step: Step, asks: str, known: Iterable[str]) -> None:
        super().__init__([f"{step.where}: {asks}: there is no such source or step before it{suggestion(name, known)}"])
        self.name = name


def _missing_view(error: PySparkException) -> str:
    """The name that SQL does not know, if that is what is wrong."""
    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")


def _finished(frame: DataFrame, step: Step) -> DataFrame:
    """What SQL has no words for."""
    if step.watermark:
        frame = frame.withWatermark(step.watermark.column, step.watermark.delay)
    if step.deduplicate:
        columns = list(step.deduplicate.columns)
        within = step.deduplicate.within_watermark and frame.isStreaming
        frame = frame.dropDuplicatesWithinWatermark(columns) if within else frame.dropDuplicates(columns)
    return frame


def _called(spark: SparkSession, step: Step, views: Mapping[str, Any], directory: Path) -> DataFrame:
    function = step.function if callable(step.function) else loaded(str(step.function), directory, step.where)
    offered = {**views, **step.arguments, "spark": spark}
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in offered:
            given[name] = offered[name]
        elif parameter.default is inspect.Parameter.empty:
            raise NoView(name, step, f"{function.__name__} asks for {name!r}, which is no argument", offered)
    frame = function(**given)
    if not hasattr(frame, "isStreaming"):
        raise WrongPipeline([f"{step.where}: {function.__name__} must return a DataFrame, not {type(frame).__name__}"])
    return frame  # type: ignore[no-any-return]


def loaded(text: str, directory: Path, where: str) -> Callable[..., Any]:
    """`steps.py:enrich` or `shop.steps:enrich`."""
    place, _, name = text.rpartition(":")
    try:
        module = _from_file(directory / place) if place.endswith(".py") else import_module(place)
    except FileNotFoundError:
        raise WrongPipeline([f"{where}: there is no file {directory / place}"])
    except Exception as error:  # whatever the user's own code raises while it is loaded
        raise WrongPipeline([f"{where}: {place} cannot be loaded: {type(error).__name__}: {error}"])
    found = getattr(module, name, None)
    if not callable(found):
        known = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        raise WrongPipeline([f"{where}: {place} has no function {name!r}{suggestion(name, known)}"])
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> ModuleType:
    """A module that executors do not have: what is defined in it travels to them by value."""
    if not path.is_file():
        raise FileNotFoundError(path)
    found = spec_from_file_location(f"ottla_step_{path.stem}", path)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module
