"""Whatever the bytes of a file are, the tools say something about it and end; none of them breaks."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from ottla.cli.kafka import dump_log, metadata_shell
from ottla.cli.main import main as ottla

HERE = Path(__file__).parent / "apache"
OPTIONS = {
    "offsets": "--offsets-decoder",
    "transaction-log": "--transaction-log-decoder",
    "share-group-state": "--share-group-state-decoder",
    "cluster-metadata": "--cluster-metadata-decoder",
    "print": "--print-data-log",
}
BASE = "00000000000000000000"


def damaged(data: bytes, rng: random.Random) -> bytearray:
    """A few bytes changed, taken out or put in; sometimes with CRCs that say that this was meant."""
    result = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at, what = rng.randrange(len(result)), rng.randrange(3)
        if what == 0:
            result[at] = rng.randrange(256)
        elif what == 1:
            del result[at : at + rng.randrange(1, 9)]
        else:
            result[at:at] = rng.randbytes(rng.randrange(1, 5))
    if rng.random() < 0.5:
        sign(result)
    return result


def sign(data: bytearray) -> None:
    position = 0
    while position + 61 <= len(data):
        length = struct.unpack_from(">i", data, position + 8)[0]
        if length < 49 or position + 12 + length > len(data):
            return
        struct.pack_into(">I", data, position + 17, crc32c(bytes(data[position + 21 : position + 12 + length])))
        position += 12 + length


@pytest.mark.parametrize("seed", range(4))
def test_nothing_breaks(seed: int, tmp_path: Path) -> None:
    """CLI-12: segments with damage inside, and indexes of noise."""
    rng = random.Random(seed)
    segment = tmp_path / f"{BASE}.log"
    beside = [tmp_path / f"{BASE}.{suffix}" for suffix in ("index", "timeindex", "snapshot", "txnindex")]
    for _ in range(25):
        name = rng.choice(sorted(OPTIONS))
        segment.write_bytes(damaged((HERE / f"{name}.segment").read_bytes(), rng))
        for path in beside:
            path.write_bytes(rng.randbytes(rng.randrange(80)))
        runs: list[Callable[[], int]] = [
            lambda name=name: dump_log.main(["--files", str(segment), OPTIONS[name]]),  # type: ignore[misc]
            *(lambda path=path: dump_log.main(["--files", str(path)]) for path in beside),  # type: ignore[misc]
            lambda: dump_log.main(["--files", f"{beside[0]},{beside[1]}", "--index-sanity-check"]),
            lambda: metadata_shell.main(["-s", str(segment), "tree", "/image"]),
            lambda: ottla(["log", "dump", "-r", str(segment)]),
            lambda: ottla(["log", "check", str(tmp_path)]),
        ]
        for run in runs:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert run() in (0, 1)
