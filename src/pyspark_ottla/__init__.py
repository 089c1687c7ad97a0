"""Makes `format("ottla")` known to Spark: it looks into every module named `pyspark_*` for a class called DefaultSource.

An error here would only be a line in Spark's log, and the user would read that there is no such format. So nothing is
imported here that may be missing where PySpark is.
"""

from ottla.pipeline.format import OttlaSource


class DefaultSource(OttlaSource):
    """The format, under the name that Spark looks for."""


__all__ = ["DefaultSource"]
