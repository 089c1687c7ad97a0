"""DescribeCluster and InitProducerId, as Apache Kafka 4.3.1 answers them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from desk import Desk, on_loop
from ottla.metadata import controller
from ottla.metadata.controller import Rules
from ottla.server.handlers.cluster import describe_cluster
from ottla.server.handlers.producer_ids import init_producer_id
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeClusterRequest
from ottla.wire.messages.transactions import InitProducerIdRequest


@on_loop
async def test_the_cluster_is_this_node(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await describe_cluster(request, desk.ctx(2, "INSIDE"))
        assert (answer.cluster_id, answer.controller_id, answer.error_code) == (desk.directories.cluster_id, 1, 0)
        assert [(b.broker_id, b.host, b.port, b.is_fenced) for b in answer.brokers] == [(1, "inside", 9094, False)]
        assert answer.cluster_authorized_operations == 8096


@on_loop
async def test_fenced_brokers_are_shown_only_to_who_asks(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        await desk.controller.propose(lambda image: controller.fence(image, 1, Rules()))
        plain = await describe_cluster(DescribeClusterRequest(), desk.ctx(2))
        assert plain.brokers == [] and plain.controller_id == -1
        asked = await describe_cluster(DescribeClusterRequest(include_fenced_brokers=True), desk.ctx(2))
        assert [(b.broker_id, b.is_fenced) for b in asked.brokers] == [(1, True)]


@on_loop
async def test_controllers_are_not_told_on_a_broker_listener(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        for kind, error in ((2, Error.MISMATCHED_ENDPOINT_TYPE), (9, Error.UNSUPPORTED_ENDPOINT_TYPE)):
            answer = await describe_cluster(DescribeClusterRequest(endpoint_type=kind), desk.ctx(2))
            assert (answer.error_code, answer.cluster_id, answer.brokers) == (error.code, "", [])


@on_loop
async def test_producer_ids_are_unique_also_over_restarts_and_blocks(tmp_path: Path) -> None:
    """IDM-01, PRT-10."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-5)
    given: list[int] = []
    for _ in range(2):
        async with Desk(tmp_path) as desk:
            answers = await asyncio.gather(*(init_producer_id(request, desk.ctx()) for _ in range(1500)))
            assert all(answer.error_code == 0 and answer.producer_epoch == 0 for answer in answers)
            given += [answer.producer_id for answer in answers]
            assert desk.quorum.image.next_producer_id % 1000 == 0
    assert len(set(given)) == 3000 and min(given) == 0


@on_loop
async def test_what_init_producer_id_refuses(tmp_path: Path) -> None:
    async with Desk(tmp_path) as desk:
        for transactional_id, producer_id, epoch, timeout, error in (
            (None, 5, -1, 1000, Error.INVALID_REQUEST),
            (None, -1, 3, 1000, Error.INVALID_REQUEST),
            ("", -1, -1, 1000, Error.INVALID_REQUEST),
            ("t", -1, -1, 0, Error.INVALID_TRANSACTION_TIMEOUT),
            ("t", -1, -1, 900_001, Error.INVALID_TRANSACTION_TIMEOUT),
            (None, 5, 3, 1000, Error.NONE),
        ):
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_timeout_ms=timeout,
            )
            answer = await init_producer_id(request, desk.ctx(5))
            assert answer.error_code == error.code
            if error is not Error.NONE:
                assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
