"""A parser that says what was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
UNKNOWN = re.compile(r"unrecognized arguments: (.*)")


class Parser(argparse.ArgumentParser):
    """The parser of a verb, and of the actions under it."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._given = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        super().error(message + self._advice(message))

    def _advice(self, message: str) -> str:
        if match := CHOICE.search(message):
            return suggestion(match[1], [choice.strip(" '") for choice in match[2].split(",")])
        if match := UNKNOWN.search(message):
            return suggestion(match[1].split("=")[0].split()[0], self._option_names())
        if message.endswith("required") or "are required: " in message:
            return self._advice_on_what_was_meant()
        return ""

    def _advice_on_what_was_meant(self) -> str:
        """An option that is missing may be there under another name; argparse does not get to that."""
        known = self._option_names()
        typed = [word.split("=")[0] for word in self._given if word.startswith("--")]
        strange = [word for word in typed if not any(name.startswith(word) for name in known)]
        return f"; there is no {strange[0]}{suggestion(strange[0], known)}" if strange else ""

    def _option_names(self) -> list[str]:
        """Also those of the actions: argparse complains at the top about what it found below."""
        names = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    names += [name for each in parser._actions for name in each.option_strings if name.startswith("--")]
        return names


def suggestion(typed: str, known: Iterable[str]) -> str:
    """`: did you mean 'topic'?`, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(typed, list(known), n=1, cutoff=0.6)
    return f": did you mean {close[0]!r}?" if close else ""
