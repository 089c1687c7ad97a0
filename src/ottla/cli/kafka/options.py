"""Options as most of Kafka's tools take them (jopt-simple's way), and the usage text they print.

`--name value`, `--name=value` and `-name value` are the same. An option that needs an argument takes the next word,
whatever it looks like. Names may not be shortened. What is wrong is told in jopt-simple's words, with exit code 1;
Kafka prints a Java stack trace after some of them, we do not.

    PARSER = Parser("This tool counts.", takes("bootstrap-server", "The server to ask.", "host:port"), flag("all", "All."))

    def main(argv: Sequence[str] | None = None) -> int:
        return run(PARSER, argv, _count)
"""

from __future__ import annotations

import sys

from ottla.cli.kafka import KAFKA_VERSION
from ottla.cli.kafka.columns import columns

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Failed(Exception):
    """The tool cannot do what it was asked; the message goes to standard error, and the exit code is 1."""


class Usage(Failed):
    """The options do not fit together: the usage text is printed behind the message."""


class Option:
    """One option. `kind` is None for a flag, else the Java name of its argument's type.

    `what` may be a function: some descriptions list hundreds of settings, and most runs never show them.
    """

    def __init__(
        self,
        names: str | tuple[str, ...],
        what: str | Callable[[], str],
        kind: str | None = None,
        described_as: str = "",
        *,
        default: object = None,
        is_optional: bool = False,
        separator: str = "",
        only_with: tuple[str, ...] = (),
    ) -> None:
        self.names = (names,) if isinstance(names, str) else names
        self.what = what
        self.kind = kind
        self.described_as = described_as
        self.default = default
        # Whether the argument may be missing.
        self.is_optional = is_optional
        self.separator = separator
        # It may be given together with one of these, and not otherwise.
        self.only_with = only_with

    @property
    def name(self) -> str:
        """The longest one, by which the option is known inside."""
        return max(self.names, key=len)

    def usage(self) -> tuple[str, str]:
        names = ", ".join(("--" if len(name) > 1 else "-") + name for name in self.names)
        open_, close = "[]" if self.is_optional else "<>"
        inside = f"{self.kind}: {self.described_as}" if self.described_as else self.kind
        default = "" if self.default is None else f" (default: {_java_text(self.default)})"
        what = self.what if isinstance(self.what, str) else self.what()
        return f"{names} {open_}{inside}{close}" if self.kind else names, what + default


def flag(names: str | tuple[str, ...], what: str, *, only_with: tuple[str, ...] = ()) -> Option:
    return Option(names, what, only_with=only_with)


def takes(
    names: str | tuple[str, ...],
    what: str | Callable[[], str],
    described_as: str = "",
    *,
    kind: str = "String",
    default: object = None,
    is_optional: bool = False,
    separator: str = "",
    only_with: tuple[str, ...] = (),
) -> Option:
    """An option with an argument, by default a text."""
    return Option(
        names,
        what,
        kind,
        described_as,
        default=default,
        is_optional=is_optional,
        separator=separator,
        only_with=only_with,
    )


HELP = flag("help", "Print usage information.")
VERSION = flag("version", "Display Kafka version.")


class Parser:
    """The options of one tool. `what` is what `--help` says before the list of them; `mistake` makes of words that cannot be
    read as options what is raised: some tools print the list of options then, others do not."""

    def __init__(self, what: str, *options: Option, mistake: Callable[[str], Failed] = Failed) -> None:
        self.what = what
        self.mistake = mistake
        self.options = (*options, HELP, VERSION)
        self.by_name = {name: option for option in self.options for name in option.names}

    def parse(self, argv: Sequence[str]) -> Options:
        found = Options(self)
        words = list(argv)
        while words:
            word = words.pop(0)
            if word == "--":
                found.others += words
                break
            if len(word) > 1 and word.startswith("-"):
                self._take(word, words, found)
            else:
                found.others.append(word)
        self._check_company(found)
        return found

    def _check_company(self, found: Options) -> None:
        """Who asks for help is not told which options go together."""
        given = [self.by_name[name] for name in found.given()]
        alone = [option for option in given if option.only_with and not any(map(found.has, option.only_with))]
        if alone and not found.has("help"):
            names = ", ".join(sorted(option.name for option in alone))
            raise self.mistake(f"Option(s) [{names}] are unavailable given other options on the command line")

    def _take(self, word: str, words: list[str], found: Options) -> None:
        name, equals, value = word.lstrip("-").partition("=")
        option = self.by_name.get(name)
        if option is None:
            raise self.mistake(f"{name if word.startswith('--') else name[:1]} is not a recognized option")
        if option.kind is None:
            found.add(option, [])
            return
        if equals:
            found.add(option, [value])
        elif words and not (option.is_optional and words[0].startswith("-")):
            found.add(option, [words.pop(0)])
        elif option.is_optional:
            found.add(option, [])
        else:
            raise self.mistake(f"Option {_name_list(option)} requires an argument")

    def usage(self) -> str:
        rows = sorted(option.usage() for option in self.options)
        return columns([("Option", "Description"), ("------", "-----------"), *rows])


class Options:
    """What was given. Options are asked for by their longest name."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        self.others: list[str] = []
        self._given: dict[str, list[str]] = {}
        self._sequence: list[tuple[str, list[str]]] = []

    def add(self, option: Option, values: Iterable[str]) -> None:
        found = list(values)
        self._given.setdefault(option.name, []).extend(found)
        self._sequence.append((option.name, found))

    def has(self, name: str) -> bool:
        return name in self._given

    def values(self, name: str) -> list[str]:
        """All of them, split where the option takes lists."""
        option = self.parser.by_name[name]
        given = self._given.get(name)
        if given is None:
            return [] if option.default is None else [str(option.default)]
        if not option.separator:
            return list(given)
        return [part for value in given for part in value.split(option.separator)]

    def given(self) -> list[str]:
        """The options that were given, by name, in that order."""
        return list(self._given)

    def in_order(self, *names: str) -> list[str]:
        """The values of several options in the order in which they were given; "" for one without a value."""
        return [value for name, given in self._sequence if name in names for value in given or [""]]

    def value(self, name: str) -> str | None:
        """The only one; the option's default where it was not given."""
        found = self.values(name)
        if len(found) > 1:
            text = _name_list(self.parser.by_name[name])
            raise Failed(f"Found multiple arguments for option {text}, but you asked for only one")
        if not found:
            default = self.parser.by_name[name].default
            return None if default is None else str(default)
        return found[0]

    def text(self, name: str) -> str:
        """The value of an option that is known to have one."""
        return self.value(name) or ""

    def number(self, name: str) -> int | None:
        """The value of an option that takes a whole number."""
        text = self.value(name)
        if text is None:
            return None
        bits = 31 if self.parser.by_name[name].kind == "Integer" else 63
        try:
            number = int(text) if text.strip() == text and "_" not in text else None
        except ValueError:
            number = None
        if number is None or not -(1 << bits) <= number < 1 << bits:
            raise Failed(f"Cannot parse argument '{text}' of option {_name_list(self.parser.by_name[name])}")
        return number

    def require(self, *names: str) -> None:
        for name in names:
            if not self.has(name):
                raise Usage(f'Missing required argument "[{_names(self.parser.by_name[name])}]"')

    def forbid(self, used: str, *others: str) -> None:
        """`used` cannot be together with any of the others."""
        for other in others:
            if self.has(used) and self.has(other):
                first, second = (_names(self.parser.by_name[name]) for name in (used, other))
                raise Usage(f'Option "[{first}]" can\'t be used with option "[{second}]"')


def run(parser: Parser, argv: Sequence[str] | None, body: Callable[[Options], int | None]) -> int:
    """Read the options and do the work; what goes wrong becomes a line on standard error and an exit code."""

    def guided() -> int:
        words = list(sys.argv[1:] if argv is None else argv)
        try:
            options = parser.parse(words)
            if not words or options.has("help"):
                raise Usage(parser.what)
            if options.has("version"):
                print(KAFKA_VERSION)
                return 0
            return body(options) or 0
        except Usage as wrong:
            print(f"{wrong}\n{parser.usage()}", file=sys.stderr)
            return 1

    return guarded(guided)


def guarded(run_tool: Callable[[], int]) -> int:
    """Run a tool; turn what may go wrong into one line and exit code 1, as Kafka's tools do."""
    from ottla.cli.main import guarded as guarded_verb

    def told() -> int:
        try:
            return run_tool()
        except Failed as failure:
            print(failure, file=sys.stderr)
            return 1
        except Exception as error:
            text = _told(error)
            if text is None:
                raise
            print(text, file=sys.stderr)
            return 1

    return guarded_verb(told, name="", mistake_code=1)


def _told(error: Exception) -> str | None:
    """What the broker said, as Kafka's tools print it; None for anything else."""
    from ottla.wire.errors import KafkaError

    return error.message if isinstance(error, KafkaError) else None


def _names(option: Option) -> str:
    return ", ".join(option.names)


def _name_list(option: Option) -> str:
    """As jopt-simple names an option: several names stand in brackets."""
    return option.name if len(option.names) == 1 else f"[{_names(option)}]"


def _java_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
