"""The rules of the house that can be checked by looking at the source: who imports whom, what quiet rooms may not
touch, where module-level state may live, and how long files and functions may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ottla"
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"
MODULES = sorted(SOURCE.rglob("*.py"))

# A room may import the rooms named here, and itself. Downwards only: reading the table from the top, a room names only
# rooms that stand above it.
MAY_IMPORT: dict[str, set[str]] = {
    "world": set(),
    "deadline": set(),
    "rising": {"deadline"},
    "metrics": set(),
    "properties": set(),
    "wire": set(),
    "config": {"wire", "properties"},
    "log": {"wire", "world", "properties"},
    "raft": {"wire"},
    "metadata": {"wire", "config", "raft"},
    "coordination": {"wire", "config", "metadata"},
    "replication": {"wire", "world", "rising", "config", "log", "metadata"},
    "client": {"wire", "world", "deadline"},
    "server": {
        "wire",
        "world",
        "deadline",
        "rising",
        "metrics",
        "config",
        "log",
        "raft",
        "metadata",
        "coordination",
        "replication",
        "client",
    },
    "pipeline": {"metrics", "wire", "world", "client"},
    "testing": {"wire", "world", "config", "log", "metadata", "server"},
    "sim": {"wire", "world", "properties", "config", "log", "raft", "metadata", "replication", "client", "server"},
    "cli": {
        "wire",
        "world",
        "properties",
        "config",
        "client",
        "pipeline",
        "server",
        "sim",
        "log",
        "raft",
        "metadata",
        "coordination",
    },
}

QUIET = {"wire", "raft", "metadata", "coordination", "balance"}
LOUD_MODULES = {"asyncio", "socket", "threading", "time", "random", "os", "uuid", "selectors", "subprocess"}

# Only these rooms and files may touch clock, randomness, threads, disk or sockets directly.
MACHINE_MODULES = {"time", "os", "uuid", "threading", "socket", "subprocess", "shutil", "concurrent", "multiprocessing"}
IMPORT_LATE = {"cli", "testing", "__init__"}
AT_THE_EDGE = {"world", "server", "pipeline", "testing", "cli", "sim"}

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

# What is longer than the rule allows, and how long it may be: these numbers only ever shrink.
LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}


def room_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every module imported at run time; what stands under `if TYPE_CHECKING` is for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node
        else:
            yield from imports(node)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def test_the_table_of_rooms_goes_downwards_only() -> None:
    above: set[str] = set()
    for room, allowed in MAY_IMPORT.items():
        assert allowed <= above, f"{room} may import {allowed - above}, which do not stand above it"
        above.add(room)


def test_the_page_about_the_house_has_the_same_table() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| .* \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    told = {room: set() if names == "nothing" else set(names.split(", ")) for room, names in rows}
    assert list(told) == list(MAY_IMPORT), "the same rooms in the same order"
    assert told.pop("server") == {"all of the above"}
    assert told == {room: allowed for room, allowed in MAY_IMPORT.items() if room != "server"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_import_downwards_only(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        return
    allowed = MAY_IMPORT[room] | {room} if room != "__main__" else {"cli"}
    for module, _ in imports(parsed(path)):
        if module.startswith("ottla."):
            assert module.split(".")[1] in allowed, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) in QUIET], ids=name_of)
def test_quiet_rooms_are_quiet(path: Path) -> None:
    tree = parsed(path)
    for module, _ in imports(tree):
        assert module.split(".")[0] not in LOUD_MODULES, f"{name_of(path)} imports {module}"
    loud = [n for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)]
    assert not loud, f"{name_of(path)} awaits in line {loud[0].lineno}"


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) not in AT_THE_EDGE], ids=name_of)
def test_only_the_edge_touches_the_machine(path: Path) -> None:
    for module, _ in imports(parsed(path)):
        assert module.split(".")[0] not in MACHINE_MODULES, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) not in IMPORT_LATE], ids=name_of)
def test_no_import_inside_a_function_dodges_a_cycle(path: Path) -> None:
    """Commands of the CLI import late so that each starts quickly, and so does what every run of pytest loads."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for module, _ in imports(node):
                assert not module.startswith("ottla"), f"{name_of(path)}: {node.name} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_stay_short(path: Path) -> None:
    name = name_of(path)
    lines = path.read_text().count("\n")
    assert lines <= LONG_FILES.get(name, FILE_LINES_MAX), f"{name} has {lines} lines"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            where = f"{name}:{node.name}"
            assert length <= LONG_FUNCTIONS.get(where, FUNCTION_LINES_MAX), f"{where} has {length} lines"
