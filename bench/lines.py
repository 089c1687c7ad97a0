"""What is measured, in which unit, and what is to be reached.

A goal of the first kind bounds the ratio Ottla / Apache Kafka; one of the second kind bounds Ottla's own figure,
where the other broker is no measure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    key: str
    title: str
    unit: str
    goal: str = ""
    own_goal: str = ""

    def meets(self, ottla: float, ratio: float | None) -> bool | None:
        """Whether the goal is reached; None where there is no goal, or nothing to compare with."""
        if self.own_goal:
            return _holds(ottla, self.own_goal)
        return _holds(ratio, self.goal) if self.goal and ratio is not None else None


GENERATIONS = {"gen1": "generation 1", "gen2": "generation 2"}


def _transactions(key: str, name: str) -> list[Line]:
    return [
        Line(f"txn-{key}-1", f"{name}: transactions of 1 record", "tx/s", ">= 1.0"),
        Line(f"txn-{key}-10", f"{name}: of 10 records over 6 partitions", "tx/s", ">= 1.0"),
        Line(f"txn-{key}-1000", f"{name}: of 1,000 records over 6 partitions", "tx/s", ">= 1.0"),
        Line(f"txn-{key}-crowd", f"{name}: 50 producers at once, 10 records each", "tx/s", ">= 1.0"),
        Line(f"txn-{key}-loop", f"{name}: consume, transform, produce 100 records", "tx/s", ">= 1.0"),
        Line(f"txn-{key}-added-p50", f"{name}: read_committed after read_uncommitted, p50", "us", "<= 1.0"),
        Line(f"txn-{key}-added-p99", f"{name}: read_committed after read_uncommitted, p99", "us", "<= 1.0"),
        Line(f"txn-{key}-committed-p50", f"{name}: commit to read_committed, p50", "us", "<= 1.0"),
        Line(f"txn-{key}-uncommitted-p50", f"{name}: send to read_uncommitted, p50", "us"),
    ]


LINES = [
    Line("produce-100", "bulk produce, 100 B", "msg/s", ">= 1.0"),
    Line("produce-1k", "bulk produce, 1 KiB", "msg/s", ">= 1.3"),
    Line("consume-100", "bulk consume, 100 B", "msg/s", ">= 0.95"),
    Line("consume-1k", "bulk consume, 1 KiB", "msg/s", ">= 0.9"),
    Line("small-produce", "small produces, 20 connections x 5", "req/s", ">= 1.2"),
    Line("small-fetch", "small fetches, 20 connections x 5", "req/s", ">= 1.2"),
    Line("produce-100-partitions", "produces over 100 partitions, 10 x 2", "req/s", ">= 0.7"),
    Line("ack-1k-p50", "ack at 1k/s, p50", "us", "<= 1.3"),
    Line("ack-1k-p99", "ack at 1k/s, p99", "us", "<= 1.2"),
    Line("ack-10k-p50", "ack at 10k/s, p50", "us", "<= 0.5"),
    Line("ack-10k-p99", "ack at 10k/s, p99", "us"),
    Line("ack-10k-limit", "ack at 10k/s of a server that does nothing, p50", "us"),
    Line("start", "start to first ack", "s", "<= 0.12"),
    Line("memory-idle", "memory, idle", "MB", "<= 0.12"),
    Line("memory-loaded", "memory, after the load", "MB", "<= 0.08"),
    Line("kill", "kill -9 under load to first ack, 3 GB in 170 partitions", "s", "<= 0.2"),
    Line("fsync-produce", "acks after fsync, 20 connections x 5", "req/s", ">= 3.0"),
    Line("ten-consumers", "ten consumers of one topic", "MB/s", ">= 0.7"),
    Line("tail-quiet-p99", "tail at 1k/s, p99", "us"),
    Line("tail-replay-p99", "tail at 1k/s while 10 GB are replayed cold, p99", "us"),
    Line("tail-replay-cost", "replay over quiet, p99", "x", own_goal="<= 2"),
    Line("partitions-memory", "10,000 idle partitions, memory", "MB", "<= 0.15"),
    Line("partitions-cpu", "10,000 idle partitions, processor", "%", "<= 0.5"),
    Line("connections-memory", "5,000 idle connections, memory above base", "MB", own_goal="<= 60"),
    Line("groups-commit-cpu", "2,000 groups commit once a second, processor", "%", own_goal="<= 40"),
    Line("groups-churn-settled", "200 members, settled after a minute of coming and going", "s", own_goal="<= 10"),
    Line("groups-churn-consumer", "the same with 200 members of KIP-848", "s", own_goal="<= 10"),
    Line("offsets-load", "1 M committed offsets, from serving to all told", "s", "<= 2"),
    Line("offsets-restart", "1 M committed offsets, from start to all told", "s", "<= 2"),
    Line("compaction-seconds", "1 M records compacted while others produce", "s"),
    Line("compaction-stall", "answers during that compaction, p99.9", "ms", own_goal="<= 20"),
    Line("testing-child", "a broker for one test, to the first ack", "s", "<= 0.12"),
    Line("testing-thread", "the same on a thread of the test", "s"),
    Line("testing-renew", "the same for the next test", "s"),
    Line("command", "a command that lists the topics, from call to end", "s", own_goal="<= 0.3"),
    *(line for key, name in GENERATIONS.items() for line in _transactions(key, name)),
    Line("spark-read", "Spark: batch read of a topic", "rows/s", ">= 1.0"),
    Line("spark-group-by", "Spark: batch read and count by key", "rows/s", ">= 1.0"),
    Line("spark-stream-read", "Spark: stream read, all there is", "rows/s", ">= 1.0"),
    Line("spark-copy", "Spark: stream from topic to topic", "rows/s", ">= 0.8"),
    Line("spark-write", "Spark: batch write to a topic", "rows/s", ">= 0.8"),
    Line("spark-small-batch", "Spark: micro-batch of 80 rows, median", "ms", "<= 1.5"),
    Line("spark-small-copy", "Spark: the same from topic to topic", "ms", "<= 1.5"),
    Line("spark-empty", "Spark: a trigger that finds nothing new, median", "ms", "<= 1.5"),
    Line("spark-session", "Spark: start of the program to a session", "s"),
    Line("spark-first-row", "Spark: start of the program to first row", "s", "<= 1.1"),
    Line("cluster-produce-100", "three nodes: bulk produce, 100 B", "msg/s", ">= 0.7"),
    Line("cluster-produce-1k", "three nodes: bulk produce, 1 KiB", "msg/s", ">= 0.7"),
    Line("cluster-one", "three nodes: one record at a time", "msg/s", ">= 1.0"),
    Line("cluster-ack-p50", "three nodes: ack at 1k/s, p50", "us", "<= 1.5"),
    Line("cluster-ack-p99", "three nodes: ack at 1k/s, p99", "us", "<= 1.0"),
    Line("cluster-start", "three nodes: start of all to first ack", "s", "<= 0.2"),
    Line("cluster-memory", "three nodes: memory after the load, all together", "MB", "<= 0.2"),
    Line("cluster-idle-cpu", "three nodes: processor when idle, each", "%", own_goal="<= 3"),
    Line("cluster-failover", "three nodes: kill -9 of the leader to next ack", "s", "<= 0.1"),
    Line("cluster-failover-worst", "three nodes: the same, the worst of 20", "s"),
    Line("cluster-create", "three nodes: 10,000 partitions made", "s"),
    Line("cluster-failover-leaders", "three nodes: kill -9 of a third of 10,000 leaders, all led", "s"),
    Line("cluster-restart", "three nodes: start with 10,000 partitions until in sync", "s"),
    Line("append-growth", "append cost at 10 GB over that at 100 MB", "x", own_goal="<= 1.1"),
    Line("tail-read-growth", "tail read cost at 10 GB over that at 100 MB", "x", own_goal="<= 1.1"),
]

_TESTS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


def _holds(value: float | None, goal: str) -> bool:
    test, bound = goal.split()
    return value is not None and _TESTS[test](value, float(bound))
