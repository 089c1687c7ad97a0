"""FindCoordinator: who coordinates what, and the topics that are made for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from desk import on_loop
from ottla.metadata.image import TOPIC, Image
from ottla.metadata.records import PartitionRecord, RegisterBrokerRecord, TopicRecord
from ottla.metadata.replay import replay
from ottla.server.handlers.finding import GROUP, SHARE, TRANSACTION, find_coordinator
from ottla.wire.errors import Error
from ottla.wire.messages.groups import FindCoordinatorRequest
from served import serving

SMALL = {"transaction.state.log.num.partitions": "5", "transaction.state.log.segment.bytes": "2097152"}


@on_loop
async def test_the_topic_of_transactions_is_made_as_apache_makes_it(tmp_path: Path) -> None:
    """TXN-07: when the first coordinator of a transactional id is looked for, and not before."""
    async with serving(tmp_path, SMALL) as served:
        client, quorum = await served.connect(), served.node.quorum
        assert quorum.image.topic("__transaction_state") is None
        request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["one", "two", ""])
        found = (await client.call(request, 4)).coordinators
        assert [(one.key, one.error_code, one.node_id) for one in found] == [("one", 0, 1), ("two", 0, 1), ("", 0, 1)]
        topic = quorum.image.topic("__transaction_state")
        assert topic is not None
        assert len(topic.partitions) == 5
        assert dict(quorum.image.configs(TOPIC, topic.name)) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "2097152",
            "unclean.leader.election.enable": "false",
        }


@on_loop
async def test_no_transaction_begins_with_fewer_brokers_than_copies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients try again without a word: the log says which setting is to blame."""
    async with serving(tmp_path, {"transaction.state.log.replication.factor": "3"}) as served:
        client = await served.connect()
        found = await client.call(FindCoordinatorRequest(key_type=TRANSACTION, key="one"), 1)
        assert found.error_code == Error.COORDINATOR_NOT_AVAILABLE.code
        assert (found.node_id, found.host, found.port) == (-1, "", -1)
        assert "transaction.state.log.replication.factor" in caplog.text


@pytest.mark.parametrize(("fenced", "listener"), [(True, "PLAINTEXT"), (False, "INSIDE")])
@on_loop
async def test_a_coordinator_that_cannot_be_reached_is_not_told(fenced: bool, listener: str) -> None:
    """It is fenced, or has no address on the listener that the client came in on."""
    topic_id, endpoint = b"t" * 16, RegisterBrokerRecord.BrokerEndpoint(name="PLAINTEXT", host="here", port=1)
    records = [
        RegisterBrokerRecord(broker_id=1, end_points=[endpoint], fenced=fenced),
        TopicRecord(name="__consumer_offsets", topic_id=topic_id),
        PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1),
    ]
    ctx: Any = SimpleNamespace(image=replay(Image(), records, 3, 1)[0], listener=listener, version=4)
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    (found,) = (await find_coordinator(request, ctx)).coordinators
    assert (found.error_code, found.node_id) == (Error.COORDINATOR_NOT_AVAILABLE.code, -1)


@pytest.mark.parametrize("version", range(7))
@on_loop
async def test_kinds_of_keys(tmp_path: Path, version: int) -> None:
    """Version 0 asks for groups only; a share partition is named by group, topic id and index from version 6 on."""
    async with serving(tmp_path, SMALL | {"offsets.topic.num.partitions": "1"}) as served:
        client = await served.connect()
        errors = []
        for kind, key in ((GROUP, "x"), (TRANSACTION, "x"), (SHARE, "g:AAAAAAAAAAAAAAAAAAAAAQ:1"), (9, "x")):
            asked = FindCoordinatorRequest(key=key, coordinator_keys=[key], key_type=kind)
            answer = await client.call(asked, version)
            errors.append(answer.coordinators[0].error_code if version >= 4 else answer.error_code)
        share = Error.COORDINATOR_NOT_AVAILABLE if version >= 6 else Error.INVALID_REQUEST
        assert errors == ([0] * 4 if version == 0 else [0, 0, share.code, Error.INVALID_REQUEST.code])
