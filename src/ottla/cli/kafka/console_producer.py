"""kafka-console-producer.sh: lines of standard input become records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ottla.cli.kafka.line_reader import Line, LineReader
    from ottla.client.producer import Producer, Sent

    UnderWay = asyncio.Queue[asyncio.Future[Sent] | None]

UNDER_WAY_MAX = 10_000
READERS = ("org.apache.kafka.tools.LineMessageReader", "kafka.tools.ConsoleProducer$LineMessageReader")
READER_PROPERTIES = (
    "A mechanism to pass user-defined properties in the form key=value to the message reader. This allows custom "
    "configuration for a user-defined message reader.\nDefault properties include:\n parse.key=false\n parse.headers=false\n"
    " ignore.error=false\n key.separator=\\t\n headers.delimiter=\\t\n headers.separator=,\n headers.key.separator=:\n"
    " null.marker=   When set, any fields (key, value and headers) equal to this will be replaced by null\n"
    "Default parsing pattern when:\n parse.headers=true and parse.key=true:\n"
    '  "h1:v1,h2:v2...\\tkey\\tvalue"\n parse.key=true:\n  "key\\tvalue"\n parse.headers=true:\n  "h1:v1,h2:v2...\\tvalue"'
)
SIZES = (
    "The buffer size in bytes allocated for a partition. When records are received which are smaller than this size the "
    "producer will attempt to optimistically group them together until this size is reached. This is the option to control "
    "batch.size in producer configs. "
)
GOING = "This option will be removed in a future version. Use"

PARSER = Parser(
    "This tool helps to read data from standard input and publish it to Kafka.",
    takes("topic", "REQUIRED: The topic name to produce messages to.", "topic"),
    takes(
        "bootstrap-server",
        "REQUIRED: The server(s) to connect to. The broker list string in the form HOST1:PORT1,HOST2:PORT2.",
        "server to connect to",
    ),
    flag("sync", "If set message send requests to the brokers are synchronously, one at a time as they arrive."),
    takes(
        "compression-codec",
        "The compression codec: either 'none', 'gzip', 'snappy', 'lz4', or 'zstd'.If specified without value, then it "
        "defaults to 'gzip'",
        "compression-codec",
        is_optional=True,
    ),
    takes(
        "batch-size",
        f"{SIZES}Please note that this option will be replaced if max-partition-memory-bytes is also set.",
        "size",
        kind="Integer",
        default=16384,
    ),
    takes(
        "message-send-max-retries",
        "Brokers can fail receiving the message for multiple reasons, and being unavailable transiently is just one of "
        "them. This property specifies the number of retries before the producer give up and drop this message. This is "
        "the option to control `retries` in producer configs.",
        kind="Integer",
        default=3,
    ),
    takes(
        "retry-backoff-ms",
        "Before each retry, the producer refreshes the metadata of relevant topics. Since leader election takes a bit of "
        "time, this property specifies the amount of time that the producer waits before refreshing the metadata. This is "
        "the option to control `retry.backoff.ms` in producer configs.",
        kind="Long",
        default=100,
    ),
    takes(
        "timeout",
        "If set and the producer is running in asynchronous mode, this gives the maximum amount of time a message will "
        "queue awaiting sufficient batch size. The value is given in ms. This is the option to control `linger.ms` in "
        "producer configs.",
        "timeout_ms",
        kind="Long",
        default=1000,
    ),
    takes(
        "request-required-acks",
        "The required `acks` of the producer requests",
        "request required acks",
        default="-1",
    ),
    takes(
        "request-timeout-ms",
        "The ack timeout of the producer requests. Value must be non-negative and non-zero.",
        "request timeout ms",
        kind="Integer",
        default=1500,
    ),
    takes(
        "metadata-expiry-ms",
        "The period of time in milliseconds after which we force a refresh of metadata even if we haven't seen any "
        "leadership changes. This is the option to control `metadata.max.age.ms` in producer configs.",
        "metadata expiration interval",
        kind="Long",
        default=300000,
    ),
    takes(
        "max-block-ms",
        "The max time that the producer will block for during a send request.",
        "max block on send",
        kind="Long",
        default=60000,
    ),
    takes(
        "max-memory-bytes",
        "The total memory used by the producer to buffer records waiting to be sent to the server. This is the option to "
        "control `buffer.memory` in producer configs.",
        "total memory in bytes",
        kind="Long",
        default=33554432,
    ),
    takes(
        "max-partition-memory-bytes",
        f"(Deprecated) {SIZES}This option will be removed in Apache Kafka 5.0. Use --batch-size instead.",
        "memory in bytes per partition",
        kind="Integer",
        default=16384,
    ),
    takes(
        "line-reader",
        "The class name of the class to use for reading lines from standard in. By default each line is read as a separate "
        "message.",
        "reader_class",
        default=READERS[0],
    ),
    takes(
        "socket-buffer-size",
        "The size of the tcp RECV size. This is the option to control `send.buffer.bytes` in producer configs.",
        "size",
        kind="Integer",
        default=102400,
    ),
    takes("property", f"(DEPRECATED) {READER_PROPERTIES}\n {GOING} --reader-property instead.", "prop"),
    takes("reader-property", READER_PROPERTIES, "prop"),
    takes(
        "reader-config",
        "Config properties file for the message reader. Note that [reader-property] takes precedence over this config.",
        "config file",
    ),
    takes(
        "producer-property",
        f"(DEPRECATED) Producer config properties in the form key=value. {GOING} --command-property instead.",
        "producer_prop",
    ),
    takes("command-property", "Producer config properties in the form key=value.", "producer_prop"),
    takes(
        "producer.config",
        "(DEPRECATED) Producer config properties file. Note that [command-property] takes precedence over this config. "
        f"{GOING} --command-config instead.",
        "config file",
    ),
    takes(
        "command-config",
        "Producer config properties file. Note that [command-property] takes precedence over this config.",
        "config file",
    ),
    mistake=Usage,
)
# The old name of an option, the new one, and until when the old one lives.
RENAMED = (
    ("producer.config", "command-config", "a future version"),
    ("producer-property", "command-property", "a future version"),
    ("property", "reader-property", "a future version"),
    ("max-partition-memory-bytes", "batch-size", "Apache Kafka 5.0"),
)
# Options that set a producer's settings, unless those were given by name.
SETTINGS = {
    "timeout": "linger.ms",
    "request-required-acks": "acks",
    "request-timeout-ms": "request.timeout.ms",
    "message-send-max-retries": "retries",
    "retry-backoff-ms": "retry.backoff.ms",
    "max-memory-bytes": "buffer.memory",
    "batch-size": "batch.size",
    "max-partition-memory-bytes": "batch.size",
    "max-block-ms": "max.block.ms",
}


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _produce)


def _produce(options: Options) -> None:
    import asyncio

    from ottla.cli.kafka.client_settings import pairs, producer_options, transactional_options
    from ottla.cli.kafka.connecting import cluster_of, properties_of
    from ottla.cli.kafka.line_reader import LineReader

    _check(options)
    settings = producer_settings(options)
    if options.text("line-reader") not in READERS:
        raise Failed(f"java.lang.ClassNotFoundException: {options.text('line-reader')}")
    given = options.values("reader-property") or options.values("property")
    reader = LineReader(properties_of(options.value("reader-config")) | pairs(given))
    settings.setdefault("client.id", "console-producer")
    if options.has("sync"):
        settings["linger.ms"] = "0"
    cluster = cluster_of(options.text("bootstrap-server"), settings)
    in_transactions = transactional_options(settings)

    async def work() -> None:
        from ottla.client.producer import Producer

        async with cluster:
            producer = Producer(cluster, **producer_options(settings))
            if in_transactions:
                await _refuse_first(producer, options.text("topic"), reader)
            else:
                await _send_all(producer, options.text("topic"), reader, options.has("sync"))

    asyncio.run(work())


def _check(options: Options) -> None:
    options.require("topic")
    if not options.has("bootstrap-server"):
        raise Usage("Error while validating the bootstrap address\n")
    for old, new, _ in RENAMED[:3]:
        if options.has(old) and options.has(new):
            first, second = sorted((old, new), key=lambda name: name != new)
            raise Usage(f"Options --{first} and --{second} cannot be specified together.")
    for old, new, until in RENAMED:
        if options.has(old):
            print(f"Warning: --{old} is deprecated and will be removed in {until}. Use --{new} instead.")


def producer_settings(options: Options) -> dict[str, str]:
    """What was said by name, and what the other options say where nothing was."""
    from ottla.cli.kafka.client_settings import pairs
    from ottla.cli.kafka.connecting import properties_of

    settings = properties_of(options.value("command-config") or options.value("producer.config"))
    settings |= pairs(options.values("command-property") or options.values("producer-property"))
    for option, name in SETTINGS.items():
        if options.has(option) or name not in settings:
            value = options.number(option) if PARSER.by_name[option].kind != "String" else options.value(option)
            settings[name] = str(value)
    if options.has("batch-size") and not options.has("max-partition-memory-bytes"):
        settings["batch.size"] = options.text("batch-size")
    if options.has("compression-codec"):
        settings["compression.type"] = options.value("compression-codec") or "gzip"
    return settings


async def _refuse_first(producer: Producer, topic: str, reader: LineReader) -> None:
    """With a transactional id Apache Kafka's tool fails at its first record: it never begins a transaction. One that wrote
    without any would promise what it does not do."""
    from ottla.cli.produce import lines

    async for text in lines(sys.stdin.fileno()):
        key, count = reader.read(text).key, await producer.cluster.partition_count(topic, create=True)
        place = f"{topic}-{producer.partitioner(topic, key, count) or 0}"
        why = f"Cannot add partition {place} to transaction before completing a call to initTransactions"
        raise Failed(f"java.lang.IllegalStateException: {why}")


async def _send_all(producer: Producer, topic: str, reader: LineReader, is_sync: bool) -> None:
    """Without --sync a record that fails is told of, and the others go on."""
    import asyncio

    from ottla.cli.produce import lines

    under_way: UnderWay = asyncio.Queue(UNDER_WAY_MAX)
    watcher = asyncio.create_task(_tell_failures(topic, under_way))
    prompts = sys.stdin.isatty() and sys.stdout.isatty()
    try:
        _prompt(prompts)
        async for text in lines(sys.stdin.fileno()):
            line = reader.read(text)
            await _send(producer, topic, line, None if is_sync else under_way)
            _prompt(prompts)
    finally:
        await producer.flush()
        await under_way.put(None)
        await watcher


async def _send(producer: Producer, topic: str, line: Line, under_way: UnderWay | None) -> None:
    import asyncio

    from ottla.wire.errors import KafkaError

    try:
        sent = await producer.post(topic, line.value, line.key, line.headers)
    except KafkaError as error:
        if under_way is None:
            raise
        sent = asyncio.get_running_loop().create_future()
        sent.set_exception(error)
    await (sent if under_way is None else under_way.put(sent))


def _prompt(prompts: bool) -> None:
    if prompts:
        sys.stdout.write(">")
        sys.stdout.flush()


async def _tell_failures(topic: str, under_way: UnderWay) -> None:
    from ottla.wire.errors import KafkaError

    while (sent := await under_way.get()) is not None:
        try:
            await sent
        except (KafkaError, OSError) as error:
            said = error.message if isinstance(error, KafkaError) else error
            print(f"ERROR Error when sending message to topic {topic}: {said}", file=sys.stderr)
