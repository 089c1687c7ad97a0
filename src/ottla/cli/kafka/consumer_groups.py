"""kafka-consumer-groups.sh: groups listed, described, deleted, and their offsets reset."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ottla.client.admin import Admin

ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
SCENARIOS = (
    "to-offset",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "shift-by",
    "from-file",
)
# In the order in which Java happens to name them.
SCENARIOS_TEXT = (
    "[[by-duration], [to-latest], [to-current], [to-earliest], [to-offset], [shift-by], [from-file], [to-datetime]]"
)
EXAMPLE = "Example: --bootstrap-server localhost:9092"
FAILURE = "Executing consumer group command failed due to"
NO_ACTION = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require "
    "either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are scripting "
    "this command and want to keep the current default behavior without prompting."
)

PARSER = Parser(
    "This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or reset consumer "
    "group offsets.",
    takes(
        "bootstrap-server",
        "The server(s) to connect to. REQUIRED for all options except for --validate-regex.",
        "server to connect to",
    ),
    takes("group", "The consumer group we wish to act on.", "consumer group"),
    takes(
        "topic",
        "The topic whose consumer group information should be deleted or topic whose should be included in the reset "
        "offset process. In `reset-offsets` case, partitions can be specified using this format: `topic1:0,1,2`, where "
        "0,1,2 are the partition to be included in the process. Reset-offsets also supports multiple topic inputs.",
        "topic",
    ),
    flag("all-topics", "Consider all topics assigned to a group in the `reset-offsets` process."),
    flag("list", "List all consumer groups."),
    flag(
        "describe",
        "Describe consumer group and list offset lag (number of messages not yet processed) related to given group.",
    ),
    flag("all-groups", "Apply to all consumer groups."),
    flag(
        "delete",
        "Pass in groups to delete topic partition offsets and ownership information over the entire consumer group. For "
        "instance --group g1 --group g2",
    ),
    takes(
        "timeout",
        "The timeout that can be set for some use cases. For example, it can be used when describing the group to specify "
        "the maximum amount of time in milliseconds to wait before the group stabilizes (when the group is just created, "
        "or is going through some changes).",
        "timeout (ms)",
        kind="Long",
        default=30000,
    ),
    takes(
        "command-config",
        "Property file containing configs to be passed to Admin Client and Consumer.",
        "command config property file",
    ),
    flag(
        "reset-offsets",
        "Reset offsets of consumer group. Supports one consumer group at the time, and instances should be inactive\n"
        "Has 2 execution options: --dry-run (the default) to plan which offsets to reset, and --execute to update the "
        "offsets. Additionally, the --export option is used to export the results to a CSV format.\n"
        "You must choose one of the following reset specifications: --to-datetime, --by-duration, --to-earliest, "
        "--to-latest, --shift-by, --from-file, --to-current, --to-offset.\n"
        "To define the scope use --all-topics or --topic. One scope must be specified unless you use '--from-file'.",
    ),
    flag(
        "delete-offsets",
        "Delete offsets of consumer group. Supports one consumer group at the time, and multiple topics.",
    ),
    flag(
        "dry-run",
        "Only show results without executing changes on Consumer Groups. Supported operations: reset-offsets.",
    ),
    flag("execute", "Execute operation. Supported operations: reset-offsets."),
    flag("export", "Export operation execution to a CSV file. Supported operations: reset-offsets."),
    takes("to-offset", "Reset offsets to a specific offset.", "offset", kind="Long"),
    takes("from-file", "Reset offsets to values defined in CSV file.", "path to CSV file"),
    takes("to-datetime", "Reset offsets to offset from datetime. Format: 'YYYY-MM-DDThh:mm:ss.sss'", "datetime"),
    takes(
        "by-duration", "Reset offsets to offset by duration from current timestamp. Format: 'PnDTnHnMnS'", "duration"
    ),
    flag("to-earliest", "Reset offsets to earliest offset."),
    flag("to-latest", "Reset offsets to latest offset."),
    flag("to-current", "Reset offsets to current offset."),
    takes(
        "shift-by",
        "Reset offsets shifting current offset by 'n', where 'n' can be positive or negative.",
        "number-of-offsets",
        kind="Long",
    ),
    flag(
        "members",
        "Describe members of the group. This option may be used with '--describe' and '--bootstrap-server' options only.\n"
        f"{EXAMPLE} --describe --group group1 --members",
        only_with=("describe",),
    ),
    flag(
        "verbose",
        "Provide additional information, if any, when describing the group. This option may be used with "
        "'--offsets'/'--members'/'--state' and '--bootstrap-server' options only.\n"
        f"{EXAMPLE} --describe --group group1 --members --verbose",
        only_with=("describe",),
    ),
    flag(
        "offsets",
        "Describe the group and list all topic partitions in the group along with their offset lag. This is the default "
        "sub-action of and may be used with '--describe' and '--bootstrap-server' options only.\n"
        f"{EXAMPLE} --describe --group group1 --offsets",
        only_with=("describe",),
    ),
    takes(
        "state",
        "When specified with '--describe', includes the state of the group.\n"
        f"{EXAMPLE} --describe --group group1 --state\n"
        "When specified with '--list', it displays the state of all groups. It can also be used to list groups with "
        "specific states.\n"
        f"{EXAMPLE} --list --state stable,empty\n"
        "This option may be used with '--describe', '--list' and '--bootstrap-server' options only.",
        is_optional=True,
        only_with=("describe", "list"),
    ),
    takes(
        "type",
        "When specified with '--list', it displays the types of all the groups. It can also be used to list groups with "
        "specific types.\n"
        f"{EXAMPLE} --list --type classic,consumer\n"
        "This option may be used with the '--list' option only.",
        is_optional=True,
        only_with=("list",),
    ),
    takes(
        "validate-regex",
        "Validate that the syntax of the provided regular expression is valid according to the RE2 format.",
        "regex",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return run(PARSER, argv, _groups)


def _groups(options: Options) -> None:
    _check(options)
    if sum(options.has(action) for action in ACTIONS) != 1:
        names = ", ".join(f"--{action}" for action in ACTIONS)
        raise Usage(f"Command must include exactly one action: {names}")
    if options.has("validate-regex"):
        _validate(options.text("validate-regex"))
        return
    action = next(name for name in ACTIONS if options.has(name))
    if action == "reset-offsets" and not any(options.has(scenario) for scenario in SCENARIOS):
        raise Usage(f"Option '[reset-offsets]' requires one of the following scenarios: {SCENARIOS_TEXT}")
    _connected(options, _work(action))


def _work(action: str) -> Callable[[Admin, Options], Awaitable[None]]:
    if action in ("list", "describe"):
        from ottla.cli.kafka import group_tables

        return group_tables.list_groups if action == "list" else group_tables.describe_groups
    from ottla.cli.kafka import group_changes

    works = {
        "delete": group_changes.delete_groups,
        "reset-offsets": group_changes.reset_offsets,
        "delete-offsets": group_changes.delete_offsets,
    }
    return works[action]


def _connected(options: Options, work: Callable[[Admin, Options], Awaitable[None]]) -> None:
    """What fails is told on standard output, and the exit code is 0 all the same: so does Kafka's own tool."""
    from ottla.cli.kafka.connecting import with_admin
    from ottla.cli.kafka.java_errors import java_message, java_text
    from ottla.cli.resetting import Impossible, Unreadable
    from ottla.wire.errors import Error, KafkaError

    try:
        options.number("timeout")
        with_admin(
            options.text("bootstrap-server"), options.value("command-config"), lambda admin: work(admin, options)
        )
    except Impossible as impossible:
        raise Usage(str(impossible))
    except Usage:
        raise
    except (Unreadable, Failed) as wrong:
        print_error(f"{FAILURE} {wrong}")
    except KafkaError as error:
        missing = error.error is Error.GROUP_ID_NOT_FOUND
        print_error(f"{FAILURE} {java_text(error) if missing else java_message(error)}")
        print(java_text(error), file=sys.stderr)


def print_error(text: str) -> None:
    print(f"\nError: {text}")


def _check(options: Options) -> None:
    if not options.has("validate-regex"):
        options.require("bootstrap-server")
    if options.has("describe"):
        _check_describe(options)
    if options.has("delete"):
        _check_scope(options, "delete")
        if options.has("topic"):
            raise Usage("The consumer does not support topic-specific offset deletion from a consumer group.")
    if options.has("delete-offsets") and not (options.has("group") and options.has("topic")):
        raise Usage("Option [delete-offsets] takes the following options: [group], [topic]")
    if options.has("reset-offsets"):
        _check_reset(options)
    options.forbid("group", "all-groups", "list")
    options.forbid("topic", "list", "describe")


def _check_scope(options: Options, action: str) -> None:
    if not options.has("group") and not options.has("all-groups"):
        raise Usage(f"Option [{action}] takes one of these options: [group], [all-groups]")


def _check_describe(options: Options) -> None:
    _check_scope(options, "describe")
    if sum(options.has(name) for name in ("members", "offsets", "state")) > 1:
        raise Usage("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if options.value("state") is not None:
        raise Usage("Option [describe] does not take a value for [state]")


def _check_reset(options: Options) -> None:
    if options.has("dry-run") and options.has("execute"):
        raise Usage("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.has("dry-run") and not options.has("execute"):
        print(NO_ACTION, file=sys.stderr)
    _check_scope(options, "reset-offsets")
    for scenario in SCENARIOS:
        options.forbid(scenario, *(other for other in SCENARIOS if other != scenario))
    if not any(options.has(scope) for scope in ("all-topics", "topic", "from-file")):
        raise Usage("One of the reset scopes should be defined: --all-topics, --topic.")


def _validate(pattern: str) -> None:
    """By the same expressions that the coordinator of a group evaluates."""
    from ottla.coordination.subscriptions import check
    from ottla.wire.errors import KafkaError

    try:
        check(pattern)
    except KafkaError as error:
        why = error.message.rpartition("regular expression: ")[2]
        print(f"The regular expression `{pattern}` is invalid: {why}")
    else:
        print(f"The regular expression `{pattern}` is valid.")
