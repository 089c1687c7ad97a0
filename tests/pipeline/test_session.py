"""What a session is made of, and what is said when something is missing. No JVM is started here."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipeline import daemon, interpreter, needs, session
from ottla.pipeline.session import ROCKSDB, settings_of


def test_a_local_session_stays_on_loopback_and_shuffles_little():
    settings = settings_of("local[2]", {})
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert int(settings["spark.sql.shuffle.partitions"]) <= max(2, os.cpu_count() or 2)
    assert settings["spark.sql.streaming.stateStore.providerClass"] == ROCKSDB
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == "2147483647"


def test_a_cluster_keeps_its_own_addresses_and_its_shuffle():
    settings = settings_of("spark://far:7077", {})
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"} & settings.keys()


class Server:
    """Stands for a session on a server of Spark Connect."""

    def __init__(self, master: str | None, partitions: str, processors: int) -> None:
        self.settings = {"spark.master": master, session.SHUFFLE: partitions}
        self.processors = processors
        self.conf = self

    def get(self, name: str, otherwise: str | None = None) -> str | None:
        return self.settings[name] or otherwise

    def range(self, _: int) -> Server:
        return self

    def select(self, _: object) -> Server:
        return self

    def tail(self, _: int) -> list[tuple[int]]:
        return [(self.processors - 1,)]


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (("local[8]", "200", 8), {session.SHUFFLE: "8"}),
        (("local[*]", "200", 1), {session.SHUFFLE: "2"}),
        (("local[8]", "64", 8), {}),
        (("spark://far:7077", "200", 8), {}),
        ((None, "200", 8), {}),
    ],
)
def test_a_server_that_computes_by_itself_shuffles_little(monkeypatch, server, told):
    """Unless somebody there has chosen a number: it is a cluster that 200 are for."""
    monkeypatch.setattr(session, "spark_partition_id", lambda: None)
    assert session.shuffle_of(Server(*server)) == told  # type: ignore[arg-type]


def test_what_the_caller_says_comes_last():
    given = {"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true"}
    settings = settings_of("local[*]", given)
    assert {key: settings[key] for key in given} == given


def fake_java(directory: Path, version: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_that_is_new_enough(tmp_path, monkeypatch, version):
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    needs.java()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_java_that_is_too_old(tmp_path, monkeypatch, version):
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(needs.Missing, match=r"needs Java 17 or later, and .* is \d+: .*JAVA_HOME"):
        needs.java()


def test_java_is_not_started_where_its_version_is_written_beside_it(tmp_path, monkeypatch):
    fake_java(tmp_path, "17.0.15")
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_RUNTIME_VERSION="99"\nJAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(needs.Missing, match=r"is 11: "):
        needs.java()
    (tmp_path / "release").write_text("nothing of the kind\n")
    needs.java()
    fake_java(tmp_path / "old", "11.0.2")
    (tmp_path / "old" / "release").write_text("nothing of the kind\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(needs.Missing, match=r"is 11: "):
        needs.java()


def test_no_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(needs.Missing, match=r"there is none: apt install"):
        needs.check()


def test_a_module_that_is_not_installed():
    with pytest.raises(
        needs.Missing, match=r"needs no_such.module, which is not installed: pip install 'ottla\[spark\]'"
    ):
        needs.modules({"numpy": "spark", "no_such.module": "spark"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/mine:/other", "/mine:/other"),
        ("/jar:/s/python/lib/pyspark.zip:/mine:/s/python/lib/pyspark.zip:/s/python/lib/py4j-1-src.zip:", "/jar:/mine"),
        ("", ""),
    ],
)
def test_workers_do_not_import_spark_from_an_archive(before, after):
    """An entry that stays empty would mean the current directory."""
    code = "import os, sys; print(os.environ['PYTHONPATH'] + '|' + sys.executable + '|' + sys.argv[1])"
    command = [interpreter.for_workers(), "-c", code, "a b"]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": before}, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"{after}|{sys.executable}|a b"


def test_a_worker_whose_socket_was_closed_ends_quietly(monkeypatch):
    def closed(sock, authenticated):
        raise BrokenPipeError

    monkeypatch.setattr(daemon, "spark_worker", closed)
    assert daemon.worker(socket.socket(), True) == 1


def test_a_process_that_plans_ends_quietly_when_spark_has_gone(tmp_path):
    """Spark's own end of the socket is closed before the first word, as it is when a query is stopped."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        command = [interpreter.for_workers(), "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
        told = {"PYTHON_WORKER_FACTORY_SOCK_PATH": path, "PYTHON_UNIX_DOMAIN_ENABLED": "true"}
        with subprocess.Popen(command, env=os.environ | told, stderr=subprocess.PIPE, text=True) as process:
            listening.accept()[0].close()
            said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (1, "")


@pytest.mark.parametrize("mine", [signal.SIG_IGN, signal.default_int_handler, lambda number, frame: None])
def test_who_has_a_handler_for_ctrl_c_keeps_it(mine):
    """Spark's own, which cancels jobs, stays where nobody else has one: in a notebook."""

    def of_spark(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, mine)
    try:
        with session._handler_kept():
            signal.signal(signal.SIGINT, of_spark)
        assert signal.getsignal(signal.SIGINT) is (of_spark if mine is signal.default_int_handler else mine)
    finally:
        signal.signal(signal.SIGINT, before)
