"""Topics under every name that Kafka allows."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from desk import on_loop
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.topics import CreateTopicsRequest
from served import batch, serving, values

LEGAL = [string.ascii_lowercase, string.ascii_uppercase, string.digits, "a.b-c_d", "-", "_", "...", "x" * 249]
ILLEGAL = ["", ".", "..", "a b", "a/b", "ü", "a\0", "x" * 250, "a:b", "a,b"]


def wanted(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


@on_loop
async def test_names_that_are_allowed_work_everywhere(tmp_path: Path) -> None:
    """LOG-01, LOG-09: created, listed, written, read, and each in a directory of its name; the same after a restart."""
    async with serving(tmp_path) as served:
        client = await served.connect()
        for name in LEGAL:
            assert (await client.call(wanted(name), 5)).topics[0].error_code == 0, name
            assert (await client.produce(name, batch(name.encode()))).base_offset == 0
    assert {path.name for path in (tmp_path / "data").iterdir() if path.name.endswith("-0")} == {
        *(f"{name}-0" for name in LEGAL),
        "__cluster_metadata-0",
    }
    async with serving(tmp_path) as served:
        client = await served.connect()
        listed = await client.call(MetadataRequest(topics=None), 9)
        assert {topic.name for topic in listed.topics} == set(LEGAL)
        for name in LEGAL:
            assert values((await client.fetch(name, 0)).records) == [name.encode()]


@pytest.mark.parametrize("name", ILLEGAL)
@on_loop
async def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    """LOG-01"""
    async with serving(tmp_path) as served:
        client = await served.connect()
        assert (await client.call(wanted(name), 5)).topics[0].error_code == 17
        assert (await client.call(MetadataRequest(topics=None), 9)).topics == []
