"""ottla config, cluster, log, doctor and completion, as people type them."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import HOST, Node, free_port
from ottla.cli.main import VERBS, main
from ottla.cli.progress import bar, drawn
from ottla.wire.records import Record, build


class Ottla:
    def __init__(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        self._capsys = capsys
        self._bootstrap = bootstrap

    def __call__(self, *words: str, code: int = 0, connects: bool = True) -> str:
        self._capsys.readouterr()
        try:
            ended = main([*words, *(("-b", self._bootstrap) if connects else ())])
        except SystemExit as end:
            ended = int(end.code or 0)
        said = self._capsys.readouterr()
        assert ended == code, said.out + said.err
        return str(said.out if code == 0 or said.out else said.err)


@pytest.fixture
def ottla(capsys: pytest.CaptureFixture[str], broker: str) -> Ottla:
    return Ottla(capsys, broker)


@pytest.fixture
def topic(ottla: Ottla) -> str:
    name = f"verbs-{random.randrange(1 << 40):x}"
    ottla("topic", "create", name, "-c", "retention.ms=77")
    return name


def test_topics(ottla: Ottla, topic: str) -> None:
    """By a pattern; a dry run makes nothing; what is ill is shown alone."""
    assert ottla("topic", "list", topic[:-3] + "*").split() == [topic]
    assert (
        ottla("topic", "create", "would-be", "-p", "3", "--dry-run")
        == "could create would-be: partitions 3, copies 1\n"
    )
    assert json.loads(ottla("topic", "list", "would-*", "--json")) == []
    assert "replication factor" in ottla("topic", "create", "would-be", "-r", "3", "--dry-run", code=1)
    assert (
        ottla("topic", "describe", topic, "--unhealthy") == "every partition has a leader, and all copies are in sync\n"
    )


def test_settings_of_a_topic(ottla: Ottla, topic: str) -> None:
    """Set, show and unset; what nobody set is shown on request, with where it comes from."""
    assert (
        ottla("config", "set", "topic", topic, "cleanup.policy=compact,delete")
        == f"changed topic {topic}: cleanup.policy\n"
    )
    shown = ottla("config", "show", "topic", topic).splitlines()
    assert [line.split() for line in shown[1:]] == [
        ["cleanup.policy", "compact,delete", "topic"],
        ["retention.ms", "77", "topic"],
    ]
    ottla("config", "unset", "topic", topic, "cleanup.policy")
    everything = json.loads(ottla("config", "show", "topic", topic, "--all", "--json"))
    values = {row["setting"]: (row["value"], row["source"]) for row in everything}
    assert values["cleanup.policy"] == ("delete", "default")
    assert values["retention.ms"] == ("77", "topic")


def test_a_setting_without_a_value(ottla: Ottla) -> None:
    shown = [line.split() for line in ottla("config", "show", "broker", "1", "--all").splitlines()]
    assert ["alter.config.policy.class.name", "-", "default"] in shown


def test_settings_that_cannot_be(ottla: Ottla, topic: str) -> None:
    assert "Unknown topic config name: nonsense" in ottla("config", "set", "topic", topic, "nonsense=1", code=1)
    assert "write name=value" in ottla("config", "set", "topic", topic, "nonsense", code=2)
    assert "there is no topic 'nowhere'" in ottla("config", "show", "topic", "nowhere", code=1)
    assert "did you mean 'topic'?" in ottla("config", "show", "topc", "x", code=2)
    assert "which broker? Name one, or say --default" in ottla("config", "set", "broker", "a=1", code=2)
    assert "has no --default" in ottla("config", "show", "topic", "--default", code=2)


def test_limits_and_passwords(ottla: Ottla) -> None:
    user = f"alice-{random.randrange(1 << 40):x}"
    ottla("config", "set", "user", user, "producer_byte_rate=1024")
    ottla("config", "set", "user", user, "SCRAM-SHA-256=iterations=8192,password=secret")
    rows = json.loads(ottla("config", "show", "user", user, "--json"))
    assert [(row["setting"], row["value"]) for row in rows] == [
        ("producer_byte_rate", 1024.0),
        ("SCRAM-SHA-256", "iterations=8192"),
    ]
    ottla("config", "unset", "user", user, "producer_byte_rate")
    ottla("config", "unset", "user", user, "SCRAM-SHA-256")
    assert ottla("config", "show", "user", user) == "nothing was set\n"
    assert "Only quota and SCRAM" in ottla("config", "set", "user", user, "foo=1", code=2)


def test_cluster(ottla: Ottla, topic: str) -> None:
    shown = json.loads(ottla("cluster", "show", "--json"))
    assert shown["brokers"][0]["id"] == 1 and shown["features"]["metadata.version"] == 30
    assert f"cluster {shown['cluster_id']}  requests for the controller go to broker 1" in ottla("cluster", "show")
    quorum = json.loads(ottla("cluster", "quorum", "--json"))
    assert quorum["members"] == [{"id": 1, "role": "voter", "end": quorum["members"][0]["end"], "behind": 0}]
    (disk,) = json.loads(ottla("cluster", "disks", "--json"))
    assert disk["partitions"] >= 1 and disk["error"] is None
    (versions,) = json.loads(ottla("cluster", "versions", "--json"))
    assert {"key": 18, "name": "ApiVersions", "min": 0, "max": 4} in versions["apis"]


def test_doctor(ottla: Ottla, topic: str) -> None:
    """Each finding says what was found; a port where nobody listens says what to do."""
    findings = {each["about"]: each for each in json.loads(ottla("doctor", "--json"))}
    assert findings["advertised listener of broker 1"]["state"] == "ok"
    assert findings["clock"]["found"] == "this machine and the broker agree"
    assert findings["partitions"]["state"] == "ok"
    nobody = f"{HOST}:{free_port()}"
    said = ottla("doctor", "-b", nobody, code=1, connects=False)
    assert f"{nobody}: nobody listens there" in said and "-> start one: ottla serve --listen" in said


def test_doctor_knows_nodes_that_were_told_wrong(ottla: Ottla, node: Callable[..., Node]) -> None:
    """More copies of internal topics than there are brokers; a controller that had to take another port."""
    with socket.create_server((HOST, 0)) as taken:
        port, controller = free_port(), taken.getsockname()[1]
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "ottla.controller.port.fallback": "true",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }
        address = node(settings=settings, port=port).address
        findings = {
            each["about"]: each for each in json.loads(ottla("doctor", "-b", address, "--json", code=1, connects=False))
        }
        assert "offsets.topic.replication.factor=3, and there is one broker" in findings["groups"]["found"]
        assert "set offsets.topic.replication.factor=1" in findings["groups"]["advice"]
        assert "transaction.state.log.min.isr=2" in findings["__transaction_state"]["found"]
        moved = findings["controller 1"]
        assert moved["state"] == "warning" and moved["found"].endswith(f" instead of {controller}")


def test_doctor_looks_at_a_directory(ottla: Ottla, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\nnode.id=7\n")
    findings = json.loads(ottla("doctor", "--data", str(data), "--json", code=1))
    wrong = [each for each in findings if each["state"] == "wrong"]
    assert [each["about"] for each in wrong] == [f"data directory {data}"] and wrong[0]["advice"]


def test_log(ottla: Ottla, tmp_path: Path) -> None:
    """Batches as a table, records as JSON, and damage as an exit code."""
    directory = tmp_path / "clicks-0"
    directory.mkdir()
    path = directory / "00000000000000000000.log"
    batches = [
        build([Record(key=b"k", value=b"one", headers=(("h", b"x"),)), Record(value=b"\xff")], base_offset=n * 2)
        for n in range(2)
    ]
    path.write_bytes(b"".join(batches))
    table = ottla("log", "dump", str(directory), connects=False).splitlines()
    assert [line.split()[1:4] for line in table] == [["base", "last", "records"], ["0", "1", "2"], ["2", "3", "2"]]
    lines = ottla(
        "log", "dump", str(path), "-r", "--json", "--from-offset", "1", "-n", "2", connects=False
    ).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [1, 2]
    assert json.loads(lines[0])["value"] == {"base64": "/w=="}
    assert json.loads(lines[1])["headers"] == {"h": "x"}
    assert ottla("log", "check", str(tmp_path), connects=False) == "1 files, all batches are right\n"
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged[:-3])
    said = ottla("log", "check", str(tmp_path), code=1, connects=False)
    assert "1 of 1 batches are damaged" in said and said.endswith("1 files, 1 damaged\n")
    assert "there is no" in ottla("log", "dump", str(tmp_path / "nope"), code=2, connects=False)


def test_completion_knows_every_verb(ottla: Ottla, tmp_path: Path) -> None:
    """The script for bash is run here, those for fish and zsh below."""
    script = tmp_path / "ottla.bash"
    script.write_text(ottla("completion", "bash", connects=False))

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
        program = f'source {script}; {line}; _ottla; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert completed("ottla", "top") == ["topic"]
    assert completed("ottla", "topic", "cr") == ["create"]
    assert completed("ottla", "topic", "create", "--part") == ["--partitions"]
    assert completed("ottla", "cluster", "features", "up") == ["upgrade"]
    assert completed("ottla", "cluster", "features", "upgrade", "x=1", "--re") == ["--release"]
    assert set(VERBS) <= set(completed("ottla", "''"))
    for shell in ("zsh", "fish"):
        text = ottla("completion", shell, connects=False)
        assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_understand_their_completion(ottla: Ottla, tmp_path: Path, shell: str) -> None:
    """Read without being run. zsh and fish are packages of Debian under these names."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / f"ottla.{shell}"
    script.write_text(ottla("completion", shell, connects=False))
    subprocess.run([shell, "-n", str(script)], capture_output=True, check=True)
    script.write_text(script.read_text() + "\nif (((\n")
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode != 0


def test_fish_completes(ottla: Ottla, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = tmp_path / "ottla.fish"
    script.write_text(ottla("completion", "fish", connects=False))

    def completed(line: str) -> list[str]:
        program = f"source {script}; complete -C '{line}'"
        done = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, check=True)
        return [each.split("\t")[0] for each in done.stdout.splitlines()]

    assert completed("ottla transac") == ["transaction"]
    assert completed("ottla topic cr") == ["create"]
    assert completed("ottla topic create --part") == ["--partitions"]
    assert completed("ottla cluster features up") == ["upgrade"]
    assert completed("ottla cluster features upgrade --re") == ["--release"]


def test_zsh_completes(ottla: Ottla, tmp_path: Path) -> None:
    """What the script offers, with zsh's own way to show it replaced by printing."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = tmp_path / "_ottla"
    script.write_text(ottla("completion", "zsh", connects=False))

    def offered(*words: str) -> list[str]:
        shown = "compadd() { shift; print -l -- $@ }; _describe() { print -l -- ${(P)2} }; _files() { }"
        place = f"words=({' '.join(words)} ''); CURRENT={len(words) + 1}"
        done = subprocess.run(
            ["zsh", "-fc", f"{shown}; {place}; source {script}"], capture_output=True, text=True, check=True
        )
        return [line.split(":")[0] for line in done.stdout.splitlines()]

    assert offered("ottla") == list(VERBS)
    assert {"create", "describe"} <= set(offered("ottla", "topic"))
    assert "--partitions" in offered("ottla", "topic", "create")
    assert "upgrade" in offered("ottla", "cluster", "features")
    assert "--release" in offered("ottla", "cluster", "features", "upgrade", "x=1")


def test_typing_errors(ottla: Ottla) -> None:
    assert "there is no verb 'clustr': did you mean 'cluster'?" in ottla("clustr", code=2, connects=False)
    assert "did you mean 'describe'?" in ottla("topic", "describ", code=2, connects=False)
    trim = ottla("offsets", "trim", "t", "--befroe", "3", code=2, connects=False)
    assert "required: --before; there is no --befroe: did you mean '--before'?" in trim
    for typed, meant in (
        ("--to-latest", "--to"),
        ("--to-datetime", "--to"),
        ("--shift-by", "--shift"),
        ("--to-ofset", "--to-offset"),
    ):
        reset = ottla("group", "reset", "g", "--topic", "t", typed, code=2, connects=False)
        assert reset.endswith(f"--shift is required; there is no {typed}: did you mean {meant!r}?\n")
    assert ottla("offsets", "trim", "t", "--js", code=2, connects=False).endswith("required: --before\n")
    assert "did you mean '--partitions'?" in ottla(
        "topic", "create", "x", "--partition", "1", "--parttions", "3", code=2, connects=False
    )


def test_an_option_of_another_action(ottla: Ottla) -> None:
    """It is told where it belongs, and not offered as its own correction."""
    said = ottla("group", "delete", "g", "--topic", "t", code=2, connects=False)
    assert said.endswith("unrecognized arguments: --topic t: that is for reset and delete-offsets\n")


def test_names_that_are_nearly_right(ottla: Ottla, topic: str) -> None:
    """Of topics, groups and settings; a name that is like no other is not guessed at."""
    typed = f"{topic[:-2]}{topic[-1]}{topic[-2]}x"
    meant = f"there is no topic {typed!r}: did you mean {topic!r}? See `ottla topic list`"
    for words in (
        *(("topic", "describe"), ("topic", "delete"), ("offsets", "show"), ("config", "show", "topic")),
        *(("consume", "-n", "1"), ("group", "reset", topic, "--to", "latest", "--topic")),
    ):
        assert meant in ottla(*words, typed, code=1), words
    assert meant in ottla("config", "set", "topic", typed, "retention.ms=1", code=1)
    setting = ": did you mean 'retention.ms'? (INVALID_CONFIG)"
    assert setting in ottla("config", "set", "topic", topic, "retenton.ms=1", code=1)
    assert setting in ottla("topic", "alter", topic, "-c", "retenton.ms=1", code=1)
    assert setting in ottla("topic", "create", f"{topic}-2", "-c", "retenton.ms=1", code=1)
    ottla("group", "reset", topic, "--topic", topic, "--to", "latest", "--execute")
    for action in (("describe",), ("delete",), ("delete-offsets", "--all-topics")):
        assert f": did you mean {topic!r}? (GROUP_ID_NOT_FOUND)" in ottla("group", *action, typed, code=1), action
    assert "did you mean" not in ottla("topic", "describe", "quite-another-thing", code=1)
    assert "did you mean" not in ottla("topic", "alter", topic, "-c", "retention.ms=soon", code=1)


def test_bars() -> None:
    assert drawn("reading", 50, 100, 2.0) == "reading  [###############...............]  50%  2 s left"
    assert drawn("reading", 100, 100, 2.0).endswith("] 100%")


def test_a_bar_is_seen_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lines appear meanwhile on the same terminal, there is none."""
    monkeypatch.setattr("ottla.cli.progress.FIRST_SECONDS", 0.0)
    seen, terminal = os.openpty()
    with open(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)
        with bar("dumping", among_lines=True) as progress:
            assert progress is None
        with bar("writing") as progress:
            assert progress is not None
            progress(1, 2)
        monkeypatch.undo()
        assert b"writing  [###############...............]  50%" in os.read(seen, 1000)
    os.close(seen)
