"""Why a text does not fit its columns. Spark only says that it does not; people who look into a quarantine want to know."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import Any

# Names of Spark's types as `simpleString` has them, and what JSON may have there.
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
SHOWN_CHARS = 60

Columns = Sequence[tuple[str, str]]


def of_json(value: bytes, columns: Columns) -> str:
    text = _text(value)
    if text is None:
        return "not UTF-8"
    try:
        found = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(found, dict):
        return f"not an object: {_shown(found)}"
    wrong = [_misfit(name, kind, found[name]) for name, kind in columns if found.get(name) is not None]
    told = "; ".join(filter(None, wrong))
    return told or f"does not fit the columns {_declared(columns)}"


def of_csv(value: bytes, columns: Columns) -> str:
    text = _text(value)
    if text is None:
        return "not UTF-8"
    fields = next(csv.reader([text]), [])
    if len(fields) != len(columns):
        return f"{len(fields)} fields instead of {len(columns)}"
    return f"does not fit the columns {_declared(columns)}"


def _text(value: bytes) -> str | None:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return None


def _misfit(name: str, kind: str, value: Any) -> str:
    fits = True
    if kind.startswith(NUMBERS):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in ("tinyint", "smallint", "int", "bigint"):
            fits = fits and isinstance(value, int)
    elif kind == "boolean":
        fits = isinstance(value, bool)
    elif kind.startswith("array"):
        fits = isinstance(value, list)
    elif kind.startswith(("struct", "map")):
        fits = isinstance(value, dict)
    return "" if fits else f"{name} is {_shown(value)}, not {kind.upper()}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _declared(columns: Columns) -> str:
    return ", ".join(f"{name} {kind.upper()}" for name, kind in columns)
