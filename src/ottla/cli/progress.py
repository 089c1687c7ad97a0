"""A bar for long work, on a terminal and nowhere else.

It is drawn on standard error. Work that prints lines while it goes on has one only if they go somewhere else: otherwise the
bar and the lines would write over each other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WIDTH = 30
# What is over sooner needs no bar; and nobody reads faster than this.
FIRST_SECONDS, PAUSE_SECONDS = 0.5, 0.1
CLEAR = "\r\x1b[K"

Progress = Callable[[int, int], None]


@contextmanager
def bar(label: str, among_lines: bool = False) -> Iterator[Progress | None]:
    """`with bar("reading") as progress: progress(done, whole)`; None where nobody would see it."""
    if not sys.stderr.isatty() or (among_lines and sys.stdout.isatty()):
        yield None
        return
    drawing = _Drawing(label)
    try:
        yield drawing
    finally:
        drawing.clear()


class _Drawing:
    def __init__(self, label: str) -> None:
        self.label = label
        self.began = time.monotonic()
        self.next_at = self.began + FIRST_SECONDS
        self.drawn = False

    def __call__(self, done: int, whole: int) -> None:
        now = time.monotonic()
        if now < self.next_at:
            return
        self.next_at, self.drawn = now + PAUSE_SECONDS, True
        sys.stderr.write(CLEAR + drawn(self.label, done, whole, now - self.began))
        sys.stderr.flush()

    def clear(self) -> None:
        if self.drawn:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()


def drawn(label: str, done: int, whole: int, seconds: float) -> str:
    """One line: what, how much of it, and how long the rest will take."""
    share = min(1.0, done / whole) if whole else 1.0
    full = round(share * WIDTH)
    left = f"  {seconds / share - seconds:.0f} s left" if 0 < share < 1 else ""
    return f"{label}  [{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}{left}"
