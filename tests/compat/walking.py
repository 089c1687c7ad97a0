"""A walk over what a controller can be asked, from a seed: brokers that exist only in requests register, beat, are fenced,
stop and are unregistered; their topics are made, led, shrunk, reassigned and elected for; and about one request in ten is odd.

After each step both clusters must show the same: every partition with its leader, epochs, replicas, in-sync and eligible ones,
every reassignment, every broker. What docs/compatibility.md gives a reason for is walked around.
"""

from __future__ import annotations

import dataclasses
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from compat.controllers import CLUSTER_ID, EPOCH, UNKNOWN_ID, ZERO_ID, Side, compare, difference, plain, topic
from compat.peers import asking

GHOSTS = [11, 12, 13, 14]
NOBODY = [99, -1, 0]
FEATURES = [
    "metadata.version",
    "kraft.version",
    "transaction.version",
    "group.version",
    "eligible.leader.replicas.version",
    "share.version",
    "streams.version",
]
SETTLING_S = 30.0
FAR = 10**9
Place = tuple[str, int]


def levels(**other: int) -> list[dict[str, Any]]:
    low = {"metadata.version": 7}
    return [
        {"name": n, "min_supported_version": low.get(n, 0), "max_supported_version": other.get(n.partition(".")[0], 40)}
        for n in FEATURES
    ]


def directories(broker: int) -> list[uuid.UUID]:
    return [uuid.UUID(int=0xE0_0000 + 16 * broker + n) for n in range(1 + broker % 2)]


class Walk:
    def __init__(self, sides: tuple[Side, Side], seed: str) -> None:
        self.sides, self.rng = sides, random.Random(seed)
        self.asked = 0
        self.differences: list[str] = []
        self.partitions: dict[Place, Any] = {}
        self.beside: set[Place] = set()
        self.lives = dict.fromkeys(GHOSTS, 0)
        self.stopping: set[int] = set()
        self.let_in: list[int] = []
        self.read: dict[int, int] = {}
        self.eligible: set[str] = set()
        self.topics = 0
        self.epochs: dict[Place, int] = {}

    def begin(self) -> None:
        for broker in GHOSTS:
            self.register(broker, odd=False)
        for broker in GHOSTS:
            self.beat(broker, {"want_fence": False, "want_shut_down": False})
        for _ in range(4):
            self.create()
        self.look("the beginning")

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.register: 8,
            self.beat: 22,
            self.create: 5,
            self.reassign: 10,
            self.elect: 8,
            self.alter: 25,
            self.unregister: 2,
            self.place_in_directories: 5,
            self.configure: 4,
            self.allocate: 2,
            self.add_partition: 2,
            self.list_reassignments: 2,
        }
        chosen = self.rng.choices(list(steps), list(steps.values()))[0]
        chosen()
        self.look(chosen.__name__)

    def ask(self, request: Any, *, patient: bool = False) -> tuple[Any, Any]:
        """Both answers. A broker that stops waits for what real ones have read, so `patient` asks until both agree."""
        doors = (self.sides[0].active, self.sides[1].active)
        deadline = time.monotonic() + SETTLING_S
        found, answers = compare(request, doors, of_quorum=False)
        while found and patient and time.monotonic() < deadline:
            time.sleep(0.05)
            found, answers = compare(request, doors, of_quorum=False)
        self.asked += 1
        if found:
            self.differences.append(f"request {self.asked}: {found}\n    {request}")
        return answers

    # --- what there is

    def look(self, after: str) -> None:
        """Wait until both show the same, and remember it."""
        deadline, found = time.monotonic() + SETTLING_S, None
        while True:
            seen = [self._seen(side) for side in self.sides]
            self._note_beside(seen[1])
            ours, theirs = (
                [self._shared(each, side) for each in of] for of, side in zip(seen, self.sides, strict=True)
            )
            found = difference(ours, theirs)
            if not found or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if found:
            self.differences.append(f"after request {self.asked} ({after}): {found}")
        told, nodes, _ = seen[1]
        self.let_in = sorted(int(node.broker_id) for node in nodes.brokers if not node.is_fenced)
        every = [] if told is None else [(t.name, p) for t in told.topics for p in t.partitions]
        self.eligible = {name for name, part in every if part.eligible_leader_replicas}
        self.partitions = {(n, p.partition_index): p for n, p in every if (n, p.partition_index) not in self.beside}

    def _seen(self, side: Side) -> list[Any]:
        side.learn()
        broker = side.brokers[1]
        names = [{"name": f"t{n}"} for n in range(1, self.topics + 1) if f"t{n}" in side.names.values()]
        described = broker.ask(asking(75, 0, topics=names, response_partition_limit=2000)) if names else None
        nodes = broker.ask(asking(60, 2, include_fenced_brokers=True, endpoint_type=1))
        return [described, nodes, side.active.ask(asking(46, 0, topics=None))]

    def _note_beside(self, seen: list[Any]) -> None:
        """Partitions that go another way for a reason: eligible brokers without a replica; a replica that is to come and to
        go."""
        described, _, moving = seen
        parts = {(t.name, p.partition_index): p for t in (described.topics if described else ()) for p in t.partitions}
        for place, part in parts.items():
            if not set(part.eligible_leader_replicas or ()) <= set(part.replica_nodes):
                self.beside.add(place)
        for place, move in (((t.name, p.partition_index), p) for t in moving.topics for p in t.partitions):
            if set(move.adding_replicas) & set(move.removing_replicas):
                self.beside.add(place)

    def _shared(self, told: Any, side: Side) -> Any:
        if hasattr(told, "brokers"):
            told = dataclasses.replace(told, controller_id=told.controller_id * 0)
        elif told is not None:
            kept = [dataclasses.replace(t, partitions=self._kept(t)) for t in told.topics]
            told = dataclasses.replace(told, topics=tuple(t for t in kept if t.partitions))
        return plain(told, side, of_quorum=False)

    def _kept(self, told: Any) -> tuple[Any, ...]:
        return tuple(p for p in told.partitions if (told.name, p.partition_index) not in self.beside)

    # --- brokers

    def ghost(self, odd: float = 0.06) -> int:
        return self.rng.choice([1, *NOBODY]) if self.rng.random() < odd else self.rng.choice(GHOSTS)

    def epoch(self, broker: int, odd: float = 0.05) -> int:
        if self.rng.random() < odd:
            return self.rng.choice([-1, 0, 5, 10**7])
        return EPOCH + broker if broker in self.sides[1].epochs else -1

    def register(self, broker: int | None = None, *, odd: bool = True) -> None:
        rng, broker = self.rng, broker or self.rng.choice([*GHOSTS * 6, 1])
        if broker in self.stopping:
            self.unregister(broker)
        if broker in self.lives and rng.random() < 0.7:
            self.lives[broker] += 1
        said = {
            "broker_id": broker,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": uuid.UUID(int=0xC000_0000 + 1000 * broker + self.lives.get(broker, 0)),
            "listeners": [{"name": "PLAINTEXT", "host": "localhost", "port": 9, "security_protocol": 0}],
            "features": levels(),
            "log_dirs": directories(broker),
            "previous_broker_epoch": self.epoch(broker, 0.5),
        }
        if odd and rng.random() < 0.15:
            said |= rng.choice(self._odd_registrations(broker))
        answers = self.ask(asking(62, rng.choice([0, 1, 2, 3, 4, 4, 4]) if odd else 4, **said))
        if all(getattr(each, "error_code", -1) == 0 for each in answers):
            for side, answer in zip(self.sides, answers, strict=True):
                side.epochs[broker] = answer.broker_epoch

    def _odd_registrations(self, broker: int) -> list[dict[str, Any]]:
        return [
            {"log_dirs": []},
            {"log_dirs": directories(broker) * 2},
            {"log_dirs": [self.rng.choice([uuid.UUID(int=n) for n in (0, 1, 2, 50)])]},
            {"log_dirs": directories(self.rng.choice(GHOSTS))},
            {"cluster_id": self.rng.choice(["", "other"])},
            {"features": levels()[1:]},
            {"features": levels(metadata=self.rng.choice([8, 20]))},
            {"features": levels(group=0)},
            {"listeners": []},
            {"is_migrating_zk_broker": True},
        ]

    def beat(self, broker: int | None = None, said: dict[str, Any] | None = None) -> None:
        rng, broker = self.rng, broker or self.ghost()
        own = directories(max(broker, 2))
        beat: dict[str, Any] = {
            "broker_id": broker,
            "broker_epoch": self.epoch(broker, 0.0 if said else 0.05),
            "current_metadata_offset": FAR if said else rng.choice([FAR] * 5 + [0, -1, 3]),
            "want_fence": rng.random() < 0.12,
            "want_shut_down": rng.random() < 0.08,
            "offline_log_dirs": rng.choice([[]] * 12 + [own[:1], [UNKNOWN_ID]]) if not said else [],
            "cordoned_log_dirs": rng.choice([None, None, None, [], [UNKNOWN_ID]]) if not said else None,
            **(said or {}),
        }
        beat["want_shut_down"] |= broker in self.stopping  # there is no way back
        if beat["want_fence"] or beat["want_shut_down"] or broker not in self.let_in:
            beat["offline_log_dirs"] = []
        if beat["want_shut_down"]:
            self._say_again(broker)
        _, answer = self.ask(asking(63, rng.choice([0, 1, 2]), **beat), patient=beat["want_shut_down"])
        if answer.error_code == 0:
            self.read[broker] = beat["current_metadata_offset"]
            self.stopping |= {broker} if beat["want_shut_down"] else set()

    def _say_again(self, stopping: int) -> None:
        """What the others have read: Apache's controller forgets it whenever a registration changes, until they beat again."""
        for broker in sorted({*self.let_in} & {*self.read} & {*self.sides[1].epochs} - self.stopping - {stopping}):
            said = {"broker_id": broker, "broker_epoch": EPOCH + broker, "want_fence": False, "want_shut_down": False}
            self.ask(asking(63, 1, **said, current_metadata_offset=self.read[broker]))

    def unregister(self, broker: int | None = None) -> None:
        broker = broker or self.rng.choice([*GHOSTS * 2, 99, -1])
        self.ask(asking(64, 0, broker_id=broker))
        self.stopping.discard(broker)
        for side in self.sides:
            side.epochs.pop(broker, None)

    def allocate(self) -> None:
        broker = self.ghost()
        self.ask(asking(67, 0, broker_id=broker, broker_epoch=self.epoch(broker)))

    # --- partitions

    def some(self, odd: float = 0.06) -> Place:
        if not self.partitions or self.rng.random() < odd:
            return self.rng.choice([("t0", 0), ("t1", 9), ("t1", -1), ("", 0), ("nope", 0)])
        return self.rng.choice(sorted(self.partitions))

    def topic_id(self, place: Place) -> uuid.UUID:
        number = place[0].removeprefix("t")
        return topic(int(number)) if number.isdigit() and number != "0" else self.rng.choice([ZERO_ID, UNKNOWN_ID])

    def placed(self, odd: float = 0.08) -> list[int]:
        ids = self.rng.sample(GHOSTS, self.rng.randint(1, 4))
        if self.rng.random() < odd:
            return self.rng.choice([[], ids + ids[:1], [99], [-1, *ids], [*ids, 77]])
        return ids

    def create(self) -> None:
        rng, self.topics = self.rng, self.topics + 1
        size = rng.randint(1, 3)
        assigned = [
            {"partition_index": n if rng.random() < 0.97 else rng.choice([5, -1, 0]), "broker_ids": replicas}
            for n, replicas in enumerate(rng.sample(GHOSTS, size) for _ in range(rng.randint(1, 3)))
        ]
        settings = [
            {"name": "min.insync.replicas", "value": str(rng.choice([1, 2, 2, 3, 0]))},
            {"name": "unclean.leader.election.enable", "value": rng.choice(["true", "false", "maybe"])},
        ]
        new = {"name": f"t{self.topics}", "num_partitions": -1, "replication_factor": -1, "assignments": assigned}
        new["configs"] = [each for each in settings if rng.random() < 0.4]
        self.ask(asking(19, rng.choice([5, 6, 7]), topics=[new], validate_only=rng.random() < 0.05))

    def add_partition(self) -> None:
        name, _ = self.some()
        replicas = [len(p.replica_nodes) for (of, _), p in self.partitions.items() if of == name]
        if len(set(replicas)) > 1 or any(of == name for of, _ in self.beside):
            return  # how many a new one shall have depends on the order of a hash map
        more = {"name": name, "count": len(replicas) + 1, "assignments": [{"broker_ids": self.placed()}]}
        self.ask(asking(37, self.rng.choice([2, 3]), topics=[more]))

    def reassign(self) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for name, index in sorted({self.some() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))}):
            replicas = None if self.rng.random() < 0.25 else self.placed()
            topics.setdefault(name, []).append({"partition_index": index, "replicas": replicas})
        asked = [{"name": name, "partitions": of} for name, of in topics.items()]
        may, limit = self.rng.random() < 0.7, self.rng.choice([30_000] * 8 + [0])
        version = self.rng.choice([0, 1])
        self.ask(asking(45, version, topics=asked, allow_replication_factor_change=may, timeout=limit))

    def list_reassignments(self) -> None:
        name, _ = self.some(0.2)
        asked = self.rng.choice([[], [{"name": name, "partition_indexes": [9]}], [{"name": name}]])
        self.ask(asking(46, 0, topics=asked))

    def elect(self) -> None:
        topics: dict[str, list[int]] = {}
        for name, index in [self.some() for _ in range(self.rng.choice([1, 1, 2, 4]))]:
            topics.setdefault(name, []).append(index)
        asked = [{"topic": name, "partitions": of} for name, of in topics.items()]
        kind, limit = self.rng.choice([0, 0, 0, 1, 1, 7, -1]), self.rng.choice([30_000] * 8 + [0])
        self.ask(asking(43, self.rng.choice([0, 1, 2]), election_type=kind, topic_partitions=asked, timeout=limit))

    def configure(self) -> None:
        rng = self.rng
        name, value = rng.choice(
            [
                ("min.insync.replicas", rng.choice("123")),
                ("unclean.leader.election.enable", rng.choice(["true", "false"])),
            ]
        )
        kind, of = (2, self.some(0.02)[0]) if rng.random() < 0.8 else (4, rng.choice(["", "11"]))
        if name == "min.insync.replicas" and (self.eligible & {of} if kind == 2 else self.eligible):
            return  # Apache's controller loses count of eligible replicas that it clears, and may not survive that
        change = {"name": name, "config_operation": rng.choice([0, 0, 0, 1]), "value": value}
        self.ask(asking(44, 1, resources=[{"resource_type": kind, "resource_name": of, "configs": [change]}]))

    def place_in_directories(self) -> None:
        broker = self.ghost()
        own = directories(max(broker, 2)) * 3
        asked = []
        for _ in range(self.rng.choice([1, 1, 2, 0])):
            place = self.some(0.1)
            of = {"topic_id": self.topic_id(place), "partitions": [{"partition_index": place[1]}]}
            where = self.rng.choice([*own, uuid.UUID(int=0), uuid.UUID(int=1), UNKNOWN_ID])
            asked.append({"id_": where, "topics": [of]})
        self.ask(asking(73, 0, broker_id=broker, broker_epoch=self.epoch(broker), directories=asked))

    def alter(self) -> None:
        """What a leader would say of who is in sync with it, or what it could not say."""
        rng, place = self.rng, self.some(0.04)
        part = self.partitions.get(place)
        leader, replicas = (self.ghost(), self.placed()) if part is None else (part.leader_id, list(part.replica_nodes))
        leader_epoch, epoch = (0, 0) if part is None else (int(part.leader_epoch), self._partition_epoch(place))
        if leader < 0 or rng.random() < 0.05:
            leader = self.ghost()
        isr = [r for r in replicas if rng.random() < 0.65 or r == leader]
        if rng.random() < 0.06:
            isr = rng.choice([[], isr + isr[:1], [*isr, 99], [r for r in isr if r != leader], [-1]])
        of = {
            "partition_index": place[1],
            "leader_epoch": leader_epoch + rng.choice([0] * 16 + [-1, 1]),
            "partition_epoch": epoch + rng.choice([0] * 16 + [-1, 1]),
            "new_isr": isr,
            "new_isr_with_epochs": [{"broker_id": r, "broker_epoch": self._epoch_or_none(r)} for r in isr],
            "leader_recovery_state": 1 if rng.random() < 0.04 else 0,
        }
        topics = [{"topic_id": self.topic_id(place), "partitions": [of]}] if rng.random() < 0.98 else []
        said = {"broker_id": leader, "broker_epoch": self.epoch(leader, 0.04), "topics": topics}
        self.ask(asking(56, rng.choice([2, 3, 3]), **said))

    def _epoch_or_none(self, broker: int) -> int:
        return self.epoch(broker, 0.04) if self.rng.random() < 0.9 else -1

    def _partition_epoch(self, place: Place) -> int:
        """Nobody tells it, so it is found by asking Apache's controller for what it cannot grant."""
        part, side = self.partitions[place], self.sides[1]
        found = self.epochs.get(place, 0)
        while part.leader_id in side.epochs:
            of = {"partition_index": place[1], "leader_epoch": part.leader_epoch, "new_isr": [99]}
            topics = [{"topic_id": self.topic_id(place), "partitions": [{**of, "partition_epoch": found}]}]
            who = {"broker_id": part.leader_id, "broker_epoch": EPOCH + int(part.leader_id)}
            answer = side.active.ask(asking(56, 2, **who, topics=topics))
            if answer.error_code or answer.topics[0].partitions[0].error_code.name != "invalid_update_version":
                break
            found += 1
        self.epochs[place] = found
        return found
