"""The programs that make the load, in C and one in Java: compiled on first use, run as children, their JSON read back.

Python clients would be measured instead of the broker: their loops end where librdkafka and a pipelined socket begin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from apache import kafka
from harness import TREE, Server, die_with_parent, split

SOURCES = Path(__file__).resolve().parent / "c"
JAVA_SOURCE = Path(__file__).resolve().parent / "java" / "Transactions.java"
BUILT = TREE / ".cache"
SECONDS_MAX = 600.0

Figures = dict[str, float]


class CannotMeasure(Exception):
    """A load did not run, or not as it should; one line says why."""


def build() -> None:
    """Compiles what is older than its source."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CannotMeasure("no C compiler: the loads are C programs (Debian: apt install gcc libc6-dev)")
    BUILT.mkdir(exist_ok=True)
    for name in ("raw", "bulk", "transactions", "nothing"):
        source, program = SOURCES / f"{name}.c", BUILT / name
        if not program.exists() or program.stat().st_mtime < max(map(_changed, (source, *SOURCES.glob("*.h")))):
            subprocess.run([compiler, "-O2", "-o", str(program), str(source), "-ldl", "-lpthread"], check=True)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def build_java() -> None:
    program = BUILT / "Transactions.class"
    if program.exists() and program.stat().st_mtime >= JAVA_SOURCE.stat().st_mtime:
        return
    if (reason := kafka.why_missing()) or shutil.which("javac") is None:
        raise CannotMeasure(reason or "no Java compiler (Debian: apt install default-jdk-headless)")
    subprocess.run(["javac", "-cp", f"{kafka.JARS}/*", "-d", str(BUILT), str(JAVA_SOURCE)], check=True)


def librdkafka() -> str:
    """The library inside the confluent-kafka wheel."""
    for place in map(Path, sys.path):
        for found in (place / "confluent_kafka.libs").glob("librdkafka-*.so*"):
            return str(found)
    raise CannotMeasure("no librdkafka: pip install confluent-kafka")


def raw(server: Server, mode: str, topic: str, seconds: float, *rest: object) -> Figures:
    return run(raw_command(server, mode, topic, seconds, *rest))


def raw_command(server: Server, mode: str, topic: str, seconds: float, *rest: object) -> list[str]:
    host, port = split(server.address)
    return [str(BUILT / "raw"), mode, host, str(port), topic, str(seconds), *map(str, rest)]


def bulk(server: Server, mode: str, topic: str, *rest: object) -> Figures:
    return run([str(BUILT / "bulk"), librdkafka(), mode, server.address, topic, *map(str, rest)])


def librdkafka_transactions(server: Server, mode: str, topic: str, *rest: object) -> Figures:
    return run([str(BUILT / "transactions"), librdkafka(), mode, server.address, topic, *map(str, rest)])


def java_transactions(server: Server, mode: str, topic: str, *rest: object) -> Figures:
    build_java()
    logging = f"-Dlog4j2.configurationFile={kafka.logging_file('ERROR')}"
    command = ["java", "-Xmx512m", logging, "-cp", f"{BUILT}:{kafka.JARS}/*", "Transactions"]
    return run([*command, mode, server.address, topic, *map(str, rest)])


def run(command: list[str]) -> Figures:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, preexec_fn=die_with_parent)
    if done.returncode != 0:
        raise CannotMeasure(f"{Path(command[0]).name} {command[-6:]}: {done.stderr.strip()[-300:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """A load in the background, to be killed by whoever started it."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)


def family_cpu_seconds(pid: int) -> float:
    """Processor time of a process, of its children and theirs, and of those that have ended and were waited for."""
    return sum(own + of_ended for _, own, of_ended in family_cpu(pid))


def family_cpu(pid: int) -> list[tuple[str, float, float]]:
    """The same by member: its name, its own seconds, and those of its children that have ended and were waited for."""
    parents: dict[int, list[int]] = {}
    used: dict[int, tuple[str, float, float]] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(") ")
        except OSError:
            continue  # it has just ended
        fields, member = tail.split(), int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(member)
        own, of_ended = (sum(map(int, part)) / tick for part in (fields[11:13], fields[13:15]))
        used[member] = head.partition("(")[2], own, of_ended
    family, waiting = [], [pid]
    while waiting:
        member = waiting.pop()
        if member in used:
            family.append(used[member])
        waiting += parents.get(member, [])
    return family
