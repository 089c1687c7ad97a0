"""Why a text does not fit its columns. Spark only says that it does not; people who look into a quarantine want to know.

These records come from strangers. Whatever is in them, there is a reason: an exception here would end the query, and the next
start would meet the same record.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from ottla.pipeline.files.exact import BEYOND_S, FIRST_S, NO_DAY
from ottla.pipeline.files.fitting import INFINITE

# Names of Spark's types as `simpleString` has them, and what JSON may have there.
WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
REAL = {"float": 32, "double": 64}
NUMBERS = (*WHOLE, *REAL, "decimal")
SHOWN_CHARS = 60

Columns = Sequence[tuple[str, str]]


class Fraction(float):
    """A number with a point or an exponent, and how it was written: as a float it may be another one."""

    text: str

    @classmethod
    def read(cls, text: str) -> Fraction:
        made = cls(text)
        made.text = text
        return made


def of_json(value: bytes, columns: Columns) -> str:
    return _whatever(_of_json, value, columns)


def of_csv(value: bytes, columns: Columns, options: Mapping[str, str] | None = None) -> str:
    """`options` are those of Spark: what stands between fields, and around them."""
    given = {name.lower(): text for name, text in (options or {}).items()}
    return _whatever(lambda text, declared: _of_csv(text, declared, given), value, columns)


def _whatever(why: Callable[[str, Columns], str], value: bytes, columns: Columns) -> str:
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    try:
        return why(text, columns)
    except Exception:  # of a reader that has limits of its own
        return _misses(columns)


def _of_json(text: str, columns: Columns) -> str:
    try:
        found = json.loads(text, parse_float=Fraction.read, parse_int=_whole)
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON that can be read: it is nested too deeply"
    if not isinstance(found, dict):
        return f"not an object: {_shown(found)}"
    wrong = [_misfit(name, kind, found[name]) for name, kind in columns if found.get(name) is not None]
    return "; ".join(filter(None, wrong)) or _misses(columns)


def _whole(text: str) -> int | Fraction:
    """Python refuses to read a number of thousands of digits."""
    return int(text) if len(text) < 1000 else Fraction.read(text)


def _of_csv(text: str, columns: Columns, options: Mapping[str, str]) -> str:
    between = separator(options)
    quote, escape = options.get("quote", '"'), options.get("escape", '"')
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    rows = list(
        csv.reader(
            io.StringIO(text, newline=""),
            delimiter=between,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            escapechar=None if escape in ("", quote) else escape,
        )
    )
    if len(rows) > 1:
        return f"{len(rows)} lines instead of one"
    fields = rows[0] if rows else []
    if len(fields) != len(columns):
        return f"{len(fields)} fields instead of {len(columns)}"
    wrong = [_changed(name, kind, field) for (name, kind), field in zip(columns, fields, strict=True)]
    return "; ".join(filter(None, wrong)) or _misses(columns)


def separator(options: Mapping[str, str]) -> str:
    """Of options with names in small letters; a tab may be written as Spark's users write it."""
    return options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")


def _changed(name: str, kind: str, field: str) -> str:
    """A number as text that its column would change."""
    if kind.startswith("timestamp"):
        return _no_time(name, kind, field)
    try:
        return _misfit(name, kind, Fraction.read(field)) if kind.startswith(("decimal", *REAL)) else ""
    except ValueError:
        return ""


def _no_time(name: str, kind: str, value: Any) -> str:
    """What Spark would take for another one. Whatever else it does not take is said of all columns at once."""
    if isinstance(value, int) and not isinstance(value, bool) and not FIRST_S <= value < BEYOND_S:
        told = f"{kind.upper()} takes seconds; of milliseconds make a BIGINT and timestamp_millis({name})"
        return f"{name} is {_shown(value)}: {told}"
    has_no_day = isinstance(value, str) and re.match(NO_DAY, value) is not None
    return f"{name} is {_shown(value)}, which has no day: another one each day" if has_no_day else ""


def _misfit(name: str, kind: str, value: Any) -> str:
    if kind.startswith("timestamp"):
        return _no_time(name, kind, value)
    fits = True
    if kind.startswith(NUMBERS):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in WHOLE:
            fits = fits and isinstance(value, int)
    elif kind == "boolean":
        fits = isinstance(value, bool)
    elif kind.startswith("array"):
        fits = isinstance(value, list)
    elif kind.startswith(("struct", "map")):
        fits = isinstance(value, dict)
    if not fits:
        return f"{name} is {_shown(value)}, not {kind.upper()}"
    holds = not kind.startswith(NUMBERS) or _holds(kind, value)
    return "" if holds else f"{name} is {_shown(value)}, which {kind.upper()} cannot hold"


def _holds(kind: str, value: int | float) -> bool:
    """Whether a column has the number as it was written, but for what a float rounds."""
    number = Decimal(value.text if isinstance(value, Fraction) else value)
    if not number.is_finite():
        return True
    if kind in WHOLE:
        return -(1 << WHOLE[kind] - 1) <= number < 1 << WHOLE[kind] - 1
    if kind in REAL:
        return abs(number) < INFINITE[REAL[kind]]
    precision, scale = (int(each) for each in kind.removeprefix("decimal(").removesuffix(")").split(","))
    _, digits, exponent = number.as_tuple()
    kept = "".join(map(str, digits)).rstrip("0")
    assert isinstance(exponent, int)
    return not kept or (scale >= len(kept) - len(digits) - exponent and len(digits) + exponent <= precision - scale)


def _shown(value: Any) -> str:
    text = value.text if isinstance(value, Fraction) else json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _misses(columns: Columns) -> str:
    return f"does not fit the columns {', '.join(f'{name} {kind.upper()}' for name, kind in columns)}"
