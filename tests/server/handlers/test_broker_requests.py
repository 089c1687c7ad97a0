"""What other nodes ask of the active controller, over the wire: a broker that exists only in these requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from desk import on_loop
from ottla.metadata.features import SERVED
from ottla.metadata.image import BROKER, Broker
from ottla.wire.errors import Error
from ottla.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    Feature,
    Listener,
    UnregisterBrokerRequest,
)
from ottla.wire.messages.cluster import DescribeClusterRequest
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.placement import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from served import Client, Served, serving

FEATURES = [Feature(name=n, min_supported_version=low, max_supported_version=high) for n, (low, high) in SERVED.items()]
SILENCE = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "200"}


async def to_controller(served: Served) -> Client:
    endpoint = served.node.quorum.image.controllers[1].endpoints["CONTROLLER"]
    return Client(*await asyncio.open_connection(endpoint.host, endpoint.port))


class Ghost:
    """Broker 2, as far as the controller can tell."""

    def __init__(self, served: Served, client: Client, life: int = 1) -> None:
        self.served, self.client, self.epoch = served, client, -1
        self.incarnation = life.to_bytes(16, "big")

    async def register(self, **more: Any) -> Any:
        said: dict[str, Any] = {
            "broker_id": 2,
            "cluster_id": self.served.node.quorum.image.cluster_id,
            "incarnation_id": self.incarnation,
            # Nobody ever answers there, but somebody seems to be: the address takes connections.
            "listeners": [Listener(name="PLAINTEXT", host="127.0.0.1", port=self.served.port, security_protocol=0)],
            "features": FEATURES,
            "log_dirs": [b"directory of two"],
        }
        answer = await self.client.call(BrokerRegistrationRequest(**{**said, **more}), 4)
        self.epoch = answer.broker_epoch
        return answer

    async def beat(self, **more: Any) -> Any:
        said = {"broker_epoch": self.epoch, "current_metadata_offset": self.served.node.quorum.image.offset}
        return await self.client.call(BrokerHeartbeatRequest(broker_id=2, **{**said, **more}), 2)

    async def join(self) -> None:
        assert (await self.register()).error_code == 0
        answer = await self.beat()
        while not answer.is_caught_up:
            answer = await self.beat()
        assert not answer.is_fenced

    @property
    def broker(self) -> Broker:
        return self.served.node.controller.written.brokers[2]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.02)


@on_loop
async def test_a_broker_comes_is_let_in_and_goes(tmp_path: Path) -> None:
    """KRF-02, TRAP-37, TRAP-39."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        ghost = Ghost(served, client)
        answer = await ghost.register()
        assert answer.error_code == 0 and answer.broker_epoch == ghost.broker.epoch and ghost.broker.fenced
        behind = await ghost.beat(current_metadata_offset=ghost.epoch - 1)
        assert (behind.error_code, behind.is_caught_up, behind.is_fenced) == (0, False, True)
        await ghost.join()
        assert not ghost.broker.fenced
        stale = await ghost.beat(broker_epoch=ghost.epoch - 1)
        assert stale.error_code == Error.STALE_BROKER_EPOCH.code
        gone = await ghost.beat(want_shut_down=True)
        assert gone.should_shut_down and ghost.broker.fenced
        client.close()


@on_loop
async def test_a_controller_takes_settings_of_any_broker_that_is_registered(tmp_path: Path) -> None:
    resource = IncrementalAlterConfigsRequest.Resource
    threads = [resource.Config(name="log.cleaner.threads", value="2")]
    asked = [resource(resource_type=BROKER, resource_name=name, configs=threads) for name in ("2", "77", "-1", "two")]
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        assert (await Ghost(served, client).register()).error_code == 0
        answer = await client.call(IncrementalAlterConfigsRequest(resources=asked), 1)
        refusals = [Error.BROKER_ID_NOT_REGISTERED, Error.INVALID_REQUEST, Error.INVALID_REQUEST]
        assert [each.error_code for each in answer.responses] == [0, *(each.code for each in refusals)]
        of_brokers = {
            name: of for (kind, name), of in served.node.quorum.image.settings.items() if kind == BROKER and name
        }
        assert of_brokers == {"2": {"log.cleaner.threads": "2"}}
        client.close()


@on_loop
async def test_two_processes_with_one_id(tmp_path: Path) -> None:
    """TRAP-38: the second waits, but not when the connection of the first is lost."""
    async with serving(tmp_path) as served:
        first, second = await to_controller(served), await to_controller(served)
        await Ghost(served, first).join()
        other = Ghost(served, second, life=2)
        assert (await other.register()).error_code == Error.DUPLICATE_BROKER_REGISTRATION.code
        wrong = await other.register(cluster_id="another")
        assert wrong.error_code == Error.INCONSISTENT_CLUSTER_ID.code
        first.close()
        await until(lambda: served.node.watch.is_adrift(2))
        assert (await other.register()).error_code == 0
        second.close()


@on_loop
async def test_a_broker_that_falls_silent_is_fenced(tmp_path: Path) -> None:
    """KRF-12: its connection stays, so it has until the end of its session."""
    async with serving(tmp_path, SILENCE) as served:
        client = await to_controller(served)
        ghost = Ghost(served, client)
        await ghost.join()
        await until(lambda: ghost.broker.fenced)
        back = await ghost.beat()
        assert back.error_code == 0 and not back.is_fenced, "it was only slow"
        client.close()


async def shared_topic(served: Served) -> bytes:
    client = await served.connect()
    placed = CreateTopicsRequest.Topic.Assignment(partition_index=0, broker_ids=[1, 2])
    new = CreateTopicsRequest.Topic(name="t", num_partitions=-1, replication_factor=-1, assignments=[placed])
    answer = await client.call(CreateTopicsRequest(topics=[new], timeout_ms=5_000), 7)
    assert answer.topics[0].error_code == 0
    topic = served.node.quorum.image.topic("t")
    assert topic is not None
    return topic.id


@on_loop
async def test_what_a_leader_and_a_holder_of_replicas_say(tmp_path: Path) -> None:
    """AlterPartition and AssignReplicasToDirs; leaders that are asked for; partitions that are taken away again."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        ghost = Ghost(served, client)
        await ghost.join()
        topic_id = await shared_topic(served)

        def now() -> Any:
            return served.node.controller.written.topics[topic_id].partitions[0]

        broker = await served.connect()
        reordered = AlterPartitionReassignmentsRequest.Topic.Partition(partition_index=0, replicas=[2, 1])
        topics = [AlterPartitionReassignmentsRequest.Topic(name="t", partitions=[reordered])]
        await broker.call(AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=topics), 1)
        wanted = [ElectLeadersRequest.Topic(topic="t", partitions=[0])]
        await broker.call(ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=5_000), 2)
        assert now().leader == 2
        alone = AlterPartitionRequest.Topic.Partition(
            partition_index=0, leader_epoch=now().leader_epoch, partition_epoch=now().partition_epoch
        )
        alone.new_isr_with_epochs = [alone.BrokerState(broker_id=2, broker_epoch=ghost.epoch)]
        asked = [AlterPartitionRequest.Topic(topic_id=topic_id, partitions=[alone])]
        request = AlterPartitionRequest(broker_id=2, broker_epoch=ghost.epoch, topics=asked)
        told = (await client.call(request, 3)).topics[0].partitions[0]
        assert (told.error_code, told.isr, told.leader_id) == (0, [2], 2) and now().isr == (2,)
        again = (await client.call(request, 3)).topics[0].partitions[0]
        assert again.error_code == Error.INVALID_UPDATE_VERSION.code
        place = AssignReplicasToDirsRequest.Directory.Topic(topic_id=topic_id)
        place.partitions = [place.Partition(partition_index=0), place.Partition(partition_index=9)]
        directory = AssignReplicasToDirsRequest.Directory(id=b"another place...", topics=[place])
        assign = AssignReplicasToDirsRequest(broker_id=2, broker_epoch=ghost.epoch, directories=[directory])
        answer = await client.call(assign, 0)
        assert answer.error_code == 0 and [d.id for d in answer.directories] == [b"another place..."]
        codes = [p.error_code for p in answer.directories[0].topics[0].partitions]
        assert codes == [0, Error.UNKNOWN_TOPIC_OR_PARTITION.code]
        client.close()


@on_loop
async def test_producer_ids_controllers_and_who_is_taken_out(tmp_path: Path) -> None:
    """AllocateProducerIds, ControllerRegistration, UnregisterBroker."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        ghost = Ghost(served, client)
        await ghost.join()
        blocks = [
            await client.call(AllocateProducerIdsRequest(broker_id=2, broker_epoch=ghost.epoch), 0) for _ in range(2)
        ]
        assert [block.producer_id_len for block in blocks] == [1000, 1000]
        assert blocks[1].producer_id_start == blocks[0].producer_id_start + 1000
        stale = await client.call(AllocateProducerIdsRequest(broker_id=2, broker_epoch=0), 0)
        assert stale.error_code == Error.STALE_BROKER_EPOCH.code
        listener = Listener(name="CONTROLLER", host="elsewhere", port=9, security_protocol=0)
        enrol = ControllerRegistrationRequest(
            controller_id=7, incarnation_id=b"i" * 16, listeners=[listener], features=FEATURES
        )
        assert (await client.call(enrol, 0)).error_code == 0
        assert served.node.controller.written.controllers[7].endpoints["CONTROLLER"].host == "elsewhere"
        assert (await client.call(UnregisterBrokerRequest(broker_id=2), 0)).error_code == 0
        assert (await ghost.beat()).error_code == Error.STALE_BROKER_EPOCH.code
        client.close()


@on_loop
async def test_nobody_takes_the_place_of_the_broker_in_the_controller_s_own_process(tmp_path: Path) -> None:
    """TRAP-38: it need not beat to be there. Who it is comes before everything else that may be wrong, as in Apache Kafka."""
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        other, mine = Ghost(served, client), served.node.quorum.image.brokers[1]
        for more in ({}, {"log_dirs": []}, {"is_migrating_zk_broker": True}):
            assert (await other.register(broker_id=1, **more)).error_code == Error.DUPLICATE_BROKER_REGISTRATION.code
        assert served.node.controller.written.brokers[1] == mine
        of_zookeeper = await other.register(is_migrating_zk_broker=True)
        assert of_zookeeper.error_code == Error.BROKER_ID_NOT_REGISTERED.code
        client.close()


@on_loop
async def test_what_is_refused_as_a_whole_names_nothing(tmp_path: Path) -> None:
    """As in Apache Kafka, where whoever asks for nothing is not asked who it is either."""
    async with serving(tmp_path) as served:
        client, topic_id = await to_controller(served), b"t" * 16
        topic = AlterPartitionRequest.Topic(topic_id=topic_id, partitions=[AlterPartitionRequest.Topic.Partition()])
        stale = await client.call(AlterPartitionRequest(broker_id=2, broker_epoch=5, topics=[topic]), 3)
        assert (stale.error_code, stale.topics) == (Error.STALE_BROKER_EPOCH.code, [])
        nothing = await client.call(AlterPartitionRequest(broker_id=2, broker_epoch=5), 3)
        assert (nothing.error_code, nothing.topics) == (0, [])
        client.close()


@on_loop
async def test_the_metadata_are_fetched_by_id_and_controllers_described_since_version_1(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        part = FetchRequest.Topic.Partition(partition=0, current_leader_epoch=-1)
        named = FetchRequest.Topic(topic="__cluster_metadata", topic_id=bytes(15) + b"\x01", partitions=[part])
        by_name = await client.call(FetchRequest(topics=[named]), 12)
        assert (by_name.error_code, by_name.responses) == (Error.INVALID_REQUEST.code, [])
        assert (await client.call(FetchRequest(topics=[named]), 13)).responses[0].partitions, "whatever it is told"
        for version, error in ((0, Error.INVALID_REQUEST), (1, Error.MISMATCHED_ENDPOINT_TYPE)):
            assert (await client.call(DescribeClusterRequest(), version)).error_code == error.code
        client.close()
