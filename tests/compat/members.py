"""Members of groups as processes of other people's clients: started, asked politely to leave, or killed.

Python's clients have a process each (`member.py`). Java's share one JVM, a thread each (`java/Member.java`), unless one is
to be killed: then it has a JVM of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from apache import kafka as apache_kafka
from harness import die_with_parent

HERE = Path(__file__).resolve().parent
SECONDS = 60.0
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}

Read = tuple[int, int]


class Member:
    """What a member owns now, and everything it has read. `line` is called with what its client says."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.owns: list[int] | None = None
        self.read: list[Read] = []
        self.failed: str | None = None

    def line(self, said: Mapping[str, Any]) -> None:
        if "owns" in said:
            self.owns = said["owns"]
        self.read += [(partition, offset) for partition, offset in said.get("read", ())]
        self.failed = said.get("failed", self.failed)

    def leave(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError


class Process(Member):
    def __init__(self, name: str, client: str, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__(name)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "member.py"), client, json.dumps(settings), topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            preexec_fn=die_with_parent,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.line(json.loads(line))
        self._complaints.seek(0)
        self.failed = self._complaints.read().decode(errors="replace")[-500:] or None

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Jvm:
    """Any number of Java members in one process."""

    def __init__(self) -> None:
        command = apache_kafka.java(str(HERE / "java" / "Member.java"))
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )
        self.members: dict[str, JavaMember] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                said = json.loads(line)
                self.members[said["member"]].line(said)

    def order(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class JavaMember(Member):
    def __init__(self, name: str, jvm: Jvm, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__(name)
        self.jvm, self.left = jvm, False
        jvm.members[name] = self
        settings = dict(settings)
        if "partition.assignment.strategy" in settings:
            settings["partition.assignment.strategy"] = JAVA_ASSIGNORS[settings["partition.assignment.strategy"]]
        jvm.order("start", name, topic, ",".join(f"{key}={value}" for key, value in settings.items()))

    def line(self, said: Mapping[str, Any]) -> None:
        super().line(said)
        self.left = self.left or "left" in said

    def leave(self) -> None:
        self.begin_to_leave()
        self.wait_until_left()

    def begin_to_leave(self) -> None:
        self.jvm.order("stop", self.name)

    def wait_until_left(self) -> None:
        wait_until(lambda: self.left, f"{self.name} to leave")

    def kill(self) -> None:
        self.jvm.close()


class Troop:
    """The members of one group, whichever clients they are."""

    def __init__(self, jvm: Callable[[], Jvm], address: str, group: str, topic: str, **settings: Any) -> None:
        self._jvm, self._topic, self.group = jvm, topic, group
        self._settings = {"bootstrap.servers": address, "group.id": group, **settings}
        self.name = group
        self._count = 0
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def add(self, client: str, *, own_jvm: bool = False, **settings: Any) -> Member:
        self._count += 1
        name = f"{self._settings['group.id']}-{self._count}"
        wanted = {**self._settings, **{key.replace("_", "."): value for key, value in settings.items()}}
        member: Member
        if client == "java":
            member = JavaMember(name, Jvm() if own_jvm else self._jvm(), wanted, self._topic)
        else:
            member = Process(name, client, wanted, self._topic)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        member.leave()
        self._remove(member)

    def kill(self, member: Member) -> None:
        member.kill()
        self._remove(member)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)

    def shares(self) -> list[int]:
        """How many partitions each member owns, the largest share first."""
        return sorted((len(member.owns or ()) for member in self.members), reverse=True)

    def divides(self, partitions: int, shares: list[int]) -> bool:
        """Whether each partition has one owner, and the members own so many."""
        owned = Counter(partition for member in self.members for partition in member.owns or ())
        everybody = all(member.owns is not None for member in self.members)
        return everybody and owned == Counter(range(partitions)) and self.shares() == shares

    def settle(self, partitions: int, shares: list[int]) -> None:
        wait_until(lambda: self.divides(partitions, shares), lambda: f"{shares} instead of {self.told()}")

    def told(self) -> list[tuple[str, list[int] | None, str | None]]:
        return [(member.name, member.owns, member.failed) for member in self.members]

    def read(self) -> Counter[Read]:
        return Counter(one for member in (*self.members, *self.gone) for one in member.read)

    def close(self) -> None:
        """Java's members leave all at once: a consumer takes half a second to close."""
        java = [member for member in self.members if isinstance(member, JavaMember)]
        for member in java:
            member.begin_to_leave()
        for member in self.members:
            member.wait_until_left() if isinstance(member, JavaMember) else member.kill()


def wait_until(is_so: Callable[[], bool], wanted: str | Callable[[], str], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {wanted if isinstance(wanted, str) else wanted()}"
        time.sleep(0.05)


def records(partitions: Iterable[int], first: int, count: int) -> set[Read]:
    return {(partition, offset) for partition in partitions for offset in range(first, first + count)}
