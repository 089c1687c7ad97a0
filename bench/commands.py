"""A command from its call to its end: each broker's own `kafka-topics.sh` lists the topics."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from apache import kafka
from bench import client
from bench.scenes import Size, Tally, rounds
from harness import Node, Server

LINES = frozenset({"command"})


def commands(server: Server, size: Size, tally: Tally) -> None:
    server.start()
    client.make_topic(server, "first")
    arguments = "--bootstrap-server", server.address, "--list"
    for is_measured in rounds(size):
        began = time.monotonic()
        if isinstance(server, Node):
            ours = Path(sys.executable).with_name("kafka-topics.sh")
            told = subprocess.run([ours, *arguments], capture_output=True, text=True, check=True).stdout
        else:
            told = kafka.run_tool("org.apache.kafka.tools.TopicCommand", *arguments)
        assert told.split() == ["first"]
        if is_measured:
            tally.add("command", time.monotonic() - began)
    server.stop()
