"""kafka-storage.sh: make data directories ready for a node, and say what is in them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ottla.cli.kafka import releases
from ottla.cli.kafka.commands import Command, run
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.config import BrokerConfig


def _parser() -> Command:
    parser = Command("kafka-storage", description="The Kafka storage tool.")
    commands = parser.commands()
    info = commands.add_parser("info", help="Get information about the Kafka log directories on this node.")
    make = commands.add_parser("format", help="Format the Kafka log directories on this node.")
    for command in (info, make):
        command.add_argument("--config", "-c", required=True, help="The Kafka configuration file to use.")
    _format_options(make)
    mapping = commands.add_parser(
        "version-mapping", help="Look up the corresponding features for a given metadata version."
    )
    about = f"The release version. The minimum is {releases.VERSIONS[0]}; the default is {releases.LATEST}"
    mapping.add_argument("--release-version", "-r", help=about)
    needs = commands.add_parser("feature-dependencies", help="Look up dependencies for a given feature version.")
    needs.add_argument("--feature", "-f", action="append", required=True, help="A feature, as feature=version.")
    commands.add_parser("random-uuid", help="Print a random UUID.")
    return parser


def _format_options(make: argparse.ArgumentParser) -> None:
    make.add_argument("--cluster-id", "-t", required=True, help="The cluster ID to use.")
    make.add_argument(
        "--add-scram",
        "-S",
        action="append",
        help="A SCRAM_CREDENTIAL to add to the __cluster_metadata log e.g. "
        "'SCRAM-SHA-256=[name=alice,password=alice-secret]'",
    )
    make.add_argument(
        "--ignore-formatted", "-g", action="store_true", help="Skip over directories that are already formatted."
    )
    make.add_argument(
        "--release-version",
        "-r",
        help=f"The release version to use for the initial feature settings; the default is {releases.LATEST}",
    )
    make.add_argument("--feature", "-f", action="append", help="The level of a feature, in feature=level format.")
    quorum = make.add_mutually_exclusive_group()
    quorum.add_argument(
        "--standalone", "-s", action="store_true", help="Initialize a controller as a single-node dynamic quorum."
    )
    quorum.add_argument(
        "--no-initial-controllers",
        "-N",
        action="store_true",
        help="Initialize a server without specifying a dynamic quorum.",
    )
    quorum.add_argument(
        "--initial-controllers",
        "-I",
        help="Initialize a server with the specified dynamic quorum: id@hostname:port:directory,...",
    )


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    if args.command == "random-uuid":
        _random_uuid()
    elif args.command == "version-mapping":
        print("\n".join(releases.mapping_lines(args.release_version)))
    elif args.command == "feature-dependencies":
        for text in args.feature:
            print("\n".join(_dependencies(text)))
    elif args.command == "info":
        return _info(_config(args.config))
    else:
        _format(args)
    return 0


def _random_uuid() -> None:
    import random

    from ottla.wire.ids import random_id, uuid_text

    print(uuid_text(random_id(random.SystemRandom())))


def _dependencies(text: str) -> list[str]:
    feature, equals, level = text.partition("=")
    if not equals:
        raise Failed(f"Invalid feature format: {text}. Expected format: 'feature=version' (e.g. 'group.version=1')")
    try:
        number = int(level)
    except ValueError:
        raise Failed(f"Invalid version format: {level} for feature {feature}")
    try:
        return releases.dependency_lines(feature, number)
    except ValueError:
        raise Failed(f"Feature level {number} is not supported for feature {feature}")


def _config(path: str) -> BrokerConfig:
    from ottla.cli.kafka.node_settings import node_settings
    from ottla.config import BrokerConfig
    from ottla.wire.errors import KafkaError

    properties = node_settings(path)
    if "process.roles" not in properties:
        raise Failed('Missing required configuration "process.roles" which has no default value.')
    try:
        return BrokerConfig(properties)
    except KafkaError as error:
        raise Failed(error.message)


def _info(config: BrokerConfig) -> int:
    from ottla.cli.kafka.formatting import look

    found = look(sorted({*config.log_dirs, config.metadata_log_dir}))
    if found.directories:
        print("Found log directory:" if len(found.directories) == 1 else "Found log directories:")
        print("\n".join(f"  {directory}" for directory in found.directories) + "\n")
    if found.first is not None:
        from ottla.wire.ids import uuid_text

        cluster, directory = found.first.cluster_id, uuid_text(found.first.directory_id)
        facts = f"cluster.id={cluster}, directory.id={directory}, node.id={found.first.node_id}, version=1"
        print(f"Found metadata: {{{facts}}}\n")
    if not found.problems:
        return 0
    print("Found problem:" if len(found.problems) == 1 else "Found problems:")
    print("\n".join(f"  {problem}" for problem in found.problems) + "\n")
    return 1


def _format(args: argparse.Namespace) -> None:
    from ottla.cli.kafka import formatting

    config = _config(args.config)
    release = args.release_version or releases.LATEST
    level = releases.stable_level_of(release)
    voters = formatting.voters_of(config, args.standalone, args.initial_controllers)
    _check_quorum(config, has_voters=voters is not None or args.no_initial_controllers)
    levels = formatting.levels_of(level, args.feature or [], dynamic=not config["controller.quorum.voters"])
    credentials = [formatting.credential_of(text) for text in args.add_scram or ()]
    plan = formatting.Plan(args.cluster_id, voters, levels, credentials)
    for line in formatting.perform(config, plan, ignore_formatted=args.ignore_formatted):
        print(line)


def _check_quorum(config: BrokerConfig, *, has_voters: bool) -> None:
    """A controller must learn from somewhere who the first voters are, or that it is not to know."""
    if has_voters or config["controller.quorum.voters"] or "controller" not in config["process.roles"]:
        return
    raise Failed(
        "Because controller.quorum.voters is not set on this controller, you must specify one of the following: "
        "--standalone, --initial-controllers, or --no-initial-controllers."
    )
