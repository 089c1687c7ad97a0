"""kafka-storage.sh, kafka-server-start.sh and kafka-server-stop.sh in a row, the metadata shell on what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import HOST, answers_api_versions, die_with_parent, free_port
from ottla.cli.kafka import metadata_shell, server_start, server_stop, storage, zookeeper_shell
from ottla.cli.kafka.running import RUN_DIRECTORY, servers

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    client, controller = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
    path.write_text(
        "process.roles=broker,controller\nnode.id=3\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://{client},CONTROLLER://{controller}\n"
        f"controller.quorum.bootstrap.servers={controller}\nlog.dirs={tmp_path / 'data'}\n"
    )
    return path


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other server of this machine may be seen, let alone stopped."""
    monkeypatch.setenv(RUN_DIRECTORY, str(tmp_path / "run"))
    yield


def formatted(properties: Path) -> None:
    assert storage.main(["format", "-c", str(properties), "-t", CLUSTER_ID, "--standalone"]) == 0


def waited_for(what: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    assert callable(what)
    while not what():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.02)


def test_format_start_stop(properties: Path, run_directory: None, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-13: the first commands of every tutorial; --override wins over the file."""
    formatted(properties)
    address = f"{HOST}:{free_port()}"
    controller = properties.read_text().split("CONTROLLER://")[1].split("\n")[0]
    listeners = f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}"
    command = [sys.executable, "-m", "ottla.cli.kafka.server_start", str(properties), "--override", listeners]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    try:
        waited_for(lambda: answers_api_versions(address))
        assert [(server.pid, server.node_id, server.roles) for server in servers()] == [
            (process.pid, "3", ["broker", "controller"])
        ]
        assert server_stop.main(["--node-id", "4"]) == 1
        assert server_stop.main(["--process-role=broker"]) == 0
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert servers() == []
    capsys.readouterr()
    assert server_stop.main([]) == 1
    assert capsys.readouterr().out == "No kafka server to stop\n"


def test_a_number_that_was_used_again_is_not_stopped(run_directory: None, tmp_path: Path) -> None:
    notes = tmp_path / "run"
    notes.mkdir()
    (notes / f"{os.getpid()}.json").write_text(f'{{"pid": {os.getpid()}, "began": "1", "node.id": "1"}}')
    assert servers() == []
    assert list(notes.iterdir()) == [], "the note is swept away"


def test_mistakes_of_a_start(tmp_path: Path, properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert server_start.main([]) == 1
    assert capsys.readouterr().err.startswith("USAGE: kafka-server-start.sh [-daemon] server.properties")
    assert server_start.main([str(tmp_path / "nope")]) == 1
    assert server_start.main([str(properties), "--overide", "a=b"]) == 1
    assert "overide is not a recognized option" in capsys.readouterr().err
    assert server_start.main(["--version"]) == 0


def test_formatting(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-13, CLI-17, KRF-14: what is in the directory, and what a second format says."""
    formatted(properties)
    data = properties.parent / "data"
    assert sorted(path.name for path in data.iterdir()) == [
        "__cluster_metadata-0",
        "bootstrap.checkpoint",
        "meta.properties",
    ]
    assert f"cluster.id={CLUSTER_ID}" in (data / "meta.properties").read_text()
    capsys.readouterr()
    assert storage.main(["info", "-c", str(properties)]) == 0
    assert f"Found metadata: {{cluster.id={CLUSTER_ID}" in capsys.readouterr().out
    assert storage.main(["format", "-c", str(properties), "-t", CLUSTER_ID, "--standalone"]) == 1
    assert "is already formatted" in capsys.readouterr().err
    assert storage.main(["random-uuid"]) == 0
    assert len(capsys.readouterr().out.strip()) == 22


def test_metadata_shell(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-14, KRF-15: commands on a snapshot, on a directory, with wildcards; the id of the cluster."""
    formatted(properties)
    data = properties.parent / "data"

    def shell(*words: str, code: int = 0, path: Path = data / "bootstrap.checkpoint") -> list[str]:
        capsys.readouterr()
        assert metadata_shell.main(["--snapshot", str(path), *words]) == code
        return capsys.readouterr().out.splitlines()

    assert shell("ls", "/") == ["image", "local"]
    assert shell("cat", "/image/features/metadataVersion") == ["Optional[4.3-IV0]"]
    assert "finalized_group.version" in shell("ls", "/image/feat*")
    assert shell("cat", "/image/{features,topics}/metadata*") == ["Optional[4.3-IV0]"]
    assert shell("find", "/image/producerIds") == ["/image/producerIds", "/image/producerIds/nextProducerId"]
    assert shell("tree", "/image/producerIds") == ["nextProducerId:", "  -1"]
    assert shell("cat", "/nope") == ["cat: /nope: No such file or directory."]
    assert shell("cat", "/image") == ["cat: /image: Is a directory"]
    assert shell("frob")[0].startswith("invalid choice: 'frob'")
    assert shell("--cluster-id") == [f"Cluster ID: {CLUSTER_ID}"]
    assert shell("--cluster-id", "other", "ls", code=1) == []
    assert "image" in shell("ls", path=data)


def test_metadata_shell_converses(
    properties: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLI-14: without a command it reads them."""
    import io

    formatted(properties)
    capsys.readouterr()
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("cd image/cluster\npwd\nls\ncd nope\ncd\npwd\nman ls\nhistory 1\nexit\nls\n")
    )
    assert metadata_shell.main(["-s", str(properties.parent / "data" / "bootstrap.checkpoint")]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines[:5] == ["/image/cluster", "brokers", "controllers", "cd: nope: no such directory.", "/"]
    assert lines[-1] == "    7  history 1"


def test_zookeeper_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-16: it says what to use now."""
    assert zookeeper_shell.main(["localhost:2181", "ls", "/brokers/ids"]) == 1
    assert "kafka-metadata-quorum.sh" in capsys.readouterr().err
