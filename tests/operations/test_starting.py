"""The command: what it says when it cannot start, how it stops, what its help shows, how quickly it is there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import StartNode
from harness import HOST, TREE, free_port
from operations.speaking import Line, batch_of, eventually, ottla, page, samples
from ottla.wire.messages.fetch import FetchRequest

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
VERBS = ("serve", "demo", "topic", "produce", "consume")


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on which a command that could not start says why."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr and "Traceback" not in done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("ottla: ")]
    assert len(lines) == 1, done.stderr
    assert done.stderr.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server((HOST, 0)) as listening:
        yield int(listening.getsockname()[1])


def serve(data: Path, *options: str, port: int | None = None, **how: object) -> subprocess.CompletedProcess[str]:
    listen = f"{HOST}:{port or free_port()}"
    return ottla("serve", "--data", str(data), "--listen", listen, *options, **how)  # type: ignore[arg-type]


def test_a_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    """FTM-03"""
    said = complaint(serve(tmp_path / "data", port=taken))
    assert str(taken) in said and "already running" in said and "--listen" in said


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    """FTM-03: who wants to be found at it is told which setting is for that."""
    elsewhere = "192.0.2.1"  # for documentation: nobody has it
    said = complaint(ottla("serve", "--data", str(tmp_path / "data"), "--listen", f"{elsewhere}:{free_port()}"))
    assert elsewhere in said and "--listen" in said and "advertised.listeners" in said and "[Errno" not in said


def test_a_metrics_port_that_is_taken(tmp_path: Path, taken: int) -> None:
    """FTM-03"""
    said = complaint(serve(tmp_path / "data", "--metrics-port", str(taken)))
    assert "metrics port" in said and str(taken) in said


def test_an_address_that_is_not_ours(tmp_path: Path) -> None:
    """FTM-03"""
    assert "203.0.113.7" in complaint(ottla("serve", "--data", str(tmp_path / "data"), "--listen", "203.0.113.7:9092"))


def test_an_address_that_nobody_knows(tmp_path: Path) -> None:
    """FTM-03"""
    said = complaint(ottla("serve", "--data", str(tmp_path / "data"), "--listen", "no-such-host.invalid:9092"))
    assert "no-such-host.invalid" in said


def test_a_controller_port_that_was_written_down_and_is_taken(tmp_path: Path, taken: int) -> None:
    """FTM-03: only the port that nobody asked for gives way."""
    listeners = f"PLAINTEXT://{HOST}:{free_port()},CONTROLLER://{HOST}:{taken}"
    said = complaint(serve(tmp_path / "data", "--set", f"listeners={listeners}"))
    assert str(taken) in said


@pytest.fixture
def of_a_cluster(tmp_path: Path) -> Path:
    """The settings of a node that has to find others, of whom none runs."""
    file, ports = tmp_path / "server.properties", [free_port() for _ in range(3)]
    file.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={tmp_path / 'data'}\n"
        f"listeners=PLAINTEXT://{HOST}:{ports[0]},CONTROLLER://{HOST}:{ports[1]}\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers={HOST}:{ports[1]},{HOST}:{ports[2]}\n"
    )
    return file


def format_as_told(said: str, file: Path, which: str, **names: str) -> None:
    """Do what a message says, word for word, with names for what it leaves open."""
    [told] = [part for part in said.split("`") if part.startswith("kafka-storage format") and which in part]
    for name, value in {"ID": CLUSTER_ID, "server.properties": str(file), **names}.items():
        told = re.sub(rf"\b{re.escape(name)}(?=[ @:,]|$)", value, told)
    words = told.removesuffix(",...").split()[1:]
    done = subprocess.run([Path(sys.executable).parent / "kafka-storage", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def wait_until_said(file: Path, words: str) -> str:
    """Start a node, and end it when it has said a line with these words."""
    command = [sys.executable, "-m", "ottla", "serve", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=TREE) as process:
        assert process.stderr is not None
        try:
            return next(line for line in process.stderr if words in line)
        finally:
            process.kill()


def test_a_first_controller_that_is_not_formatted(of_a_cluster: Path) -> None:
    """FTM-03: what it says to do can be done, and leads to a node that serves."""
    port = of_a_cluster.read_text().partition("CONTROLLER://")[2].split("\n")[0].rpartition(":")[2]
    said = complaint(ottla("serve", str(of_a_cluster)))
    format_as_told(said, of_a_cluster, " --initial", NODE="1", HOST=HOST, PORT=port, DIRECTORY=CLUSTER_ID)
    assert "node 1 serves" in wait_until_said(of_a_cluster, "serves")


def test_a_node_that_joins_others_and_finds_none(of_a_cluster: Path) -> None:
    """FTM-03: it waits, and says for what and what may be wrong."""
    format_as_told(complaint(ottla("serve", str(of_a_cluster))), of_a_cluster, "--no-initial")
    said = wait_until_said(of_a_cluster, "not ready yet")
    assert "controller.quorum.bootstrap.servers" in said and "--initial-controllers" in said


def test_a_quorum_without_a_majority(of_a_cluster: Path) -> None:
    """FTM-03: whoever waits for others names them."""
    server = re.compile(rf"{HOST}:\d+")
    here, other = server.findall(of_a_cluster.read_text().partition("bootstrap.servers=")[2])
    voters = f"controller.quorum.voters=1@{here},2@{other}"
    of_a_cluster.write_text(re.sub("controller.quorum.bootstrap.*", voters, of_a_cluster.read_text()))
    format_as_told(complaint(ottla("serve", str(of_a_cluster))), of_a_cluster, "")
    assert f"node 2 at {other}" in wait_until_said(of_a_cluster, "not ready yet")


def test_a_directory_that_another_node_holds(node: StartNode) -> None:
    """FTM-03"""
    said = complaint(serve(node().directory))
    assert ".lock" in said and "another process" in said


@pytest.mark.parametrize("place", ["inside", "beside"])
def test_a_directory_without_permission(place: str) -> None:
    """FTM-03: also where the directory is there and only its files may not be written."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can become somebody who has no permission")
    who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*who, sys.executable, "-c", "import ottla"], cwd=TREE, capture_output=True).returncode:
        pytest.skip("nobody else can run this Python")
    with tempfile.TemporaryDirectory() as directory:  # not pytest's: each start of it closes those to all others again
        Path(directory).chmod(0o755)
        data = Path(directory) / "data"
        if place == "inside":
            data.mkdir()
        said = complaint(serve(data, prefix=who))
    assert "no permission" in said and str(data) in said and "--data" in said


def test_data_that_belongs_to_another_node(node: StartNode) -> None:
    """FTM-03"""
    broker = node()
    broker.stop()
    said = complaint(serve(broker.directory, "--set", "node.id=7", "--set", "controller.quorum.voters="))
    assert "belongs to node 1" in said and "node.id" in said


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    """FTM-03: there, or above it."""
    (tmp_path / "data").write_text("not a directory")
    for data in (tmp_path / "data", tmp_path / "data" / "below"):
        said = complaint(serve(data))
        assert str(tmp_path / "data") in said and "a file is in its way" in said and "--data" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("num.partitions=many", ("num.partitions", "many")),
        ("num.partitions=0", ("num.partitions", "0")),
        ("log.segment.bytes=100", ("log.segment.bytes", "100")),
        ("compression.type=brotli", ("compression.type", "brotli")),
        ("log.cleanup.policy=keep", ("log.cleanup.policy", "keep")),
        ("listeners=nonsense", ("nonsense",)),
        ("controller.quorum.voters=1@nowhere", ("controller.quorum.voters", "1@nowhere", "id@host:port")),
        ("listener.name.plaintext.max.connections=many", ("max.connections", "many")),
        ("max.connection.creation.rate=-1", ("max.connection.creation.rate", "-1")),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, setting: str, words: tuple[str, ...]) -> None:
    """FTM-03"""
    said = complaint(serve(tmp_path / "data", "--set", setting))
    assert all(word in said for word in words), said
    assert not (tmp_path / "data").exists(), "nothing is made before the settings are right"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve", "--set", "nonsense"], "name=value"),
        (["serve", "--listen", "nowhere"], "HOST:PORT"),
        (["serve", "--metrics-port", "70000"], "70000"),
        (["demo", "--metrics-port", "-1"], "-1"),
        (["serve", "missing.properties"], "missing.properties"),
        (["sreve"], "sreve"),
    ],
)
def test_a_command_line_that_cannot_be(arguments: list[str], word: str) -> None:
    """FTM-03"""
    done = ottla(*arguments)
    assert done.returncode != 0 and word in done.stderr and "Traceback" not in done.stderr


def test_settings_that_nobody_knows_or_that_are_gone(node: StartNode, tmp_path: Path) -> None:
    """FTM-01, REP-19: a server.properties of an older Kafka starts; what is not obeyed is named, and what replaced it."""
    file, port = tmp_path / "server.properties", free_port()
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers=localhost:{port}\nlisteners=PLAINTEXT://:9092,CONTROLLER://:{port}\n"
        "no.such.setting=1\nzookeeper.connect=localhost:2181\nreplica.lag.max.messages=4000\nnum.partitions=3\n"
    )
    broker = node(options=[str(file)])
    with Line(broker.address) as line:
        assert line.create("events", -1) == 0
        assert len(line.metadata("events").topics[0].partitions) == 3
    warnings = [line for line in broker.log_text().splitlines() if "WARN" in line]
    for word in ("no.such.setting", "zookeeper.connect", "replica.lag.max.messages"):
        assert sum(word in line for line in warnings) == 1, warnings


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_leaves_everything_in_order(node: StartNode, how: signal.Signals) -> None:
    """FTM-01, FTM-12: data survives, the second start goes on with the directory, and exit code and log say so."""
    broker = node()
    with Line(broker.address) as line:
        assert line.create("events") == 0
        for number in range(10):
            assert line.produce("events", batch_of(b"%d" % number)).error_code == 0
        process = broker.process
        assert process is not None
        process.send_signal(how)
        assert process.wait(60) == 0
    broker.process = None
    assert (broker.directory / ".kafka_cleanshutdown").exists()
    assert broker.log_text().rstrip().endswith("stopped")
    broker.start()
    assert "after a clean stop" in broker.log_text()
    with Line(broker.address) as line:
        assert [record.value for record in line.records("events")] == [b"%d" % number for number in range(10)]


def test_a_stop_while_starting(node: StartNode) -> None:
    """FTM-12: at whatever moment it comes, the directory can be used again and nothing is said that is no explanation."""
    broker = node()
    broker.stop()
    for delay in (0.1, 0.2, 0.3, 0.4):
        broker.launch()
        assert broker.process is not None
        time.sleep(delay)
        broker.process.terminate()
        broker.process.wait(60)
        broker.process = None
    assert broker.start().is_running()
    assert "Traceback" not in broker.log_text() and "ottla:" not in broker.log_text()


def test_not_ready_while_stopping(node: StartNode) -> None:
    """FTM-12: whoever balances load sees 503 before connections end. A client that does not read holds up the stop."""
    metrics = free_port()
    broker = node(options=["--metrics-port", str(metrics)])
    with Line(broker.address) as line:
        assert line.create("events") == 0
        for _ in range(10):
            assert line.produce("events", batch_of(bytes(900_000))).error_code == 0
    assert page(metrics, "/ready") == (200, "ready\n")
    part = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=10 << 20)
    everything = FetchRequest.Topic(topic="events", partitions=[part])
    with Line(broker.address) as deaf:
        deaf.say(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[everything]), 11)
        eventually(lambda: samples(metrics).get('ottla_topic_fetches_total{topic="events"}') == 1)
        assert broker.process is not None
        broker.process.terminate()
        seen = set()
        while broker.process.poll() is None:
            seen.add(page(metrics, "/ready"))
        assert (503, "not ready: the node is starting or stopping\n") in seen
        assert broker.process.wait() == 0
    broker.process = None


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself_with_an_example(verb: str) -> None:
    done = ottla(verb, "--help")
    assert done.returncode == 0
    assert f"ottla {verb} " in done.stdout.split("example", 1)[1], "an example that can be copied"


def test_help_names_every_verb_and_is_there_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """How long the command takes is measured by the benchmark; here it is only told."""
    began = time.monotonic()
    done = ottla("--help")
    took = time.monotonic() - began
    assert done.returncode == 0
    assert all(f"  {verb} " in done.stdout for verb in VERBS)
    with capsys.disabled():
        print(f" [ottla --help took {took:.2f} s]", end="")


def import_seconds(module: str) -> float:
    """Processor time, the best of a few fresh interpreters, without the start of Python itself."""
    code = f"import time; began = time.process_time(); import {module}; print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TREE) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def test_importing_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    """FTM-02: the package in less than 150 ms, and what it takes to serve as well, on a quiet machine."""
    package, server = import_seconds("ottla"), import_seconds("ottla.server.process")
    with capsys.disabled():
        print(f" [import ottla {package * 1000:.0f} ms, the server {server * 1000:.0f} ms]", end="")
    assert package < 0.15
    assert server < 0.5


def test_starting_is_quick_and_small(node: StartNode, capsys: pytest.CaptureFixture[str]) -> None:
    """FTM-02: from the command to the first acknowledged record, and idle memory, are told. What is bounded is the work,
    because the machine runs many other tests."""
    began = time.monotonic()
    broker = node()
    with Line(broker.address) as line:
        assert line.create("events") == 0
        assert line.produce("events", batch_of(b"first")).error_code == 0
    took, worked = time.monotonic() - began, broker.cpu_seconds()
    with capsys.disabled():
        print(f" [first ack after {took:.2f} s, {broker.rss_bytes() >> 20} MB]", end="")
    assert worked < 3
    assert broker.rss_bytes() < 100 << 20
