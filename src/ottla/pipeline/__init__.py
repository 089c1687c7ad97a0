"""Topics and Spark, both ways: `format("ottla")`, and pipelines as files or from Python.

    from ottla.pipeline import Pipeline, topic, to_topic

loads neither Spark nor anything else that is not in the base install; that happens when a pipeline is used.
"""

from ottla.pipeline.api import (
    Pipeline,
    catalog,
    from_files,
    rate,
    table,
    to_console,
    to_jdbc,
    to_memory,
    to_parquet,
    to_topic,
    topic,
)

__all__ = [
    "Pipeline",
    "catalog",
    "from_files",
    "rate",
    "table",
    "to_console",
    "to_jdbc",
    "to_memory",
    "to_parquet",
    "to_topic",
    "topic",
]
