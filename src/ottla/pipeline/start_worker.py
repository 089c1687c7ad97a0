"""What Spark starts for Python, through `worker.sh`: the words and the path are put right, and the nursery, or else the
interpreter, goes on with them. It runs without a path of its own (`-I -S`) and imports nothing that takes time."""

from __future__ import annotations

import marshal
import os
import socket
import sys

BORN = b"b"


def put_right(words: list[str]) -> list[str]:
    """`daemon` in the place of Spark's, and `planning` around the processes with which it plans."""
    match words:
        case ["-m", "pyspark.daemon", *rest]:
            return ["-m", "ottla.pipeline.daemon", *rest]
        case ["-m", module, *rest] if module.startswith("pyspark.sql."):
            return ["-m", "ottla.pipeline.planning", module, *rest]
    return words


def without_archives(path: str) -> str:
    """Spark names its archives twice; and an entry that is left empty would stand for the current directory."""
    return ":".join(entry for entry in path.split(":") if entry and not _is_archive(entry))


def _is_archive(entry: str) -> bool:
    folder, _, name = entry.rpartition("/")
    return (name == "pyspark.zip" and folder.endswith("/python/lib")) or (
        name.startswith("py4j-") and name.endswith("-src.zip")
    )


def born(path: str, words: list[str], environment: dict[str, str]) -> int | None:
    """The exit code of a process that the nursery gave birth to; None if it did not."""
    told = marshal.dumps((os.getcwd(), words, environment))  # it is read by the same interpreter
    with socket.socket(socket.AF_UNIX) as nursery:
        try:
            nursery.connect(path)
            socket.send_fds(nursery, [len(told).to_bytes(4, "big")], [0, 1, 2])
            nursery.sendall(told)
            if nursery.recv(1) != BORN:
                return None
        except OSError:
            return None
        ended = nursery.recv(1)
        return ended[0] if ended else 1


def main() -> None:
    environment = {**os.environ, "PYTHONPATH": without_archives(os.environ.get("PYTHONPATH", ""))}
    words = put_right(sys.argv[1:])
    if words[:1] == ["-m"] and "OTTLA_NURSERY" in environment:
        code = born(environment["OTTLA_NURSERY"], words[1:], environment)
        if code is not None:
            sys.exit(code)
    python = environment["OTTLA_WORKER_PYTHON"]
    os.execve(python, [python, *words], environment)


if __name__ == "__main__":
    main()
