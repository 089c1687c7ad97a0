"""Numbers and times that Spark's readers of JSON and CSV change without a word: 200 as a TINYINT is -56, 1.239 as a
DECIMAL(5, 2) is 1.24, 1e400 as a DOUBLE is infinity. "10:00" as a TIMESTAMP is ten o'clock of the day on which it is read, so
another one when it is read again; and milliseconds, taken for seconds, are a time in the year 58,000, behind which a watermark
passes over whatever comes then. Who sends them should be told, and not find something else at the end of the pipeline.

A record that may have one, by what was read or by how it is written, is read a second time into columns that lose nothing, and
looked at there. Others are not, and neither is any of a source that has no column of such a type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

# A column of this type is wrong; None if its type does not say.
Judge = Callable[[Column, DataType], Column | None]
REAL: tuple[type[DataType], ...] = (FloatType, DoubleType)
JUDGED = (ByteType, FractionalType, TimestampType, TimestampNTZType)
INFINITE = float("inf")
# How a number with so many digits behind its point may be written: plainly, with an exponent, or in escapes. Spark reads
# decimals from texts too, and passes over the commas in them.
MAY_BE_LONGER = r"[.](?:,*[0-9]){%d}|[0-9][.]?[eE]|\\u"
# A time without a day, as Spark takes it; and how one may stand in a record, where others stand behind a day or a sign.
NO_DAY = r"^\s*T?[0-9]{1,2}:"
MAY_HAVE_NO_DAY = r"(?:^|[^0-9T\s+-])\s*T?[0-9]{1,2}:[0-9]|\\u"
# Times have years of four digits.
FIRST_S, BEYOND_S = -62_135_596_800, 253_402_300_800


def of_json(text: Column, row: Column, fields: StructType, options: Mapping[str, str]) -> Column | None:
    """Whether a number in `row`, which has been read from this text, is another than the text has; None if none can be."""
    kept = _only(fields, (ByteType, DecimalType, *REAL, *_guessed(options)))
    if kept is None:
        return _any(row, fields, _beyond)
    wide = StructType([StructField("record", _wide(kept))])
    # Infinity may be sent as such. Where it is not taken, all that is infinite is a number that was too large.
    parsed = F.from_json(text, wide, {**options, "allowNonNumericNumbers": "false"})
    doubted = _doubted(text, row, kept)
    return _either(
        _any(row, fields, _beyond),
        doubted & _looked_at(parsed, lambda each: _any(each["record"], kept, _wrong_in_json)),
    )


def of_csv(text: Column, row: Column, fields: StructType, options: Mapping[str, str]) -> Column | None:
    has_other_points = any(name.lower() == "locale" for name in options)
    decimals = () if has_other_points else (DecimalType,)
    kept = _only(fields, (*decimals, *REAL, *_guessed(options)))
    if kept is None:
        return _any(row, fields, _beyond)
    wide = StructType([StructField(field.name, StringType()) for field in fields])
    parsed = F.from_csv(text, wide.toDDL(), dict(options))
    doubted = _doubted(text, row, kept)
    return _either(
        _any(row, fields, _beyond), doubted & _looked_at(parsed, lambda each: _any(each, kept, _wrong_in_csv))
    )


def _guessed(options: Mapping[str, str]) -> tuple[type[DataType], ...]:
    """Times are guessed at, unless it is said how they are written."""
    return () if any(name.lower() == "timestampformat" for name in options) else (TimestampType,)


def _either(one: Column | None, other: Column) -> Column:
    return other if one is None else one | other


def _looked_at(parsed: Column, judge: Callable[[Column], Column | None]) -> Column:
    """What is read into a variable is read once, however often it is named."""
    return F.exists(F.array(parsed), _judged(judge))


def _judged(judge: Callable[[Column], Column | None]) -> Callable[[Column], Column]:
    def judged(each: Column) -> Column:
        found = judge(each)
        return F.lit(False) if found is None else found

    return judged


def _doubted(text: Column, row: Column, fields: DataType) -> Column:
    by_value = _any(row, fields, _may_be_wrong)
    scales = _scales(fields)
    signs = [MAY_BE_LONGER % (min(scales) + 1)] if scales else []
    signs += [MAY_HAVE_NO_DAY] if _only(fields, (TimestampType,)) is not None else []
    by_text = F.rlike(text, F.lit("|".join(signs))) if signs else F.lit(False)
    return _either(by_value, by_text)


def _may_be_wrong(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, ByteType):
        return column < 0
    return F.abs(column) == INFINITE if isinstance(kind, REAL) else None


def _beyond(column: Column, kind: DataType) -> Column | None:
    if not isinstance(kind, TimestampType | TimestampNTZType):
        return None
    time = column.cast("timestamp")
    return (time < F.timestamp_seconds(F.lit(FIRST_S))) | (time >= F.timestamp_seconds(F.lit(BEYOND_S)))


def _wrong_in_json(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, TimestampType):
        return F.rlike(column, F.lit(NO_DAY))
    if isinstance(kind, ByteType):
        return (column < -128) | (column > 127)
    if isinstance(kind, DecimalType):
        return _rounded(F.try_variant_get(column, "$", "string"), kind)
    return F.abs(column) == INFINITE


def _wrong_in_csv(column: Column, kind: DataType) -> Column | None:
    if isinstance(kind, TimestampType):
        return F.rlike(column, F.lit(NO_DAY))
    return _rounded(column, kind) if isinstance(kind, DecimalType) else _too_large(column, kind)


def _too_large(text: Column, kind: DataType) -> Column | None:
    if not isinstance(kind, REAL):
        return None
    return (F.abs(text.try_cast(kind)) == INFINITE) & ~F.contains(F.upper(text), F.lit("INF"))


def _rounded(text: Column, kind: DecimalType) -> Column:
    """Digits that its scale has no place for. With an exponent they are not to be counted, and 17 digits must do; so must they
    for a number of more than 38 digits, which Spark has as a double there."""
    plain = F.replace(text, F.lit(","), F.lit(""))
    digits = F.length(F.rtrim(F.regexp_extract(plain, "[.]([0-9]*)", 1), F.lit("0"))) > kind.scale
    changed = plain.try_cast("double") != plain.try_cast(kind).try_cast("double")
    return F.when(F.rlike(plain, F.lit("[eE]")), changed).otherwise(digits)


# Types, and what is inside of them


def _any(column: Column, kind: DataType, judge: Judge) -> Column | None:
    """Whether any number in it is wrong; None if there is none that could be."""
    if isinstance(kind, StructType):
        found = [_any(column.getField(field.name), field.dataType, judge) for field in kind]
        judged = [each for each in found if each is not None]
        return reduce(Column.__or__, judged) if judged else None
    if not isinstance(kind, ArrayType | MapType):
        made = judge(column, kind) if isinstance(kind, JUDGED) else None
        return None if made is None else F.coalesce(made, F.lit(False))
    inside, values = (
        (kind.elementType, column) if isinstance(kind, ArrayType) else (kind.valueType, F.map_values(column))
    )
    if _any(F.lit(None), inside, judge) is None:
        return None
    return F.coalesce(F.exists(values, _judged(lambda each: _any(each, inside, judge))), F.lit(False))


def _only(kind: DataType, among: tuple[type[DataType], ...]) -> DataType | None:
    """Of a type, what has a number of one of these in it."""
    if isinstance(kind, StructType):
        inside = [(field.name, _only(field.dataType, among)) for field in kind]
        kept = [StructField(name, each) for name, each in inside if each is not None]
        return StructType(kept) if kept else None
    if isinstance(kind, ArrayType):
        element = _only(kind.elementType, among)
        return None if element is None else ArrayType(element)
    if isinstance(kind, MapType):
        value = _only(kind.valueType, among)
        return None if value is None else MapType(kind.keyType, value)
    return kind if isinstance(kind, among) else None


def _wide(kind: DataType) -> DataType:
    """A variant has a decimal as it was written."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _wide(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_wide(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _wide(kind.valueType))
    if isinstance(kind, DecimalType):
        return VariantType()
    if isinstance(kind, TimestampType):
        return StringType()
    return ShortType() if isinstance(kind, ByteType) else kind


def _scales(kind: DataType) -> list[int]:
    if isinstance(kind, StructType):
        return [scale for field in kind for scale in _scales(field.dataType)]
    if isinstance(kind, ArrayType):
        return _scales(kind.elementType)
    if isinstance(kind, MapType):
        return _scales(kind.valueType)
    return [kind.scale] if isinstance(kind, DecimalType) else []
