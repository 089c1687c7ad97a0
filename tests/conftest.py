"""Fixtures that start real servers: our node, and Apache Kafka beside it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from apache import kafka
from harness import Node, running_logs, stop_all

# The same examples in every run, so that a run says something about the change and not about luck; `make search` looks for
# others. No deadline: machines are slow now and then.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("OTTLA_EXAMPLES", "steady"))

# Clients that a test has left running say for ever that their broker is gone. Other tests of the process look at what our own
# code has logged.
for library in ("kafka", "aiokafka"):
    logging.getLogger(library).setLevel(logging.CRITICAL)

StartNode = Callable[..., Node]
RunTool = Callable[..., str]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one node of ours, shared by the whole run. OTTLA_TEST_BOOTSTRAP names another broker instead."""
    if given := os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        yield given
        return
    node = Node(tmp_path_factory.mktemp("broker") / "data")
    try:
        yield node.start().address
    finally:
        stop_all([node])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes of ours: `node(settings={...})` on a new directory, `node(data=path)` on one that exists."""
    nodes: list[Node] = []

    def start(
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        port: int | None = None,
    ) -> Node:
        made = Node(data or tmp_path / f"node{len(nodes)}", port, settings, options)
        nodes.append(made)
        made.start()
        return made

    yield start
    stop_all(nodes)


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.Apache]:
    """One Apache Kafka 4.3.1 node, shared by the whole run."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    made = kafka.Apache(tmp_path_factory.mktemp("apache") / "data")
    try:
        made.start()
        yield made
    finally:
        stop_all([made])


@pytest.fixture(scope="session")
def apache_tool() -> RunTool:
    """Runs one of Apache Kafka's tools: `apache_tool("org.apache.kafka.tools.TopicCommand", "--list", ...)`."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    return kafka.run_tool


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows the end of the log of each server that runs beside it."""
    report: pytest.TestReport = yield
    if report.failed and {"broker", "node", "apache"} & set(getattr(item, "fixturenames", ())):
        report.sections.extend(running_logs())
    return report
