"""Java's .properties files: `server.properties`, which people write, and `meta.properties`, which Kafka does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# A key ends at the first =, : or blank that has no backslash before it; blanks around the separator do not count.
ENTRY = re.compile(r"((?:\\.|[^=: \t\f\\])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


def read_properties(text: str) -> dict[str, str]:
    """The entries of a .properties file; of two with the same name the later counts."""
    entries = (ENTRY.fullmatch(line) for line in _logical_lines(text.splitlines()))
    return {_unescape(entry[1]): _unescape(entry[2]) for entry in entries if entry}


def _logical_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines with comments dropped, and those joined that end in a backslash."""
    held = ""
    for line in lines:
        piece = line.lstrip(" \t\f")
        if not held and (not piece or piece[0] in "#!"):
            continue
        backslashes = len(piece) - len(piece.rstrip("\\"))
        if backslashes % 2:
            held += piece[:-1]
        else:
            yield held + piece
            held = ""
    if held:
        yield held


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else ESCAPES.get(code, code)

    return ESCAPED.sub(plain, text)


def escaped(value: str) -> str:
    """A value as Properties.store writes it, so that Java reads it back."""
    return "".join("\\" + char if char in "\\:=#!" else char for char in value)
