"""kafka-reassign-partitions.sh: move partitions to other brokers and directories. What is done stands in `reassigning`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.cluster import Cluster

ACTIONS = ("generate", "execute", "verify", "cancel", "list")
REQUIRED = {
    "verify": ("reassignment-json-file",),
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
EVERYWHERE = ("bootstrap-server", "command-config")
PERMITTED = {
    "verify": ("preserve-throttles",),
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional",
        "throttle",
        "replica-alter-log-dirs-throttle",
        "timeout",
        "disallow-replication-factor-change",
    ),
    "cancel": ("bootstrap-controller", "preserve-throttles", "timeout"),
    "list": ("bootstrap-controller",),
}
ABOUT_THROTTLES = (
    "This option can be included with --execute when a reassignment is started, and it can be altered by resubmitting the "
    "current reassignment along with the --additional flag. The throttle rate should be at least 1 KB/s."
)
REASSIGNMENT = (
    '{"partitions":\n\t[{"topic": "foo",\n\t  "partition": 1,\n\t  "replicas": [1,2,3],'
    '\n\t  "log_dirs": ["dir1","dir2","dir3"] }],\n"version":1\n}'
)
TOPICS = '{"topics":\n\t[{"topic": "foo"},{"topic": "foo1"}],\n"version":1\n}'
TIMEOUT_MS = 10_000

PARSER = Parser(
    "This tool helps to move topic partitions between replicas.",
    flag(
        "verify",
        "Verify if the reassignment completed as specified by the --reassignment-json-file option. If there is a "
        "throttle engaged for the replicas specified, and the rebalance has completed, the throttle will be removed",
    ),
    flag(
        "generate",
        "Generate a candidate partition reassignment configuration. Note that this only generates a candidate "
        "assignment, it does not execute it.",
    ),
    flag("execute", "Kick off the reassignment as specified by the --reassignment-json-file option."),
    flag("cancel", "Cancel an active reassignment."),
    flag("list", "List all active partition reassignments."),
    takes(
        "bootstrap-server",
        "the server(s) to use for bootstrapping.",
        "Server(s) to use for bootstrapping",
        is_optional=True,
    ),
    takes(
        "bootstrap-controller",
        "The controller to use for reassignment. By default, the tool will get the quorum "
        "controller. This option supports the actions --cancel and --list.",
        "bootstrap controller to connect to",
        is_optional=True,
    ),
    takes(
        "command-config", "Property file containing configs to be passed to Admin Client.", "Admin client property file"
    ),
    takes(
        "reassignment-json-file",
        "The JSON file with the partition reassignment configurationThe format to use is - \n"
        f'{REASSIGNMENT}\nNote that "log_dirs" is optional. When it is specified, its length must equal the length of '
        'the replicas list. The value in this list can be either "any" or the absolution path of the log directory on '
        "the broker. If absolute log directory path is specified, the replica will be moved to the specified log "
        "directory on the broker.",
        "manual assignment json file path",
    ),
    takes(
        "topics-to-move-json-file",
        "Generate a reassignment configuration to move the partitions of the specified topics "
        f"to the list of brokers specified by the --broker-list option. The format to use is - \n{TOPICS}",
        "topics to reassign json file path",
    ),
    takes(
        "broker-list",
        'The list of brokers to which the partitions need to be reassigned in the form "0,1,2". This is '
        "required if --topics-to-move-json-file is used to generate reassignment configuration",
        "brokerlist",
    ),
    flag("disable-rack-aware", "Disable rack aware replica assignment"),
    takes(
        "throttle",
        f"The movement of partitions between brokers will be throttled to this value (bytes/sec). {ABOUT_THROTTLES}",
        "throttle",
        kind="Long",
        default=-1,
    ),
    takes(
        "replica-alter-log-dirs-throttle",
        "The movement of replicas between log directories on the same broker will be "
        f"throttled to this value (bytes/sec). {ABOUT_THROTTLES}",
        "replicaAlterLogDirsThrottle",
        kind="Long",
        default=-1,
    ),
    takes(
        "timeout",
        "The maximum time in ms to wait for log directory replica assignment to begin.",
        "timeout",
        kind="Long",
        default=TIMEOUT_MS,
    ),
    flag(
        "additional",
        "Execute this reassignment in addition to any other ongoing ones. This option can also be used to "
        "change the throttle of an ongoing reassignment.",
    ),
    flag("preserve-throttles", "Do not modify broker or topic throttles."),
    flag(
        "disallow-replication-factor-change",
        "Denies the ability to change a partition's replication factor as part of "
        "this reassignment through adding validation against it.",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _run)


def _run(options: Options) -> int:
    from ottla.cli.kafka.connecting import with_cluster

    action = _action(options)
    bootstrap = options.value("bootstrap-server") or options.text("bootstrap-controller")

    async def work(cluster: Cluster) -> int:
        from ottla.cli.kafka.reassigning import Terse, act
        from ottla.wire.errors import KafkaError

        try:
            await act(action, cluster, options)
        except Terse as refusal:
            print(refusal)
            return 1
        except (Failed, KafkaError) as error:
            print(f"Error: {_java(error)}")
            return 1
        return 0

    by_controller = options.has("bootstrap-controller")
    return with_cluster(bootstrap, options.value("command-config"), work, controllers=by_controller)


def _java(error: Exception) -> str:
    """What a broker refused carries the name of Kafka's exception here."""
    from ottla.wire.errors import KafkaError

    if not isinstance(error, KafkaError):
        return str(error)
    name = "".join(part.capitalize() for part in error.error.name.split("_"))
    return f"org.apache.kafka.common.errors.{name}Exception: {error.message}"


def _action(options: Options) -> str:
    chosen = [action for action in ACTIONS if options.has(action)]
    if len(chosen) != 1:
        raise Usage(f"Command must include exactly one action: {', '.join(f'--{action}' for action in ACTIONS)}")
    action = chosen[0]
    by_server, by_controller = options.has("bootstrap-server"), options.has("bootstrap-controller")
    if by_server and by_controller:
        raise Usage("Please don't specify both --bootstrap-server and --bootstrap-controller")
    if not by_server and not by_controller:
        raise Usage("Please specify either --bootstrap-server or --bootstrap-controller")
    options.require(*REQUIRED[action])
    allowed = {action, *REQUIRED[action], *PERMITTED[action], *EVERYWHERE}
    for name in options.given():
        if name not in allowed:
            raise Usage(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    return action
