"""The process of a test's broker: one order per line of standard input, one answer per line of standard output.

It ends, and removes its files, when its input does: also if the test was killed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys

gc.disable()  # until everything is loaded

from ottla.testing.stage import Stage  # noqa: E402


async def main() -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints something must not spoil the answers
    orders = await _lines_of_input()
    stage = Stage(json.loads(await orders.readline())["settings"], apart=True)
    answers.write(b'{"done": null}\n')
    gc.freeze()
    gc.enable()
    try:
        while line := await orders.readline():
            answers.write(json.dumps(await stage.obey(json.loads(line))).encode() + b"\n")
    finally:
        await stage.close()


async def _lines_of_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    # Ctrl-C reaches the whole process group; the test decides when its broker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="ottla %(levelname)s %(message)s", stream=sys.stderr)
    asyncio.run(main())
