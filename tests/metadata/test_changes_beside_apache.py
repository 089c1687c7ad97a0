"""Changes of partitions beside those of Apache Kafka's own controller: thousands of states, the same record for each."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from apache import kafka
from ottla.metadata.image import Image, Partition
from ottla.metadata.leaders import Change, record_of
from ottla.metadata.records import PartitionChangeRecord

pytestmark = pytest.mark.apache
SOURCE = Path(kafka.__file__).resolve().parent / "java" / "Changes.java"
CASES = 6_000
Numbers = tuple[int, ...]


def numbers(wanted: Numbers | list[int] | None) -> str:
    return "null" if wanted is None else ",".join(map(str, wanted))


def directory(broker_id: int) -> bytes:
    return (9).to_bytes(8, "big") + broker_id.to_bytes(8, "big")


class Case:
    """A partition as a controller may find it, and what is aimed at: drawn so that all rules meet."""

    def __init__(self, rng: random.Random) -> None:
        brokers = list(range(1, 6))
        rng.shuffle(brokers)
        replicas = tuple(brokers[: rng.randint(1, 4)])
        isr = tuple(rng.sample(replicas, rng.randint(0, len(replicas))))
        self.elr_enabled = rng.random() < 0.8
        if not isr and not self.elr_enabled:
            isr = replicas[:1]
        out = sorted(set(replicas) - set(isr))
        elr = tuple(r for r in out if self.elr_enabled and rng.random() < 0.4)
        self.acceptable = {b for b in brokers if rng.random() < 0.7}
        leader = rng.choice([*isr, -1]) if isr else -1
        last_known = (rng.choice(replicas),) if self.elr_enabled and leader == -1 and rng.random() < 0.6 else ()
        self.partition = Partition(
            replicas=replicas,
            isr=isr,
            leader=leader,
            leader_epoch=5,
            partition_epoch=7,
            directories=tuple(map(directory, replicas)),
            elr=elr,
            last_known_elr=last_known,
            recovering=leader >= 0 and len(isr) == 1 and rng.random() < 0.2,
        )
        self.metadata_version = (
            rng.choice([11, 12, 16, 17, 22, 23, 30]) if not self.elr_enabled else rng.choice([23, 30])
        )
        self.min_isr = rng.randint(1, 3)
        self.election = rng.choice(["ONLINE", "PREFERRED", "UNCLEAN"])
        self.died = -1
        self.target = isr
        self.aim: tuple[Numbers, Numbers, Numbers] | None = None
        self.recovered = False
        rng.choice([self._lose, self._die, self._say, self._move, self._nothing])(rng)

    def _nothing(self, rng: random.Random) -> None:
        """Only a leader is looked for."""

    def _lose(self, rng: random.Random) -> None:
        gone = rng.choice(self.partition.replicas)
        self.target = tuple(r for r in self.partition.isr if r != gone)
        self.acceptable -= {gone}

    def _die(self, rng: random.Random) -> None:
        self._lose(rng)
        self.died = rng.choice(self.partition.replicas)
        self.target = tuple(r for r in self.target if r != self.died)
        self.acceptable -= {self.died}

    def _say(self, rng: random.Random) -> None:
        """What a leader says, also in the middle of a reassignment."""
        partition = self.partition
        if partition.leader < 0:
            return
        adding = tuple(r for r in partition.replicas if r not in partition.isr and rng.random() < 0.5)
        removing = tuple(r for r in partition.replicas if r not in adding and rng.random() < 0.3)
        if set(adding) | set(removing) != set(partition.replicas):
            self.partition = partition._replace(adding=adding, removing=removing)
        others = [r for r in partition.replicas if r != partition.leader and rng.random() < 0.7]
        self.target = (partition.leader, *others)
        self.recovered = partition.recovering

    def _move(self, rng: random.Random) -> None:
        target = rng.sample(range(1, 6), rng.randint(1, 4))
        removing = tuple(sorted(set(self.partition.replicas) - set(target)))
        self.aim = (*target, *removing), tuple(sorted(set(target) - set(self.partition.replicas))), removing

    def asked(self) -> str:
        p, aim = self.partition, self.aim or ((), (), ())
        fields = [p.replicas, p.isr, p.elr, p.last_known_elr, p.adding, p.removing]
        recovery = 0 if self.recovered else int(p.recovering)
        return ";".join(
            [
                *map(numbers, fields),
                str(p.leader),
                str(int(p.recovering)),
                numbers(sorted(self.acceptable)),
                str(self.metadata_version),
                str(self.min_isr),
                str(int(self.elr_enabled)),
                self.election,
                numbers(self.target),
                "" if self.died < 0 else str(self.died),
                *map(numbers, aim),
                str(recovery),
            ]
        )

    def decided(self) -> str:
        image = replace(Image(), features={"metadata.version": self.metadata_version})
        image = replace(image, brokers=Anybody())
        change = Change(
            partition=self.partition,
            isr=self.target,
            elr=self.partition.elr,
            acceptable=self.acceptable.__contains__,
            elr_enabled=self.elr_enabled,
            min_isr=self.min_isr,
            unclean=self.election == "UNCLEAN",
            prefers_first=self.election == "PREFERRED",
            died_uncleanly=self.died,
        )
        if self.aim is not None:
            change.replicas, change.adding, change.removing = self.aim
        if self.recovered:
            change.recovery = 0
        change.elect()
        written = record_of(change, b"t" * 16, 0, image)
        return "nothing" if written is None else told(*written)


class Anybody(dict):  # type: ignore[type-arg]
    """Every broker has one directory."""

    def __missing__(self, broker_id: int) -> object:
        class One:
            default_directory = directory(broker_id)

        return One


def told(record: object, version: int) -> str:
    assert isinstance(record, PartitionChangeRecord)
    sets = [record.isr, record.replicas, record.removing_replicas, record.adding_replicas]
    isr, replicas, removing, adding = map(numbers, sets)
    elr, last = numbers(record.eligible_leader_replicas), numbers(record.last_known_elr)
    places = "null" if record.directories is None else "set"
    recovery = str(record.leader_recovery_state)
    return ";".join([isr, str(record.leader), replicas, removing, adding, recovery, elr, last, places, str(version)])


def sensible(case: Case, line: str) -> str:
    """Their record, but for two things that mean nothing: somebody who holds no replica any more can stay eligible there,
    though it can never lead; and where nobody led before, that nobody can be the last known leader."""
    if line == "nothing":
        return line
    isr, leader, replicas, removing, adding, recovery, elr, last, *rest = line.split(";")
    held = parsed(replicas, case.partition.replicas)
    kept = tuple(one for one in parsed(elr, case.partition.elr) if one in held)
    elr = "null" if kept == case.partition.elr else numbers(kept)
    last = "null" if last == "-1" else last
    return ";".join([isr, leader, replicas, removing, adding, recovery, elr, last, *rest])


def parsed(text: str, unchanged: Numbers) -> Numbers:
    return unchanged if text == "null" else tuple(int(one) for one in text.split(",") if one)


def test_the_same_record_for_every_change() -> None:
    """TRAP-40, TRAP-41, KIP-455, KIP-704, KIP-858, KIP-966: elections, in-sync sets, eligible ones and reassignments."""
    if missing := kafka.why_missing():
        pytest.skip(missing)
    cases = [Case(random.Random(seed)) for seed in range(CASES)]
    lines = "\n".join(case.asked() for case in cases) + "\n"
    command = kafka.java(str(SOURCE), logging=kafka.logging_file("ERROR"))
    run = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=100)
    theirs = run.stdout.splitlines()
    assert len(theirs) == CASES and len(set(theirs)) > CASES / 10, "the cases differ"
    pairs = [(case, case.decided(), sensible(case, line)) for case, line in zip(cases, theirs, strict=True)]
    different = [(case.asked(), ours, line) for case, ours, line in pairs if ours != line]
    assert not different, f"{len(different)} of {CASES} differ, first: {different[:3]}"
