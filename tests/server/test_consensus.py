"""Whole nodes on the simulated loop that share one metadata log: electing, committing, taking over, catching up, joining."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client.connection import Connection
from ottla.log.identity import MetaProperties, write_meta_properties
from ottla.metadata import controller
from ottla.metadata.controller import NewTopic
from ottla.metadata.image import Image
from ottla.raft import partition, snapshots
from ottla.raft.quorum import Key, VoterSet
from ottla.raft.snapshots import SnapshotId
from ottla.server.consensus import NOTED_S
from ottla.server.node import Node
from ottla.sim.cluster import PORT, Machine, SimCluster
from ottla.sim.disk import Loss
from ottla.sim.loop import SimLoop, run
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.quorum import METADATA_TOPIC, EndQuorumEpochRequest, UpdateRaftVoterRequest, VoteRequest
from ottla.wire.messages.voters import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from ottla.wire.records import batches, build_control

NAMES = ("n1", "n2", "n3")
CONTROLLER = PORT + 1
Scene = Callable[["House"], Awaitable[None]]


class House:
    """Some machines, and what one wants to know of them."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop)

    async def begin(self, *, is_dynamic: bool = False, **settings: str) -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.cluster.form(NAMES, named, is_dynamic=is_dynamic)
        for name in NAMES:
            self.machine(name).disk.sync_directory("/")  # where /data is was known long before
            self.cluster.boot(name)
        await self.until(lambda: all(self.machine(name).is_ready for name in NAMES))

    def machine(self, name: str) -> Machine:
        return self.cluster.machines[name]

    def node(self, name: str) -> Node:
        node = self.machine(name).node
        assert node is not None
        return node

    @property
    def up(self) -> list[str]:
        return [name for name, machine in self.cluster.machines.items() if self.cluster.is_up(name) and machine.node]

    @property
    def leader(self) -> str | None:
        leading = [name for name in self.up if self.node(name).quorum.leads]
        return max(leading, key=lambda name: self.node(name).quorum.epoch, default=None)

    def rest(self) -> list[str]:
        return [name for name in self.up if name != self.leader]

    async def until(self, done: Callable[[], bool], limit_s: float = 30.0) -> float:
        began = self.loop.time()
        while not done():
            assert self.loop.time() - began < limit_s, self._state()
            await asyncio.sleep(0.005)
        return self.loop.time() - began

    def _state(self) -> list[Any]:
        return [
            (name, self.machine(name).is_ready, self.machine(name).exit, self.node(name).quorum.leader_id)
            for name in self.up
        ]

    async def elected(self, not_by: str | None = None) -> str:
        await self.until(lambda: self.leader is not None and self.leader != not_by)
        leader = self.leader
        assert leader is not None
        return leader

    def create(self, topic: str, at: str | None = None) -> asyncio.Future[Any]:
        node = self.node(at or self.leader or "")
        new = NewTopic(topic, 1, 1)
        rules, rng = node.controller.rules, node.world.random
        return node.controller.propose(lambda image: controller.create_topics(image, [new], rules, rng))

    def all_know(self, topic: str) -> bool:
        return all(self.node(name).quorum.image.topic(topic) is not None for name in self.up)

    async def ask(self, name: str, request: Any) -> Any:
        connection = await Connection.open(name, CONTROLLER, client_id="test", timeout_s=5)
        try:
            return await connection.request(request, 5)
        finally:
            connection.close()


def play(scene: Scene, seed: int = 1) -> None:
    async def main(loop: SimLoop) -> None:
        await scene(House(loop))

    run(seed, main, limit_s=300)


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_is_elected_replaced_and_comes_back(seed: int) -> None:
    """KRF-01, KRF-04, KRF-11: what was decided is known everywhere, before and after."""

    async def scene(house: House) -> None:
        await house.begin(is_dynamic=seed % 2 == 1)
        first = await house.elected()
        await house.create("before")
        await house.until(lambda: house.all_know("before"))
        house.cluster.kill(first)
        second = await house.elected(not_by=first)
        await house.create("between")
        house.cluster.boot(first)
        await house.until(lambda: house.machine(first).is_ready and house.all_know("between"))
        house.machine(second).tell_to_stop()
        third = await house.elected(not_by=second)
        assert third != second
        await house.create("after")
        await house.until(lambda: house.all_know("after"))

    play(scene, seed)


def test_a_killed_leader_is_replaced_within_half_a_second() -> None:
    """KRF-11."""

    async def scene(house: House) -> None:
        await house.begin()
        first = await house.elected()
        house.cluster.kill(first)
        assert await house.until(lambda: house.leader is not None) < 0.5

    play(scene)


@pytest.mark.parametrize("loss", Loss)
def test_all_lose_power_and_what_was_committed_is_there(loss: Loss) -> None:
    async def scene(house: House) -> None:
        await house.begin()
        await house.elected()
        await house.create("kept")
        for name in NAMES:
            house.cluster.kill(name, loss)
        for name in NAMES:
            house.cluster.boot(name)
        await house.until(lambda: all(house.machine(name).is_ready for name in NAMES))
        await house.until(lambda: house.all_know("kept"))

    play(scene)


def test_who_loses_leadership_refuses_what_waits_and_forgets_what_it_wrote() -> None:
    """KRF-18: two of three decide, and the third learns that it decided nothing."""

    async def scene(house: House) -> None:
        await house.begin()
        old = await house.elected()
        house.loop.network.isolate(old)
        waiting = house.create("lost", at=old)
        assert house.node(old).quorum.written.topic("lost") is not None
        new = await house.elected(not_by=old)
        await house.create("kept", at=new)
        with pytest.raises(KafkaError) as refused:
            await waiting
        assert refused.value.error is Error.NOT_CONTROLLER
        house.loop.network.heal_all()
        await house.until(lambda: house.all_know("kept"))
        quorum = house.node(old).quorum
        assert quorum.image.topic("lost") is None
        assert quorum.written.topic("lost") is None
        with pytest.raises(KafkaError):
            house.create("refused", at=old)

    play(scene)


def test_snapshots_are_taken_while_following_and_copied_to_whoever_has_nothing() -> None:
    """KRF-10, KRF-06: the log before them is gone, and a wiped node and a broker that is no voter get them."""

    async def scene(house: House) -> None:
        await house.begin(metadata_log_max_record_bytes_between_snapshots="3000", metadata_max_retention_bytes="1")
        await house.elected()
        for n in range(40):
            await house.create(f"topic-{n}")
        await house.until(lambda: all(house.node(name).quorum.store.start_offset > 0 for name in NAMES))
        wiped = house.rest()[0]
        house.cluster.kill(wiped)
        house.cluster.wipe(wiped)
        house.cluster.boot(wiped)
        await house.until(lambda: house.machine(wiped).is_ready)
        assert house.node(wiped).quorum.store.start_offset > 0, "it began with a snapshot"
        _add_broker(house, "n4", 4)
        await house.until(lambda: house.machine("n4").is_ready)
        await house.create("last")
        await house.until(lambda: house.all_know("last") and house.all_know("topic-0"))
        assert set(house.node("n4").quorum.image.brokers) == {1, 2, 3, 4}
        assert not house.node("n4").quorum.consensus.replica.is_voter

    play(scene)


def _add_broker(house: House, name: str, number: int) -> None:
    voters = ",".join(f"{n}@{voter}:{CONTROLLER}" for n, voter in enumerate(NAMES, 1))
    settings = {
        "node.id": str(number),
        "process.roles": "broker",
        "listeners": f"PLAINTEXT://{name}:{PORT}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "log.dirs": "/data",
    }
    machine = house.cluster.add(name, settings)
    house.cluster.machines[name].settings = settings
    _same_cluster(house, machine)
    house.cluster.boot(name)


def test_controllers_join_a_cluster_of_one_and_leave_it() -> None:
    """KIP-853: observers first, then voters, one at a time; the first one goes and the others carry on."""

    async def scene(house: House) -> None:
        house.cluster.add("n1")
        house.cluster.boot("n1")
        await house.until(lambda: house.machine("n1").is_ready)
        for number, name in ((2, "n2"), (3, "n3")):
            settings = {"node.id": str(number), "controller.quorum.bootstrap.servers": f"n1:{CONTROLLER}"}
            machine = house.cluster.add(name, settings)
            _same_cluster(house, machine)
            house.cluster.boot(name)
            await house.until(lambda name=name: house.machine(name).is_ready)  # type: ignore[misc]
            answer = await house.ask("n1", _voter(house, name, number))
            assert answer.error_code == 0, answer.error_message
            await house.until(lambda name=name: house.node(name).quorum.consensus.replica.is_voter)  # type: ignore[misc]
        assert house.node("n2").quorum.voters.ids == (1, 2, 3)
        again = await house.ask("n1", _voter(house, "n2", 2))
        assert again.error_code == Error.DUPLICATE_VOTER.code
        one = house.node("n1").quorum.store.directory_id
        removed = await house.ask("n1", RemoveRaftVoterRequest(cluster_id=None, voter_id=1, voter_directory_id=one))
        assert removed.error_code == 0, removed.error_message
        await house.elected(not_by="n1")
        assert house.node("n2").quorum.voters.ids == (2, 3)
        await house.create("by-the-others")
        await house.until(lambda: house.all_know("by-the-others"))

    play(scene)


def _same_cluster(house: House, machine: Machine, mark: bytes = b"\x41") -> None:
    cluster_id = house.node("n1").quorum.store.cluster_id
    machine.disk.make_directory("/data")
    identity = mark + machine.name.encode().ljust(15, b"\x80")
    write_meta_properties(
        machine.disk, "/data", MetaProperties(cluster_id, int(machine.settings["node.id"]), identity), 0
    )


def _voter(house: House, name: str, number: int) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=5000,
        voter_id=number,
        voter_directory_id=house.node(name).quorum.store.directory_id,
        listeners=[AddRaftVoterRequest.Listener(name="CONTROLLER", host=name, port=CONTROLLER)],
    )


def test_describe_quorum_knows_how_far_everybody_is() -> None:
    async def scene(house: House) -> None:
        await house.begin()
        leader = await house.elected()
        await house.create("known")
        await house.until(lambda: house.all_know("known"))
        kind = DescribeQuorumRequest.Topic
        asked = kind(topic_name=METADATA_TOPIC, partitions=[kind.Partition(partition_index=0)])
        answer = await house.ask(leader, DescribeQuorumRequest(topics=[asked]))
        told = answer.topics[0].partitions[0]
        assert told.error_code == 0
        assert sorted(state.replica_id for state in told.current_voters) == [1, 2, 3]
        assert told.high_watermark > 0
        assert all(state.log_end_offset >= told.high_watermark for state in told.current_voters)
        assert told.leader_id == house.node(leader).config.node_id

    play(scene)


def test_requests_of_another_cluster_or_for_another_leader_are_refused() -> None:
    async def scene(house: House) -> None:
        await house.begin()
        leader = await house.elected()
        quorum = house.node(leader).quorum
        cluster, epoch, me = quorum.store.cluster_id, quorum.epoch, Key(9, bytes([0x40, *range(15)]))

        async def error_of(request: Any) -> int:
            return int((await house.ask(leader, request)).error_code)

        other = Error.INCONSISTENT_CLUSTER_ID.code
        assert await error_of(partition.vote("else", 1, me, Key(1), (0, 0), True)) == other
        assert await error_of(partition.begin_epoch("else", 1, 9, Key(1), [])) == other
        assert await error_of(partition.end_epoch("else", 1, 9, [], [])) == other
        assert await error_of(partition.fetch("else", epoch, me, (0, 0), 0, 1 << 20, 0)) == other
        assert await error_of(partition.fetch_snapshot("else", epoch, me, SnapshotId(5, 1), 0, 1 << 20)) == other
        assert await error_of(EndQuorumEpochRequest(cluster_id=cluster)) == Error.INVALID_REQUEST.code
        assert await error_of(VoteRequest(cluster_id=cluster)) == Error.INVALID_REQUEST.code
        behind = await house.ask(leader, partition.fetch(cluster, epoch + 1, me, (0, 0), 0, 1 << 20, 0))
        assert behind.responses[0].partitions[0].error_code == Error.UNKNOWN_LEADER_EPOCH.code
        assert behind.node_endpoints[0].host == leader
        none = await house.ask(leader, partition.fetch_snapshot(cluster, epoch, me, SnapshotId(5, 1), 0, 1 << 20))
        assert none.topics[0].partitions[0].error_code == Error.SNAPSHOT_NOT_FOUND.code
        moved = UpdateRaftVoterRequest(cluster_id=cluster, current_leader_epoch=epoch - 1)
        assert await error_of(moved) == Error.FENCED_LEADER_EPOCH.code

    play(scene)


def test_a_fetch_of_the_metadata_waits_for_records_and_for_the_watermark() -> None:
    """TRAP-50."""

    async def scene(house: House) -> None:
        await house.begin()
        leader = await house.elected()
        quorum = house.node(leader).quorum
        await house.create("one")
        end, epoch = quorum.store.end_offset, quorum.epoch
        me, last = Key(9, bytes([0x40, *range(15)])), (epoch, end)
        began = house.loop.time()
        request = partition.fetch(quorum.store.cluster_id, epoch, me, last, end, 1 << 20, 500)
        empty = (await house.ask(leader, request)).responses[0].partitions[0]
        assert not empty.records
        assert house.loop.time() - began >= 0.5
        asking = asyncio.ensure_future(house.ask(leader, request))
        await asyncio.sleep(0.1)
        created = house.create("two")
        found = (await asking).responses[0].partitions[0]
        assert found.records
        await created
        stale = partition.fetch(quorum.store.cluster_id, epoch, me, (epoch, quorum.store.end_offset), 0, 1 << 20, 500)
        began = house.loop.time()
        told = (await house.ask(leader, stale)).responses[0].partitions[0]
        assert told.high_watermark == quorum.store.end_offset
        assert house.loop.time() - began < 0.4, "it does not know yet what is committed"

    play(scene)


def test_pictures_of_followers_are_those_of_the_leader() -> None:
    """KRF-08, KRF-09."""

    async def scene(house: House) -> None:
        await house.begin()
        await house.elected()
        for n in range(5):
            await house.create(f"topic-{n}")
        await house.until(lambda: house.all_know("topic-4"))
        await house.until(lambda: len({house.node(name).quorum.image.offset for name in NAMES}) == 1)

        def shown(image: Image) -> Any:
            return dict(image.topics.items()), dict(image.brokers), image.controller_id, image.features

        pictures = [shown(house.node(name).quorum.image) for name in NAMES]
        assert pictures[0] == pictures[1] == pictures[2]

    play(scene)


def test_a_node_that_began_alone_stays_a_member_when_others_come() -> None:
    """Its broker joined without asking anybody; now others may be the controller, and want to hear of it."""

    async def scene(house: House) -> None:
        house.cluster.add("n1", {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"})
        house.cluster.boot("n1")
        await house.until(lambda: house.machine("n1").is_ready)
        settings = {"node.id": "2", "controller.quorum.bootstrap.servers": f"n1:{CONTROLLER}"}
        times = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
        machine = house.cluster.add("n2", {**settings, **times})
        _same_cluster(house, machine)
        house.cluster.boot("n2")
        await house.until(lambda: house.machine("n2").is_ready)
        await asyncio.sleep(5)
        assert [b.fenced for b in house.node("n1").quorum.image.brokers.values()] == [False, False], (
            "one voter, two brokers"
        )
        await house.ask("n1", _voter(house, "n2", 2))
        await house.until(lambda: house.node("n2").quorum.consensus.replica.is_voter)
        one = house.node("n1").quorum.store.directory_id
        await house.ask("n1", RemoveRaftVoterRequest(cluster_id=None, voter_id=1, voter_directory_id=one))
        await house.elected(not_by="n1")
        await asyncio.sleep(5)
        assert [b.fenced for b in house.node("n2").quorum.image.brokers.values()] == [False, False]

    play(scene)


def test_a_follower_that_was_away_too_long_takes_a_snapshot_and_drops_what_is_gone() -> None:
    async def scene(house: House) -> None:
        await house.begin(metadata_log_max_record_bytes_between_snapshots="3000", metadata_max_retention_bytes="1")
        leader = await house.elected()
        await house.create("gone")
        await house.until(lambda: house.all_know("gone"))
        away = house.rest()[0]
        before = house.node(away).quorum.store.end_offset
        house.loop.network.isolate(away)
        node = house.node(leader)
        topic = node.quorum.image.topic("gone")
        assert topic is not None
        await node.controller.propose(lambda image: controller.delete_topics(image, [topic.id]))
        for n in range(40):
            await house.create(f"topic-{n}")
        await house.until(lambda: node.quorum.store.start_offset > before)
        house.loop.network.heal_all()
        await house.until(lambda: house.node(away).quorum.image.topic("topic-39") is not None)
        assert house.node(away).quorum.store.start_offset > before
        assert house.node(away).quorum.image.topic("gone") is None
        await house.until(
            lambda: dict(house.node(away).quorum.image.topics.items()) == dict(node.quorum.image.topics.items())
        )

    play(scene)


async def _grow(house: House) -> None:
    """A cluster of one, and two more that join it by themselves."""
    house.cluster.add("n1")
    house.cluster.boot("n1")
    await house.until(lambda: house.machine("n1").is_ready)
    for number, name in ((2, "n2"), (3, "n3")):
        settings = {
            "node.id": str(number),
            "controller.quorum.bootstrap.servers": f"n1:{CONTROLLER}",
            "controller.quorum.auto.join.enable": "true",
        }
        _same_cluster(house, house.cluster.add(name, settings))
        house.cluster.boot(name)
    await house.until(lambda: house.node("n1").quorum.voters.ids == (1, 2, 3))


def test_a_controller_joins_by_itself_also_after_its_disk_was_wiped() -> None:
    """KIP-1186: the voter that it was is removed first."""

    async def scene(house: House) -> None:
        await _grow(house)
        before = house.node("n1").quorum.voters.voter(3)
        house.cluster.kill("n3")
        machine = house.machine("n3")
        machine.disk = machine.disk.wipe()
        _same_cluster(house, machine, b"\x43")
        house.cluster.boot("n3")

        def is_another() -> bool:
            now = house.node("n1").quorum.voters.voter(3)
            return now is not None and now != before

        await house.until(is_another)

    play(scene)


def test_a_vote_that_could_not_be_written_down_is_not_given() -> None:
    """TRAP-34: after the next start nobody would know of it, and another candidate of the epoch could have it as well."""

    async def scene(house: House) -> None:
        await house.begin()
        leader = await house.elected()
        name = house.rest()[0]
        node = house.node(name)
        store, epoch = node.quorum.store, node.quorum.epoch

        def fails(*args: Any) -> None:
            raise OSError(errno.EIO, "the disk is gone")

        store.write_state = fails  # type: ignore[method-assign]
        me, other = (house.node(each).quorum.consensus.replica.member.key for each in (name, leader))
        last = node.quorum.consensus.replica.member.last
        request = partition.vote(store.cluster_id, epoch + 1, other, me, last, False)
        answer = await house.ask(name, request)
        assert answer.error_code or not answer.topics[0].partitions[0].vote_granted

    play(scene)


def test_who_has_left_the_quorum_votes_no_more() -> None:
    """TRAP-34: a node that stops writes nothing down any more, and its door is open for a moment longer."""

    async def scene(house: House) -> None:
        await house.begin()
        leader = await house.elected()
        name = house.rest()[0]
        node = house.node(name)
        store, epoch = node.quorum.store, node.quorum.epoch
        await node.quorum.consensus.stop()
        promised = node.world.disk.read(f"{store.path}/quorum-state")
        me, other = (house.node(each).quorum.consensus.replica.member.key for each in (name, leader))
        last = node.quorum.consensus.replica.member.last
        answer = await house.ask(name, partition.vote(store.cluster_id, epoch + 1, other, me, last, False))
        assert answer.error_code or not answer.topics[0].partitions[0].vote_granted
        assert node.world.disk.read(f"{store.path}/quorum-state") == promised

    play(scene)


def test_voters_in_front_of_a_damaged_batch_count_as_the_rest_of_the_log_does() -> None:
    """What of an answer is sound is in the log; who votes by it must not depend on the batch behind it."""

    async def scene(house: House) -> None:
        await house.begin()
        await house.elected()
        quorum = house.node(house.rest()[0]).quorum
        store, replica = quorum.store, quorum.consensus.replica
        fewer = VoterSet(replica.voters.voters[:2])
        control = build_control(
            [snapshots.note(fewer.to_record())], 0, base_offset=store.end_offset, leader_epoch=replica.epoch
        )
        behind = bytearray(snapshots.batch_of([b"x"], store.end_offset + 1, replica.epoch, 0))
        behind[-1] ^= 1
        before = store.end_offset
        quorum.consensus._append_copies(bytes(control) + bytes(behind))
        assert store.end_offset == before + 1 and replica.voters == fewer
        quorum.consensus._append_copies(snapshots.batch_of([b"x"], store.end_offset, replica.epoch + 1, 0))
        assert store.end_offset == before + 1

    play(scene)


def test_a_log_that_lost_what_was_committed_elects_nobody() -> None:
    """A bit that flipped on one voter must not cost what a majority had written down, however often that voter starts."""

    async def scene(house: House) -> None:
        await house.begin()
        first = await house.elected()
        behind, damaged = house.rest()
        house.cluster.kill(behind)
        for at in range(5):
            await house.create(f"t{at}")
        await house.until(lambda: house.node(damaged).quorum.image.topic("t4") is not None)
        await asyncio.sleep(NOTED_S * 2)
        for name in (first, damaged):
            house.cluster.kill(name)
        house.cluster.boot(damaged)  # the disk of the process before
        house.cluster.kill(damaged)
        path = "/data/__cluster_metadata-0/00000000000000000000.log"
        disk = house.machine(damaged).disk
        disk.rot(path, 8 * (disk.size(path) - 600))
        for _ in range(2):
            house.cluster.boot(damaged)
            house.cluster.boot(behind)
            await asyncio.sleep(10)
            assert house.leader is None
            for name in house.up:
                house.cluster.kill(name)
        for name in (first, behind):
            house.cluster.boot(name)
        await house.until(lambda: len(house.up) == 2 and house.all_know("t4"))

    play(scene)


def test_a_damaged_voter_does_not_take_itself_for_the_only_one() -> None:
    """What was left of its log was from before the others came. It led them by that, and they ended, for it wanted them to
    cut off what was committed."""

    async def scene(house: House) -> None:
        await _grow(house)
        await house.create("t")
        await asyncio.sleep(NOTED_S + 1)
        house.cluster.kill("n1")
        house.cluster.boot("n1")  # the disk of the process before
        house.cluster.kill("n1")
        disk, path = house.machine("n1").disk, "/data/__cluster_metadata-0/00000000000000000000.log"
        _, (position, _), *_ = batches(disk.read(path))
        disk.rot(path, 8 * position + 256)
        house.cluster.boot("n1")
        await house.until(lambda: len(house.up) == 3 and all(house.machine(name).is_ready for name in NAMES))
        assert house.all_know("t") and house.node("n1").quorum.voters.ids == (1, 2, 3)
        house.cluster.kill(await house.elected())
        await house.elected()

    play(scene)
