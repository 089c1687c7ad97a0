"""Which client asked what, in which version, and was answered: the table in docs/compatibility.md, from a run.

Each client writes and reads every codec and, where it has an admin interface, makes, changes and deletes topics, against a
node in this process whose dispatch is watched. `make matrix` runs it and writes the table.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient  # type: ignore[import-untyped]
from kafka.admin import NewTopic as KafkaPythonTopic  # type: ignore[import-untyped]

from compat.clients import Client, Java, every_client
from compat.corpus import CODECS, corpus
from ottla.server import listener
from ottla.server.dispatch import HANDLERS, Exchange
from served import serving

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "compatibility.md"
BEGIN, END = "<!-- matrix: written by `make matrix` -->", "<!-- end of matrix -->"
RECORDS = 30

Asked = dict[str, dict[int, set[int]]]


@contextmanager
def watched_node(asked: Asked, who: list[str]) -> Iterator[str]:
    """A node on a thread of its own; every request it answers is noted under the client that runs at that moment."""
    answered = listener.Connection.answered

    def note(self: Any, exchange: Exchange) -> None:
        asked[who[0]][exchange.handler.key].add(exchange.version)
        answered(self, exchange)

    started, done, address = threading.Event(), threading.Event(), [""]

    async def run(directory: str) -> None:
        async with serving(Path(directory)) as served:
            address[0] = served.node.addresses
            started.set()
            while not done.is_set():
                await asyncio.sleep(0.05)

    listener.Connection.answered = note  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as directory:
        thread = threading.Thread(target=lambda: asyncio.run(run(directory)))
        thread.start()
        started.wait(30)
        try:
            yield address[0]
        finally:
            done.set()
            thread.join()
            listener.Connection.answered = answered  # type: ignore[method-assign]


def exercise(client: Client, address: str) -> None:
    for codec in CODECS:
        records = [record for record in corpus(f"{client.name}/{codec}") if client.carries(record)]
        records = [record for record in records if len(record.value or b"") < 100_000][:RECORDS]
        topic = f"{client.name}-{codec}"
        client.produce(topic, 0, records, codec)
        assert len(client.consume(topic, 0, 0, len(records))) == len(records)


def make_topics(names: list[str], address: str) -> None:
    wanted = [NewTopic(f"{name}-{codec}", 1, 1) for name in names for codec in CODECS]
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics(wanted).values():
        made.result(10)


def administer(client: Client, address: str) -> None:
    manage = {"confluent": manage_confluent, "kafka-python": manage_kafka_python}.get(client.name)
    if manage is not None:
        manage(address)
    elif isinstance(client, Java):
        manage_java(client)


def manage_confluent(address: str) -> None:
    admin, name = AdminClient({"bootstrap.servers": address}), "of-confluent"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)
    admin.create_partitions([NewPartitions(name, 3)])[name].result(10)
    resource = ConfigResource("topic", name)
    admin.describe_configs([resource])[resource].result(10)
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource("topic", name, incremental_configs=[change])
    admin.incremental_alter_configs([changed])[changed].result(10)
    admin.describe_cluster().result(10)
    admin.delete_topics([name])[name].result(10)


def manage_kafka_python(address: str) -> None:
    admin, name = KafkaAdminClient(bootstrap_servers=address), "of-kafka-python"
    admin.create_topics([KafkaPythonTopic(name, 1, 1)])
    admin.list_topics()
    admin.describe_cluster()
    admin.delete_topics([name])
    admin.close()


def manage_java(client: Java) -> None:
    name = f"of-{client.name}"
    client.order("create", name, 1, "")
    client.order("partitions", name, 3)
    client.order("describe", name)
    client.order("configs", "TOPIC", name)
    client.order("offset", name, 0, "latest")
    client.order("deleterecords", name, 0, 0)
    client.order("cluster")
    client.order("logdirs")
    client.order("delete", name)


def table(asked: Asked) -> str:
    names = [name for name in asked if name]
    rows = [f"| API | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for key, handler in sorted(HANDLERS.items()):
        cells = [", ".join(map(str, sorted(asked[name].get(key, ())))) or "·" for name in names]
        rows.append(f"| {handler.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    asked: Asked = defaultdict(lambda: defaultdict(set))
    who = [""]
    with watched_node(asked, who) as address:
        clients = every_client(address)
        make_topics(list(clients), address)
        for client in clients.values():
            if reason := client.why_missing():
                print(f"{client.name}: {reason}", file=sys.stderr)
                continue
            tried: list[Callable[[Client, str], None]] = [exercise, administer]
            for step in tried:
                who[0] = client.name
                step(client, address)
            client.close()
            who[0] = ""
    text = PAGE.read_text()
    inside = f"{BEGIN}\n\n{table(asked)}\n\n{END}"
    PAGE.write_text(re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: inside, text, flags=re.DOTALL))
    print(table(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main())
