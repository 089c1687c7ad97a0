"""A parser that says what was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
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
            return self._advice_on_option(match[1].split("=")[0].split()[0])
        if message.endswith("required") or "are required: " in message:
            return self._advice_on_what_was_meant()
        return ""

    def _advice_on_what_was_meant(self) -> str:
        """An option that is missing may be there under another name; argparse does not get to that."""
        known = self._option_names()
        typed = [word.split("=")[0] for word in self._given if word.startswith("--")]
        strange = [word for word in typed if not any(name.startswith(word) for name in known)]
        return f"; there is no {strange[0]}{_suggested_option(strange[0], known)}" if strange else ""

    def _advice_on_option(self, typed: str) -> str:
        """One that is spelled right belongs to another action."""
        homes = [name for name, parser in self._parsers_below() if typed in _long_options(parser)]
        return f": that is for {' and '.join(homes)}" if homes else _suggested_option(typed, self._option_names())

    def _option_names(self) -> list[str]:
        """Also those of the actions: argparse complains at the top about what it found below."""
        return _long_options(self) + [name for _, parser in self._parsers_below() for name in _long_options(parser)]

    def _parsers_below(self) -> Iterator[tuple[str, Parser]]:
        """Of the actions, and of those under them, by what is typed to get there."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, parser in action.choices.items():
                    yield name, parser
                    yield from ((f"{name} {below}", each) for below, each in parser._parsers_below())


def _long_options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _suggested_option(typed: str, known: Sequence[str]) -> str:
    """Also where one word says what are an option and its value here: Kafka's `--to-earliest` is `--to earliest`. That is
    less likely than a slip of the finger, and more likely than another option that is only somewhat like it."""
    beginnings = [name for name in known if typed.startswith(f"{name}-")]
    return suggestion(typed, known, alike=0.8) or suggestion(typed, beginnings, alike=0) or suggestion(typed, known)


def suggestion(typed: str, known: Iterable[str], alike: float = 0.6) -> str:
    """`: did you mean 'topic'?`, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(typed, list(known), n=1, cutoff=alike)
    return f": did you mean {close[0]!r}?" if close else ""
