"""ottla doctor finds what it looks for: each bad finding is brought about here."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import StartNode
from harness import HOST, free_port
from ottla.cli.main import main
from ottla.testing import broker, cluster

GIB = 1 << 30


def findings(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> dict[str, dict[str, Any]]:
    """What is found, by what it is about; whatever is told twice about one thing fails here."""
    capsys.readouterr()
    ended = main(["doctor", "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert ended == code, told
    by_name = {each["about"]: each for each in told}
    assert len(by_name) == len(told), told
    return by_name


def test_an_advertised_listener_that_leads_nowhere(capsys: pytest.CaptureFixture[str], node: StartNode) -> None:
    """It is named, it alone is wrong, and everything else is still told: the broker is asked where it was found."""
    nowhere = f"{HOST}:{free_port()}"
    address = node(settings={"advertised.listeners": f"PLAINTEXT://{nowhere}"}).address
    found = findings(capsys, "-b", address)
    assert [about for about, each in found.items() if each["state"] == "wrong"] == ["advertised listener of broker 1"]
    listener = found["advertised listener of broker 1"]
    assert listener["found"] == f"{nowhere}: nobody listens there" and "advertised.listeners" in listener["advice"]
    assert found["protocol"]["state"] == found["clock"]["state"] == found["partitions"]["state"] == "ok"
    assert any(about.startswith("disk of broker 1, ") for about in found)
    assert not any("cannot be told" in each["found"] for each in found.values())


def test_several_brokers_that_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """Who answers is not known to be the one that is meant: what only a broker itself knows is said to be missing, no more."""
    nowhere = f"{HOST}:{free_port()}"
    with cluster(2, {"advertised.listeners": f"PLAINTEXT://{nowhere}"}) as running:
        found = findings(capsys, "-b", running.bootstrap)
    wrong = [about for about, each in found.items() if each["state"] == "wrong"]
    assert wrong == ["advertised listener of broker 1", "advertised listener of broker 2"]
    untold = [about for about, each in found.items() if each["found"] == "cannot be told: connection refused"]
    assert untold == ["controller 1", "controller 2", "internal topics", "disks of broker 1", "disks of broker 2"]
    assert found["partitions"]["state"] == "ok"


def test_most_voters_are_gone(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once and in words, not as a request that got no answer, and the rest is still told."""
    with cluster(3) as running:
        leader = running.controller()  # goes last, or the two that are left agree on another
        gone, _ = (node_id for node_id in running.nodes if node_id != leader)
        running.kill(gone)
        running.kill(leader)
        found = findings(capsys, "-b", running.bootstrap)
    quorum = found["metadata quorum"]
    assert quorum["state"] == "wrong" and "start the nodes that are controllers" in quorum["advice"]
    assert "clock" not in found and found["partitions"]["state"] == "ok"


@pytest.mark.parametrize(("seconds", "state", "code"), [(30, "warning", 0), (-3600, "wrong", 1)])
def test_clocks_apart(capsys: pytest.CaptureFixture[str], seconds: float, state: str, code: int) -> None:
    with broker(in_process=True) as running:
        running.move_clock(seconds)
        clock = findings(capsys, "-b", running.bootstrap, code=code)["clock"]
    assert clock["state"] == state and clock["found"].endswith("s apart") and "chrony" in clock["advice"]


@pytest.mark.parametrize(("free", "state"), [(200 * GIB, "ok"), (20 * GIB, "warning"), (GIB // 2, "wrong")])
def test_little_room_on_a_disk(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    broker: str,
    tmp_path: Path,
    free: int,
    state: str,
) -> None:
    """Below a tenth it is time to do something, below a gigabyte too late for waiting."""
    usage = SimpleNamespace(free=free, total=1000 * GIB)
    monkeypatch.setattr("ottla.cli.doctor.shutil", SimpleNamespace(disk_usage=lambda path: usage))
    main(["doctor", "--json", "--data", str(tmp_path), "-b", broker])
    told = [each for each in json.loads(capsys.readouterr().out) if each["about"] == f"data directory {tmp_path}"]
    assert [each["state"] for each in told] == ["ok", state] and ("retention" in told[1]["advice"]) == (state != "ok")


@pytest.mark.parametrize(("files", "state", "code"), [(1 << 20, "ok", 0), (4096, "warning", 0), (256, "wrong", 1)])
def test_few_files(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    broker: str,
    files: int,
    state: str,
    code: int,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, 1 << 20))
    limit = findings(capsys, "-b", broker, code=code)["open files"]
    assert limit["state"] == state and ("ulimit -n 65536" in limit["advice"]) == (state != "ok")


@contextlib.contextmanager
def stranger(said: bytes) -> Iterator[str]:
    """Somebody who listens, says one thing to whoever speaks, and hangs up."""

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = listening.accept()
                with guest, contextlib.suppress(OSError):
                    if guest.recv(1000):
                        guest.sendall(said)

    with socket.create_server((HOST, 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,), daemon=True)
        serving.start()
        yield f"{HOST}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x15\x03\x03\x00\x02\x02\x46"])
def test_somebody_who_does_not_speak_kafka(capsys: pytest.CaptureFixture[str], said: bytes) -> None:
    """A web server, one that hangs up, one that speaks TLS."""
    with stranger(said) as address:
        found = findings(capsys, "-b", address)
    assert found[address]["state"] == "ok"
    assert found["protocol"]["found"].startswith("whoever listens does not speak Kafka")
    assert "TLS" in found["protocol"]["advice"]
