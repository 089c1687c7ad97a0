"""Tasks that write while their broker is away: they wait for it, as those that read do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from harness import Node
from ottla.client.admin import Admin
from ottla.pipeline import sink
from spark_topics import Topics

SCHEMA = StructType().add("value", BinaryType())
AWAY_SECONDS = 1.0
SECONDS = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "data")
    topics = Topics(made.start().address)
    topics.make("written", 2)
    topics.close()
    yield made
    made.kill()


def write(address: str) -> sink.Message:
    rows = pa.record_batch({"value": pa.array([b"a", b"b"], pa.binary())})
    options = {"kafka.bootstrap.servers": address, "topic": "written"}
    return sink.stream_writer(options, SCHEMA, False).write(iter([rows]))


def written_when_it_is_back(node: Node, gone: threading.Event) -> bool:
    """The task runs beside this thread, which has to be the one that starts the node: it dies with its thread."""
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(write, node.address)
        assert gone.wait(SECONDS)
        time.sleep(AWAY_SECONDS)
        node.start()
        return bool(task.result(SECONDS).parcel.entries)


def test_a_broker_that_is_away_is_waited_for_longer_than_a_topic(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "TOPIC_SECONDS", AWAY_SECONDS / 5)
    node.kill()
    gone = threading.Event()
    gone.set()
    assert written_when_it_is_back(node, gone)


def test_a_broker_that_goes_away_between_two_questions_is_asked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, gone = Admin.configs, threading.Event()

    async def leaving_first(self: Admin, name: str, *more: Any) -> Any:
        if not gone.is_set():
            node.kill()
            gone.set()
        return await configs(self, name, *more)

    monkeypatch.setattr(Admin, "configs", leaving_first)
    assert written_when_it_is_back(node, gone)
