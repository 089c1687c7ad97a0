"""Makes a golden data directory: `python tests/golden/make.py ottla|apache FILE.tar.gz`.

One is kept for each release (and for Apache Kafka), and every later version must open all of them.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from apache import kafka
from harness import Node, Server

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 20
SEGMENT_BYTES = 1 << 20


def value_of(codec: str, number: int) -> bytes:
    return f"{codec} record {number} ".encode() * 20


def fill(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    settings = {"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)}
    wanted = [NewTopic(codec, 2, 1, config=settings) for codec in CODECS]
    for made in admin.create_topics([*wanted, NewTopic("gone", 1, 1)]).values():
        made.result(20)
    admin.delete_topics(["gone"])["gone"].result(20)
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
        )
        for number in range(RECORDS):
            producer.produce(
                codec, value_of(codec, number), b"key %d" % number, number % 2, headers=[("n", b"%d" % number)]
            )
            if number % 5 == 4:
                producer.flush(20)
        if producer.flush(20):
            raise SystemExit("not everything was delivered")


def main() -> None:
    kind, target = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        server: Server = Node(data) if kind == "ottla" else kafka.Apache(data)
        server.start()
        try:
            fill(server.address)
        finally:
            server.stop()
        with tarfile.open(target, "w:gz") as archive:
            archive.add(data, "data")


if __name__ == "__main__":
    main()
