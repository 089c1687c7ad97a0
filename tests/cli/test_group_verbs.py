"""`ottla group`, `offsets`, `perf`, and `consume --group`, as people type them, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness import HOST
from ottla.cli.main import main
from ottla.client.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer

NUMBERS = itertools.count()
SEGMENT = Path(__file__).parent / "dump" / "apache" / "print.segment"


@pytest.fixture
def name() -> str:
    """For a topic and its group."""
    return f"verbs-{os.getpid()}-{next(NUMBERS)}-{random.randrange(1 << 32):x}"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def ottla(broker: str, *words: str, code: int = 0) -> Done:
    """A process of its own for what writes to a descriptor; the others run in this one, which is faster."""
    done = (_process if words[0] == "consume" else _here)([*words, "-b", broker])
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def _process(words: list[str]) -> Done:
    command = [sys.executable, "-m", "ottla", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)


def _here(words: list[str]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Done(code, out.getvalue(), err.getvalue())


# The command as it is, but with bars from the first moment on.
HASTY = """\
import sys
from ottla.cli import progress
progress.FIRST_SECONDS = progress.PAUSE_SECONDS = 0.0
from ottla.cli.{module} import main
sys.exit(main(sys.argv[1:]))
"""


def drawn(*words: str, module: str = "main") -> str:
    """What a command draws on a terminal, while its output goes somewhere else."""
    seen, terminal = os.openpty()
    command = [sys.executable, "-c", HASTY.format(module=module), *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal) as process:
        os.close(terminal)
        pieces = list(iter(partial(_piece, seen), b""))
        os.close(seen)
    text = b"".join(pieces).decode()
    assert process.returncode == 0, text
    return text


def _piece(terminal: int) -> bytes:
    """Nobody has it open any more: that is an error on Linux."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def as_json(broker: str, *words: str, code: int = 0) -> Any:
    return json.loads(ottla(broker, *words, "--json", code=code).stdout)


def filled(broker: str, topic: str, partitions: int = 2, count: int = 10, width: int = 1) -> None:
    async def fill() -> None:
        async with Cluster(broker) as cluster:
            await Admin(cluster).create_topic(topic, partitions=partitions)
            async with Producer(cluster) as producer:
                for n in range(partitions * count):
                    await producer.post(topic, b"%0*d" % (width, n), partition=n % partitions)

    asyncio.run(fill())


def offsets_of(broker: str, group: str) -> dict[int, int]:
    (described,) = as_json(broker, "group", "describe", group)
    return {row["partition"]: row["committed"] for row in described["partitions"]}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_where_it_stopped(broker: str, name: str, protocol: str) -> None:
    """OFF-03: what was printed is committed, and nothing else: the second run begins with the next record."""
    filled(broker, name, partitions=1)
    group = ["consume", name, "--group", name, "--protocol", protocol, "--from-beginning"]
    first, second = (ottla(broker, *group, "-n", "4").stdout.splitlines() for _ in range(2))
    assert [json.loads(line)["offset"] for line in first + second] == list(range(8))
    (described,) = as_json(broker, "group", "describe", name)
    assert (described["kind"], described["state"], described["lag"]) == (protocol, "Empty", 2)
    assert {"group": name, "kind": protocol, "protocol": "consumer", "state": "Empty"} in as_json(
        broker, "group", "list"
    )
    text = ottla(broker, "group", "describe", name).stdout
    assert f"{name}  {protocol}  Empty  members 0  lag 2" in text


def test_resets(broker: str, name: str) -> None:
    """OFF-10: shown first, done with --execute, and never outside the log."""
    filled(broker, name)
    reset = ["group", "reset", name]
    ottla(broker, *reset, "--topic", name, "--to-offset", "2", "--execute")
    plan = ottla(broker, *reset, "--topic", name, "--to-offset", "7")
    assert "nothing was changed" in plan.stdout and offsets_of(broker, name) == {0: 2, 1: 2}
    ottla(broker, *reset, "--topic", name, "--to-offset", "7", "--execute")
    assert offsets_of(broker, name) == {0: 7, 1: 7}
    done = as_json(broker, *reset, "--all-topics", "--shift", "9", "--execute")
    assert [(row["before"], row["after"]) for row in done["offsets"]] == [(7, 10), (7, 10)]
    assert "higher than latest offset" in done["notes"][0]
    ottla(broker, *reset, "--topic", f"{name}:1", "--to", "earliest", "--execute")
    ottla(broker, *reset, "--topic", f"{name}:0", "--to", "1h", "--execute")
    assert offsets_of(broker, name) == {0: 0, 1: 0}
    for wrong in (["--to", "latest"], ["--topic", f"{name}:9", "--to", "latest"], ["--topic", name, "--to", "soon"]):
        ottla(broker, *reset, *wrong, code=2)


def test_offsets_are_forgotten_partition_by_partition(broker: str, name: str) -> None:
    """OFF-10: one partition, then all that are left; a group that nobody knows is told by its error."""
    filled(broker, name, partitions=3)
    ottla(broker, "group", "reset", name, "--topic", name, "--to-offset", "4", "--execute")
    forget = ["group", "delete-offsets", name]
    said = ottla(broker, *forget, "--topic", f"{name}:1").stdout.splitlines()
    assert [line.split() for line in said] == [["topic", "partition"], [name, "1", "deleted"]]
    assert offsets_of(broker, name) == {0: 4, 2: 4}
    fates = [{"topic": name, "partition": index, "deleted": True, "error": None} for index in (0, 2)]
    assert as_json(broker, *forget, "--all-topics") == {"group": name, "offsets": fates}
    unknown = ["group", "delete-offsets", f"no-{name}", "--topic", name]
    assert "GROUP_ID_NOT_FOUND" in ottla(broker, *unknown, code=1).stderr
    assert "say for which partitions" in ottla(broker, *forget, code=2).stderr


def test_offsets_of_what_is_being_read_are_kept(broker: str, name: str) -> None:
    """OFF-10: the error stands at the partition, and the code is 1."""
    filled(broker, name, partitions=1, count=1)
    words = ["consume", name, "--group", name, "--from-beginning", "-b", broker]
    with subprocess.Popen([sys.executable, "-m", "ottla", *words], stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None and json.loads(reader.stdout.readline())["offset"] == 0
            told = as_json(broker, "group", "delete-offsets", name, "--topic", name, code=1)
            assert [each["error"] for each in told["offsets"]] == ["GROUP_SUBSCRIBED_TO_TOPIC"]
        finally:
            reader.terminate()


def test_long_work_has_a_bar(broker: str, name: str, tmp_path: Path) -> None:
    """Resets, measurements, and dumps; nothing of it where standard error is no terminal."""
    filled(broker, name)
    reset = ("group", "reset", name, "--topic", name, "--to", "earliest", "--execute", "-b", broker)
    bars = drawn(*reset)
    assert "finding offsets  [" in bars and "committing  [" in bars and "100%" in bars
    assert ottla(broker, *reset[:-2]).stderr == ""
    assert "writing  [" in drawn("perf", "produce", name, "--records", "50", "--rate", "100", "-b", broker)
    assert "reading  [" in drawn("perf", "consume", name, "--records", "50", "-b", broker)
    segment = str(shutil.copy(SEGMENT, tmp_path / "00000000000000000000.log"))
    for words in (("log", "dump", segment), ("log", "check", segment)):
        assert "00000000000000000000.log  [" in drawn(*words)
    assert "00000000000000000000.log  [" in drawn("--files", segment, module="kafka.dump_log")


def test_a_group_with_members_is_left_alone(broker: str, name: str) -> None:
    """OFF-10: exit code 1, and the reason in one line."""
    filled(broker, name, partitions=1, count=1)
    command = [
        sys.executable,
        "-m",
        "ottla",
        "consume",
        name,
        "--group",
        name,
        "--from-beginning",
        "-b",
        broker,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None and json.loads(reader.stdout.readline())["offset"] == 0
            refused = ottla(broker, "group", "reset", name, "--topic", name, "--to", "earliest", "--execute", code=1)
            assert "only while nobody is in it" in refused.stderr and len(refused.stderr.splitlines()) == 1
            assert as_json(broker, "group", "delete", name, code=1) == {
                "group": name,
                "deleted": False,
                "error": "NON_EMPTY_GROUP",
            }
            (described,) = as_json(broker, "group", "describe", name)
            assert [member["partitions"] for member in described["members"]] == [[[name, 0]]]
            (member,), (partition,) = described["members"], described["partitions"]
            assert (
                (partition["client"], partition["host"])
                == (member["client"], member["host"])
                == ("ottla-cli", f"/{HOST}")
            )
            *_, who, client, host = ottla(broker, "group", "describe", name).stdout.splitlines()[-1].split()
            assert (who, client, host) == (member["member"], "ottla-cli", f"/{HOST}")
        finally:
            reader.terminate()


def test_groups_and_their_offsets_are_forgotten(broker: str, name: str) -> None:
    filled(broker, name)
    ottla(broker, "group", "reset", name, "--topic", name, "--to", "latest", "--execute")
    assert ottla(broker, "group", "delete", name).stdout == f"deleted {name}\n"
    missing = ottla(broker, "group", "describe", name, code=1)
    assert "GROUP_ID_NOT_FOUND" in missing.stderr


def test_offsets_of_topics(broker: str, name: str) -> None:
    filled(broker, name)
    rows = as_json(broker, "offsets", "show", name, "--at", "1h")
    assert rows == [{"topic": name, "partition": p, "begin": 0, "end": 10, "at": 0} for p in range(2)]
    assert as_json(broker, "offsets", "trim", f"{name}:1", "--before", "4") == [
        {"topic": name, "partition": 1, "begin": 4}
    ]
    ottla(broker, "offsets", "trim", f"{name}:0", "--before", "end")
    shown = ottla(broker, "offsets", "show", name).stdout.split()
    assert shown == ["topic", "partition", "begin", "end", name, "0", "10", "10", name, "1", "4", "10"]
    ottla(broker, "offsets", "trim", name, "--before", "soon", code=2)


def test_perf(broker: str, name: str) -> None:
    wrote = as_json(broker, "perf", "produce", name, "-n", "2000", "-s", "50", "--rate", "20000", "-z", "lz4")
    assert wrote["records"] == 2000 and 0 < wrote["p50_ms"] <= wrote["max_ms"] and wrote["requests"] > 1
    read = as_json(broker, "perf", "consume", name, "-n", "2000")
    assert read["records"] == 2000 and read["records_per_second"] > 0
    assert "records per second" in ottla(broker, "perf", "consume", name, "-n", "500").stdout
    too_few = as_json(broker, "perf", "consume", name, "-n", "9999", "--timeout", "4", code=1)
    assert too_few["records"] == 2000
    ottla(broker, "perf", "produce", name, "-n", "0", code=2)
    ottla(broker, "perf", "produce", name, "--transaction-ms", "5", "--acks", "1", code=2)


def test_a_rate_is_kept_from_the_first_record_on(broker: str, name: str) -> None:
    """One after the other, and not many at once every few seconds: latencies would be those of bursts."""
    wrote = as_json(broker, "perf", "produce", name, "-n", "30", "--rate", "100")
    assert wrote["seconds"] >= 0.29


def test_perf_in_transactions(broker: str, name: str) -> None:
    wrote = as_json(broker, "perf", "produce", name, "-n", "2000", "--transaction-ms", "5")
    assert wrote["records"] == 2000
    assert as_json(broker, "perf", "consume", name, "-n", "2000", "--read-committed")["records"] == 2000


def test_what_a_group_decides_cannot_be_said(broker: str, name: str) -> None:
    for words in (["--offset", "3"], ["--no-follow"], ["-p", "0"]):
        refused = ottla(broker, "consume", name, "--group", name, *words, code=2)
        assert "--group decides what is read" in refused.stderr


def first_line(command: list[str]) -> str:
    """As `| head -1`: the rest is not wanted."""
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is printed together goes into the pipe together
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=buffered) as reader:
        assert reader.stdout is not None
        line = reader.stdout.readline()
        reader.stdout.close()
        assert reader.wait(60) == 0
    return line


READERS = pytest.mark.parametrize(
    "words",
    ["main consume {name} -b {broker}", "kafka.console_consumer --topic {name} --bootstrap-server {broker}"],
    ids=["ottla", "kafka"],
)


def command_of(words: str, broker: str, name: str) -> list[str]:
    module, *said = words.format(name=name, broker=broker).split()
    call = f"import sys; from ottla.cli.{module} import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", call, *said, "--group", name, "--from-beginning"]


@READERS
def test_whoever_stops_listening_makes_the_member_leave(broker: str, name: str, words: str) -> None:
    """What was printed is committed, and the group is left at once, not when the session ends."""
    filled(broker, name, partitions=1)
    assert first_line(command_of(words, broker, name))
    (described,) = as_json(broker, "group", "describe", name)
    assert (described["state"], described["lag"]) == ("Empty", 0)


@READERS
def test_what_nobody_listens_to_is_not_committed(broker: str, name: str, words: str) -> None:
    """The pipe breaks in the middle of what was fetched: more records than a pipe and a buffer hold."""
    filled(broker, name, partitions=1, count=3_000, width=100)
    assert first_line(command_of(words, broker, name))
    (described,) = as_json(broker, "group", "describe", name)
    assert described["state"] == "Empty"
    assert 0 < described["partitions"][0]["committed"] < 3_000
