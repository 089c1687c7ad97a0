"""ottla demo: `ottla serve`, with a first record sent through it, and what to try next."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from ottla.cli import serve

if TYPE_CHECKING:
    from ottla.server.node import Node

TOPIC = "hello"

EXAMPLES = """examples:
  ottla demo                                             a node on localhost:9092, and a record through it
  ottla demo --data /tmp/first --listen localhost:19092"""

NEXT = """
Ottla serves {address}, with its data in {data}. Ctrl-C stops it; the data stays. In another terminal:

  echo 'hello again' | {ottla} produce {topic}{bootstrap}
  {ottla} consume {topic} --from-beginning{bootstrap}
  {ottla} topic list{bootstrap}

Any Kafka client works as well, for example: kcat -b {address} -t {topic} -C -o beginning
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    serve.node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    properties = serve.settings(args)
    from ottla.server.process import Options, serve_forever

    began = time.perf_counter()

    def ready(node: Node) -> None:
        node.spawn(_show(node, began))

    return serve_forever(properties, Options(args.metrics_port, log_json=args.log_json, log_level="warning"), ready)


async def _show(node: Node, began: float) -> None:
    """Send one record, read it back, and say what to try next."""
    from ottla.client.cluster import Cluster, TopicPartition
    from ottla.client.consumer import Consumer
    from ottla.client.producer import Producer

    address = node.addresses.split(",")[0]
    async with Cluster(address, client_id="ottla-demo") as cluster:
        async with Producer(cluster, linger_ms=0) as producer:
            sent = await producer.send(TOPIC, key=b"first", value=b"hello, world")
        print(f"wrote   {TOPIC}-{sent.partition} at offset {sent.offset}, {_since(began)} after the start", flush=True)
        place = TopicPartition(TOPIC, sent.partition)
        async for record in Consumer(cluster, {place: sent.offset}, ends={place: sent.offset + 1}):
            print(f"read    key {record.key!r}, value {record.value!r}", flush=True)
    bootstrap = "" if address == "localhost:9092" else f" -b {address}"
    data = node.config.log_dirs[0]
    print(NEXT.format(address=address, data=data, topic=TOPIC, bootstrap=bootstrap, ottla=_ottla()), flush=True)


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.2f} s"


def _ottla() -> str:
    """How this command is called from where the reader is."""
    import shutil
    import sys
    from pathlib import Path

    if shutil.which("ottla"):
        return "ottla"
    path = Path(sys.argv[0])
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
