"""Ctrl-C where Python itself would answer it with a traceback."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def end_if_interrupted(dropped: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a callback of its own, such as those of imports, and shows a traceback: a Ctrl-C that
    comes there would be lost."""
    if dropped.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(dropped)
        return
    try:
        sys.stdout.flush()
    finally:
        os._exit(INTERRUPTED)


def fall_silent() -> None:
    """To be called where Ctrl-C was caught: what it left half made, such as an event loop or a coroutine that nobody has
    awaited, would complain when it is collected."""
    import warnings

    warnings.simplefilter("ignore")
    sys.unraisablehook = _end_if_interrupted_or_say_nothing


def _end_if_interrupted_or_say_nothing(dropped: sys.UnraisableHookArgs) -> None:
    if dropped.exc_type is KeyboardInterrupt:
        end_if_interrupted(dropped)
