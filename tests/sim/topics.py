"""The node of the simulation and the topics it serves, as all who take part know them.

safe    flush.messages=1: what is acknowledged survives a power cut
plain   Kafka's default: what is acknowledged survives a kill -9
short   small segments and retention.bytes: the start of the log moves
t0..t2  made, written to, altered and deleted, again and again under the same names
"""

from __future__ import annotations

from ottla.client.cluster import TopicPartition
from ottla.sim.checks import TopicState

NODE = "n1"
LIMIT_S = 300.0
PATIENCE_S = 250.0
SETTINGS = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "900",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.bytes": "8388608",
}
SAFE = [TopicPartition("safe", 0), TopicPartition("safe", 1)]
PLAIN = TopicPartition("plain", 0)
SHORT = TopicPartition("short", 0)
TOPICS: dict[str, TopicState] = {
    "safe": TopicState(2, (("flush.messages", "1"), ("internal.segment.bytes", "3000"), ("retention.ms", "-1"))),
    "plain": TopicState(1, (("flush.ms", "2500"), ("internal.segment.bytes", "9000"), ("retention.ms", "-1"))),
    "short": TopicState(
        1,
        (
            ("file.delete.delay.ms", "500"),
            ("internal.segment.bytes", "1200"),
            ("retention.bytes", "3000"),
            ("retention.ms", "-1"),
            ("segment.ms", "1500"),
        ),
    ),
}
VALUE_BYTES_MAX = 1400
MESSAGE_BYTES_MAX = 2000
