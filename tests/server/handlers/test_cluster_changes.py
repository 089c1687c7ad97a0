"""Elections, reassignments, features, the quorum, producers and what has settings, as one node answers them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from desk import on_loop
from ottla.metadata.decisions import Decision
from ottla.metadata.image import Image
from ottla.metadata.snapshot import records_of
from ottla.wire.errors import Error
from ottla.wire.messages.brokers import UnregisterBrokerRequest
from ottla.wire.messages.cluster import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.placement import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest, ListConfigResourcesRequest
from ottla.wire.messages.transactions import DescribeProducersRequest
from ottla.wire.messages.voters import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from served import Client, Served, batch, serving

UPGRADE, SAFE, UNSAFE = 1, 2, 3


async def to_controller(served: Served) -> Client:
    endpoint = served.node.quorum.image.controllers[1].endpoints["CONTROLLER"]
    return Client(*await asyncio.open_connection(endpoint.host, endpoint.port))


@on_loop
async def test_elections_that_are_not_needed_or_not_in_time(tmp_path: Path) -> None:
    """TRAP-78: without time all of it is REQUEST_TIMED_OUT; version 0 has no place to say so but at each partition."""
    async with serving(tmp_path) as served:
        await served.topic("t", 2)
        client = await served.connect()
        asked = [
            ElectLeadersRequest.Topic(topic="t", partitions=[0, 9]),
            ElectLeadersRequest.Topic(topic="none", partitions=[0]),
        ]
        answer = await client.call(ElectLeadersRequest(topic_partitions=asked), 2)
        told = [
            (t.topic, [(p.partition_id, p.error_code) for p in t.partition_result])
            for t in answer.replica_election_results
        ]
        assert answer.error_code == 0 and told == [("t", [(0, 84), (9, 3)]), ("none", [(0, 3)])]
        for version in (0, 1, 2):
            late = await client.call(ElectLeadersRequest(topic_partitions=asked[:1], timeout_ms=0), version)
            assert late.error_code == (7 if version else 0)
            assert [p.error_code for p in late.replica_election_results[0].partition_result] == [7, 7]
        everything = await client.call(ElectLeadersRequest(topic_partitions=None), 2)
        assert [(t.topic, t.partition_result) for t in everything.replica_election_results] == [("t", [])]
        unknown = await client.call(ElectLeadersRequest(election_type=7, topic_partitions=asked[:1]), 2)
        assert unknown.error_code == Error.INVALID_REQUEST.code


@on_loop
async def test_reassignments_of_a_node_that_is_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topic("t")
        kind = AlterPartitionReassignmentsRequest.Topic
        for client in (await served.connect(), await to_controller(served)):
            codes = []
            for replicas in ([1], [2], [], None):
                part = kind.Partition(partition_index=0, replicas=replicas)
                request = AlterPartitionReassignmentsRequest(topics=[kind(name="t", partitions=[part])])
                codes.append((await client.call(request, 1)).responses[0].partitions[0].error_code)
            assert codes == [0, 39, 39, 85]
            assert (await client.call(ListPartitionReassignmentsRequest(topics=None), 0)).topics == []
            client.close()


@on_loop
async def test_a_move_is_listed_before_its_picture_is_shown(tmp_path: Path) -> None:
    """REP-20: a node that has just become the active controller has shown nothing yet to those who follow the picture. Whoever
    heard that nothing is under way would take the move for finished (seed m9 of the operated cluster)."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        await served.topic("t")
        quorum = served.node.quorum
        other = next(records_of(replace(Image(), brokers={2: quorum.image.brokers[1]._replace(id=2, fenced=True)})))
        await served.node.controller.propose(lambda image: Decision([other], None))
        kind = AlterPartitionReassignmentsRequest.Topic
        part = kind.Partition(partition_index=0, replicas=[1, 2])
        await client.call(AlterPartitionReassignmentsRequest(topics=[kind(name="t", partitions=[part])]), 1)
        shown, quorum.image = quorum.image, Image()
        listed = (await client.call(ListPartitionReassignmentsRequest(topics=None), 0)).topics
        quorum.image = shown
        assert [(topic.name, topic.partitions[0].adding_replicas) for topic in listed] == [("t", [2])]
        client.close()


async def update(client: Client, name: str, level: int, kind: int, version: int = 2) -> UpdateFeaturesResponse:
    asked = UpdateFeaturesRequest.Update(feature=name, max_version_level=level, upgrade_type=kind)
    answer: UpdateFeaturesResponse = await client.call(UpdateFeaturesRequest(feature_updates=[asked]), version)
    return answer


async def finalised(client: Client) -> dict[str, int]:
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    return {row.name: row.max_version_level for row in (await client.call(asked, 4)).finalized_features}


@on_loop
async def test_levels_rise_and_fall_and_survive(tmp_path: Path) -> None:
    """PRT-07: what ApiVersions tells follows at once, and is there after a restart."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert (await finalised(client))["group.version"] == 1
        assert (await update(client, "group.version", 0, UPGRADE)).error_code == Error.INVALID_UPDATE_VERSION.code
        assert (await update(client, "group.version", 0, SAFE)).error_code == 0
        assert "group.version" not in await finalised(client)
        assert "group.version" not in served.node.finalised_features()
    async with serving(tmp_path) as served:
        client = await to_controller(served)
        assert "group.version" not in await finalised(client)
        told = await update(client, "group.version", 1, UPGRADE, version=1)
        assert [(row.feature, row.error_code) for row in told.results] == [("group.version", 0)]
        assert (await finalised(client))["group.version"] == 1
        client.close()


@on_loop
async def test_only_to_see_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        client = await served.connect()
        asked = UpdateFeaturesRequest.Update(feature="group.version", max_version_level=0, upgrade_type=SAFE)
        end = served.node.quorum.store.end_offset
        seen = await client.call(UpdateFeaturesRequest(feature_updates=[asked], validate_only=True), 2)
        assert seen.error_code == 0 and served.node.quorum.store.end_offset == end


@on_loop
async def test_the_quorum_is_this_node(tmp_path: Path) -> None:
    """KIP-595, KIP-836, KIP-853."""
    async with serving(tmp_path) as served:
        asked = DescribeQuorumRequest.Topic(
            topic_name="__cluster_metadata", partitions=[DescribeQuorumRequest.Topic.Partition()]
        )
        for client in (await served.connect(), await to_controller(served)):
            answer = await client.call(DescribeQuorumRequest(topics=[asked]), 2)
            (partition,) = answer.topics[0].partitions
            (voter,) = partition.current_voters
            assert (partition.leader_id, voter.replica_id, partition.observers) == (1, 1, [])
            assert partition.high_watermark == voter.log_end_offset == served.node.quorum.store.end_offset
            assert voter.replica_directory_id == served.node.quorum.voters.voters[0].directory
            assert [(n.node_id, n.listeners[0].name) for n in answer.nodes] == [(1, "CONTROLLER")]
            client.close()


@pytest.mark.parametrize(
    ("cluster", "number", "directory", "listener", "added", "removed"),
    [
        ("wrong", 9, b"d" * 16, "CONTROLLER", 104, 104),
        (None, -1, b"d" * 16, "CONTROLLER", 42, 42),
        (None, 9, bytes(16), "CONTROLLER", 42, 42),
        (None, 9, b"d" * 16, "OTHER", 42, 127),
        (None, 1, b"d" * 16, "CONTROLLER", 126, 127),
        (None, 9, b"d" * 16, "CONTROLLER", 7, 127),
    ],
)
@on_loop
async def test_voters_neither_come_nor_go(
    tmp_path: Path, cluster: str | None, number: int, directory: bytes, listener: str, added: int, removed: int
) -> None:
    """A quorum of one. The order of faults is Apache's; a new voter that nobody finds where it should be is not taken in."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        named = AddRaftVoterRequest.Listener(name=listener, host="localhost", port=1)
        who = {"cluster_id": cluster, "voter_id": number, "voter_directory_id": directory}
        add = AddRaftVoterRequest(listeners=[named], timeout_ms=100, **who)  # type: ignore[arg-type]
        assert (await client.call(add, 1)).error_code == added
        assert (await client.call(RemoveRaftVoterRequest(**who), 0)).error_code == removed  # type: ignore[arg-type]


@on_loop
async def test_a_broker_that_is_unregistered_is_back_after_a_restart(tmp_path: Path) -> None:
    """As in Apache Kafka, where the process goes on and leads nothing."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(b"v"))
        assert (await client.call(UnregisterBrokerRequest(broker_id=7), 0)).error_code == 102
        assert (await client.call(UnregisterBrokerRequest(broker_id=1), 0)).error_code == 0
        assert (await client.call(DescribeClusterRequest(), 0)).brokers == []
        answer = await client.call(MetadataRequest(topics=[MetadataRequest.Topic(name="t")]), 9)
        assert answer.topics[0].partitions[0].leader_id == -1
        assert (await client.produce("t", batch(b"v"))).error_code == Error.NOT_LEADER_OR_FOLLOWER.code
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert (await client.produce("t", batch(b"v"))).base_offset == 1


@on_loop
async def test_producers_of_a_partition(tmp_path: Path) -> None:
    """KIP-664."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        await client.produce("t", batch(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=0, timestamp=500))
        served.append_in_transaction(
            "t", batch(b"c", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
        )
        served.partition("t").write()
        kind = DescribeProducersRequest.Topic
        asked = [
            kind(name="t", partition_indexes=[0, 9]),
            kind(name="none", partition_indexes=[0]),
            kind(name="a/b", partition_indexes=[0]),
        ]
        answer = await client.call(DescribeProducersRequest(topics=asked), 0)
        known, unknown = answer.topics[0].partitions
        rows = [(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp) for p in known.active_producers]
        assert rows == [(7, 2, 1, 501), (8, 0, 0, 1000)]
        assert [p.current_txn_start_offset for p in known.active_producers] == [-1, 2]
        assert [unknown.error_code, *(t.partitions[0].error_code for t in answer.topics[1:])] == [3, 3, 17]


@on_loop
async def test_what_has_settings(tmp_path: Path) -> None:
    """KIP-714, KIP-1142."""
    async with serving(tmp_path) as served:
        await served.topic("t")
        client = await served.connect()
        kind = IncrementalAlterConfigsRequest.Resource
        metrics = kind(resource_type=16, resource_name="m", configs=[kind.Config(name="interval.ms", value="5000")])
        group = kind(
            resource_type=32,
            resource_name="g",
            configs=[kind.Config(name="consumer.session.timeout.ms", value="50000")],
        )
        altered = await client.call(IncrementalAlterConfigsRequest(resources=[metrics, group]), 1)
        assert [each.error_code for each in altered.responses] == [0, 0]

        async def listed(*kinds: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
            answer = await client.call(ListConfigResourcesRequest(resource_types=list(kinds)), version)
            return answer.error_code, [(each.resource_type, each.resource_name) for each in answer.config_resources]

        assert await listed() == (0, [(32, "g"), (16, "m"), (8, "1"), (4, "1"), (2, "t")])
        assert await listed(2, 2) == (0, [(2, "t")])
        assert await listed(2, 0) == (Error.UNSUPPORTED_VERSION.code, [])
        assert await listed(version=0) == (0, [(16, "m")])
