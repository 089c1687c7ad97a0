"""ottla demo: `ottla serve` with a first record sent through it, a shop that writes, and a pipeline on Spark that counts.

The pipeline is a process of its own, as anybody would start it; what it says about itself is drawn here. It is ended before
the node, so that it finishes what it has begun, and the next demo goes on where this one was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli import serve

if TYPE_CHECKING:
    import asyncio

    from ottla.client.cluster import Cluster
    from ottla.pipeline.files.progress import State, Telling
    from ottla.server.node import Node

TOPIC = "hello"
RESULTS = ("page-counts", "decisions")
PIPELINE = Path(__file__).with_name("demo.yml")
NOISE = "WARNING: Using incubator modules"  # the JVM's word about an option that Spark starts it with
# How long a pipeline may take to finish its micro-batches, and Spark to go.
ENDS_S = 60.0

EXAMPLES = """examples:
  ottla demo                                             a node on localhost:9092, a shop, and a pipeline on Spark
  ottla demo --no-pipeline                               the node alone, and a record through it
  ottla demo --data /tmp/first --listen localhost:19092"""

NEXT = """
Ottla serves {address}, with its data in {data}. Ctrl-C stops it; the data stays. In another terminal:

  echo 'hello again' | {ottla} produce {topic}{bootstrap}
  {ottla} consume {topic} --from-beginning{bootstrap}
  {ottla} topic list{bootstrap}

Any Kafka client works as well, for example: kcat -b {address} -t {topic} -C -o beginning
"""

SHOP = """A shop writes page views and orders, and a pipeline on Spark joins and counts them ({file}):

  {ottla} consume page-counts{bootstrap}
  {ottla} group list{bootstrap}
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    serve.node_arguments(parser)
    parser.add_argument("--no-pipeline", action="store_true", help="no shop and no Spark: the node alone")


def run(args: argparse.Namespace) -> int:
    properties = serve.settings(args)
    home = None if args.no_pipeline else _home(properties)
    from ottla.server.process import Options, serve_forever

    began = time.perf_counter()

    @contextlib.asynccontextmanager
    async def beside(node: Node) -> AsyncIterator[None]:
        async with Demo(node, home, began).playing():
            yield

    return serve_forever(properties, Options(args.metrics_port, log_json=args.log_json, log_level="warning"), beside)


def _home(properties: dict[str, str]) -> Path | None:
    """The directory of the pipeline, beside the data; None if this machine cannot run one, which is said."""
    from ottla.pipeline import needs

    try:
        needs.check()
    except needs.Missing as error:
        print(f"The pipeline is left out: {error}", flush=True)
        return None
    data = Path(properties["log.dirs"].split(",")[0])
    home = data.with_name(f"{data.name}-demo")
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "pipeline.yml").exists():
        (home / "pipeline.yml").write_text(PIPELINE.read_text())
    return home


class Demo:
    def __init__(self, node: Node, home: Path | None, began: float) -> None:
        from ottla.pipeline.files.progress import Telling

        self._node, self._home, self._began = node, home, began
        self._address = node.addresses.split(",")[0]
        self._telling: Telling = Telling()
        self._states: dict[str, State] = {}

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """All of it, while the node serves."""
        from ottla.client.cluster import Cluster

        async with Cluster(self._address, client_id="ottla-demo") as cluster:
            await self._show_record(cluster)
            self._say_what_next()
            if self._home is None:
                yield
                return
            await self._make_topics(cluster)
            # The shop closes before the pipeline ends, so that there is an end of what is to be counted.
            async with self._pipeline(self._home), self._shop(cluster), self._results(cluster):
                yield

    async def _show_record(self, cluster: Cluster) -> None:
        """Send one record, and read it back."""
        from ottla.client.cluster import TopicPartition
        from ottla.client.consumer import Consumer
        from ottla.client.producer import Producer

        async with Producer(cluster, linger_ms=0) as producer:
            sent = await producer.send(TOPIC, key=b"first", value=b"hello, world")
        print(f"wrote   {TOPIC}-{sent.partition} at offset {sent.offset}, {self._since()} after the start", flush=True)
        place = TopicPartition(TOPIC, sent.partition)
        async for record in Consumer(cluster, {place: sent.offset}, ends={place: sent.offset + 1}):
            print(f"read    key {record.key!r}, value {record.value!r}", flush=True)

    def _say_what_next(self) -> None:
        bootstrap = "" if self._address == "localhost:9092" else f" -b {self._address}"
        words = {"ottla": _ottla(), "bootstrap": bootstrap, "address": self._address}
        print(NEXT.format(data=self._node.config.log_dirs[0], topic=TOPIC, **words), flush=True)
        if self._home is not None:
            print(SHOP.format(file=self._home / "pipeline.yml", **words), flush=True)

    async def _make_topics(self, cluster: Cluster) -> None:
        from ottla.cli.shop import ORDERS, VIEWS
        from ottla.client.admin import Admin

        there = set(await Admin(cluster).topics())
        for topic in (VIEWS, ORDERS, *RESULTS):
            if topic not in there:
                await Admin(cluster).create_topic(topic, partitions=1)

    @contextlib.asynccontextmanager
    async def _shop(self, cluster: Cluster) -> AsyncIterator[None]:
        from ottla.cli.shop import Shop
        from ottla.client.producer import Producer

        async with Producer(cluster) as producer:
            writing = self._node.spawn(Shop(producer).run())
            try:
                yield
            finally:
                writing.cancel()

    @contextlib.asynccontextmanager
    async def _pipeline(self, home: Path) -> AsyncIterator[None]:
        import asyncio
        import signal
        import sys

        words = ("pipeline", "run", str(home / "pipeline.yml"), "-b", self._address, "--json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ottla", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._telling.say("Spark starts, which takes some ten seconds ...")
        watching = self._node.spawn(self._watch(process))
        try:
            yield
        finally:
            _terminate(process)
            for number in (signal.SIGINT, signal.SIGTERM):  # asked twice, it ends at once
                asyncio.get_running_loop().add_signal_handler(number, _terminate, process)
            try:
                await asyncio.wait_for(asyncio.shield(watching), ENDS_S)
            except TimeoutError:
                process.kill()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Pass on what the pipeline says, until it ends."""
        import asyncio

        assert process.stdout is not None and process.stderr is not None
        await asyncio.gather(self._draw(process.stdout), self._pass_on(process.stderr))
        if (code := await process.wait()) > 0:
            self._telling.say(f"the pipeline has ended with {code}; the node goes on")

    async def _draw(self, stream: asyncio.StreamReader) -> None:
        import json

        from ottla.pipeline.files.progress import State

        async for line in stream:
            told = json.loads(line)
            told.pop("at")
            state = self._states[told["name"]] = State(**told)
            self._telling.changed(state)
            self._telling.draw(list(self._states.values()))

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").rstrip()
            if not text.startswith(NOISE):
                self._telling.say(text)

    @contextlib.asynccontextmanager
    async def _results(self, cluster: Cluster) -> AsyncIterator[None]:
        watching = [self._node.spawn(self._tell_first(cluster, topic)) for topic in RESULTS]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()

    async def _tell_first(self, cluster: Cluster, topic: str) -> None:
        from ottla.client.cluster import LATEST, TopicPartition
        from ottla.client.consumer import Consumer

        async for record in Consumer(cluster, {TopicPartition(topic, 0): LATEST}, read_committed=True):
            value = (record.value or b"").decode()
            self._telling.say(f"first result in {topic}, {self._since()} after the start: {value}")
            return

    def _since(self) -> str:
        return f"{time.perf_counter() - self._began:.2f} s"


def _terminate(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()


def _ottla() -> str:
    """How this command is called from where the reader is."""
    import shutil
    import sys

    if shutil.which("ottla"):
        return "ottla"
    path = Path(sys.argv[0])
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
