"""kafka-delete-records.sh: moves the start of partitions up to the offsets named in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.kafka.options import Failed, Options, Parser, run, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.admin import Admin
    from ottla.client.cluster import TopicPartition

PARSER = Parser(
    "This tool helps to delete records of the given partitions down to the specified offset.",
    takes("bootstrap-server", "REQUIRED: The server to connect to.", "server(s) to use for bootstrapping"),
    takes(
        "offset-json-file",
        "REQUIRED: The JSON file with offset per partition. The format to use is:\n"
        '{"partitions":\n  [{"topic": "foo", "partition": 1, "offset": 1}],\n "version":1\n}',
        "Offset json file path",
    ),
    takes(
        "command-config",
        "A property file containing configs to be passed to Admin Client.",
        "command config property file path",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _delete)


def _delete(options: Options) -> None:
    from ottla.cli.kafka.connecting import with_admin

    options.require("bootstrap-server", "offset-json-file")
    path = options.text("offset-json-file")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        raise Failed(f"Unable to read file {path}")
    with_admin(options.text("bootstrap-server"), options.value("command-config"), lambda admin: _run(admin, plan(text)))


def plan(text: str) -> dict[TopicPartition, int]:
    """The offsets of the file by partition."""
    from ottla.client.cluster import TopicPartition

    found: dict[TopicPartition, int] = {}
    repeated: dict[str, None] = {}
    for topic, partition, offset in _rows(text):
        where = TopicPartition(topic, partition)
        if where in found:
            repeated[f"{topic}-{partition}"] = None
        found[where] = offset
    if repeated:
        raise Failed(f"Offset json file contains duplicate topic partitions: {','.join(repeated)}")
    return found


def _rows(text: str) -> list[tuple[str, int, int]]:
    import json

    try:
        said = json.loads(text)
    except ValueError:
        raise Failed("The input string is not a valid JSON")
    if not isinstance(said, dict) or said.get("version", 1) != 1:
        version = said.get("version") if isinstance(said, dict) else said
        raise Failed(f"Not supported version field value {version}")
    if "partitions" not in said:
        raise Failed("Missing partitions field")
    return [
        (str(_of(row, "topic", str)), _of(row, "partition", int), _of(row, "offset", int)) for row in said["partitions"]
    ]


def _of(row: Any, name: str, kind: type) -> Any:
    if not isinstance(row, dict) or name not in row:
        raise Failed(f"No such field exists: `{name}`")
    if not isinstance(row[name], kind):
        raise Failed(f"Expected `{kind.__name__}` value, received {row[name]!r}")
    return row[name]


async def _run(admin: Admin, offsets: dict[TopicPartition, int]) -> None:
    from ottla.cli.kafka.java_errors import java_text
    from ottla.wire.errors import KafkaError

    print("Executing records delete operation")
    print("Records delete operation completed:")
    for where, offset in offsets.items():
        name = f"{where.topic}-{where.partition}"
        try:
            starts = await admin.delete_records({where: offset})
            print(f"partition: {name}\tlow_watermark: {starts[where]}")
        except KafkaError as error:
            print(f"partition: {name}\terror: {java_text(error)}")
