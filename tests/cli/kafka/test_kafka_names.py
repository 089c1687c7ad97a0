"""Every tool is there under Kafka's names, and is loaded no further than it needs."""

from __future__ import annotations

import re
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
# The rest of bin/*.sh in the archive of Kafka 4.3.
NOT_HERE = [
    *("connect-distributed", "connect-mirror-maker", "connect-plugin-path", "connect-standalone", "kafka-acls"),
    *("kafka-client-metrics", "kafka-console-share-consumer", "kafka-delegation-tokens", "kafka-e2e-latency"),
    *("kafka-groups", "kafka-jmx", "kafka-replica-verification", "kafka-run-class", "kafka-share-consumer-perf-test"),
    *("kafka-share-groups", "kafka-streams-application-reset", "kafka-streams-groups", "kafka-verifiable-consumer"),
    *("kafka-verifiable-producer", "kafka-verifiable-share-consumer", "trogdor"),
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


def test_names_that_are_not_there_are_told() -> None:
    """FTM-05: with what is to be used instead."""
    page = (TREE / "docs" / "tools.md").read_text()
    told = page.split("## What is not there\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in told.splitlines() if row.startswith("| `") and "(Kafka 3)" not in row]
    assert sorted(re.findall("`(.*?)`", " ".join(rows))) == sorted(NOT_HERE)
    assert not scripts().keys() & {*NOT_HERE}


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
