"""Bytes as text and back.

Keys and values are bytes. Where they are UTF-8 they are shown as text; any others as {"base64": "..."}, and null as
null. What `consume` prints, `produce --json` reads: text, null, {"base64": ...}; any other JSON value becomes its text.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import sys
from typing import Any

from ottla.cli.mistakes import Mistake

Shown = str | dict[str, str] | None


def shown(data: bytes | None) -> Shown:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def data_of(value: Any) -> bytes | None:
    """The bytes that a JSON value stands for."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Mistake(f"{value['base64']!r} is not base64")
    return compact(value)


def header_name(name: str) -> str:
    """A name for people: bytes in it that are not UTF-8 are written out as \\xff."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def compact(value: Any) -> bytes:
    """One line of JSON, as UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def say(args: argparse.Namespace, as_json: dict[str, Any], text: str, *, failed: bool = False) -> None:
    """What became of one thing that was to be done: a line of JSON where --json was given."""
    if args.json:
        print(compact(as_json).decode())
    else:
        print(text, file=sys.stderr if failed else sys.stdout)


def table(rows: list[tuple[object, ...]]) -> str:
    """Columns as wide as their widest cell."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)
