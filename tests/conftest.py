"""Fixtures that start real servers: our node, and Apache Kafka beside it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from apache import kafka
from compat.members import Jvm
from harness import Node, running_logs, stop_all
from sim import figures

# The same examples in every run, so that a run says something about the change and not about luck; `make search` looks for
# others. No deadline: machines are slow now and then.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("OTTLA_EXAMPLES", "steady"))

# Clients that a test has left running say for ever that their broker is gone. Other tests of the process look at what our own
# code has logged.
for library in ("kafka", "aiokafka"):
    logging.getLogger(library).setLevel(logging.CRITICAL)

FIGURES = "figures"
StartNode = Callable[..., Node]
RunTool = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Simulations first: a file is played by one process, theirs take minutes, and what begins last is waited for alone."""
    items.sort(key=lambda item: "sim" not in item.path.parts)


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """For tests that bound the work of a node in this process: nobody looks for garbage in what other tests have left here.
    Millions of objects can be there, and one look at them takes longer than what is measured. A node of its own has none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _served(directory: Path) -> Iterator[str]:
    if given := os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        yield given
        return
    node = Node(directory)
    try:
        yield node.start().address
    finally:
        stop_all([node])


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one node of ours, shared by the whole run. OTTLA_TEST_BOOTSTRAP names another broker instead."""
    yield from _served(tmp_path_factory.mktemp("broker") / "data")


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same for one file: examples and pages name their topics, and others would meet them."""
    yield from _served(tmp_path_factory.mktemp("own-broker") / "data")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Callable[[], Jvm]]:
    """Java's own clients, for all tests of a file, started when they are first needed."""
    started: list[Jvm] = []

    def get() -> Jvm:
        if not started:
            started.append(Jvm())
        return started[0]

    yield get
    for each in started:
        each.close()


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
    """A failing test shows the end of the log of each server that runs beside it. Figures of plays travel with the report."""
    report: pytest.TestReport = yield
    report.user_properties.extend((FIGURES, noted) for noted in figures.taken())
    if report.failed and {"broker", "node", "apache"} & set(getattr(item, "fixturenames", ())):
        report.sections.extend(running_logs())
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What simulations did, of all processes that played."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    properties = [each for report in reports for each in getattr(report, "user_properties", ())]
    if told := figures.lines(noted for name, noted in properties if name == FIGURES):
        terminalreporter.section("simulated")
        for line in told:
            terminalreporter.write_line(line)
