"""Which partition a record goes to: the same as Java's client chooses."""

from __future__ import annotations

import pytest

from ottla.client.partitioning import RoundRobin, by_key, murmur2

# Key, Utils.murmur2(key), and Utils.toPositive(that) % 12: printed by kafka-clients 4.3.1.
JAVA = [
    ("21", -973932308, 0),
    ("foobar", -790332482, 6),
    ("a-little-bit-long-string", -985981536, 8),
    ("a-little-bit-longer-string", -1486304829, 11),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 5),
    ("abc", 479470107, 3),
    ("", 275646681, 9),
    ("äöü", -2070914556, 8),
    ("k1", 1684045097, 5),
    ("k2", 380483553, 9),
    ("12345678", 338742798, 6),
]


@pytest.mark.parametrize(("key", "hashed", "partition"), JAVA)
def test_keys_go_where_java_sends_them(key, hashed, partition):
    """PRD-09: murmur2 of the key, modulo the count."""
    assert murmur2(key.encode()) == hashed % (1 << 32)
    assert by_key("topic", key.encode(), 12) == partition


def test_without_a_key_the_batch_decides():
    """PRD-10: None stands for wherever the batch being filled goes."""
    assert by_key("topic", None, 12) is None


def test_round_robin():
    """PRD-10: the older way, still to be had."""
    turn = RoundRobin()
    assert [turn("t", b"same", 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert turn("other", None, 3) == 0
