"""Each client reads what each client wrote: every codec, keys, headers, tombstones, values from 1 B to 1 MB.

Covers REC-02, REC-03, REC-05 with real clients, and the versions each of them picks (PRT-02, PRT-04, PRT-05, PRT-10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compat.clients import Client
from compat.corpus import CODECS, Record, corpus

NAMES = [
    "confluent",
    "aiokafka",
    "kafka-python",
    "kcat",
    pytest.param("java-4.3", marks=pytest.mark.apache),
    pytest.param("java-3.9", marks=pytest.mark.apache),
]

Written = Callable[[str, str], tuple[str, list[Record]]]


@pytest.fixture(scope="module")
def written(usable: Callable[[str], Client], topic: Callable[..., str]) -> Written:
    """Produces once per client and codec; the topic, and the records as a reader should find them."""
    done: dict[tuple[str, str], tuple[str, list[Record]]] = {}

    def write(name: str, codec: str) -> tuple[str, list[Record]]:
        if (name, codec) not in done:
            producer = usable(name)
            records = [r for r in corpus(f"{name}/{codec}") if producer.carries(r)]
            if name == "kcat":
                records = records[:24]
            where = topic(f"{name}-{codec}", max_message_bytes="2000000")
            producer.produce(where, 0, records, codec)
            done[name, codec] = where, [producer.written(r) for r in records]
        return done[name, codec]

    return write


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", NAMES)
def test_reads_what_the_other_wrote(
    writer: str, codec: str, reader: str, usable: Callable[[str], Client], written: Written
) -> None:
    """REC-03, REC-05: every codec, with Java, librdkafka and Python on either side; keys, headers, tombstones."""
    where, expected = written(writer, codec)
    consumer = usable(reader)
    seen = consumer.consume(where, 0, 0, len(expected))
    assert [s.offset for s in seen] == list(range(len(expected)))
    for found, wanted in zip(seen, expected, strict=True):
        record = found.record if wanted.timestamp_ms else replace(found.record, timestamp_ms=0)
        assert record == consumer.read(wanted)


@pytest.mark.parametrize("reader", NAMES)
def test_reads_from_the_middle_of_a_batch(reader: str, usable: Callable[[str], Client], written: Written) -> None:
    """PRT-15, LOG-12: an offset inside a batch gives the whole batch; the client drops what comes before."""
    where, expected = written("confluent", "zstd")
    middle = len(expected) - 20
    seen = usable(reader).consume(where, 0, middle, 20)
    assert [s.offset for s in seen] == list(range(middle, middle + 20))
    assert [s.record.value for s in seen] == [r.value for r in expected[middle:]]
