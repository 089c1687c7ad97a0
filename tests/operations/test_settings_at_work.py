"""Settings of a node that show only in what it does: where logs lie, when they are flushed, where it listens."""

from __future__ import annotations

import socket
import time
from collections import Counter
from pathlib import Path

import pytest

from conftest import StartNode
from harness import Node, answers_api_versions, free_port, stop_all
from operations.speaking import Line, batch_of, eventually
from operations.tracing import needs_strace, traced


def test_partitions_spread_over_several_directories(node: StartNode, tmp_path: Path) -> None:
    """LOG-09, LOG-14: each has an identity, a lock and checkpoints of its own; all are found again."""
    places = [tmp_path / name for name in ("a", "b", "c")]
    broker = node(tmp_path / "unused", settings={"log.dirs": ",".join(map(str, places))})
    with Line(broker.address) as line:
        assert line.create("events", 30) == 0
        for partition in range(30):
            assert line.produce("events", batch_of(b"%d" % partition), partition).error_code == 0
    held = Counter(path.parent.name for place in places for path in place.glob("events-*"))
    assert held == {"a": 10, "b": 10, "c": 10}
    assert len({(place / "meta.properties").read_text().split("directory.id=")[1][:22] for place in places}) == 3
    broker.kill()
    broker.start()
    with Line(broker.address) as line:
        for partition in range(30):
            assert [record.value for record in line.records("events", partition=partition)] == [b"%d" % partition]
    assert broker.stop() == 0
    assert all((place / ".kafka_cleanshutdown").exists() for place in places)
    assert all((place / "recovery-point-offset-checkpoint").exists() for place in places)


def syncs_of(calls: list[str]) -> int:
    return sum("fsync(" in call for call in calls)


@pytest.mark.parametrize(
    ("settings", "produced", "low", "high"),
    [
        ({}, 20, 0, 0),
        ({"log.flush.interval.messages": "1"}, 20, 20, 20),
        ({"log.flush.interval.messages": "5"}, 20, 4, 4),
        ({"log.flush.interval.ms": "100"}, 20, 1, 3),
    ],
    ids=["by default never", "each", "every fifth", "after a while"],
)
def test_when_records_are_flushed(
    node: StartNode, settings: dict[str, str], produced: int, low: int, high: int
) -> None:
    """LOG-16, LOG-17: by default the page cache decides; with the flush settings, fsync comes before the ack or within
    the time that was asked for. Seen by strace at the segment's file."""
    needs_strace()
    broker = node(settings=settings)
    with Line(broker.address) as line:
        assert line.create("events") == 0
        assert line.produce("events", batch_of(b"first")).error_code == 0
        path = broker.directory / "events-0" / f"{0:020}.log"
        with traced(broker, "-P", str(path), "-e", "trace=fsync,fdatasync") as calls:
            for _ in range(produced):
                assert line.produce("events", batch_of(b"value")).error_code == 0
            if "log.flush.interval.ms" in settings:
                time.sleep(4)  # much longer than the interval and the pause between two looks at it
    assert low <= syncs_of(calls) <= high, calls


def test_topics_are_made_on_first_use(node: StartNode) -> None:
    """FTM-03: with as many partitions as `num.partitions` says; and not where that is switched off."""
    willing, unwilling = node(settings={"num.partitions": "4"}), node(settings={"auto.create.topics.enable": "false"})
    with Line(willing.address) as line:
        line.metadata("fresh", auto_create=True)
        (topic,) = eventually(lambda: [t for t in line.metadata().topics if t.name == "fresh"])
        assert len(topic.partitions) == 4
        assert line.produce("fresh", batch_of(b"value"), 3).error_code == 0
    with Line(unwilling.address) as line:
        assert line.metadata("fresh", auto_create=True).topics[0].error_code == 3
        assert not line.metadata().topics


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class Listening(Node):
    """A node with addresses of its own choice."""

    addresses: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return self.addresses[0]

    def command(self) -> list[str]:
        plain = super().command()
        at = plain.index("--listen")
        return plain[:at] + [part for each in self.addresses for part in ("--listen", each)] + plain[at + 2 :]


def listening(tmp_path: Path, *addresses: str) -> Listening:
    broker = Listening(tmp_path / "data")
    broker.addresses = addresses
    return broker


def test_ipv6_and_several_listeners(tmp_path: Path) -> None:
    """Each listener tells its clients its own address, so that they come back the way they came."""
    if not has_ipv6():
        pytest.skip("no IPv6 here")
    first, second = free_port(), free_port()
    broker = listening(tmp_path, f"127.0.0.1:{first}", f"[::1]:{second}")
    try:
        broker.start()
        for address, host, port in ((f"127.0.0.1:{first}", "127.0.0.1", first), (f"[::1]:{second}", "::1", second)):
            with Line(address) as line:
                (told,) = line.metadata().brokers
                assert (told.host, told.port) == (host, port)
                assert line.create(f"topic-{port}") == 0
                assert line.produce(f"topic-{port}", batch_of(b"value")).error_code == 0
        with Line(f"[::1]:{second}") as line:
            assert [record.value for record in line.records(f"topic-{first}")] == [b"value"]
    finally:
        stop_all([broker])


def test_localhost_is_both_addresses(tmp_path: Path) -> None:
    """FTM-01: whichever of its two addresses a client tries first, it is there."""
    port = free_port()
    if len({found[4][0] for found in socket.getaddrinfo("localhost", port)}) < 2:
        pytest.skip("localhost has only one address here")
    broker = listening(tmp_path, f"localhost:{port}")
    try:
        broker.start()
        assert answers_api_versions(f"127.0.0.1:{port}")
        assert answers_api_versions(f"[::1]:{port}")
    finally:
        stop_all([broker])
