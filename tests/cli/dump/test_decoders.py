"""Segments that Apache Kafka 4.3.1 wrote (classic, consumer and share groups, transactions, metadata), and what its own dump
tool printed about each: ours prints the same, without a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ottla.cli.kafka import dump_log, metadata_shell

HERE = Path(__file__).parent / "apache"
OPTIONS = {
    "offsets": "--offsets-decoder",
    "transaction-log": "--transaction-log-decoder",
    "share-group-state": "--share-group-state-decoder",
    "cluster-metadata": "--cluster-metadata-decoder",
    "print": "--print-data-log",
}


def dumped(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert dump_log.main(["--files", str(path), *options]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.replace(str(path), "FILE").splitlines()


@pytest.mark.parametrize("name", OPTIONS)
def test_what_apache_printed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-12: every kind of record in the internal topics."""
    path = tmp_path / "00000000000000000000.log"
    shutil.copy(HERE / f"{name}.segment", path)
    assert dumped(path, capsys, OPTIONS[name]) == (HERE / f"{name}.txt").read_text().splitlines()


def test_producers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-12: a snapshot of producer ids."""
    path = tmp_path / "00000000000000000026.snapshot"
    shutil.copy(HERE / "producers.segment", path)
    assert dumped(path, capsys) == (HERE / "producers.txt").read_text().splitlines()


def test_a_record_that_cannot_be_decoded_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.wire.records import Record, build

    path = tmp_path / "00000000000000000000.log"
    strange = [
        Record(key=b"\x00\x63abc", value=b""),
        Record(key=b"\x00\x02\x00", value=b"x"),
        Record(key=None, value=b"x"),
    ]
    path.write_bytes(build(strange))
    lines = dumped(path, capsys, "--offsets-decoder", "--skip-record-metadata")[3:]
    assert lines[0] == "| key: Unknown record type 99 at offset 0, skipping."
    assert lines[1].startswith("| key: Error at offset 1, skipping.")
    assert "message had a missing key" in lines[2]
    assert "Error at 0, skipping." in dumped(path, capsys, "--cluster-metadata-decoder")[3]


def test_the_shell_shows_the_picture_as_apache_does(capsys: pytest.CaptureFixture[str]) -> None:
    """CLI-14: what Apache's shell said of a log of the metadata. It was written down because that shell now and then answers
    before it has read all."""
    script = (HERE / "metadata-shell.txt").read_text().splitlines()
    lines = []
    for line in script:
        if line.startswith("$ "):
            words = line.removeprefix("$ ").split()
            assert metadata_shell.main(["--snapshot", str(HERE / "cluster-metadata.segment"), *words]) == 0
            lines += [line, *capsys.readouterr().out.splitlines()]
    assert lines == script
