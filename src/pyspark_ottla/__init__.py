"""Makes `format("ottla")` known to Spark: it looks into every module named `pyspark_*` for a class called DefaultSource.

An error here would only be a line in Spark's log, and the user would read that there is no such format. So what cannot be
imported is kept, and told to whoever uses the format.
"""

import sys

from pyspark.sql.datasource import DataSource

try:
    from ottla.pipeline.source import OttlaSource
except ImportError as error:
    MISSING = (
        f'format("ottla") cannot be loaded by {sys.executable}: {error}. Install what it needs there '
        "(pip install 'ottla[spark]'), or set PYSPARK_PYTHON to the interpreter that has it before Spark starts"
    )

    class DefaultSource(DataSource):
        """Says what is missing."""

        @classmethod
        def name(cls) -> str:
            return "ottla"

        def schema(self) -> str:
            raise ImportError(MISSING)

else:

    class DefaultSource(OttlaSource):  # type: ignore[no-redef]
        """The format, under the name that Spark looks for."""


__all__ = ["DefaultSource"]
