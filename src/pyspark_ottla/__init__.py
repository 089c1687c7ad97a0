"""Makes `format("ottla")` known to Spark: it looks into every module named `pyspark_*` for a class called DefaultSource.

An error here would only be a line in Spark's log, and the user would read that there is no such format. So nothing is
imported here that may be missing where PySpark is.

Spark looks with the Python of its workers. If that is another one it finds nothing, and says no more: a driver that imports
this module after Spark has started is told what to set.
"""

from ottla.pipeline import workers
from ottla.pipeline.format import OttlaSource

workers.check()


class DefaultSource(OttlaSource):
    """The format, under the name that Spark looks for."""


__all__ = ["DefaultSource"]
