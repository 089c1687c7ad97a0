"""kafka-console-consumer.sh: records of topics on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from ottla.cli.kafka.formatters import Formatter

FORMATTER_PROPERTIES = (
    "The properties to initialize the message formatter. Default properties include: \n print.timestamp=true|false\n"
    " print.key=true|false\n print.offset=true|false\n print.epoch=true|false\n print.partition=true|false\n"
    " print.headers=true|false\n print.value=true|false\n key.separator=<key.separator>\n line.separator=<line.separator>\n"
    " headers.separator=<headers.separator>\n null.literal=<null.literal>\n key.deserializer=<key.deserializer>\n"
    " value.deserializer=<value.deserializer>\n header.deserializer=<header.deserializer>\n\n"
    "Users can also pass in customized properties for their formatter; more specifically, users can pass in properties keyed "
    "with 'key.deserializer.', 'value.deserializer.' and 'headers.deserializer.' prefixes to configure their deserializers."
)
GOING = "This option will be removed in a future version. Use"

PARSER = Parser(
    "This tool helps to read data from Kafka topics and outputs it to standard output.",
    takes("topic", "The topic to consume from.", "topic"),
    takes("include", "Regular expression specifying list of topics to include for consumption.", "Java regex (String)"),
    takes(
        "partition",
        "The partition to consume from. Consumption starts from the end of the partition unless '--offset' is specified.",
        "partition",
        kind="Integer",
    ),
    takes(
        "offset",
        "The offset to consume from (a non-negative number), or 'earliest' which means from beginning, or 'latest' which "
        "means from end",
        "consume offset",
        default="latest",
    ),
    takes(
        "consumer-property",
        f"(DEPRECATED) Consumer config properties in the form key=value. {GOING} --command-property instead.",
        "consumer_prop",
    ),
    takes("command-property", "Consumer config properties in the form key=value.", "consumer_prop"),
    takes(
        "consumer.config",
        "(DEPRECATED) Consumer config properties file. Note that [command-property] takes precedence over this config. "
        f"{GOING} --command-config instead.",
        "config file",
    ),
    takes(
        "command-config",
        "Consumer config properties file. Note that [command-property] takes precedence over this config.",
        "config file",
    ),
    takes(
        "formatter",
        "The name of a class to use for formatting kafka messages for display.",
        "class",
        default="org.apache.kafka.tools.consumer.DefaultMessageFormatter",
    ),
    takes("property", f"(DEPRECATED) {FORMATTER_PROPERTIES} \n{GOING} --formatter-property instead.", "prop"),
    takes("formatter-property", FORMATTER_PROPERTIES, "prop"),
    takes(
        "formatter-config",
        "Config properties file to initialize the message formatter. Note that [formatter-property] takes precedence over "
        "this config.",
        "config file",
    ),
    flag(
        "from-beginning",
        "If the consumer does not already have an established offset to consume from, start with the earliest message "
        "present in the log rather than the latest message.",
    ),
    takes(
        "max-messages",
        "The maximum number of messages to consume before exiting. If not set, consumption is continual.",
        "num_messages",
        kind="Integer",
    ),
    takes(
        "timeout-ms",
        "If specified, exit if no message is available for consumption for the specified interval.",
        "timeout_ms",
        kind="Long",
    ),
    flag("skip-message-on-error", "If there is an error when processing a message, skip it instead of halt."),
    takes("bootstrap-server", "REQUIRED: The server(s) to connect to.", "server to connect to"),
    takes("key-deserializer", "The name of the class to use for deserializing keys.", "deserializer for keys"),
    takes("value-deserializer", "The name of the class to use for deserializing values.", "deserializer for values"),
    flag(
        "enable-systest-events",
        "Log lifecycle events of the consumer in addition to logging consumed messages. (This is specific for system "
        "tests.)",
    ),
    takes(
        "isolation-level",
        "Set to read_committed in order to filter out transactional messages which are not committed. Set to "
        "read_uncommitted to read all messages.",
        default="read_uncommitted",
    ),
    takes("group", "The consumer group id of the consumer.", "consumer group id"),
    mistake=Usage,
)
RENAMED = (
    ("consumer-property", "command-property"),
    ("consumer.config", "command-config"),
    ("property", "formatter-property"),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _consume)


def _consume(options: Options) -> int:
    _check(options)
    settings = consumer_settings(options)
    start, chosen = _start(options), _formatter(options)
    from ottla.cli.kafka.printing import Printing, consume

    topic, include = options.value("topic"), options.value("include")
    printing = Printing(
        bootstrap=options.text("bootstrap-server"),
        settings=settings,
        topics=[topic] if topic is not None else _pattern(include or ""),
        partition=options.number("partition"),
        start=start,
        records_max=options.number("max-messages"),
        timeout_s=_seconds(options.number("timeout-ms")),
        formatter=chosen,
        skips_errors=options.has("skip-message-on-error"),
    )
    code = consume(printing)
    if options.has("enable-systest-events"):
        print("shutdown_complete")
    return code


def _check(options: Options) -> None:
    for old, new in RENAMED:
        if options.has(old) and options.has(new):
            raise Usage(f"Options --{old} and --{new} cannot be specified together.")
    for old, new in RENAMED:
        if options.has(old):
            print(f"Option --{old} is deprecated and will be removed in a future version. Use --{new} instead.")
    if options.has("topic") == options.has("include"):
        raise Usage("Exactly one of the following arguments is required: [topic], [include]")
    if options.has("partition"):
        if not options.has("topic"):
            raise Usage("The topic is required when partition is specified.")
        if options.has("from-beginning") and options.has("offset"):
            raise Usage("Options from-beginning and offset cannot be specified together.")
    elif options.has("offset"):
        raise Usage("The partition is required when offset is specified.")
    options.require("bootstrap-server")


def consumer_settings(options: Options) -> dict[str, str]:
    """What was said by name, and what the other options say where nothing was."""
    from ottla.cli.kafka.client_settings import pairs
    from ottla.cli.kafka.connecting import properties_of

    from_file = properties_of(options.value("command-config") or options.value("consumer.config"))
    by_name = pairs(options.values("command-property") or options.values("consumer-property"))
    groups = {said["group.id"]: None for said in (from_file, by_name) if "group.id" in said}
    if options.has("group"):
        groups = {options.text("group"): None, **groups}
    _check_groups(options, list(groups))
    settings = {"client.id": "console-consumer", **from_file, **by_name}
    _set_reset(options, settings)
    if options.has("isolation-level") or "isolation.level" not in settings:
        settings["isolation.level"] = options.text("isolation-level")
    if groups:
        settings["group.id"] = next(iter(groups))
    else:
        settings["group.id"] = f"console-consumer-{_any_number()}"
        settings.setdefault("enable.auto.commit", "false")
    return settings


def _check_groups(options: Options, groups: list[str]) -> None:
    if len(groups) > 1:
        named = ", ".join(f"'{group}'" for group in groups)
        raise Usage(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {named}"
        )
    if groups and options.has("partition"):
        raise Usage("Options group and partition cannot be specified together.")


def _set_reset(options: Options, settings: dict[str, str]) -> None:
    given = settings.get("auto.offset.reset")
    if options.has("from-beginning") and given not in (None, "earliest"):
        raise Failed(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={given}', please remove one option"
        )
    settings.setdefault("auto.offset.reset", "earliest" if options.has("from-beginning") else "latest")


def _any_number() -> int:
    import random

    return random.SystemRandom().randrange(100_000)


def _start(options: Options) -> int:
    from ottla.client.cluster import EARLIEST, LATEST

    if not options.has("offset"):
        return EARLIEST if options.has("from-beginning") else LATEST
    text = options.text("offset")
    marks = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in marks:
        return marks[text.lower()]
    if not text.isascii() or not text.isdigit():
        raise Usage(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a non-negative "
            "long."
        )
    return int(text)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1000


def _pattern(text: str) -> re.Pattern[str]:
    import re

    try:
        return re.compile(text)
    except re.error as error:
        raise Failed(f"{error}: {text}")


def _formatter(options: Options) -> Formatter:
    from ottla.cli.kafka.client_settings import pairs
    from ottla.cli.kafka.connecting import properties_of
    from ottla.cli.kafka.formatters import formatter

    properties = properties_of(options.value("formatter-config"))
    for name in ("key-deserializer", "value-deserializer"):
        if options.value(name):
            properties[name.replace("-", ".")] = options.text(name)
    properties |= pairs(options.values("formatter-property") or options.values("property"))
    return formatter(options.text("formatter"), properties)
