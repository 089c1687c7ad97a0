"""YAML whose every value knows its line, and a reader that collects what is wrong instead of stopping at the first mistake.

Python objects become the same nodes, with the path to them in place of a line: a pipeline made in a notebook is judged by
the same rules and in the same words as one from a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

LINE = re.compile(r"[^:]*:(\d+): ")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class WrongPipeline(Exception):
    """One or more mistakes in a pipeline; each line says where, and what to write."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Node:
    """A value (text, number, truth, nothing, a function; a list or a mapping of nodes) and where it stands."""

    value: Any
    where: str


class Problems:
    """What was found wrong so far, in the order of finding."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, where: str, text: str) -> None:
        self.found.append(f"{where}: {text}" if where else text)

    def raise_any(self) -> None:
        if self.found:
            raise WrongPipeline(sorted(self.found, key=_line))


def _line(problem: str) -> int:
    """People go through a file from the top."""
    found = LINE.match(problem)
    return int(found[1]) if found else 0


def suggestion(typed: str, known: Iterable[str]) -> str:
    """`: did you mean 'topic'?`, or all that could have been meant."""
    names = list(known)
    swapped = [name for name in names if sorted(name) == sorted(typed)]  # 'form' is nearer to 'from' than to 'format'
    close = swapped or get_close_matches(typed, names, n=1, cutoff=0.6)
    return f": did you mean {close[0]!r}?" if close else f": write one of {', '.join(names)}"


# From a file


def from_file(path: Path, problems: Problems) -> Node:
    """The whole file as nodes. What is not YAML ends it: there is nothing more to read."""
    try:
        root = yaml.compose(path.read_text(), yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise WrongPipeline([f"{path}:{line}: this is not YAML: {error.problem}"])
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WrongPipeline([f"{path}:1: this is not YAML: {' '.join(str(error).split())}"])
    if root is None:
        raise WrongPipeline([f"{path}:1: the file is empty: `ottla pipeline init` writes an example"])
    return _node(root, str(path), problems)


def _node(node: yaml.Node, file: str, problems: Problems) -> Node:
    where = f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        return Node(_mapping(node, file, problems), where)
    if isinstance(node, yaml.SequenceNode):
        return Node([_node(each, file, problems) for each in node.value], where)
    assert isinstance(node, yaml.ScalarNode)
    return Node(_scalar(node, where, problems), where)


def _mapping(node: yaml.MappingNode, file: str, problems: Problems) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for key, value in node.value:
        where = f"{file}:{key.start_mark.line + 1}"
        name = str(key.value)
        if name in found:
            problems.add(where, f"{name!r} is there twice: the first is at {found[name].where}")
        # A key's line is where people look, also when its value begins on the next one.
        found[name] = Node(_node(value, file, problems).value, where)
    return found


def _scalar(node: yaml.ScalarNode, where: str, problems: Problems) -> Any:
    value = yaml.SafeLoader("").construct_object(node)
    return filled_in(value, where, problems) if isinstance(value, str) else value


def filled_in(text: str, where: str, problems: Problems) -> str:
    """`${NAME}` and `${NAME:-otherwise}` from the environment, so that no password stands in a file."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ and match[2] is None:
            problems.add(where, f"the variable {match[1]} is not set: export it, or write ${{{match[1]}:-a default}}")
        return os.environ.get(match[1], match[2] or "")

    return VARIABLE.sub(value, text)


# From Python


def from_object(value: Any, where: str = "") -> Node:
    """Mappings and sequences all the way down; anything else stays as it is."""
    if isinstance(value, Mapping):
        inside = {str(key): from_object(each, f"{where}.{key}".lstrip(".")) for key, each in value.items()}
        return Node({key: node for key, node in inside.items() if node.value is not None}, where)
    if isinstance(value, list | tuple):
        return Node([from_object(each, f"{where}[{number}]") for number, each in enumerate(value)], where)
    return Node(value, where)


class Section:
    """One mapping, read key by key; `end` complains about the keys nobody asked for."""

    def __init__(self, node: Node, title: str, problems: Problems) -> None:
        self.where = node.where
        self.title = title
        self._problems = problems
        self._asked: list[str] = []
        self._nodes: dict[str, Node] = node.value if isinstance(node.value, dict) else {}
        if not isinstance(node.value, dict):
            self.wrong(f"{title} must be a mapping of names to values")

    def wrong(self, text: str, key: str | None = None) -> None:
        place = self._nodes[key].where if key in self._nodes else self.where
        self._problems.add(place, text)

    def wrong_at(self, where: str, text: str) -> None:
        self._problems.add(where, text)

    def has(self, key: str) -> bool:
        return key in self._nodes

    def where_of(self, key: str) -> str:
        return self._nodes[key].where if key in self._nodes else self.where

    def node(self, key: str) -> Node | None:
        self._asked.append(key)
        return self._nodes.get(key)

    def text(self, key: str, default: str | None = None, needed: str = "") -> str:
        """`needed` says what to write when it is missing; without it, what is missing is the default or empty."""
        node = self.node(key)
        if node is None or node.value is None:
            if needed:
                self.wrong(f"{self.title} needs {key!r}: write {needed}")
            return default or ""
        if isinstance(node.value, dict | list):
            self.wrong(f"{key!r} must be one value, not {_kind(node.value)}", key)
            return default or ""
        return _text(node.value)

    def choice(self, key: str, among: Sequence[str], default: str) -> str:
        value = self.text(key, default)
        if value not in among:
            self.wrong(f"{key!r} cannot be {value!r}{suggestion(value, among)}", key)
            return default
        return value

    def number(self, key: str, default: int) -> int:
        node = self.node(key)
        if node is None:
            return default
        if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < 0:
            self.wrong(f"{key!r} must be a whole number, not {node.value!r}", key)
            return default
        return node.value

    def flag(self, key: str, default: bool) -> bool:
        node = self.node(key)
        if node is None:
            return default
        if not isinstance(node.value, bool):
            self.wrong(f"{key!r} must be true or false, not {node.value!r}", key)
            return default
        return node.value

    def words(self, key: str) -> tuple[str, ...]:
        """One word, or a list of them."""
        node = self.node(key)
        if node is None:
            return ()
        if isinstance(node.value, list) and not any(isinstance(each.value, dict | list) for each in node.value):
            return tuple(_text(each.value) for each in node.value)
        if isinstance(node.value, dict | list):
            self.wrong(f"{key!r} must be a word or a list of words", key)
            return ()
        return (_text(node.value),)

    def options(self, key: str) -> dict[str, str]:
        """Names and values that are handed on as they are."""
        node = self.node(key)
        if node is None:
            return {}
        if not isinstance(node.value, dict) or any(isinstance(each.value, dict | list) for each in node.value.values()):
            self.wrong(f"{key!r} must be a mapping of names to single values", key)
            return {}
        return {name: _text(each.value) for name, each in node.value.items()}

    def values(self, key: str) -> dict[str, Any]:
        """Names and values of whatever kind."""
        node = self.node(key)
        if node is not None and not isinstance(node.value, dict):
            self.wrong(f"{key!r} must be a mapping of names to values", key)
        return plain(node) if node is not None and isinstance(node.value, dict) else {}

    def inner(self, key: str) -> Section | None:
        node = self.node(key)
        return None if node is None else Section(node, f"{key!r} of {self.title}", self._problems)

    def each(self, key: str, title: Callable[[str], str]) -> Iterator[tuple[str, Section]]:
        node = self.node(key)
        if node is not None and not isinstance(node.value, dict):
            self.wrong(f"{key!r} must be a mapping: a name, and what it is", key)
        for name, inside in (node.value if node is not None and isinstance(node.value, dict) else {}).items():
            yield name, Section(inside, title(name), self._problems)

    def end(self) -> None:
        known = sorted(set(self._asked))
        for key, node in self._nodes.items():
            if key not in known:
                self._problems.add(node.where, f"{self.title} has no {key!r}{suggestion(key, known)}")


def plain(node: Node) -> Any:
    """The value without the places."""
    if isinstance(node.value, dict):
        return {name: plain(each) for name, each in node.value.items()}
    if isinstance(node.value, list):
        return [plain(each) for each in node.value]
    return node.value


def _text(value: Any) -> str:
    """As it was written: YAML makes truth values of true and false."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(value: Any) -> str:
    return "a mapping" if isinstance(value, dict) else "a list"
