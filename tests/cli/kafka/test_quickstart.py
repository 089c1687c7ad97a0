"""The first page of every tutorial, typed as it stands: https://kafka.apache.org/quickstart, where no archive was unpacked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.members import wait_until
from harness import HOST, answers_api_versions, die_with_parent, free_port
from ottla.cli.kafka import node_settings, server_start, storage
from ottla.cli.kafka.running import RUN_DIRECTORY
from ottla.config import BrokerConfig

TOOLS = ("storage", "server-start", "topics", "console-producer", "console-consumer")
# What the installed command does, with another copy of the file behind it: ports may be taken, and /tmp is everybody's.
PROGRAM = """\
#!{python}
import sys
from ottla.cli.kafka import node_settings
node_settings.COPIES = {copies!r}
from ottla.cli.kafka.{module} import main
sys.exit(main())
"""
FORMAT = """\
KAFKA_CLUSTER_ID="$(bin/kafka-storage.sh random-uuid)"
bin/kafka-storage.sh format --standalone -t $KAFKA_CLUSTER_ID -c config/server.properties
"""
START = "exec bin/kafka-server-start.sh config/server.properties"
CREATE = "bin/kafka-topics.sh --create --topic quickstart-events --bootstrap-server localhost:9092"
DESCRIBE = "bin/kafka-topics.sh --describe --topic quickstart-events --bootstrap-server localhost:9092"
WRITE = "bin/kafka-console-producer.sh --topic quickstart-events --bootstrap-server localhost:9092"
READ = "exec bin/kafka-console-consumer.sh --topic quickstart-events --from-beginning --bootstrap-server localhost:9092"
EVENTS = "This is my first event\nThis is my second event\n"
FILE = "config/server.properties"


class Desk:
    """A directory with Kafka's commands in `bin`, in which somebody types what a page says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.data = directory, directory / "data"
        self.port, controller = free_port(), free_port()
        self._ports = {"9092": str(self.port), "9093": str(controller)}
        self._started: list[subprocess.Popen[str]] = []
        copies = directory / "copies"
        shutil.copytree(node_settings.COPIES, copies)
        for path in copies.rglob("*.properties"):
            path.write_text(self.here(path.read_text().replace("/tmp/kraft-combined-logs", str(self.data))))
        (directory / "bin").mkdir()
        for tool in TOOLS:
            path = directory / "bin" / f"kafka-{tool}.sh"
            path.write_text(
                PROGRAM.format(python=sys.executable, copies=str(copies), module=tool.replace("-", "_")),
            )
            path.chmod(0o755)
        monkeypatch.setenv(RUN_DIRECTORY, str(directory / "run"))

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def here(self, text: str) -> str:
        """With the ports that are free."""
        return re.sub("|".join(self._ports), lambda found: self._ports[found[0]], text)

    def types(self, text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["sh", "-c", self.here(text)], cwd=self.directory, input=stdin, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def leaves_running(self, text: str) -> subprocess.Popen[str]:
        with (self.directory / f"log{len(self._started)}").open("w") as log:
            process = subprocess.Popen(
                ["sh", "-c", self.here(text)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if text == READ else log,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent,
            )
        self._started.append(process)
        return process

    def presses_ctrl_c(self, process: subprocess.Popen[str]) -> int:
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    def log(self, number: int) -> str:
        return (self.directory / f"log{number}").read_text()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path, monkeypatch)
    yield made
    made.close()


def test_the_quickstart_as_it_stands(desk: Desk) -> None:
    """FTM-05: from the format to the last record; the file that is not there is told, with where data goes."""
    formatted = desk.types(FORMAT)
    told = f"{FILE} is not here: using Kafka's own, data in {desk.data}, listeners PLAINTEXT://:{desk.port},"
    assert formatted.stderr.startswith(told)
    assert f"Formatting dynamic metadata voter directory {desk.data} with metadata.version" in formatted.stdout
    server = desk.leaves_running(START)
    wait_until(lambda: answers_api_versions(desk.address), "an answer")
    assert desk.log(0).startswith(told)
    assert desk.types(CREATE).stdout == "Created topic quickstart-events.\n"
    assert "PartitionCount: 1\tReplicationFactor: 1" in desk.types(DESCRIBE).stdout
    desk.types(WRITE, stdin=EVENTS)
    consumer = desk.leaves_running(READ)
    assert consumer.stdout is not None
    assert [consumer.stdout.readline() for _ in range(2)] == EVENTS.splitlines(keepends=True)
    desk.presses_ctrl_c(consumer)
    assert desk.presses_ctrl_c(server) == 0
    assert sorted(path.name for path in desk.directory.iterdir() if path.is_dir()) == ["bin", "copies", "data", "run"]
    assert [path.name for path in desk.data.glob("quick*")] == ["quickstart-events-0"]


def test_the_file_can_be_had(desk: Desk) -> None:
    """FTM-05: what the sentence says can be typed; then there is a file, and it is used without a word."""
    told = desk.types(FORMAT).stderr
    desk.types(told.partition("to change it: ")[2])
    path = desk.directory / FILE
    path.write_text(path.read_text().replace(str(desk.data), str(desk.directory / "other")))
    assert desk.types(FORMAT).stderr == ""
    assert (desk.directory / "other" / "meta.properties").exists()


@pytest.mark.parametrize("path", ["./config/server.properties", "config/kraft/reconfig-server.properties"])
def test_every_name_in_the_archive(path: str, desk: Desk) -> None:
    """FTM-05: archives of 3.9 had another name for it."""
    assert f"{path} is not here" in desk.types(FORMAT.replace(FILE, path)).stderr


def test_a_voter_that_is_named_in_the_file(desk: Desk) -> None:
    """FTM-05: pages about 3.3 to 3.8 format without --standalone."""
    kraft = "config/kraft/server.properties"
    desk.types(FORMAT.replace(FILE, kraft).replace("--standalone", ""))
    server = desk.leaves_running(START.replace(FILE, kraft))
    wait_until(lambda: answers_api_versions(desk.address), "an answer")
    desk.types(CREATE)
    assert desk.presses_ctrl_c(server) == 0


def test_the_copies_are_obeyed() -> None:
    """FTM-05: no setting in them is warned of."""
    for name in set(node_settings.IN_THE_ARCHIVE.values()):
        settings = node_settings.properties_of(os.path.join(node_settings.COPIES, name))
        assert BrokerConfig(settings).warnings == []


def test_another_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FTM-05: the line says what is missing, and what could stand in for it, which is there."""
    path = str(tmp_path / "mine.properties")
    for tool, words in ((storage, ["info", "-c", path]), (server_start, [path])):
        assert tool.main(words) == 1
        found = re.fullmatch(
            rf"there is no file {path}: Kafka's own, to begin with, is (\S+)\n", capsys.readouterr().err
        )
        assert found and os.path.isfile(found[1])
