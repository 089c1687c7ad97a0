"""Apache Kafka's command-line tools against our node, as an operator would run them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from apache import kafka
from compat.clients import Confluent
from compat.corpus import Record

pytestmark = pytest.mark.apache

Topic = Callable[..., str]
RunTool = Callable[..., str]
TOOLS = "org.apache.kafka.tools."
LINES = "".join(f"key{n}\tvalue {n}\n" for n in range(200))


@pytest.fixture(params=["4.3", "3.9"])
def tool(request: pytest.FixtureRequest) -> RunTool:
    jars = kafka.JARS if request.param == "4.3" else kafka.JARS_39
    if reason := kafka.why_missing(jars):
        pytest.skip(reason)
    return partial(kafka.run_tool, jars=jars)


def test_console_producer_and_consumer(tool: RunTool, apache_tool: RunTool, broker: str, topic: Topic) -> None:
    """CLI-03: the first two commands of every introduction, the consumer in assign mode (3.9 has no producer here)."""
    where = topic("console")
    keyed = ["parse.key=true", "key.separator=\t"]
    properties = [part for p in keyed for part in ("--property", p)]
    apache_tool(TOOLS + "ConsoleProducer", "--bootstrap-server", broker, "--topic", where, *properties, stdin=LINES)
    consumer = [TOOLS + "consumer.ConsoleConsumer", "--bootstrap-server", broker, "--topic", where]
    place = ["--partition", "0", "--offset", "50", "--max-messages", "150", "--timeout-ms", "15000"]
    shown = tool(*consumer, *place, "--property", "print.key=true", "--property", "print.offset=true")
    records = [line for line in shown.splitlines() if not line.startswith("Option --property is deprecated")]
    assert records == [f"Offset:{n}\tkey{n}\tvalue {n}" for n in range(50, 200)]


def test_producer_performance(tool: RunTool, broker: str, topic: Topic) -> None:
    where = topic("perf")
    props = ["--producer-props", f"bootstrap.servers={broker}", "compression.type=lz4"]
    said = tool(
        TOOLS + "ProducerPerformance",
        "--topic",
        where,
        "--num-records",
        "20000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        *props,
    )
    assert "20000 records sent" in said


def test_verifiable_producer(tool: RunTool, broker: str, confluent: Confluent, topic: Topic) -> None:
    where = topic("verifiable")
    option = "--bootstrap-server"
    said = tool(
        TOOLS + "VerifiableProducer",
        option,
        broker,
        "--topic",
        where,
        "--max-messages",
        "500",
        "--throughput",
        "-1",
        "--acks",
        "-1",
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    sent = [e for e in events if e["name"] == "producer_send_success"]
    assert sorted(e["offset"] for e in sent) == list(range(500))
    seen = confluent.consume(where, 0, 0, 500)
    assert sorted(int(s.record.value or b"") for s in seen) == list(range(500))


def test_offsets_tool(tool: RunTool, broker: str, confluent: Confluent, topic: Topic) -> None:
    where = topic("ends", partitions=2)
    confluent.produce(where, 1, [Record(None, b"x")] * 7, "none")
    shown = tool(TOOLS + "GetOffsetShell", "--bootstrap-server", broker, "--topic", where, "--time", "-1")
    assert sorted(shown.split()) == [f"{where}:0:0", f"{where}:1:7"]


def test_topics_and_configs_tools(broker: str, apache_tool: RunTool, topic: Topic) -> None:
    """CLI-02, CLI-11, TRAP-74: with what 4.x prints about eligible leaders."""
    where = topic("tools", partitions=3, segment_bytes="2000000")
    described = apache_tool(TOOLS + "TopicCommand", "--bootstrap-server", broker, "--describe", "--topic", where)
    assert re.search(r"PartitionCount:\s*3", described)
    rows = re.findall(r"Partition:\s*(\d+)\s+Leader:\s*1\s+Replicas:\s*1\s+Isr:\s*1\s+Elr:\s*LastKnownElr:", described)
    assert rows == ["0", "1", "2"]
    assert "segment.bytes=2000000" in described
    change = ["--alter", "--entity-type", "topics", "--entity-name", where, "--add-config", "retention.ms=12345678"]
    apache_tool("kafka.admin.ConfigCommand", "--bootstrap-server", broker, *change)
    shown = apache_tool(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        broker,
        "--describe",
        "--entity-type",
        "topics",
        "--entity-name",
        where,
    )
    assert "retention.ms=12345678" in shown


def test_api_versions_tool(broker: str, apache_tool: RunTool) -> None:
    """CLI-15, PRT-01: the tool knows every API we name, and prints a range for each."""
    shown = apache_tool(TOOLS + "BrokerApiVersionsCommand", "--bootstrap-server", broker)
    assert "Produce(0): " in shown
    assert "UNKNOWN" not in shown


def test_delete_records_tool(
    broker: str, apache_tool: RunTool, confluent: Confluent, topic: Topic, tmp_path: Path
) -> None:
    where = topic("cut-by-tool")
    confluent.produce(where, 0, [Record(None, b"x")] * 30, "none")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": where, "partition": 0, "offset": 12}]}))
    shown = apache_tool(TOOLS + "DeleteRecordsCommand", "--bootstrap-server", broker, "--offset-json-file", str(plan))
    assert "low_watermark: 12" in shown
