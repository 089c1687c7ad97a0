"""One who changes the voters of a simulated cluster while its nodes are killed and cut off: removed and added again, the
leader too, two at once, and those whose disk was wiped under their new directory.

What cannot be promised is not asked for. A voter whose disk was wiped is a voter that never comes back: as long as there is
one, nobody else is removed, because the rest might be no majority. For the same reason no disk is wiped while a change is
under way, or may be: a request whose answer was lost may take effect later, from a connection to somebody who was paused, or
from a broker that still looks for a controller.

Whether a change was made is told by the log. What was acknowledged stands in it by then, and nothing stands in it that nobody
asked for. Where controllers join by themselves (KIP-1186), everybody votes again in the end, whoever was removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ottla.client.connection import Connection, check
from ottla.raft.quorum import Key
from ottla.raft.roles import Leader
from ottla.sim.checks import Anomaly
from ottla.sim.cluster import CLUSTER_ID, PORT, Machine
from ottla.sim.voter_checks import ADD, REMOVE, Turn, keys
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.voters import AddRaftVoterRequest, DescribeQuorumRequest, RemoveRaftVoterRequest

if TYPE_CHECKING:
    from sim.voters_play import VotersPlay

ANSWER_S, TIMEOUT_MS = 2.5, 1000
ATTEMPTS_MAX = 6
LOOK_EVERY_S = 0.002
# For so long a request may still take effect whose answer did not come: sent to a controller, or to a broker.
DOUBTFUL_S, FORWARDED_S = 8.0, 65.0
# The leader says that nothing was written.
REFUSALS = ("Request timed out waiting", "New voter", "Aborted")
DONE_ALREADY = {ADD: Error.DUPLICATE_VOTER, REMOVE: Error.VOTER_NOT_FOUND}


class VotersOperator:
    def __init__(self, play: VotersPlay) -> None:
        self.play, self.cluster = play, play.cluster
        self.rng = play.loop.chance("operator")
        self.floor = self.rng.choice((1, 1, 2, 2))
        self.asks_brokers = self.rng.random() < 0.3
        self.wishes: list[Turn] = []  # those that are asked for just now
        self.asked: Counter[Turn] = Counter()
        self.acked: Counter[Turn] = Counter()
        self.last: dict[Key, str] = {}
        self.unsure: set[Key] = set()
        self.doubtful_until = 0.0
        self.has_ended = False
        self.held = 0  # how many wait for nothing to be under way
        self.is_pressed = False  # somebody wants the next change now, and that it is the leader who goes
        self.found: list[Anomaly] = []

    @property
    def is_asking(self) -> bool:
        return bool(self.wishes)

    async def run(self) -> None:
        looking = asyncio.get_running_loop().create_task(self.look_closely())
        await self.change_voters()
        looking.cancel()
        self.has_ended = True

    async def look_closely(self) -> None:
        """A change takes a few milliseconds if nothing is in its way."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.is_asking:
                self.play.watch.look_at_leaders()

    async def change_voters(self) -> None:
        deeds = (*[self.remove] * 3, *[self.remove_leader] * 2, *[self.add] * 4, *[self.change_twice] * 2)
        while not self.play.finishing:
            if self.may_change():
                await self.rng.choice(deeds)()
            await self.replace()
            await self.rest(self.rng.expovariate(1 / 0.4))
            if self.is_pressed and self.may_change():
                await self.remove_leader()
            self.is_pressed = False
        while self.play.watch.outdated() and not self.play.joins:
            await self.replace()
            await asyncio.sleep(0.1)

    async def rest(self, seconds: float) -> None:
        until = self.play.loop.time() + seconds
        while self.play.loop.time() < until and not self.is_pressed:
            await asyncio.sleep(0.01)

    def may_change(self) -> bool:
        watch = self.play.watch
        return bool(watch.voters.voters) and not watch.outdated() and not self.held

    def allows_wipe(self, name: str) -> bool:
        """The others have to be a majority without it, whatever else may still happen."""
        voters = self.play.watch.voters
        is_spared = self.cluster.machines[name].number not in voters.ids or len(voters.voters) >= 3
        return is_spared and not self.is_asking and self.play.loop.time() >= self.doubtful_until

    # -- whom

    def machine(self, number: int) -> Machine:
        return self.cluster.machines[self.play.topology.names[number - 1]]

    def removable(self) -> list[Key]:
        voters = self.play.watch.voters.voters
        return [voter.key for voter in voters] if len(voters) > self.floor else []

    def addable(self) -> list[Key]:
        machines = [self.cluster.machines[name] for name in self.play.topology.controllers]
        ids = self.play.watch.voters.ids
        return [Key(m.number, m.directory_id) for m in machines if m.number not in ids and m.is_ready]

    def leading(self) -> list[Machine]:
        """Who believes that it leads."""
        machines = [machine for machine in self.cluster.machines.values() if machine.is_ready]
        return [m for m in machines if m.node and isinstance(m.node.quorum.consensus.replica.role, Leader)]

    # -- what

    async def remove(self) -> None:
        if gone := self.removable():
            await self.insist(Turn(REMOVE, self.rng.choice(gone)))

    async def remove_leader(self) -> None:
        leaders = {machine.number for machine in self.leading()}
        if gone := [key for key in self.removable() if key.id in leaders]:
            self.count("leaders removed")
            await self.insist(Turn(REMOVE, gone[0]))

    async def add(self) -> None:
        if new := self.addable():
            await self.insist(Turn(ADD, self.rng.choice(new)))

    async def change_twice(self) -> None:
        """Two changes at once: one of them has to wait."""
        gone = self.removable() if len(self.play.watch.voters.voters) > self.floor + 1 else []
        wishes = [Turn(REMOVE, key) for key in gone] + [Turn(ADD, key) for key in self.addable()]
        if len(wishes) > 1:
            self.count("two at once")
            await asyncio.gather(*[self.insist(wish) for wish in self.rng.sample(wishes, 2)])

    async def replace(self) -> None:
        """Who has a new disk votes under that, if nobody sees to it himself."""
        outdated = [] if self.play.joins else self.play.watch.outdated()
        for key in outdated:
            self.count("disks replaced")
            await self.insist(Turn(REMOVE, key))
            machine = self.machine(key.id)
            if machine.is_ready and key not in keys(self.play.watch.voters):
                await self.insist(Turn(ADD, Key(key.id, machine.directory_id)))

    # -- asking

    async def insist(self, wish: Turn) -> None:
        """Until the outcome is known, or it seems not to be possible."""
        self.wishes.append(wish)
        try:
            for _ in range(ATTEMPTS_MAX):
                if await self.is_settled(wish):
                    return
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
        finally:
            self.wishes.remove(wish)

    async def is_settled(self, wish: Turn) -> bool:
        self.asked[wish] += 1
        try:
            await self.ask(wish)
        except KafkaError as error:
            if error.error is DONE_ALREADY[wish.verb]:
                return True
            if error.error is Error.REQUEST_TIMED_OUT and error.message.startswith(REFUSALS):
                self.count("refused")
                return False
            self.doubt(wish)
        except OSError:
            self.doubt(wish)
        else:
            self.note_acked(wish)
            return True
        return False

    def doubt(self, wish: Turn) -> None:
        self.count("answers lost")
        self.unsure.add(wish.key)
        wait_s = FORWARDED_S if self.asks_brokers else DOUBTFUL_S
        self.doubtful_until = self.play.loop.time() + wait_s

    def note_acked(self, wish: Turn) -> None:
        self.count(f"{wish.verb}: done")
        self.acked[wish] += 1
        self.last[wish.key] = wish.verb
        self.play.watch.look()
        if self.play.watch.turns.count(wish) < self.acked[wish]:
            self.report(wish, "was acknowledged, and stands not in the committed log")

    async def ask(self, wish: Turn) -> None:
        name, port = self.whom()
        connection = await Connection.open(name, port, client_id="operator", timeout_s=ANSWER_S)
        try:
            answer = await connection.request(self.request(wish), ANSWER_S)
            check(answer.error_code, answer.error_message)
        finally:
            connection.close()

    def whom(self) -> tuple[str, int]:
        if self.asks_brokers:
            return self.rng.choice(self.play.topology.brokers), PORT
        leaders = [machine.name for machine in self.leading()]
        return self.rng.choice(leaders or list(self.play.topology.controllers)), PORT + 1

    def request(self, wish: Turn) -> AddRaftVoterRequest | RemoveRaftVoterRequest:
        number, directory = wish.key
        if wish.verb == REMOVE:
            return RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=number, voter_directory_id=directory)
        kind = AddRaftVoterRequest
        listener = kind.Listener(name="CONTROLLER", host=self.machine(number).name, port=PORT + 1)
        return kind(
            cluster_id=CLUSTER_ID,
            timeout_ms=TIMEOUT_MS,
            voter_id=number,
            voter_directory_id=directory,
            listeners=[listener],
        )

    def count(self, what: str) -> None:
        self.play.story.figures[f"operator: {what}"] += 1

    # -- in the end

    def report(self, wish: Turn, what: str) -> None:
        self.found.append(Anomaly("change-not-kept", f"{wish.verb} {wish.key.id}", what))

    async def compare(self) -> None:
        """What was acknowledged is so unless it was undone, and nothing was done that nobody wanted."""
        now = keys(self.play.watch.voters)
        for key, verb in self.last.items():
            if not self.play.joins and key not in self.unsure and (key in now) is not (verb == ADD):
                self.report(Turn(verb, key), f"was acknowledged last, and the voters are {self.play.watch.voters.ids}")
        for turn, times in Counter(self.play.watch.turns).items():
            if not self.play.joins and times > self.asked[turn]:
                self.report(turn, f"was done {times} times, and asked for {self.asked[turn]} times")
        described = await self.described()
        if described != now:
            self.report(Turn("describe", Key(-1)), f"names {described}, and the log {now}")

    async def described(self) -> frozenset[Key]:
        kind = DescribeQuorumRequest.Topic
        topics = [kind(topic_name="__cluster_metadata", partitions=[kind.Partition(partition_index=0)])]
        with self.play.client("judge") as cluster:
            answer = await (await cluster.any()).request(DescribeQuorumRequest(topics=topics))
        told = answer.topics[0].partitions[0]
        check(told.error_code, told.error_message)
        return frozenset(Key(voter.replica_id, voter.replica_directory_id) for voter in told.current_voters)
