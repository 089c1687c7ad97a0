"""Several nodes, one command, one Ctrl-C: starts them as processes, prefixes what they say, and restarts who fails.

    Ctrl-C or SIGTERM once      an orderly stop: each node hands its leaderships over; brokers first, then those that keep the
                                metadata, because a goodbye needs somebody who writes it down
    a second time               all of them are killed
    a node ends by itself       that is said, and it is started again, the later the more often it happens; before that
                                `mend` sees whether there is a disk to start on
    a node that never ran       a port that is taken, say: the others are stopped as well, and the command fails

Each node holds one end of a pair of sockets. Through it it says that it is ready; and when the other end is closed, because
the supervisor is gone, however it went, the node stops as if it had been told to.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import IO

READY = b"ready\n"
FIRST_DELAY_S = 0.5
DELAY_S_MAX = 30.0
# Whoever ran this long had recovered: the next failure is a first one.
STEADY_S = 60.0
STOP_S = 40.0
AGAIN_S = 0.3
READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16
SUPERVISOR = "cluster"

# Given the id of a node that is to be started again; whether it begins anew, on an empty disk.
Mend = Callable[[int], bool]


# --- the side of a node


def supervised(fd: int) -> Callable[[object], contextlib.AbstractAsyncContextManager[None]]:
    """Stop this process in good order when the supervisor is gone; what is given says beside the node that it is ready."""
    line = socket.socket(fileno=fd)
    threading.Thread(target=_outlive_nobody, args=(line,), daemon=True).start()

    @contextlib.asynccontextmanager
    async def beside(node: object) -> AsyncIterator[None]:
        with contextlib.suppress(OSError):
            line.send(READY)
        yield

    return beside


def _outlive_nobody(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os._exit(1)


# --- the side of the supervisor


class Output:
    """Lines of all nodes in one stream, each with the name of who said it. Whoever reads it may leave: then it is lost."""

    def __init__(self, stream: IO[bytes], *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def say(self, text: str, level: str = "info") -> None:
        moment = time.time()
        if self._as_json:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment * 1000) % 1000:03d}Z"
            fields = {"time": stamp, "level": level, "room": SUPERVISOR, "message": text}
            self._write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment * 1000) % 1000:03d}"
            self.pass_on(SUPERVISOR, f"{clock} {level.upper():<5} {text}".encode())

    def pass_on(self, name: str, line: bytes) -> None:
        if not self._as_json:
            self._write(f"{name:<7} | ".encode() + line + b"\n")
        elif line.startswith(b'{"'):
            self._write(b'{"node":' + name.removeprefix("node ").encode() + b"," + line[1:] + b"\n")
        else:
            fields = {"node": int(name.removeprefix("node ")), "message": line.decode(errors="replace")}
            self._write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(data)
            self._stream.flush()


class Child:
    """One node, over as many processes as it takes."""

    def __init__(self, node_id: int, command: Sequence[str], output: Output, *, is_controller: bool) -> None:
        self.node_id = node_id
        self.name = f"node {node_id}"
        self.is_controller = is_controller
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = False
        self.was_ready = False
        self.due_at: float | None = None
        self._command = command
        self._output = output
        self._line: socket.socket | None = None
        self._held = b""
        self._started_at = 0.0
        self._delay_s = FIRST_DELAY_S

    def start(self, selector: selectors.BaseSelector) -> None:
        """In a process group of its own: Ctrl-C is for the supervisor, who passes it on."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*self._command, "--supervised", str(theirs.fileno())]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        self._output.say(f"{self.name} starts as process {self.process.pid}")
        self.due_at, self._started_at, self._line = None, time.monotonic(), ours
        ours.setblocking(False)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        selector.register(self.process.stdout, selectors.EVENT_READ, self._listen)
        selector.register(ours, selectors.EVENT_READ, self._notice)

    def _listen(self) -> bool:
        return self._hear() != b""

    def _hear(self) -> bytes | None:
        """Pass on what it said: nothing at the end, and None while it is silent."""
        assert self.process is not None and self.process.stdout is not None
        said: bytes | None = self.process.stdout.read(READ_BYTES)
        if said:
            *lines, self._held = (self._held + said).split(b"\n")
            for line in lines:
                self._output.pass_on(self.name, line)
            if len(self._held) > LINE_BYTES_MAX:
                self._end_line()
        return said

    def _end_line(self) -> None:
        if self._held:
            self._output.pass_on(self.name, self._held)
        self._held = b""

    def _notice(self) -> bool:
        assert self._line is not None
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if self._line.recv(len(READY)) == READY:
                self.is_ready = self.was_ready = True
                return True
        return False

    def ended(self, selector: selectors.BaseSelector) -> int | None:
        """How the process ended, if it did just now: what it said last has been passed on."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        assert self.process.stdout is not None and self._line is not None
        while self._hear():
            pass
        self._end_line()
        for source in (self.process.stdout, self._line):
            with contextlib.suppress(KeyError):
                selector.unregister(source)
            source.close()
        self.process, self._line, self.is_ready = None, None, False
        return code

    def postpone(self) -> float:
        """Settle when to try again: soon, and later each time, unless it ran for a while."""
        if time.monotonic() - self._started_at > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        delay, self._delay_s = self._delay_s, min(2 * self._delay_s, DELAY_S_MAX)
        self.due_at = time.monotonic() + delay
        return delay

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)


class Supervisor:
    def __init__(self, children: Sequence[Child], output: Output, welcome: str, mend: Mend) -> None:
        self._children = children
        self._mend = mend
        self._output = output
        self._welcome: str | None = welcome
        self._selector = selectors.DefaultSelector()
        self._told = 0
        self._told_at = -AGAIN_S
        self._code = 0
        self._asked: list[Child] = []
        self._killed: list[Child] = []
        self._patient_until: float | None = None

    def run(self) -> int:
        """Until all nodes have ended, because somebody said so or because one could not begin; the exit code."""
        with self._signals():
            for child in self._children:
                child.start(self._selector)
            while self._is_needed():
                self._wait()
                self._bury()
                self._start_again()
                self._greet()
                self._obey()
        return self._code

    def _is_needed(self) -> bool:
        return not self._told or any(child.process for child in self._children)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals wake the loop through a socket; what they mean is decided there."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        old = {number: signal.signal(number, self._tell) for number in (signal.SIGINT, signal.SIGTERM)}
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._selector.register(ours, selectors.EVENT_READ, lambda: bool(ours.recv(READ_BYTES)))
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in old.items():
                signal.signal(number, handler)
            self._selector.close()

    def _tell(self, number: int, frame: FrameType | None) -> None:
        """`timeout` and others send a signal to a process and to its group: that is one word, not two."""
        now = time.monotonic()
        if now - self._told_at > AGAIN_S:
            self._told, self._told_at = self._told + 1, now

    def _wait(self) -> None:
        """For something to happen, or for the next moment at which something is to be done."""
        moments = [child.due_at for child in self._children if child.due_at is not None]
        if self._patient_until is not None:
            moments.append(self._patient_until)
        timeout = max(0.0, min(moments) - time.monotonic()) if moments else None
        for key, _ in self._selector.select(timeout):
            if not key.data():
                self._selector.unregister(key.fileobj)

    def _bury(self) -> None:
        for child in self._children:
            code = child.ended(self._selector)
            if code is None or self._told:
                continue
            if not child.was_ready and not any(other.was_ready for other in self._children):
                self._output.say(f"{child.name} cannot start: the others are stopped", "error")
                self._told, self._code = 1, 1
            else:
                delay = child.postpone()
                self._output.say(f"{child.name} ended ({_how(code)}): it is started again in {delay:g} s", "error")

    def _start_again(self) -> None:
        for child in self._children:
            if self._told:
                child.due_at = None
            elif child.due_at is not None and child.due_at <= time.monotonic():
                self._try_again(child)

    def _try_again(self, child: Child) -> None:
        try:
            if self._mend(child.node_id):
                self._output.say(f"{child.name} has an empty disk: it begins anew, with copies from the others", "warn")
        except OSError as error:
            self._output.say(f"{child.name} has no disk: {error}; next try in {child.postpone():g} s", "error")
        else:
            child.start(self._selector)

    def _greet(self) -> None:
        if self._welcome is not None and all(child.is_ready for child in self._children):
            self._output.say(self._welcome)
            self._welcome = None

    def _obey(self) -> None:
        running = [child for child in self._children if child.process is not None]
        if not self._told or not running:
            return
        if self._told > 1:
            self._kill(running, "told twice")
        elif self._patient_until is not None and time.monotonic() >= self._patient_until:
            self._kill([child for child in running if child in self._asked], f"did not stop in {STOP_S:g} s")
        else:
            self._ask([child for child in running if not child.is_controller] or running)

    def _ask(self, children: Sequence[Child]) -> None:
        """Ask those to stop whose turn it is, once."""
        if not self._asked:
            self._output.say("the nodes stop, in good order; told again, they are killed")
        for child in children:
            if child not in self._asked:
                self._asked.append(child)
                self._patient_until = time.monotonic() + STOP_S
                child.signal(signal.SIGTERM)

    def _kill(self, children: Sequence[Child], why: str) -> None:
        for child in children:
            if child not in self._killed:
                self._output.say(f"{child.name} is killed: {why}", "warn")
                self._killed.append(child)
                child.signal(signal.SIGKILL)
        self._patient_until, self._code = None, 1


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def run(children: Sequence[tuple[int, bool, Sequence[str]]], welcome: str, mend: Mend, *, as_json: bool) -> int:
    """Run the nodes (id, whether it is a controller, command) until told to stop; the exit code."""
    output = Output(sys.stderr.buffer, as_json=as_json)
    made = [Child(n, command, output, is_controller=is_controller) for n, is_controller, command in children]
    return Supervisor(made, output, welcome, mend).run()
