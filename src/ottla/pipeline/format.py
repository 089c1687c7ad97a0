"""`format("ottla")`, as Spark knows it: a name, the columns, and who reads and writes.

Before a query runs, Spark starts a process to look for formats and another to make one of them, and only the one after
these plans anything. So what reads and writes is imported when it is asked for: numpy, Arrow and the client would cost
each of the two a quarter of a second.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipeline import needs, workers

# Those of Spark's Kafka connector.
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA_WITH_HEADERS = StructType([*SCHEMA.fields, StructField("headers", ArrayType(HEADER))])


class OttlaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        workers.check()  # when it is registered by hand, which the driver does
        return "ottla"

    def schema(self) -> StructType:
        try:
            needs.modules(needs.FORMAT_MODULES)
        except needs.Missing as missing:
            raise ImportError(
                f'format("ottla") cannot be loaded by {sys.executable}: {missing}. Or set PYSPARK_PYTHON to the interpreter '
                "that has it before Spark starts"
            )
        return self._schema()

    def _schema(self) -> StructType:
        asked = "includeHeaders" in self.options and _room("options").Text(self.options).flag("includeHeaders", False)
        return SCHEMA_WITH_HEADERS if asked else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        made: DataSourceReader = _room("source").batch_reader(self.options)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check(schema)
        made: DataSourceStreamReader = _room("source").stream_reader(self.options)
        return made

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made: DataSourceWriter = _room("sink").batch_writer(self.options, schema, overwrite)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        made: DataSourceStreamWriter = _room("sink").stream_writer(self.options, schema, overwrite)
        return made

    def _check(self, schema: StructType) -> None:
        if schema.simpleString() != self._schema().simpleString():
            raise _room("options").BadOption(
                f"the columns of a topic are fixed: remove .schema(...). They are {self._schema().simpleString()}; "
                "decode key and value with functions such as from_json"
            )


def _room(name: str) -> ModuleType:
    return import_module(f"ottla.pipeline.{name}")
