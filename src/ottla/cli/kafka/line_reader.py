"""Lines of text as records, as Kafka's `LineMessageReader` reads them: headers, key and value, each behind a separator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ottla.cli.kafka.options import Failed

Headers = tuple[tuple[str, bytes | None], ...]


class Line(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class LineReader:
    """`properties` are those of --reader-property."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.parses_key = _is_true(properties, "parse.key")
        self.parses_headers = _is_true(properties, "parse.headers")
        self.ignores_errors = _is_true(properties, "ignore.error")
        self.key_separator = properties.get("key.separator", "\t").encode()
        self.headers_delimiter = properties.get("headers.delimiter", "\t").encode()
        self.header_separator = properties.get("headers.separator", ",")
        self.header_key_separator = properties.get("headers.key.separator", ":")
        self.null = properties["null.marker"].encode() if "null.marker" in properties else None
        self.number = 0
        self._check()
        # Kafka takes this one for a regular expression.
        self._between_headers = re.compile(self.header_separator)

    def _check(self) -> None:
        separators = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.header_separator.encode(),
            "headers.key.separator": self.header_key_separator.encode(),
        }
        names = list(separators)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if separators[first] == separators[second]:
                    raise _refusal(f"{first} and {second} may not be equal")
        for name in ("key.separator", "headers.separator", "headers.delimiter", "headers.key.separator"):
            if self.null is not None and {"key.separator": self.key_separator, **separators}[name] == self.null:
                raise _refusal(f"null.marker and {name} may not be equal")

    def read(self, text: bytes) -> Line:
        self.number += 1
        headers, rest = self._split(self.parses_headers, text, self.headers_delimiter, "headers delimiter", text)
        key, value = self._split(self.parses_key, rest, self.key_separator, "key separator", text)
        found = () if headers is None or headers == self.null else self._headers(headers)
        return Line(self._or_null(key), self._or_null(value), found)

    def _split(self, is_on: bool, text: bytes, separator: bytes, name: str, whole: bytes) -> tuple[bytes | None, bytes]:
        """What stands before the separator, and what behind it."""
        if not is_on:
            return None, text
        before, found, behind = text.partition(separator)
        if found:
            return before, behind
        if self.ignores_errors:
            return None, text
        raise _refusal(f"No {name} found on line number {self.number}: '{whole.decode(errors='replace')}'")

    def _or_null(self, data: bytes | None) -> bytes | None:
        return None if data == self.null else data

    def _headers(self, text: bytes) -> Headers:
        parts = self._between_headers.split(text.decode("utf-8", "surrogateescape"))
        while len(parts) > 1 and not parts[-1]:  # Java's split forgets empty ends
            parts.pop()
        return tuple(self._header(part) for part in parts)

    def _header(self, part: str) -> tuple[str, bytes | None]:
        name, found, value = part.partition(self.header_key_separator)
        if not found:
            if self.ignores_errors:
                return part, None
            raise _refusal(f"No header key separator found in pair '{part}' on line number {self.number}")
        if self.null is not None and name.encode("utf-8", "surrogateescape") == self.null:
            marker = self.null.decode(errors="replace")
            raise _refusal(f"Header keys should not be equal to the null marker '{marker}' as they can't be null")
        return name, self._or_null(value.encode("utf-8", "surrogateescape"))


def _is_true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").strip().lower() == "true"


def _refusal(text: str) -> Failed:
    return Failed(f"org.apache.kafka.common.KafkaException: {text}")
