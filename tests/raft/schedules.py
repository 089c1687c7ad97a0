"""Schedules of faults for a quorum, from a row of numbers: the same numbers give the same run, and fewer a shorter one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.raft.roles import Leader
from ottla.wire.errors import KafkaError
from raft.assembly import Assembly, Peer, key, voter

VOTERS = (1, 2, 3)
OBSERVERS = (4, 5)


class Schedule:
    def __init__(self, seed: int, assembly: type[Assembly] = Assembly) -> None:
        self.assembly = assembly(list(VOTERS), seed, OBSERVERS)
        self.count = 0
        self.assembly.start()

    def play(self, choices: Sequence[int]) -> None:
        for choice in choices:
            move = MOVES[choice % len(MOVES)]
            move(self, choice // len(MOVES))
            self.assembly.rules.check(self.assembly.peers)

    def settle(self) -> None:
        """Everything is mended: within a while there is a leader, and everybody has what it commits."""
        assembly = self.assembly
        assembly.heal()
        for peer in assembly.peers.values():
            peer.auto_sync = True
            if peer.replica is None:
                peer.start()
            else:
                peer.sync()
                peer.step()

        def agreed() -> bool:
            leader = assembly.leader
            if leader is None or leader.replica is None:
                return False
            role = leader.replica.role
            return (
                isinstance(role, Leader)
                and role.watermark == leader.disk.end_offset
                and assembly.everybody_has(role.watermark)
            )

        assembly.run_until(agreed, limit_ms=120_000)

    # --- moves

    def tick(self, choice: int) -> None:
        for _ in range(1 + choice % 32):
            if self.assembly.next_ms() < float("inf"):
                self.assembly.tick()

    def deliver(self, choice: int) -> None:
        if self.assembly.wire:
            self.assembly.deliver(choice % len(self.assembly.wire))

    def double(self, choice: int) -> None:
        if self.assembly.wire:
            self.assembly.deliver(choice % len(self.assembly.wire), again=True)

    def lose(self, choice: int) -> None:
        if self.assembly.wire:
            self.assembly.lose(choice % len(self.assembly.wire))

    def wait(self, choice: int) -> None:
        self.assembly.now_ms += choice % 3000
        for peer in self.assembly.peers.values():
            peer.step()

    def propose(self, choice: int) -> None:
        leader = self._some([p for p in self._up() if p.replica is not None and p.replica.is_leader], choice)
        if leader is not None:
            self.count += 1
            leader.append([f"value {self.count}"])
            leader.step()

    def lag(self, choice: int) -> None:
        """Its disk takes its time: what is appended from now on is not synced."""
        peer = self._some(self._up(), choice)
        if peer is not None:
            peer.auto_sync = False

    def sync(self, choice: int) -> None:
        peer = self._some(self._up(), choice)
        if peer is not None:
            peer.auto_sync = bool(choice % 2)
            peer.sync()
            peer.step()

    def crash(self, choice: int) -> None:
        peer = self._some(self._up(), choice)
        if peer is not None:
            peer.crash()

    def start(self, choice: int) -> None:
        peer = self._some([p for p in self.assembly.peers.values() if p.replica is None], choice)
        if peer is not None:
            peer.start()

    def isolate(self, choice: int) -> None:
        self.assembly.isolate(1 + choice % 5)

    def heal(self, choice: int) -> None:
        self.assembly.heal()

    def snapshot(self, choice: int) -> None:
        peer = self._some(self._up(), choice)
        if peer is not None:
            peer.snapshot()

    def change_voters(self, choice: int) -> None:
        for peer in self._up():
            if peer.replica is None or not peer.replica.is_leader:
                continue
            now_ms, who = self.assembly.now_ms, 1 + choice % 5
            try:
                if choice // 5 % 2:
                    peer.replica.add_voter(voter(who), now_ms)
                else:
                    peer.replica.remove_voter(key(who), now_ms)
            except KafkaError:
                continue
            peer.step()

    def resign(self, choice: int) -> None:
        for peer in self._up():
            if peer.replica is not None and peer.replica.is_leader:
                peer.replica.resign(self.assembly.now_ms)
                peer.step()

    def _up(self) -> list[Peer]:
        return [peer for peer in self.assembly.peers.values() if peer.replica is not None]

    @staticmethod
    def _some(peers: list[Peer], choice: int) -> Peer | None:
        return peers[choice % len(peers)] if peers else None


Move = Callable[[Schedule, int], None]
MOVES: list[Move] = [
    *[Schedule.tick] * 16,
    *[Schedule.sync] * 3,
    *[Schedule.propose] * 4,
    *[Schedule.change_voters] * 3,
    *[Schedule.start] * 3,
    *[Schedule.heal] * 2,
    *(Schedule.lag, Schedule.deliver, Schedule.double, Schedule.lose, Schedule.wait, Schedule.crash),
    *(Schedule.isolate, Schedule.snapshot, Schedule.resign),
]
