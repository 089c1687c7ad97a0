"""`pip install .` into an empty environment, for each Python that is supported: small, and it works there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import TREE, Node, stop_all
from operations.speaking import Line, batch_of

# The oldest plays all other tests, so every run tries the newest.
VERSIONS = (pytest.param("3.11", marks=pytest.mark.slow), pytest.param("3.12", marks=pytest.mark.slow), "3.13")
PIP = {**os.environ, "PIP_CONSTRAINT": str(TREE / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
MIB = 1 << 20


def interpreter(version: str) -> str | None:
    """A Python of this version, on the path or where pyenv keeps them."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    return str(kept[-1]) if kept else shutil.which(f"python{version}")


@pytest.fixture(params=VERSIONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A fresh environment with nothing but what `pip install .` brings."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not installed")
    place = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    tree = tmp_path / "tree"
    shutil.copytree(TREE, tree, ignore=shutil.ignore_patterns(".*", "jars*", "tests", "bench", "__pycache__"))
    subprocess.run([place / "bin" / "pip", "install", "--quiet", str(tree)], check=True, env=PIP)
    yield place


class Installed(Node):
    """A node as somebody has it who only installed the package."""

    environment_path: Path

    def command(self) -> list[str]:
        plain = super().command()
        return [str(self.environment_path / "bin" / "ottla"), *plain[plain.index("serve") :]]


@pytest.mark.timeout(300)
def test_a_small_install_that_serves(environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FTM-01, FTM-02: no Spark, no web server; the command is there and a record goes through."""
    listed = subprocess.run([environment / "bin" / "pip", "list"], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0].lower() for line in listed.splitlines()[2:]}
    assert names - {"pip", "setuptools"} == {"ottla", "crc32c", "cramjam", "google-re2", "lz4", "zstandard"}
    packages = next(environment.glob("lib/python*/site-packages"))
    ours = [path for path in packages.rglob("*") if path.is_file() and path.relative_to(packages).parts[0][:3] != "pip"]
    size = sum(path.stat().st_size for path in ours)
    broker = Installed(tmp_path / "data")
    broker.environment_path = environment
    try:
        broker.start()
        with Line(broker.address) as line:
            assert line.create("events") == 0
            for codec in range(5):
                assert line.produce("events", batch_of(b"value" * 50, codec=codec)).error_code == 0
            assert [record.value for record in line.records("events")] == [b"value" * 50] * 5
        assert broker.stop() == 0
    finally:
        stop_all([broker])
    with capsys.disabled():
        print(f" [{environment.joinpath('pyvenv.cfg').read_text().split('version = ')[1].split()[0]}: ", end="")
        print(f"{size / MIB:.0f} MB installed]", end="")
    assert size < 60 * MIB
