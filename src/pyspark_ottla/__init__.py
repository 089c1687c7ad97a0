"""Makes `format("ottla")` known to Spark: it looks into every module named `pyspark_*` for a class of this name."""

from ottla.pipeline.source import OttlaSource


class DefaultSource(OttlaSource):
    """The format, under the name that Spark looks for."""


__all__ = ["DefaultSource"]
