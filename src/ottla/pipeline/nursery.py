"""One process that has imported what Spark's Python processes need, and from which they are forked.

Before the first row of a query Spark starts four of them, one after the other, and each would import PySpark, two of
them also Arrow, numpy and the client: 1.2 s of waiting. Here that is done once, while the JVM is starting.
`start_worker.py` asks for a process over a Unix socket and hands over its input and outputs; whatever the nursery cannot
do, by being gone or by having been started otherwise than the process should be, is done by a new interpreter as before.

A process with several threads must not be forked: the libraries are kept from starting any, and if there is one all the
same, the nursery gives up. It ends with the program that started it, by the end of its own input.
"""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ottla.pipeline.start_worker import BORN

PREPARED = (
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_ottla",
    "ottla.pipeline.source",
    "ottla.pipeline.sink",
)
# Without the first three numpy and Arrow start threads; the fourth is what Spark sets for its workers, as the first is.
STARTED_WITH = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
}
# What an interpreter and these libraries read when they are loaded, and never again. Spark's own names begin with PYTHON_.
READ_ONCE = ("PYTHON", "LANG", "LC_", "LD_", "TZ", "OMP_", "OPENBLAS_", "MKL_", "JE_ARROW_")
NOT_READ = ("PYTHON_", "PYTHONPATH", "PYTHONUNBUFFERED")  # the path is obeyed below; unbuffered it is always
THREADS = Path("/proc/self/task")
OWN = "OTTLA_NURSERY"
PATIENCE_S = 10

_opened: subprocess.Popen[bytes] | None = None


class Order(NamedTuple):
    """What a process is to be."""

    directory: str
    words: list[str]
    environment: dict[str, str]


def open_for_workers() -> None:
    """Starts one for this program, if there is none, and tells the processes that it starts where it is."""
    global _opened
    if _opened is not None or not THREADS.exists():
        return
    folder = tempfile.mkdtemp(prefix="ottla-nursery-")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(door := str(Path(folder) / "door"))
            listener.listen()
            _opened = subprocess.Popen(
                [sys.executable, "-u", "-m", "ottla.pipeline.nursery", str(listener.fileno()), folder],
                stdin=subprocess.PIPE,  # nothing is written to it: it ends with this program
                env=os.environ | STARTED_WITH,
                pass_fds=[listener.fileno()],
                process_group=0,  # Ctrl-C is not for it
            )
        os.environ[OWN] = door
    except OSError:  # the name of the directory is too long for a socket, say
        shutil.rmtree(folder, ignore_errors=True)


def prepare() -> bool:
    """Whether everything is imported, and this process can be forked."""
    try:
        for module in PREPARED:
            import_module(module)
    except Exception:
        return False  # whoever needs what is missing or broken will say so himself
    gc.collect()
    gc.freeze()  # or a child that collects garbage would copy every page
    return len(list(THREADS.iterdir())) == 1


class Nursery:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._woken, self._waking = socket.socketpair()
        self._children: dict[int, socket.socket] = {}

    def attend(self) -> Order | None:
        """Returns when the program that started it has ended; and at once in each child, with what that is to be."""
        self._waking.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waking.fileno())
        for source in (sys.stdin, self._listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is self._listener:
                    if (order := self._deliver()) is not None:
                        return order
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._bury()
                elif key.data in self._children:  # nobody waits for it any longer
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)

    def _deliver(self) -> Order | None:
        """A child for whoever asks; what it is to be, in the child itself."""
        asking, _ = self._listener.accept()
        streams: list[int] = []
        try:
            asking.settimeout(PATIENCE_S)
            head, streams, _, _ = socket.recv_fds(asking, 4, 3)
            with asking.makefile("rb") as words:
                order = Order(*marshal.loads(words.read(int.from_bytes(head, "big"))))
            pid = os.fork() if is_alike(order.environment) else None
        except (OSError, EOFError, ValueError, TypeError):  # it went away, or was somebody else
            pid = None
        if pid == 0:
            self._part(asking, streams)
            return order
        for stream in streams:
            os.close(stream)
        if pid is None:
            asking.close()
        else:
            self._children[pid] = asking
            self._selector.register(asking, selectors.EVENT_READ, pid)
            with suppress(OSError):
                asking.sendall(BORN)
        return None

    def _bury(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                asking = self._children.pop(ended[0])
                with suppress(KeyError):
                    self._selector.unregister(asking)
                with asking, suppress(OSError):
                    asking.sendall(bytes([_as_a_shell_says(os.waitstatus_to_exitcode(ended[1]))]))

    def _part(self, asking: socket.socket, streams: list[int]) -> None:
        """In a child: nothing is left of the nursery but what it has imported."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for own in (asking, self._listener, self._woken, self._waking, *self._children.values()):
            own.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)


def _as_a_shell_says(code: int) -> int:
    return code if code >= 0 else 128 - code


def is_alike(environment: dict[str, str]) -> bool:
    """Whether an interpreter that is started with this would be as this one is."""
    read = (name for name in environment if name.startswith(READ_ONCE) and not name.startswith(NOT_READ))
    return all(os.environ.get(name) == environment[name] for name in read)


def become(order: Order) -> None:
    """As `python -m` would."""
    os.chdir(order.directory)
    os.environ.clear()
    os.environ.update(order.environment)
    given = order.environment.get("PYTHONPATH", "").split(":")
    sys.path[:] = dict.fromkeys([order.directory, *filter(None, given), *sys.path])
    sys.argv[:] = order.words
    runpy.run_module(order.words[0], run_name="__main__", alter_sys=True)


def main() -> None:
    listener, folder = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    order = Nursery(listener).attend() if prepare() else None
    if order is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        become(order)


if __name__ == "__main__":
    main()
