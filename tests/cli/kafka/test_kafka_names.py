"""Every tool is there under Kafka's names, and is loaded no further than it needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
NAMES = [
    *("kafka-topics", "kafka-configs", "kafka-dump-log", "kafka-storage", "kafka-log-dirs", "kafka-cluster"),
    *("kafka-broker-api-versions", "kafka-features", "kafka-metadata-quorum", "kafka-metadata-shell", "kafka-metadata"),
    *(
        "kafka-leader-election",
        "kafka-reassign-partitions",
        "kafka-server-start",
        "kafka-server-stop",
        "zookeeper-shell",
    ),
    *("kafka-consumer-groups", "kafka-get-offsets", "kafka-delete-records", "kafka-transactions"),
    *("kafka-console-producer", "kafka-console-consumer", "kafka-producer-perf-test", "kafka-consumer-perf-test"),
]
# What takes long to load, and what only those need who talk to a cluster.
HEAVY = ("asyncio", "ottla.client", "ottla.server", "ottla.sim")


def scripts() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["scripts"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    """CLI-14, CLI-18: with and without .sh, and the module is there."""
    module, _, function = scripts()[f"{name}.sh"].partition(":")
    assert scripts()[name] == f"{module}:{function}"
    assert callable(getattr(import_module(module), function))


def test_every_script_of_ours_leads_somewhere() -> None:
    for target in scripts().values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function)), target


def test_help_loads_nothing_heavy() -> None:
    """A tool must answer at once; loading the client takes longer than everything else."""
    modules = sorted({scripts()[f"{name}.sh"].partition(":")[0] for name in NAMES})
    program = (
        "import contextlib, io, sys\n"
        "from importlib import import_module\n"
        f"for name in {modules!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "        import_module(name).main(['--help'])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
