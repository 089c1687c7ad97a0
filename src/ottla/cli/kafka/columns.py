"""Two columns of text within a screen's width, wrapped where jopt-simple wraps them."""

from __future__ import annotations

from itertools import zip_longest

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than this file
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIDTH = 80
GAP = 2
INDENT = "  "


def columns(rows: Sequence[tuple[str, str]]) -> str:
    left = min((WIDTH - GAP) // 2, max(len(first) for first, _ in rows))
    right = min(WIDTH - left - GAP, max(len(second) for _, second in rows))
    fitted = [pair for first, second in rows for pair in _row(first, second, left, right)]
    left, right = (max(map(len, side)) for side in zip(*fitted, strict=True))
    return "\n".join(f"{one.ljust(left)}{' ' * GAP}{two.ljust(right)}" for one, two in fitted)


def _row(first: str, second: str, left: int, right: int) -> Iterator[tuple[str, str]]:
    return zip_longest(_lines(first, left), _lines(second, right), fillvalue="")


def _lines(text: str, width: int) -> Iterator[str]:
    for line in text.strip().split("\n"):
        yield from _wrapped(_pieces(line), width)


def _wrapped(pieces: Iterable[str], width: int) -> Iterator[str]:
    """A piece counts with the blanks behind it, as jopt-simple counts."""
    line = ""
    for piece in pieces:
        if len(line) + len(piece) > width:
            yield line.rstrip()
            line = INDENT + piece
        else:
            line += piece
    if line:
        yield line


def _pieces(line: str) -> list[str]:
    found: list[str] = []
    start = 0
    for at in range(1, len(line)):
        if _may_break(line, at):
            found.append(line[start:at])
            start = at
    return [*found, line[start:]] if line else []


def _may_break(line: str, at: int) -> bool:
    """Whether a line may end before position `at`: the usual cases of Java's rules."""
    before, after = line[at - 1], line[at]
    if after.isspace():
        return False
    if before.isspace():
        return True
    if before in "-.,!?:":
        return after.isalpha() or (before in ".," and after in "[(") or (before == ":" and after.isdigit())
    return after in "([{" and before not in "([{<'\"="


def pretty(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Kafka's tools draw it: each column as wide as its widest cell, with a tab behind it."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = (
        "".join(f"{cell.ljust(width)}\t" for cell, width in zip(row, widths, strict=True)) for row in (headings, *rows)
    )
    return "\n".join(lines)
