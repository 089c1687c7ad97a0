"""Apache Kafka's own tools, many runs in one JVM (java/Tools.java), for comparing ours with them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import NamedTuple

from apache import kafka
from harness import die_with_parent

SOURCE = Path(__file__).resolve().parent / "java" / "Tools.java"
# The class behind each of Kafka's scripts.
CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


class Ran(NamedTuple):
    """How a run of a tool ended, and what it said."""

    code: int
    out: str
    err: str


class ApacheTools:
    """Kafka's tools of 4.3.1. `run("kafka-topics", "--list", ...)`; `close` ends the JVM."""

    def __init__(self) -> None:
        command = kafka.java("-Djava.security.manager=allow", str(SOURCE), logging=kafka.logging_file("ERROR"))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
        )

    def run(self, tool: str, *arguments: object, stdin: str = "") -> Ran:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = [CLASSES[tool], _packed(stdin), *(_packed(str(argument)) for argument in arguments)]
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the JVM ended while it ran {tool} {arguments}"
        code, out, err = answer.rstrip("\n").split("\t")
        return Ran(int(code), _unpacked(out), _unpacked(err))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _unpacked(packed: str) -> str:
    return base64.b64decode(packed).decode(errors="replace")
