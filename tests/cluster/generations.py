"""Clients of both generations of transactions (KIP-890), and a look at which one they really spoke.

The level of `transaction.version` allows generation 2, and a client has to know it as well. Of the libraries here Java's since
4.0 does; librdkafka (2.16), kafka-python and aiokafka speak generation 1 on every cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from apache import kafka
from cluster.coordination import TRANSACTION, coordinator_of
from cluster.nodes import Cluster, eventually
from compat.own_process import ConfluentOnItsOwn
from compat.peers import Peer, asking
from compat.transacting import JavaLibrary, Library, finalize
from ottla.wire.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

GENERATIONS = (1, 2)
Speakers = dict[int, Library]


@pytest.fixture(scope="module")
def speakers() -> Iterator[Speakers]:
    """For each generation a library that speaks it; brokers may be killed under its producers."""
    java = JavaLibrary("java-4.3", kafka.JARS)
    if reason := java.why_missing():
        pytest.skip(reason)
    yield {1: ConfluentOnItsOwn(), 2: java}
    java.close()


def set_generation(nodes: Cluster, generation: int) -> None:
    """Until every broker says so: a producer that asks one that has not heard of it yet speaks as before."""
    finalize(nodes.members[nodes.active_controller()].address, generation)
    for member in nodes.running:
        eventually(
            lambda at=member.address: _level(at) == generation, f"node {member.node_id} knows generation {generation}"
        )


def _level(address: str) -> int:
    told = Peer(address).ask(asking(18, 3, client_software_name="a", client_software_version="1"))
    return {row.name: int(row.max_version_level) for row in told.finalized_features}.get("transaction.version", 0)


def described(nodes: Cluster, transactional_id: str) -> Any:
    """Its coordinator's words, as soon as it has some."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

    def answer() -> Any:
        coordinator = coordinator_of(nodes, transactional_id, TRANSACTION)
        told = nodes.ask(lambda line: line.ask(request, DescribeTransactionsResponse, 0), coordinator)
        found = told.transaction_states[0]
        return None if found.error_code else found

    return eventually(answer, f"{transactional_id} is described", 60)


@contextmanager
def ends_as(nodes: Cluster, transactional_id: str, generation: int) -> Iterator[None]:
    """One transaction ends in here, and its producer speaks that generation: every end brings a new epoch, or none does."""
    before = described(nodes, transactional_id)
    yield
    after = described(nodes, transactional_id)
    assert after.producer_id == before.producer_id
    assert after.producer_epoch - before.producer_epoch == generation - 1, (
        f"{transactional_id} spoke another generation"
    )
