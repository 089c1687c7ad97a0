"""Records to columns and back.

What a topic delivers becomes its fields plus what is known of the record: `_key`, `_topic`, `_partition`, `_offset`,
`_timestamp`, and `_deleted` for one without a value. Until good and bad are parted there are three more columns: the bytes
as they came, and `_error`, which is NULL for a good record. A bad one is never dropped: with a quarantine it goes there,
without one the query fails and says which record it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ottla.pipeline.files import exact, reasons
from ottla.pipeline.files.codecs import ERROR, Recipe, decoder, encoder
from ottla.pipeline.files.failures import first_lines
from ottla.pipeline.files.nodes import WrongPipeline, suggestion
from ottla.pipeline.files.spec import Format, Source

RAW_KEY, RAW_VALUE = "_raw_key", "_raw_value"
DELETED = "_deleted"
KNOWN = ("_key", "_topic", "_partition", "_offset", "_timestamp", DELETED, "_headers")
BAD = "_bad_text"
MISFIT = "does not fit the schema"
NO_KEY = "has no key, and in a table each record needs one"
REASON_CHARS = 1000
# Beyond so many columns Spark's reader of CSV raises an exception that nothing catches, bad records or not; its own limit is
# 20,480. Each costs 12 bytes in each task.
CSV_COLUMNS_MAX = 1 << 17
# Spark's own defaults leave microseconds out, cut spaces off, and put a backslash before quotes inside of quotes, which others
# (RFC 4180) write twice.
MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
SPACES_KEPT = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
# Those that people mean most often.
TYPES = ("STRING", "INT", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "DATE", "BINARY", "ARRAY<...>", "STRUCT<...>")


def recipe(form: Format, directory: Path) -> Recipe:
    """The schema is read here, where the file is; executors need not see it."""
    schema = _schema_bytes(form, form.schema, directory)
    writers = tuple((number, _schema_bytes(form, text, directory)) for number, text in form.writers.items())
    made = Recipe(form.name, schema, form.message, form.skip_bytes, writers)
    try:
        made.codec().columns()
    except (ValueError, KeyError, TypeError) as error:
        raise WrongPipeline([f"{form.where}: this is not a schema of {form.name} we can use: {error}"])
    return made


def _schema_bytes(form: Format, text: str, directory: Path) -> bytes:
    """The schema itself, or a file that has it."""
    if text.lstrip().startswith(("{", "[")):
        return text.encode()
    path = directory / text
    if not path.is_file():
        raise WrongPipeline([f"{form.where}: there is no file {path}: write the path of the schema"])
    return path.read_bytes()


def fields_of(form: Format, directory: Path) -> StructType:
    """The columns of a record."""
    ddl = form.schema if form.name in ("json", "csv") else recipe(form, directory).codec().columns()
    try:
        found = StructType.fromDDL(ddl)
        assert isinstance(found, StructType)
        return found
    except Exception as error:  # Spark's parser, in its own words
        told = f"{form.where}: 'schema' is not a list of columns: {first_lines(error)}"
        raise WrongPipeline([f"{told}{_meant_type(error)}"])


def _meant_type(error: Exception) -> str:
    if not isinstance(error, PySparkException) or error.getCondition() != "UNSUPPORTED_DATATYPE":
        return ""
    return suggestion((error.getMessageParameters() or {}).get("typeName", "").strip('"'), TYPES)


def decoded(records: DataFrame, source: Source, directory: Path) -> DataFrame:
    """The fields, what is known of each record, the bytes as they came, and `_error`. Records without a key would be one row
    of a table, and all but one of them be lost."""
    frame = _decoded(records, source, directory)
    if not source.as_table:
        return frame
    return frame.withColumn(ERROR, F.when(F.col(RAW_KEY).isNull(), F.lit(NO_KEY)).otherwise(F.col(ERROR)))


def _decoded(records: DataFrame, source: Source, directory: Path) -> DataFrame:
    form, frame = source.format, known(records, source)
    if form.name == "raw":
        return frame.select(F.col(RAW_VALUE).alias("value"), "*", F.lit(None).cast("string").alias(ERROR))
    fields = fields_of(form, directory)
    if form.name in ("avro", "protobuf"):
        return _by_python(frame, recipe(form, directory), fields)
    return _by_spark(frame, form, fields)


def known(records: DataFrame, source: Source) -> DataFrame:
    """The columns of a topic under names that no field has."""
    key = F.col("key").cast("string") if source.key == "string" else F.col("key")
    columns = [key.alias("_key")] + [
        F.col(name[1:]).alias(name) for name in ("_topic", "_partition", "_offset", "_timestamp")
    ]
    columns += [F.col("value").isNull().alias(DELETED)]
    columns += [F.col("headers").alias("_headers")] if "headers" in records.columns else []
    return records.select(*columns, F.col("key").alias(RAW_KEY), F.col("value").alias(RAW_VALUE))


def _by_python(frame: DataFrame, made: Recipe, fields: StructType) -> DataFrame:
    schema = StructType([*fields.fields, *frame.schema.fields, StructField(ERROR, StringType())])
    decode = decoder(made, to_arrow_schema(fields, timezone="UTC"), RAW_VALUE, frame.columns)
    return frame.mapInArrow(decode, schema)


def _by_spark(frame: DataFrame, form: Format, fields: StructType) -> DataFrame:
    text = F.col(RAW_VALUE).cast("string")
    options = reading(form) | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
    if form.name == "json":
        # Spark stops reading at the end of the first value, and what follows would be lost: so the text stands inside of an
        # object of ours, and as the only element of a list. What could close or continue the one does not fit the other.
        schema = StructType([StructField("record", fields), StructField(BAD, StringType())])
        whole = F.concat(F.lit('{"record":'), text, F.lit("\n}"))
        parsed = F.from_json(whole, schema, options)
        values = F.from_json(F.concat(F.lit("["), text, F.lit("\n]")), "ARRAY<STRUCT<>>", options)
        row, empty = F.col("_parsed.record"), F.col("_parsed.record").isNull() | ~F.size(values).eqNullSafe(1)
        changed = exact.of_json(whole, row, fields, options)
    else:
        parsed = F.when(~_is_crowded(text, options), F.from_csv(text, f"{form.schema}, {BAD} STRING", options))
        row, empty = F.col("_parsed"), F.col("_parsed").isNull() | (text == "")
        changed = exact.of_csv(text, row, fields, options)
    wrong = F.col(f"_parsed.{BAD}").isNotNull() | empty | ~F.is_valid_utf8(text)
    if changed is not None:
        wrong = F.when(wrong, True).otherwise(changed)  # only what Spark takes is worth a second look
    error = F.when(F.col(RAW_VALUE).isNotNull() & wrong, F.lit(MISFIT))
    columns = [row.getField(name).alias(name) for name in fields.names]
    return frame.withColumn("_parsed", parsed).select(*columns, *frame.columns, error.alias(ERROR))


def reading(form: Format) -> dict[str, str]:
    """Options of Spark's readers: what is given, and what is usual here."""
    return _options(form, {} if form.name == "json" else {"maxColumns": str(CSV_COLUMNS_MAX)} | _quoting(form))


def writing(form: Format) -> dict[str, str]:
    usual = {"ignoreNullFields": "false"} if form.name == "json" else SPACES_KEPT | _quoting(form)
    return _options(form, MICROSECONDS | usual)


def _quoting(form: Format) -> dict[str, str]:
    quotes = [value for name, value in form.options.items() if name.lower() == "quote"]
    return {"escape": quotes[-1]} if any(quotes) else {"escape": '"'}


def _options(form: Format, usual: Mapping[str, str]) -> dict[str, str]:
    """Spark knows no capital letters in names."""
    given = {name.lower() for name in form.options}
    return {name: value for name, value in usual.items() if name.lower() not in given} | dict(form.options)


def _is_crowded(text: Column, options: Mapping[str, str]) -> Column:
    """Whether it may have more columns than Spark can read: whoever has as many separators inside of quotes says so."""
    given = {name.lower(): value for name, value in options.items()}
    between = reasons.separator(given)
    apart = F.length(text) - F.length(F.replace(text, F.lit(between), F.lit("")))
    return apart >= int(given["maxcolumns"]) * len(between)


# The good and the bad


def good(frame: DataFrame, source: Source) -> DataFrame:
    """Those that fit. Without a quarantine, the first that does not ends the query and says where it is."""
    fits = F.col(ERROR).isNull()
    if not source.quarantine:
        told = F.concat(
            F.lit(f"source '{source.name}': the record at "), _place(), F.lit(": "), F.col(ERROR),
            F.lit("; name a quarantine topic for such records, or set them right"),
        )  # fmt: skip
        fits = F.when(fits, F.lit(True)).otherwise(F.raise_error(told).cast("boolean"))
    return frame.where(fits).drop(RAW_KEY, RAW_VALUE, ERROR)


def _place() -> Column:
    return F.concat_ws(" ", F.concat_ws("-", "_topic", F.col("_partition").cast("string")), F.lit("offset"), "_offset")


def bad(frame: DataFrame, source: Source, directory: Path) -> DataFrame:
    """Those that do not fit, as records for the quarantine: key and value untouched, the reason and the place in headers."""
    told = {
        "error": F.substring(_told(source, directory), 1, REASON_CHARS),
        "topic": F.col("_topic"),
        "partition": F.col("_partition").cast("string"),
        "offset": F.col("_offset").cast("string"),
        "timestamp": F.date_format("_timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"),
        "source": F.lit(source.name),
    }
    headers = F.array(
        *[
            F.struct(F.lit(f"ottla.{name}").alias("key"), each.cast("binary").alias("value"))
            for name, each in told.items()
        ]
    )
    if "_headers" in frame.columns:
        headers = F.concat(F.coalesce("_headers", F.slice(headers, 1, 0)), headers)
    columns = [F.col(RAW_KEY).alias("key"), F.col(RAW_VALUE).alias("value"), headers.alias("headers")]
    return frame.where(F.col(ERROR).isNotNull()).select(*columns)


def _told(source: Source, directory: Path) -> Column:
    """Python says why where Spark only says that; a bad record is rare enough."""
    if source.format.name not in ("json", "csv"):
        return F.col(ERROR)
    columns = [(each.name, each.dataType.simpleString()) for each in fields_of(source.format, directory)]
    is_json, options = source.format.name == "json", reading(source.format)

    def explained(value: bytes) -> str:
        return reasons.of_json(value, columns) if is_json else reasons.of_csv(value, columns, options)

    found = F.udf(explained, "string", useArrow=False)(RAW_VALUE)
    return F.when(F.col(ERROR) == MISFIT, found).otherwise(F.col(ERROR))


def newest(frame: DataFrame, key: Sequence[str], offset: str) -> DataFrame:
    """The last record of each key. Order is that of the log."""
    return frame.groupBy(*key).agg(F.max_by(F.struct("*"), offset).alias("_row")).select("_row.*")


# Columns to records


def encoded(frame: DataFrame, form: Format, key: str, directory: Path) -> DataFrame:
    """`key` and `value`, as the topic takes them. What we know of the record it came from is not written again; but what was
    a record without a value becomes one, in every format: whoever keeps the newest of each key would have it back else."""
    if form.name == "raw":
        return frame
    columns = [name for name in frame.columns if name not in KNOWN]
    if form.name in ("avro", "protobuf"):
        known = [_key(frame, key).alias(RAW_KEY), _deleted(frame).alias(DELETED)]
        given = frame.select(*known, *[f"`{name}`" for name in columns])
        return given.mapInArrow(encoder(recipe(form, directory), RAW_KEY, DELETED, columns), "key BINARY, value BINARY")
    whole = F.struct(*[F.col(f"`{name}`") for name in columns])
    value = (F.to_json if form.name == "json" else F.to_csv)(whole, writing(form))
    value = F.when(_deleted(frame), F.lit(None)).otherwise(value.cast("binary"))
    return frame.select(_key(frame, key).alias("key"), value.alias("value"))


def _deleted(frame: DataFrame) -> Column:
    """Whether a row stands for a key that is gone: a step has kept the column, or says so itself."""
    given = F.col(DELETED).cast("boolean") if DELETED in frame.columns else F.lit(False)
    return F.coalesce(given, F.lit(False))


def _key(frame: DataFrame, key: str) -> Column:
    """An expression of SQL; without one, the key that the record came with."""
    if key:
        found = F.expr(key)
    elif "_key" in frame.columns:
        found = F.col("_key")
    else:
        return F.lit(None).cast("binary")
    return found.cast("string").cast("binary") if _is_not_binary(frame, found) else found


def _is_not_binary(frame: DataFrame, column: Column) -> bool:
    return frame.select(column.alias("k")).schema[0].dataType.simpleString() != "binary"
