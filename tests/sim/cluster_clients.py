"""Clients of a simulated cluster: one that reads everything, one that makes and deletes topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, Cluster, NoTopic, TopicPartition
from ottla.sim.checks import ABSENT, TopicState
from ottla.wire.errors import Error, KafkaError
from sim.administrator import may_pass_by
from sim.clients import Watchful

if TYPE_CHECKING:
    from sim.cluster_play import Play


class Session(Cluster):
    """It connects when something is asked, so that it may begin while there is no node."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
                    return
                for where in wheres:
                    mine = [(r.offset, r.value or b"") for r in records if (r.topic, r.partition) == where]
                    play.history.poll("reader", where, mine, began)
            consumer.close()


class Maker:
    """Makes topics and deletes them again; each change is repeated until its outcome is known."""

    NAMES = ("t0", "t1")

    def __init__(self, play: Play) -> None:
        self.play = play
        self.rng = play.loop.chance("maker")

    async def run(self) -> None:
        with self.play.client("admin") as cluster:
            while not self.play.finishing:
                await self.change(cluster, self.rng.choice(self.NAMES))
                await asyncio.sleep(self.rng.expovariate(1 / 0.7))

    async def change(self, cluster: Cluster, name: str) -> None:
        registry = self.play.registry
        if registry.state(name) is ABSENT:
            state = TopicState(self.rng.randint(1, 2), ())
            registry.changing(name, state)
            await cluster.retrying(lambda: self.make(cluster, name, state))
        else:
            registry.changing(name, ABSENT)
            await cluster.retrying(lambda: self.delete(cluster, name))
        registry.changed(name)

    async def make(self, cluster: Cluster, name: str, state: TopicState) -> None:
        try:
            await Admin(cluster).create_topic(name, partitions=state.partitions, replication_factor=3)
        except KafkaError as error:
            if error.error is not Error.TOPIC_ALREADY_EXISTS:
                raise may_pass_by(error)

    async def delete(self, cluster: Cluster, name: str) -> None:
        try:
            await Admin(cluster).delete_topic(name)
        except NoTopic:
            pass
        except KafkaError as error:
            if error.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
                raise

    async def compare(self, cluster: Cluster) -> None:
        """At the end: what is there is what was made and not deleted."""
        topics = await cluster.retrying(Admin(cluster).describe_topics)
        seen = {topic.name: (topic.topic_id, TopicState(len(topic.partitions), ())) for topic in topics}
        self.play.registry.compare({name: seen[name] for name in self.NAMES if name in seen})
