"""Tools with sub-commands, such as `kafka-storage.sh format`, as argparse4j reads them: mistakes end with code 1."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ottla.cli.kafka.options import guarded

WIDTH = 75


class Command(argparse.ArgumentParser):
    """A parser that words its complaints as argparse4j does."""

    def __init__(self, prog: str, **more: Any) -> None:
        more.setdefault("formatter_class", lambda prog: argparse.HelpFormatter(prog, max_help_position=25, width=WIDTH))
        super().__init__(prog=prog, allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog.split()[0]}: error: {reworded(message)}\n")

    def commands(self) -> Any:
        """Where the sub-commands are added."""
        return self.add_subparsers(dest="command", required=True, parser_class=Command)


def reworded(message: str) -> str:
    if message.startswith("the following arguments are required: "):
        first = message.split(": ", 1)[1].split(", ")[0]
        return "too few arguments" if first == "command" else f"argument {first} is required"
    if message.startswith("argument command: invalid choice"):
        return message.removeprefix("argument command: ")
    if message.startswith("unrecognized arguments: "):
        return "unrecognized arguments: " + repr(message.split(": ", 1)[1].split()[0])
    return message


def integer(text: str) -> int:
    """A number, or argparse4j's words for what is none."""
    return _number(text, "Integer", 31)


def long_integer(text: str) -> int:
    return _number(text, "Long", 63)


def short_integer(text: str) -> int:
    return _number(text, "Short", 15)


def _number(text: str, kind: str, bits: int) -> int:
    try:
        number = int(text) if text.strip() == text and "_" not in text else None
    except ValueError:
        number = None
    if number is not None and -(1 << bits) <= number < 1 << bits:
        return number
    why = f'For input string: "{text}"'
    if kind == "Short" and number is not None:
        why = f'Value out of range. Value:"{text}" Radix:10'
    raise argparse.ArgumentTypeError(f"could not convert '{text}' to {kind} ({why})")


def add_bootstrap(parser: argparse.ArgumentParser, *, short: bool = False, is_required: bool = True) -> None:
    """--bootstrap-server or --bootstrap-controller, one of them."""
    group = parser.add_mutually_exclusive_group(required=is_required)
    servers = ["--bootstrap-server", *(["-b"] if short else [])]
    controllers = ["--bootstrap-controller", *(["-C"] if short else [])]
    about = "A comma-separated list of host:port pairs to use for establishing the connection to the Kafka"
    group.add_argument(*servers, help=f"{about} cluster.")
    group.add_argument(*controllers, help=f"{about} controllers.")


def run(parser: Command, argv: Sequence[str] | None, body: Callable[[argparse.Namespace], int]) -> int:
    def guided() -> int:
        try:
            args = parser.parse_args(argv)
        except SystemExit as end:
            return int(end.code or 0)
        return body(args)

    return guarded(guided)
