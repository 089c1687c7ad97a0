"""What a node writes about itself: lines that people can read, or JSON lines that machines can.

    17:03:21.114 INFO  log       recovered orders-0 segments=3 seconds=0.21
    {"time":"2026-11-15T17:03:21.114Z","level":"info","room":"log","message":"recovered orders-0","segments":3,...}

Everyone logs through the standard library, under `ottla.<room>`, with facts apart from the sentence:

    log = logging.getLogger("ottla.log")
    log.info("recovered %s", name, extra=facts(segments=3, seconds=0.21))

Nothing is logged per request: a line costs more than a request does, which is what metrics are for.

Much of what gets logged was chosen by a client (client ids, topic names, group ids: any string is legal). So a record is
always one line: control characters, line separators and the characters that turn text around are written as escapes, and
lines are cut at a length. A client can also cause the same line again and again; of one kind (one place in the
code) only so many are written per ten seconds, then their number.
"""

from __future__ import annotations

import json as json_lines
import logging
import re
import sys
import time
import traceback
from typing import IO, Any

LEVELS = ("debug", "info", "warning", "error")
LINE_CHARACTERS_MAX = 4096
BURST_MAX = 50
BURST_SECONDS = 10.0
KINDS_MAX = 1000

_SHORT_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}
# C0, DEL, C1, soft hyphen and zero-width characters, line and paragraph separators, bidirectional overrides,
# byte order mark, surrogates that stand alone.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def facts(**values: object) -> dict[str, Any]:
    """For `extra=`: what the sentence is about, as names and values."""
    return {"facts": values}


def safe(text: str) -> str:
    """The text on one line, with everything that could deceive a reader made visible, and not too long."""
    if len(text) > LINE_CHARACTERS_MAX:
        text = f"{text[:LINE_CHARACTERS_MAX]}... ({len(text) - LINE_CHARACTERS_MAX} more characters)"
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(match[0])
    return short.get(match[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def set_up(json: bool = False, level: str = "info", stream: IO[str] | None = None) -> None:
    """One handler for everything; libraries are heard from `warning` on. Calling it again replaces the first."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if json else PlainLines())
    handler.addFilter(Flood())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("ottla").setLevel(level.upper())
    logging.captureWarnings(True)


class _Handler(logging.StreamHandler[IO[str]]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A closed terminal must not take the broker down, nor make it print about printing."""


class PlainLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._day = ""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.localtime(record.created)
        level = _SHORT_LEVELS.get(record.levelname, record.levelname)
        clock = f"{time.strftime('%H:%M:%S', moment)}.{int(record.msecs):03d}"
        line = f"{clock} {level:<5} {_room(record):<9} {safe(_sentence(record))}"
        return self._new_day(moment) + line + _told(record)

    def _new_day(self, moment: time.struct_time) -> str:
        """Lines carry the time of day only; the date stands where it changes."""
        day = time.strftime("%Y-%m-%d %Z", moment)
        if day == self._day:
            return ""
        self._day = day
        return f"-- {day}\n"


def _sentence(record: logging.LogRecord) -> str:
    values = getattr(record, "facts", {})
    more = "".join(f" {name}={_value(value)}" for name, value in values.items())
    return record.getMessage() + more


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text else text


def _told(record: logging.LogRecord) -> str:
    """The traceback, each line marked, so that an error message with line breaks cannot pass for a record."""
    return "".join(f"\n    | {safe(line)}" for line in _traceback_lines(record))


def _traceback_lines(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[1] is None:
        return []
    return "".join(traceback.format_exception(record.exc_info[1])).splitlines()


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "room": _room(record),
            "message": safe(record.getMessage()),
        }
        for name, value in getattr(record, "facts", {}).items():
            line[name if name not in line else f"{name}_"] = value
        if told := _traceback_lines(record):
            line["traceback"] = told
        return json_lines.dumps(line, default=str, separators=(",", ":"))


def _room(record: logging.LogRecord) -> str:
    return record.name.removeprefix("ottla.")


class Flood(logging.Filter):
    """Lets so many records of one kind through per ten seconds; the next that passes says how many did not."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.pathname, record.lineno, record.levelname)
        since, count = self._seen.get(kind, (record.created, 0))
        if not 0 <= record.created - since < BURST_SECONDS:
            if count > BURST_MAX:
                record.msg = f"{record.msg} ({count - BURST_MAX} more like this were not written)"
            since, count = record.created, 0
        if len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = (since, count + 1)
        return count < BURST_MAX
