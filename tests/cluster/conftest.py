"""Clusters of three. With OTTLA_CLUSTER=apache the same tests run on Apache Kafka: they ask for nothing that it cannot do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from apache import kafka
from apache.tools import ApacheTools
from cluster.nodes import DYNAMIC, ApacheMember, Cluster, Member

KIND: type[Member] = ApacheMember if os.environ.get("OTTLA_CLUSTER") == "apache" else Member
StartCluster = Callable[..., Cluster]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts clusters of three nodes: `cluster(quorum="static", settings={...})`."""
    with ExitStack() as ends:

        def start(quorum: str = DYNAMIC, settings: Mapping[str, str] | None = None) -> Cluster:
            made = Cluster(tmp_path, quorum=quorum, settings=settings, kinds=dict.fromkeys((1, 2, 3), KIND))
            return ends.enter_context(made).start()

        yield start


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("three"), kinds=dict.fromkeys((1, 2, 3), KIND)) as made:
        yield made.start()


@pytest.fixture
def three(shared: Cluster) -> Iterator[Cluster]:
    """One cluster for the tests of a file. What a test has broken when it failed is mended for the next."""
    shared.mend()
    yield shared


@pytest.fixture(scope="module")
def tools() -> Iterator[ApacheTools]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    made = ApacheTools()
    yield made
    made.close()
