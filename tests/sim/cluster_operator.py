"""One who operates a simulated cluster while its nodes are killed and cut off: replicas are moved and moves are called off,
leaders elected, settings changed, topics widened. Each wish is repeated until its outcome is known.

A request whose answer was lost may still be on its way, from a broker to the controller, and take effect later, after what
was wished next. So a setting may be at the end what was wished for last, or anything whose answer was once lost; and where
that happened to a move, or to the end of one, nobody can say any more where the partition is, until all is put back at the
end.

A partition is asked to go somewhere else only when it is not on its way: as in Apache Kafka, a move that replaces another is
added to it, and what the first one was to remove is still removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.client.admin import BROKER, TOPIC, Admin
from ottla.client.cluster import Cluster, TopicPartition, may_pass
from ottla.client.connection import check
from ottla.log.settings import LogSettings
from ottla.metadata.image import Image, Partition
from ottla.sim.checks import Anomaly
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.placement import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from sim.administrator import may_pass_by
from sim.cluster_clients import Patient, Session

if TYPE_CHECKING:
    from sim.operated_play import Operated

NODES = (1, 2, 3)
# How long an answer is waited for. The brokers give up sooner to look for a controller.
ANSWER_S, TIMEOUT_MS = 2.5, 1000
# What is not held any more is renamed at once.
CLEARED_WITHIN_S = 1.0
HELD_BACK = ("safe", "shared")
MOVED = ("safe", "safe", "shared", "shared", "__consumer_offsets")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
SLOW = "40"
PARTITIONS_MAX = 4
ALTERED = ("safe", "shared", "o1", "o2")

Replicas = tuple[int, ...]
Resource = tuple[int, str]


class Wishes:
    """What the cluster may say, after all that was asked for."""

    def __init__(self) -> None:
        self.settings: dict[tuple[Resource, str], set[str | None]] = {}
        self.late: dict[tuple[Resource, str], set[str | None]] = {}
        self.moves: dict[TopicPartition, Replicas] = {}
        self.unsure: set[TopicPartition] = set()
        self.counts: dict[str, int] = {}
        self.found: list[Anomaly] = []

    def set(self, key: tuple[Resource, str], value: str | None, is_doubtful: bool) -> None:
        """It was acknowledged. If an earlier answer was lost, the same may be done once more at any time."""
        late = self.late.setdefault(key, set())
        self.settings[key] = {value, *late}
        if is_doubtful:
            late.add(value)

    def moved(self, where: TopicPartition, to: Replicas, is_doubtful: bool) -> None:
        self.moves[where] = to
        if is_doubtful:
            self.unsure.add(where)

    def report(self, where: str, detail: str) -> None:
        self.found.append(Anomaly("wish-not-granted", where, detail))

    def compare(self, image: Image) -> None:
        """Everything that was acknowledged is so, in what the cluster knows when it is whole again."""
        for (resource, name), may_be in sorted(self.settings.items()):
            value = image.configs(*resource).get(name)
            if value not in may_be:
                self.report(f"{name} of {resource}", f"is {value}, and should be one of {may_be}")
        for where, to in sorted(self.moves.items()):
            if where not in self.unsure and (now := target(found(image, where))) != to:
                self.report(f"{where.topic}-{where.partition}", f"is to be on {now}, and should be on {to}")
        for topic, count in self.counts.items():
            known = image.topic(topic)
            if known is None or len(known.partitions) != count:
                self.report(topic, f"has {known and len(known.partitions)} partitions, and should have {count}")


def found(image: Image, where: TopicPartition) -> Partition:
    topic = image.topic(where.topic)
    assert topic is not None, where
    return topic.partitions[where.partition]


def target(partition: Partition) -> Replicas:
    """Who has it when all moves are over."""
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def stopped(origin: Replicas, to: Replicas) -> Replicas:
    """Who has a partition after a move was called off: those of before, in the order that they had on the way."""
    return tuple(replica for replica in (*to, *sorted(set(origin) - set(to))) if replica in origin)


class Operator:
    def __init__(self, play: Operated) -> None:
        self.play = play
        self.rng = play.loop.chance("operator")
        self.session = self.connected()
        self.wishes = Wishes()
        self.numbers = iter(range(1_000_000, 2_000_000))
        self.origins: dict[TopicPartition, Replicas] = {}  # of moves that may be under way
        self.is_asking = self.has_lifted = False
        self.throttled = False

    def connected(self) -> Session:
        """Anybody may be asked."""
        session = self.play.client("operator")
        self.rng.shuffle(session.bootstrap)
        return session

    async def run(self) -> None:
        for topic in ("o1", "o2"):
            await self.make(topic)
        deeds = (
            *[self.move] * 5,
            self.call_off,
            self.call_off,
            self.elect,
            *[self.alter] * 3,
            self.throttle,
            self.widen,
        )
        while not self.play.finishing:
            await self.rng.choice(deeds)()
            await asyncio.sleep(self.rng.expovariate(1 / 0.12))
        await self.lift()
        self.has_lifted = True
        while not self.play.is_healed:
            await asyncio.sleep(0.02)
        self.wishes.compare(self.picture())
        await self.play.until(lambda: not self.play.watch.logs_for_nothing(), CLEARED_WITHIN_S, "logs-for-nothing")
        await self.put_back()
        self.session.close()

    # -- asking

    async def insist(self, step: Callable[[Admin], Awaitable[Any]], *finals: Error) -> tuple[Error | None, bool]:
        """Ask until the outcome is known: none of these errors or one of them, and whether an answer was lost before."""
        is_doubtful = False
        while True:
            self.is_asking = True
            try:
                await asyncio.wait_for(step(Admin(Patient(self.session))), ANSWER_S)  # type: ignore[arg-type]
                return None, is_doubtful
            except KafkaError as error:
                if error.error in finals:
                    return error.error, is_doubtful
                if not may_pass(may_pass_by(error)):
                    raise
            except OSError:
                self.session.close()
                self.session = self.connected()
            finally:
                self.is_asking = False
            is_doubtful = True
            self.count("answers lost")
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    def count(self, what: str) -> None:
        self.play.story.figures[f"operator: {what}"] += 1

    def picture(self) -> Image:
        """What is committed, as far as anybody who serves knows."""
        nodes = [machine.node for machine in self.play.cluster.machines.values() if machine.node is not None]
        return max((node.quorum.image for node in nodes), key=lambda image: image.offset)

    # -- topics and settings

    async def make(self, topic: str) -> None:
        await self.insist(
            lambda admin: admin.create_topic(topic, partitions=1, replication_factor=3), Error.TOPIC_ALREADY_EXISTS
        )
        self.wishes.counts[topic] = 1

    async def widen(self) -> None:
        topic = self.rng.choice(("o1", "o2"))
        count = self.wishes.counts[topic] + 1
        if count <= PARTITIONS_MAX:
            self.count("topics widened")
            # Whoever hears that there are so many already was heard before.
            await self.insist(lambda admin: admin.create_partitions(topic, count), Error.INVALID_PARTITIONS)
            self.wishes.counts[topic] = count

    async def alter(self) -> None:
        """Some settings that change nothing about what may be lost or refused, each time to something else."""
        number = next(self.numbers)
        choices = {
            "max.message.bytes": str(number),
            "internal.segment.bytes": str(2000 + number % 1000),
            "retention.ms": "-1" if self.rng.random() < 0.5 else str(10**9 + number),
            "segment.ms": str(10**8 + number),
        }
        names = self.rng.sample(sorted(choices), self.rng.randint(1, 2))
        put = {name: choices[name] for name in names}
        delete = [name for name in sorted(choices) if name not in put and self.rng.random() < 0.2]
        self.count("settings")
        await self.set((TOPIC, self.rng.choice(ALTERED)), put, delete)

    async def set(self, resource: Resource, put: dict[str, str], delete: Iterable[str] = ()) -> None:
        kind, name = resource
        _, is_doubtful = await self.insist(lambda admin: admin.alter_configs(name, put=put, delete=delete, kind=kind))
        for key, value in {**put, **dict.fromkeys(delete)}.items():
            self.wishes.set((resource, key), value, is_doubtful)

    async def throttle(self) -> None:
        """Hold back all who are not in sync, or let them go again."""
        if self.throttled:
            await self.lift()
            return
        self.count("throttles")
        self.throttled = True
        for topic in HELD_BACK:
            await self.set((TOPIC, topic), dict.fromkeys(THROTTLED, "*"))
        await self.set((BROKER, ""), dict.fromkeys(RATES, SLOW))

    async def lift(self) -> None:
        await self.set((BROKER, ""), {}, RATES)
        for topic in HELD_BACK:
            await self.set((TOPIC, topic), {}, THROTTLED)
        self.throttled = False

    # -- moves

    async def reassign(self, where: TopicPartition, to: Replicas | None, *finals: Error) -> tuple[Error | None, bool]:
        kind = AlterPartitionReassignmentsRequest.Topic
        part = kind.Partition(partition_index=where.partition, replicas=None if to is None else list(to))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS, topics=[kind(name=where.topic, partitions=[part])]
        )

        async def step(admin: Admin) -> None:
            answer: AlterPartitionReassignmentsResponse = await admin._ask(request)
            check(answer.error_code, answer.error_message)
            outcome = answer.responses[0].partitions[0]
            check(outcome.error_code, outcome.error_message)

        return await self.insist(step, *finals)

    async def under_way(self) -> set[TopicPartition]:
        told: list[ListPartitionReassignmentsResponse] = []

        async def step(admin: Admin) -> None:
            told.append(await admin._ask(ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None)))
            check(told[-1].error_code, told[-1].error_message)

        await self.insist(step)
        return {TopicPartition(t.name, p.partition_index) for t in told[-1].topics for p in t.partitions}

    async def move(self) -> None:
        where = TopicPartition(self.rng.choice(MOVED), self.rng.randrange(2))
        moving = await self.under_way()
        if where in moving:
            self.count("moves that take their time")
            return
        now = self.wishes.moves.get(where) or target(found(self.picture(), where))
        to = self.elsewhere(now)
        self.count(f"moves from {len(now)} to {len(to)}")
        _, is_doubtful = await self.reassign(where, to)
        self.wishes.moved(where, to, is_doubtful)
        self.origins[where] = now

    def elsewhere(self, now: Replicas) -> Replicas:
        """Of three nodes in another order, two; of two the same with the third, or the third for one of them."""
        others = [node for node in NODES if node not in now]
        if not others:
            return tuple(self.rng.sample(now, self.rng.choice((2, 2, 3))))
        if self.rng.random() < 0.5:
            return tuple(self.rng.sample(NODES, 3))
        return tuple(self.rng.sample((self.rng.choice(now), *others), 2))

    async def call_off(self) -> None:
        moving = sorted(await self.under_way())
        if moving:
            await self.stop(self.rng.choice(moving))

    async def stop(self, where: TopicPartition) -> None:
        """It was over already, or all are back who were there before; unless only those who came are in sync."""
        over = (Error.NO_REASSIGNMENT_IN_PROGRESS, Error.INVALID_REPLICA_ASSIGNMENT)
        error, is_doubtful = await self.reassign(where, None, *over)
        self.count("moves called off" if error is None else "moves not called off")
        now, origin = self.wishes.moves.get(where), self.origins.get(where)
        if now is not None and origin is not None:
            self.wishes.moved(where, stopped(origin, now) if error is None else now, is_doubtful)

    # -- leaders

    async def elect(self, wheres: Iterable[TopicPartition] | None = None) -> None:
        chosen = [TopicPartition(self.rng.choice(MOVED), self.rng.randrange(2))] if wheres is None else wheres
        kind = ElectLeadersRequest.Topic
        asked = [kind(topic=where.topic, partitions=[where.partition]) for where in chosen]
        request = ElectLeadersRequest(election_type=0, topic_partitions=asked, timeout_ms=TIMEOUT_MS)

        async def step(admin: Admin) -> None:
            answer: ElectLeadersResponse = await admin._ask(request)
            check(answer.error_code)
            for topic in answer.replica_election_results:
                check(topic.partition_result[0].error_code, topic.partition_result[0].error_message)

        final = (Error.ELECTION_NOT_NEEDED, Error.PREFERRED_LEADER_NOT_AVAILABLE)
        error, _ = await self.insist(step, *final)
        self.count("elections" if error is None else "elections in vain")

    # -- the end

    async def put_back(self) -> None:
        """Three replicas everywhere, the first one leads, and nothing is under way. What is late may still come in between."""
        calm = looks = 0
        while calm < 2:
            # All moves are called off at first, and later those that have had their time.
            calm = calm + 1 if await self.is_put_back(looks % 12 == 0) else 0
            looks += 1
            await asyncio.sleep(0.4)

    async def is_put_back(self, stops: bool) -> bool:
        moving = await self.under_way()
        for where in sorted(moving) if stops else ():
            await self.stop(where)
        picture, is_so = self.picture(), not moving
        for topic in sorted(picture.topics.values(), key=lambda topic: topic.name):
            for index, partition in topic.partitions.items():
                where = TopicPartition(topic.name, index)
                if where in moving:
                    continue
                if len(partition.replicas) != len(NODES):
                    is_so = False
                    to = (*partition.replicas, *(node for node in NODES if node not in partition.replicas))
                    await self.reassign(where, to)
                    self.wishes.moved(where, to, False)
                elif partition.leader != partition.replicas[0]:
                    is_so = False
                    await self.elect([where])
        return is_so and not await self.is_throttled()

    async def is_throttled(self) -> bool:
        """A late request may have brought it back."""
        if any(name in self.picture().configs(BROKER, "") for name in RATES):
            await self.lift()
            return True
        return False

    async def compare(self, cluster: Cluster) -> None:
        """What the cluster tells anybody who asks."""
        for topic in await cluster.retrying(Admin(cluster).describe_topics):
            for partition in topic.partitions:
                if sorted(partition.replicas) != list(NODES) or partition.leader != partition.replicas[0]:
                    self.wishes.report(topic.name, f"ends as {partition}")
        if moving := await self.under_way():
            self.wishes.report("moves", f"{sorted(moving)} are still under way")
        for topic in ALTERED:
            told = {setting.name: setting.value for setting in await Admin(cluster).configs(topic)}
            for ((kind, name), setting), may_be in self.wishes.settings.items():
                if (kind, name) == (TOPIC, topic) and None not in may_be and told.get(setting) not in may_be:
                    self.wishes.report(topic, f"{setting} is told to be {told.get(setting)}, not one of {may_be}")
        self.compare_effects()

    def compare_effects(self) -> None:
        """Every node goes by the settings that it knows."""
        for machine in self.play.cluster.machines.values():
            if machine.node is None:
                continue
            replicas = machine.node.replicas
            for hosted in replicas.by_id.values():
                wanted = LogSettings.of(replicas._effective(machine.node.quorum.image.configs(TOPIC, hosted.name)))
                if hosted.settings != wanted:
                    self.wishes.report(hosted.name, f"{machine.name} goes by {hosted.settings}, not by {wanted}")
