"""kafka-metadata-shell.sh: walk through the metadata of a cluster as through a tree of files.

With a command it runs that and ends; without one it asks for commands. `--snapshot` names a snapshot or a segment of
`__cluster_metadata`, or, beyond what Kafka's shell takes, a whole data directory.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.commands import Command, run
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ottla.cli.dump.picture import Tree

PROMPT = ">> "
COMMANDS = {
    "cat": "Show the contents of metadata files.",
    "cd": "Set the current working directory.",
    "exit": "Exit the metadata shell.",
    "find": "Search for nodes in the directory hierarchy.",
    "help": "Display this help message.",
    "history": "Print command history.",
    "ls": "List metadata nodes.",
    "man": "Show the help text for a specific command.",
    "pwd": "Print the current working directory.",
    "tree": "Show the contents of metadata nodes in a tree structure.",
}
# Those that can be given on the command line: they need no conversation.
ALONE = ("cat", "find", "ls", "tree")
ARGUMENTS = {
    "cat": "targets [targets ...]",
    "cd": "[target]",
    "find": "[paths ...]",
    "ls": "[targets ...]",
    "man": "cmd",
    "tree": "targets [targets ...]",
    "history": "[numEntriesToShow]",
}
SPECIAL = re.compile(r"[*?{\\]")


def _parser() -> Command:
    parser = Command("kafka-metadata-shell", description="The Apache Kafka metadata shell")
    parser.add_argument("--snapshot", "-s", required=True, help="The metadata snapshot file to read.")
    parser.add_argument(
        "--cluster-id", "-t", nargs="?", const="", help="Refuse metadata of another cluster; alone: print the id."
    )
    parser.add_argument("command", nargs="*", help="The command to run.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.dump.picture import Unreadable, load, tree_of

    _check_cluster(args)
    try:
        image, timestamp = load(args.snapshot)
    except (Unreadable, OSError) as error:
        raise Failed(f"Unexpected error: {getattr(error, 'strerror', None) or error}: {args.snapshot}")
    shell = Shell(tree_of(image, timestamp))
    if args.command:
        shell.obey(args.command, ALONE)
        return 0
    if args.cluster_id == "":
        return 0
    return _converse(shell)


def _check_cluster(args: argparse.Namespace) -> None:
    """`meta.properties` of the directory around says whose metadata this is."""
    from ottla.log.identity import BadIdentity, read_meta_properties
    from ottla.world import RealDisk

    if args.cluster_id is None:
        return
    path = os.path.abspath(args.snapshot)
    homes = [path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))]
    try:
        metas = [meta for home in homes if os.path.isdir(home) and (meta := read_meta_properties(RealDisk(), home))]
    except BadIdentity as error:
        raise Failed(f"Unexpected error: {error}")
    if not metas:
        raise Failed(f"Unexpected error: there is no meta.properties beside {args.snapshot}")
    if not args.cluster_id:
        print(f"Cluster ID: {metas[0].cluster_id}")
    elif args.cluster_id != metas[0].cluster_id:
        raise Failed(f"Unexpected error: this is metadata of cluster {metas[0].cluster_id}, not of {args.cluster_id}")


def _converse(shell: Shell) -> int:
    """Ask for commands until there are no more."""
    print("Loading...\nStarting...\n[ Kafka Metadata Shell ]")
    if sys.stdin.isatty():
        _complete(shell)
    while True:
        try:
            words = shlex.split(input(PROMPT if sys.stdin.isatty() else ""))
        except EOFError:
            return 0
        except ValueError as error:
            print(error)
            continue
        if words and words[0] in ("exit", "quit"):
            return 0
        if words:
            shell.obey(words)


def _complete(shell: Shell) -> None:
    """Names are completed by the tabulator key, where the terminal can do that."""
    try:
        import readline
    except ImportError:
        return
    readline.set_completer_delims(" ")
    readline.set_completer(lambda text, n: [*shell.candidates(readline.get_line_buffer(), text), None][n])
    readline.parse_and_bind("tab: complete")


class Shell:
    """A place in a tree, and commands that look around from there."""

    def __init__(self, root: Tree) -> None:
        self.root = root
        self.place = "/"
        self.history: list[str] = []

    def obey(self, words: Sequence[str], commands: Collection[str] = COMMANDS.keys()) -> None:
        self.history.append(" ".join(words))
        name, *rest = words
        if name not in commands:
            choices = ", ".join(f"'{command}'" for command in sorted(commands))
            print(f"invalid choice: '{name}' (choose from {choices})")
            return
        actions: dict[str, Callable[[list[str]], None]] = {
            "cat": self._cat,
            "cd": self._cd,
            "find": self._find,
            "help": self._help,
            "history": self._history,
            "ls": self._ls,
            "man": self._man,
            "pwd": lambda _: print(self.place),
            "tree": self._tree,
        }
        option = next((word for word in rest if word.startswith("-") and word != "-"), None)
        if option is not None:
            print(f"unrecognized arguments: '{option}'")
        elif name in ("cat", "tree", "man") and not rest:
            print("too few arguments")
        elif name in actions:
            actions[name](rest)

    # Finding.

    def find(self, path: str) -> list[tuple[str, Tree | str]]:
        """Every node that a path with wildcards matches."""
        parts = [part for part in self._absolute(path).split("/") if part]
        found: list[tuple[str, Tree | str]] = [("", self.root)]
        for part in parts:
            found = [
                (f"{where}/{name}", node[name])
                for where, node in found
                if not isinstance(node, str)
                for name in sorted(node)
                if _matches(part, name)
            ]
        return [(where or "/", node) for where, node in found]

    def _absolute(self, path: str) -> str:
        parts: list[str] = []
        for part in (path if path.startswith("/") else f"{self.place}/{path}").split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)

    def candidates(self, line: str, text: str) -> list[str]:
        """What the word that is being typed could become."""
        words = line.split(" ")
        if len(words) < 2:
            return [f"{command} " for command in sorted(COMMANDS) if command.startswith(text)]
        head, _, tail = text.rpartition("/")
        base = (head + "/") if "/" in text else ""
        for _, node in self.find(base or "."):
            if not isinstance(node, str):
                names = [name for name in sorted(node) if name.startswith(tail)]
                return [f"{base}{name}{'' if isinstance(node[name], str) else '/'}" for name in names]
        return []

    # The commands.

    def _ls(self, targets: list[str]) -> None:
        files, directories = [], []
        for target in targets or ["."]:
            matched = self.find(target)
            if not matched:
                print(f"ls: {target}: no such file or directory.")
            for where, node in matched:
                name = where.rsplit("/", 1)[-1] or "/"
                if isinstance(node, str):
                    files.append(name)
                else:
                    directories.append((name, sorted(node)))
        _print_columns(files)
        for number, (name, names) in enumerate(directories):
            if (files or len(directories) > 1) and names:
                print(("\n" if files or number else "") + f"{name}:")
            _print_columns(names)

    def _cat(self, targets: list[str]) -> None:
        for target in targets:
            matched = self.find(target)
            if not matched:
                print(f"cat: {target}: No such file or directory.")
            for _, node in matched:
                print(node if isinstance(node, str) else f"cat: {target}: Is a directory")

    def _tree(self, targets: list[str]) -> None:
        for target in targets:
            matched = self.find(target)
            if not matched:
                print(f"tree: {target}: No such file or directory.")
            for _, node in matched:
                for line in _lines(node, 0):  # of an empty directory there is none
                    print(line)

    def _find(self, targets: list[str]) -> None:
        for target in targets or ["."]:
            matched = self.find(target)
            if not matched:
                print(f"find: {target}: no such file or directory.")
            for _, node in matched:
                print("\n".join(_paths(target, node)))

    def _cd(self, targets: list[str]) -> None:
        target = targets[0] if targets else "/"
        matched = self.find(target)
        if not matched:
            print(f"cd: {target}: no such directory.")
        elif isinstance(matched[0][1], str):
            print(f"cd: {target}: not a directory.")
        else:
            self.place = matched[0][0]

    def _man(self, names: list[str]) -> None:
        for name in names:
            if name in COMMANDS:
                usage = f"usage: {name} {ARGUMENTS.get(name, '')}".rstrip()
                print(f"{name}: {COMMANDS[name]}\n\n{usage}")
            else:
                print(f"man: unknown command {name}. Type help to get a list of commands.")

    def _help(self, _: list[str]) -> None:
        print("Welcome to the Apache Kafka metadata shell.\n\nusage:  {" + ",".join(sorted(COMMANDS)) + "} ...\n")
        print("\n".join(f"    {name:8} {what}" for name, what in sorted(COMMANDS.items())))

    def _history(self, count: list[str]) -> None:
        last = int(count[0]) if count and count[0].isdigit() else len(self.history)
        first = max(0, len(self.history) - last)
        for number, line in enumerate(self.history[first:], first):
            print(f"{number:5}  {line}")


def _matches(pattern: str, name: str) -> bool:
    """`*`, `?` and `{a,b}`; a backslash takes away the meaning of what follows."""
    if not SPECIAL.search(pattern):
        return pattern == name
    parts, in_group, at = [], False, 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "\\" and at < len(pattern):
            parts.append(re.escape(pattern[at]))
            at += 1
        elif char == "{" and "}" in pattern[at:] and not in_group:
            parts.append("(?:")
            in_group = True
        elif char == "}" and in_group:
            parts.append(")")
            in_group = False
        elif char == "," and in_group:
            parts.append("|")
        else:
            parts.append({"*": ".*", "?": "."}.get(char) or re.escape(char))
    return re.fullmatch("".join(parts), name) is not None


def _lines(node: Tree | str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(node, str):
        yield f"{indent}{node}"
        return
    for name in sorted(node):
        yield f"{indent}{name}:"
        yield from _lines(node[name], depth + 1)


def _paths(path: str, node: Tree | str) -> Iterator[str]:
    yield path
    if not isinstance(node, str):
        for name in sorted(node):
            yield from _paths(f"{path}{name}" if path == "/" else f"{path}/{name}", node[name])


def _print_columns(names: list[str]) -> None:
    """One name per line; on a terminal as many columns as fit."""
    if not names:
        return
    if not sys.stdout.isatty():
        print("\n".join(names))
        return
    import shutil

    width = max(map(len, names)) + 2
    count = max(1, shutil.get_terminal_size().columns // width)
    rows = -(-len(names) // count)
    for row in range(rows):
        print("".join(name.ljust(width) for name in names[row::rows]).rstrip())
