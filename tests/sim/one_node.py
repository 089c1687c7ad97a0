"""One unmodified node, its clients and its misfortunes, all out of one seed.

Machines: `n1` runs the node; `safe` and `plain` produce, idempotently and with acks=all; `reader` polls everything it was
assigned, all the time (`clients`); `admin` makes, changes and deletes topics (`administrator`). What befalls the node is in
`nemesis`, what the topics are in `topics`.

`play(seed)` gives a Story: the anomalies, which are to be none, and figures. `cd tests; python -m sim.one_node 1 2 3` prints
them.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from typing import Any

from ottla.client.admin import Admin
from ottla.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from ottla.client.producer import Producer
from ottla.log.log import Log
from ottla.metadata.image import TOPIC
from ottla.sim.checks import Registry, TopicState
from ottla.sim.cluster import DATA, Machine
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop
from sim.administrator import Administrator
from sim.clients import Reader, Writer, read_all
from sim.nemesis import Nemesis
from sim.stage import Calls, Stage, Story, perform, print_stories
from sim.topics import NODE, PATIENCE_S, PLAIN, SAFE, SETTINGS, SHORT, TOPICS


def play(seed: int | str, rounds: int = 7) -> Story:
    return perform(Play(seed, rounds))


class Play(Stage):
    def __init__(self, seed: int | str, rounds: int) -> None:
        super().__init__(seed, rounds)
        self.registry = Registry()
        self.lost_power = False
        self.disk_trouble = False
        self.floors: dict[TopicPartition, int] = {}

    def begin(self, loop: SimLoop) -> None:
        directories = loop.chance("directories").choice((DATA, DATA, f"{DATA}/one,{DATA}/two"))
        self.set_up(loop, {**SETTINGS, "log.dirs": directories})

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        await self.until_ready()
        await self.cluster.client("admin", Administrator(self).make_topics())
        admin = self.cluster.client("admin", Administrator(self).run())
        writers = [
            self.cluster.client("safe", Writer(self, "safe", SAFE).run()),
            self.cluster.client("plain", Writer(self, "plain", [PLAIN, SHORT]).run()),
        ]
        reader = self.cluster.client("reader", Reader(self).run())
        await Nemesis(self).run()
        self.finishing = True
        for task in (*writers, admin):
            await task
        await self.cluster.client("judge", self.final_sends())
        ends = await self.cluster.client("judge", self.final_reads())
        self.finished = True
        self.ends = ends
        await reader
        await self.cluster.client("judge", self.close_books())
        await self.stop_and_look_again(ends)
        return self.told()

    def told(self) -> Story:
        return self.tell(self.registry.found, acked=self.history.acked, polled=self.history.polled)

    # -- what restarts find

    def note_fall(self, machine: Machine) -> None:
        node = machine.node
        self.lost_power |= machine.loss is not None
        if machine.is_ready and node is not None:
            for partition in node.replicas.all():
                self.floors[TopicPartition(partition.topic, partition.index)] = partition.log.synced_end

    def note_ready(self, machine: Machine) -> None:
        node = machine.node
        assert node is not None
        super().note_ready(machine)
        for partition in node.replicas.all():
            where, log = TopicPartition(partition.topic, partition.index), partition.log
            self.look_for_holes(log)
            if where in self.history.books:
                floor = self.floors.get(where, 0) if where.topic in TOPICS else 0
                self.history.restarted(
                    where, log.end_offset, lost_power=self.lost_power, floor=floor, epoch=partition.leader_epoch
                )
        self.floors.clear()
        self.lost_power = False
        image = node.quorum.image
        self.registry.compare(
            {
                topic.name: (topic.id, _state(len(topic.partitions), image.configs(TOPIC, topic.name)))
                for topic in image.topics.values()
            }
        )

    def look_for_holes(self, log: Log) -> None:
        """From its start on a log has no gap. Asked here, because retention soon takes away what is old, holes and all."""
        for segment, following in pairwise(log.segments[log.segment_number(log.start_offset) :]):
            if (end := segment.end_from_tail()) != following.base:
                self.history.report("hole", log.name, f"a segment ends at {end}, the next begins at {following.base}")

    # -- clients

    def client(self, name: str) -> Cluster:
        return self.connect(name)

    async def final_sends(self) -> None:
        """After everything has healed, every partition takes records."""
        cluster = self.client("judge")
        producer = Producer(cluster, delivery_s=PATIENCE_S)
        for where in (*SAFE, PLAIN, SHORT):
            value = f"judge/{where.topic}/{where.partition}".encode()
            send = self.history.send("judge", where, value)
            sent = await producer.send(where.topic, value=value, partition=where.partition)
            self.history.ack(where, send, sent.offset)
        await producer.flush()
        cluster.close()

    async def final_reads(self) -> dict[TopicPartition, tuple[int, int]]:
        cluster = self.client("judge")
        wanted = (*SAFE, PLAIN, SHORT)
        starts = await cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = await cluster.list_offsets(dict.fromkeys(wanted, LATEST))
        cluster.close()
        return {where: (starts[where].offset, ends[where].offset) for where in wanted}

    async def close_books(self) -> None:
        cluster = self.client("judge")
        watched = ["reader"] if self.rounds else []
        for where in self.ends:
            start, records = await read_all(cluster, where, self)
            self.history.books[where].close(start, records, watched)
        admin = Admin(cluster)
        seen = {}
        for topic in await cluster.retrying(admin.describe_topics):
            configs = await cluster.retrying(lambda name=topic.name: admin.configs(name))  # type: ignore[misc]
            chosen = {s.name: s.value or "" for s in configs if s.source == "topic"}
            seen[topic.name] = (topic.topic_id, _state(len(topic.partitions), chosen))
        self.registry.compare(seen)
        cluster.close()

    async def stop_and_look_again(self, ends: dict[TopicPartition, tuple[int, int]]) -> None:
        """A clean stop leaves nothing to a power cut, and nothing to repair."""
        self.machine.tell_to_stop()
        while self.cluster.is_up(NODE):
            await asyncio.sleep(0.01)
        self.cluster.cut_power(NODE, Loss.LOST)
        self.cluster.boot(NODE)
        if not await self.until_ready():
            self.history.report("will-not-start", NODE, repr(self.machine.exit))
            return
        assert self.machine.node is not None
        for directory in self.machine.node.directories.all:
            loading = directory.loading
            if not loading.clean or loading.repaired or loading.truncated_bytes or loading.scanned_bytes:
                self.history.report("unclean-stop", NODE, f"after a clean stop: {loading}")


class Script(Play):
    """A short fixed story whose first process is killed at its disk call number `call`, from the very first one on."""

    def __init__(self, call: int, loss: Loss | None) -> None:
        super().__init__(f"script/{call}/{loss}", 0)
        self.call, self.loss = call, loss
        self.calls = 0

    async def run(self, loop: SimLoop) -> Story:
        self.begin(loop)
        self.cluster.boot(NODE)
        self.cluster.kill_at_call(NODE, self.call, self.loss)
        calls = Calls(self)
        admin = self.cluster.client("admin", Administrator(self).script())
        while not admin.done():
            await asyncio.sleep(0.01)
            calls.look()
        await admin
        self.calls = calls.count
        self.ends = await self.cluster.client("judge", self.final_reads())
        await self.cluster.client("judge", self.close_books())
        await self.crash_again()
        return self.told()

    async def crash_again(self) -> None:
        """What was repaired once is in order: the next start finds nothing to cut."""
        self.cluster.kill(NODE)
        self.cluster.boot(NODE)
        await self.until_ready()
        assert self.machine.node is not None
        for directory in self.machine.node.directories.all:
            if directory.loading.truncated_bytes:
                self.history.report("repaired-twice", NODE, str(directory.loading))


def cut_at(call: int, loss: Loss | None) -> tuple[Story, int]:
    """The script with a cut at one call, and how many disk calls its first process made."""
    script = Script(call, loss)
    return perform(script), script.calls


def _state(partitions: int, configs: Any) -> TopicState:
    return TopicState(partitions, tuple(sorted(configs.items())))


if __name__ == "__main__":
    print_stories(play, sys.argv[1:])
