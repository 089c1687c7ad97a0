"""kafka-server-start.sh [-daemon] server.properties [--override property=value]*: start a node."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka import KAFKA_VERSION
from ottla.cli.kafka.options import Failed, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "USAGE: kafka-server-start.sh [-daemon] server.properties [--override property=value]*"
# Words that Kafka's script hands to the JVM, with how many words belong to each.
FOR_THE_JVM = {"-loggc": 0, "-name": 1}
LOG_DIRECTORY = "LOG_DIR"


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: _run(words))


def _run(words: list[str]) -> int:
    is_daemon, words = _leading(words)
    if not words or words[0] in ("--help", "-h"):
        print(USAGE, file=sys.stderr)
        return 1
    if words[0] == "--version":
        print(KAFKA_VERSION)
        return 0
    settings = _settings(words)
    if is_daemon:
        _leave(words)
        return 0
    return _serve(settings)


def _leading(words: list[str]) -> tuple[bool, list[str]]:
    is_daemon = False
    while words and (words[0] == "-daemon" or words[0] in FOR_THE_JVM):
        is_daemon |= words[0] == "-daemon"
        words = words[1 + FOR_THE_JVM.get(words[0], 0) :]
    return is_daemon, words


def _settings(words: list[str]) -> dict[str, str]:
    """Those of the file, and what --override says about them."""
    from ottla.cli.kafka.node_settings import node_settings

    settings = node_settings(words[0])
    rest = words[1:]
    while rest:
        word, rest = rest[0], rest[1:]
        if word.startswith("--override="):
            pair = word.removeprefix("--override=")
        elif word == "--override" and rest:
            pair, rest = rest[0], rest[1:]
        elif word == "--override":
            raise Failed("Option override requires an argument")
        else:
            name = word.lstrip("-").partition("=")[0]
            raise Failed(
                f"{name} is not a recognized option"
                if word.startswith("-")
                else f"Found non argument parameters: {word}"
            )
        name, _, value = pair.partition("=")
        settings[name.strip()] = value.strip()
    return settings


def _serve(settings: dict[str, str]) -> int:
    from ottla.cli.kafka.running import noted

    gc.disable()  # until the node runs: what is loaded now stays, and to look for garbage in it takes time
    from ottla.server.process import Options, serve_forever

    with noted(settings):
        return serve_forever(settings, Options())


def _leave(words: list[str]) -> None:
    """Start the same again in a session of its own, with its output in a file, and do not wait for it."""
    import subprocess

    directory = os.environ.get(LOG_DIRECTORY) or "logs"
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "kafkaServer.out"), "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "ottla.cli.kafka.server_start", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


if __name__ == "__main__":
    sys.exit(main())
