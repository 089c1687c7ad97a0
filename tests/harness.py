"""Servers as child processes: started on a free port, watched until they answer, stopped or killed by their own pid.

`Server` is what our node and Apache Kafka have in common, so that a test or a benchmark can drive either without
knowing which. `Node` is ours; Apache's is in `apache/kafka.py`. A server dies with the process that started it, so
a test run that is itself killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
READY_SECONDS = 60.0
STOP_SECONDS = 60.0
PORTS = (11_000, 32_000)  # below what Linux chooses from
IN_A_ROW = 10
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)

# Every server started by this process, so that a failing test can show their logs.
STARTED: list[Server] = []


class DidNotStart(Exception):
    """The process ended, or gave no answer in time; the message carries the end of its log."""


def free_port() -> int:
    """A port nobody listens on, and that stays free while the server behind it is away: the kernel gives it to nobody who
    connects somewhere. Clients that try again and again would sooner or later be given the very port they try, and keep it."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, next(OWN_PORTS)))
            return int(probe.getsockname()[1])


def own_ports(worker: str, workers: int) -> Iterator[int]:
    """Those of this process among the ones that test side by side, each in its turn: a port that somebody was given and has
    not bound yet looks free to everybody else. Next to each, some are left alone for whoever takes several in a row."""
    size = (PORTS[1] - PORTS[0]) // workers
    first = PORTS[0] + size * int(worker.removeprefix("gw"))
    share = [port for offset in range(IN_A_ROW) for port in range(first + offset, first + size, IN_A_ROW)]
    begin = random.randrange(len(share))
    return itertools.cycle(share[begin:] + share[:begin])


OWN_PORTS = own_ports(
    os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
)


def split(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def answers_api_versions(address: str, seconds: float = 1.0) -> bool:
    """Whether a broker behind `address` answers ApiVersions v0, the request every client can start with."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(split(address), seconds) as connection:
            connection.settimeout(seconds)
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">ih", head[4:]) == (1, 0)


def die_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One broker process on one data directory. It may be started, stopped, killed and started again."""

    name = "server"

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.log_path = directory.with_name(directory.name + f".{self.name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def start(self, seconds: float = READY_SECONDS) -> Server:
        self.launch()
        self.wait_ready(seconds)
        return self

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert self.process is None, f"{self.name} is already running"
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=TREE,
                env=self.environment(),
                preexec_fn=die_with_parent,
            )
        if self not in STARTED:
            STARTED.append(self)

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not answers_api_versions(self.address):
            self.must_live()
            if time.monotonic() > deadline:
                self.kill()
                raise DidNotStart(f"{self.name} on {self.address} gave no answer in {seconds} s\n{self.log_tail()}")
            time.sleep(0.02)

    def must_live(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            code, self.process = self.process.returncode, None
            raise DidNotStart(f"{self.name} ended with {code}\n{self.log_tail()}")

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """A clean stop; the exit code. A server that does not obey is killed, and that is an error."""
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop in {seconds} s\n{self.log_tail()}")
        self.process = None
        return code

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> Server:
        self.stop()
        return self.start()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def rss_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return sum(_rss_bytes(pid) for pid in [self.pid, *_children(self.pid)])

    def cpu_seconds(self) -> float:
        """Processor time used so far, in user and kernel mode."""
        return sum(_cpu_seconds(pid) for pid in [self.pid, *_children(self.pid)])


class Node(Server):
    """Our own node, as a user starts it."""

    name = "ottla"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, port)
        self.settings = dict(settings or {})
        self.options = list(options)

    def command(self) -> list[str]:
        assignments = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        serve = ["serve", "--data", str(self.directory), "--listen", self.address]
        return [sys.executable, "-m", "ottla", *serve, *assignments, *self.options]

    def environment(self) -> Mapping[str, str]:
        """An installed package is compiled; one that may not keep its bytecode would compile itself at each start."""
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def stop_all(servers: Sequence[Server]) -> None:
    """Ends each, the last started first, whatever happens to the others."""
    with contextlib.ExitStack() as ends:
        for server in servers:
            ends.callback(server.kill)
            ends.callback(server.stop)


def running_logs() -> list[tuple[str, str]]:
    """(title, end of the log) of every server that is running now."""
    return [(f"log of {s.name} on {s.address}", s.log_tail()) for s in STARTED if s.is_running()]


def resident_bytes(pid: int) -> int:
    """Resident memory of one process."""
    return _rss_bytes(pid)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _rss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _cpu_seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
