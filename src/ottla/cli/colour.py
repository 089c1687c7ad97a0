"""Colour, on a terminal and nowhere else; NO_COLOR switches it off there too."""

from __future__ import annotations

import os
import sys

CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


def coloured(text: str, colour: str) -> str:
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m"
