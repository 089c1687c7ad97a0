"""Clients of a simulated cluster: one that reads everything, one that makes and deletes topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, Cluster, NoTopic, TopicPartition
from ottla.sim.checks import ABSENT, TopicState
from ottla.wire.errors import Error, KafkaError
from sim.administrator import may_pass_by
from sim.clients import Watchful, Writer

if TYPE_CHECKING:
    from sim.cluster_play import Play


class Session(Cluster):
    """It connects when something is asked, so that it may begin while there is no node."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Quiet(Writer):
    """What a record costs in a cluster of three is spent better on another fault."""

    pause_s = 0.15


class Reader:
    """Polls what it was assigned until it has seen the end of everything. It never goes back: nothing it saw may vanish."""

    def __init__(self, play: Play, wheres: list[TopicPartition]) -> None:
        self.play, self.wheres = play, wheres

    async def run(self) -> None:
        play, wheres = self.play, self.wheres
        with play.client("reader") as cluster:
            consumer = Watchful(play, cluster, dict.fromkeys(wheres, EARLIEST), wait_ms=300)
            while not (play.finished and all(consumer.positions[w] >= play.ends[w] for w in wheres)):
                began = play.history.moment()
                try:
                    records = await consumer.fetch()
                except KafkaError as error:
                    if error.error is not Error.OFFSET_OUT_OF_RANGE:
                        raise
                    play.history.report("lost-write", "reader", f"{error}: {consumer.positions}")
                    break
                for where in wheres:
                    mine = [(r.offset, r.value or b"") for r in records if (r.topic, r.partition) == where]
                    play.history.poll("reader", where, mine, began)
            consumer.close()


class Maker:
    """Makes topics and deletes them again; each change is repeated until its outcome is known.

    A request whose answer was lost may still be on its way, from a broker to the controller, and take effect later. So no
    name is used twice, and what may have been asked for twice is not deleted.
    """

    KEPT_MAX = 3

    def __init__(self, play: Play) -> None:
        self.play = play
        self.rng = play.loop.chance("maker")
        self.made = 0
        self.attempts = 0

    async def run(self) -> None:
        certain: list[str] = []
        with self.play.client("admin") as cluster:
            while not self.play.finishing:
                if len(certain) < self.KEPT_MAX and self.rng.random() < 0.6:
                    name = await self.make(cluster)
                    certain += [name] if self.attempts == 1 else []
                elif certain:
                    await self.delete(cluster, certain.pop(self.rng.randrange(len(certain))))
                await asyncio.sleep(self.rng.expovariate(1 / 0.7))

    async def make(self, cluster: Cluster) -> str:
        self.made += 1
        name, state = f"t{self.made}", TopicState(self.rng.randint(1, 2), ())
        registry, self.attempts = self.play.registry, 0
        registry.changing(name, state)
        await cluster.retrying(lambda: self.ask_to_make(cluster, name, state))
        registry.changed(name)
        return name

    async def ask_to_make(self, cluster: Cluster, name: str, state: TopicState) -> None:
        self.attempts += 1
        try:
            await Once(cluster).create_topic(name, partitions=state.partitions, replication_factor=3)
        except KafkaError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:
                raise may_pass_by(error)

    async def delete(self, cluster: Cluster, name: str) -> None:
        self.play.registry.changing(name, ABSENT)
        await cluster.retrying(lambda: self.ask_to_delete(cluster, name))
        self.play.registry.changed(name)

    async def ask_to_delete(self, cluster: Cluster, name: str) -> None:
        try:
            await Once(cluster).delete_topic(name)
        except NoTopic:
            pass
        except KafkaError as error:
            if error.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    async def compare(self, cluster: Cluster) -> None:
        """At the end: what is there is what was made and not deleted."""
        topics = await cluster.retrying(Admin(cluster).describe_topics)
        seen = {topic.name: (topic.topic_id, TopicState(len(topic.partitions), ())) for topic in topics}
        self.play.registry.compare({name: what for name, what in seen.items() if name[0] == "t"})


class Once(Admin):
    """Does not try again by itself."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Patient(cluster))


class Patient:
    """A cluster in which nothing is tried twice."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def retrying(self, step: Callable[[], Awaitable[Any]], *_: object) -> Any:
        return await step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)
