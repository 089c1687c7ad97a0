"""kafka-configs.sh: settings of topics, brokers, groups and loggers; limits and passwords of users, clients and addresses.

The options and what may go together stand here. `config_resources` does what DescribeConfigs is for, `config_entities`
the rest (quotas, SCRAM).
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.kafka.options import Failed, Option, Options, Parser, Usage, flag, run, takes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.client.cluster import Cluster

WHAT = (
    "This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip, "
    "client-metrics or group"
)
TYPES = ("topics", "clients", "users", "brokers", "ips", "client-metrics", "groups", "broker-loggers")
# Options that name one thing, and those that name the default of its kind, with the kind.
FLAGS = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
}
DEFAULTS = {"client-defaults": "clients", "user-defaults": "users", "broker-defaults": "brokers", "ip-defaults": "ips"}
WITH_DEFAULTS = ("users", "clients", "brokers", "ips")
QUOTAS = ("consumer_byte_rate", "controller_mutation_rate", "producer_byte_rate", "request_percentage")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
IP_QUOTAS = ("connection_creation_rate",)
# Brokers may change these while they run although no table says so.
THROTTLES = (
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"


class Entities(NamedTuple):
    """What is asked about: kinds, and a name for each; an empty one is the default."""

    types: list[str]
    names: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return run(Parser(WHAT, *_options()), words, lambda options: _run(options, words))


def _options() -> tuple[Option, ...]:
    names = "topic name/client id/user principal name/broker id/ip/client metrics/group id"
    kinds = "topics/clients/users/brokers/broker-loggers/ips/client-metrics/groups"
    return (
        takes("bootstrap-server", "The Kafka servers to connect to.", "server to connect to"),
        takes("bootstrap-controller", "The Kafka controllers to connect to.", "controller to connect to"),
        takes(
            "command-config",
            "Property file containing configs to be passed to Admin Client. This is used only with --bootstrap-server "
            "option for describing and altering broker configs.",
            "command config property file",
        ),
        flag("alter", "Alter the configuration for the entity."),
        flag("describe", "List configs for the given entity."),
        flag("all", "List all configs for the given entity, including static configs if available."),
        takes("entity-type", f"Type of entity ({kinds})"),
        takes("entity-name", f"Name of entity ({names})"),
        flag(
            "entity-default",
            "Default entity name for clients/users/brokers/ips (applies to corresponding entity type)",
        ),
        takes("add-config", _addable),
        takes(
            "add-config-file",
            "Path to a properties file with configs to add. See add-config for a list of valid configurations.",
        ),
        takes("delete-config", "config keys to remove 'k1,k2'", separator=","),
        takes("topic", "The topic's name."),
        takes("client", "The client's ID."),
        flag("client-defaults", "The config defaults for all clients."),
        takes("user", "The user's principal name."),
        flag("user-defaults", "The config defaults for all users."),
        takes("broker", "The broker's ID."),
        flag("broker-defaults", "The config defaults for all brokers."),
        takes("broker-logger", "The broker's ID for its logger config."),
        flag("ip-defaults", "The config defaults for all IPs."),
        takes("ip", "The IP address."),
        takes("group", "The group's ID."),
        takes("client-metrics", "The client metrics config resource name."),
    )


def _addable() -> str:
    from ottla.config.settings import BROKER_SETTINGS, CLIENT_METRICS_SETTINGS, GROUP_SETTINGS, TOPIC_SETTINGS

    def listed(kind: str, names: Iterable[str]) -> str:
        lines = "".join(f"\t{name}\n" for name in sorted(names))
        return f"For entity-type '{kind}': \n{lines}"

    return (
        "Key Value pairs of configs to add. Square brackets can be used to group values which contain commas: "
        "'k1=v1,k2=[v1,v2,v2],k3=v3'. The following is a list of valid configurations: "
        + listed("topics", (name for name, setting in TOPIC_SETTINGS.items() if not setting.internal))
        + listed("brokers", {*THROTTLES, *(name for name, each in BROKER_SETTINGS.items() if each.scope)})
        + listed("users", (*QUOTAS, *SCRAM))
        + listed("clients", QUOTAS)
        + listed("ips", IP_QUOTAS)
        + listed("client-metrics", CLIENT_METRICS_SETTINGS)
        + listed("groups", GROUP_SETTINGS)
        + "Entity types 'users' and 'clients' may be specified together to update config for clients of a specific user."
    )


def _run(options: Options, words: Sequence[str]) -> int:
    from ottla.cli.kafka.connecting import with_cluster

    entities = entities_of(options)
    _check(options, entities)
    bootstrap = options.value("bootstrap-server") or options.text("bootstrap-controller")
    if options.has("alter") and len(entities.types) != len(entities.names):
        raise Failed("An entity name must be specified for every entity type")

    async def work(cluster: Cluster) -> int:
        from ottla.cli.kafka.connecting import NoSuchFile
        from ottla.wire.errors import KafkaError

        try:
            await _act(cluster, options, entities)
        except (KafkaError, OSError, NoSuchFile) as error:
            print(f"Error while executing config command with args '{' '.join(words)}'", file=sys.stderr)
            print(getattr(error, "message", error), file=sys.stderr)
            return 1
        return 0

    by_controller = options.has("bootstrap-controller")
    return with_cluster(bootstrap, options.value("command-config"), work, controllers=by_controller)


async def _act(cluster: Cluster, options: Options, entities: Entities) -> None:
    from ottla.cli.kafka import config_entities, config_resources

    kind = entities.types[0]
    by_quota = kind in ("users", "clients", "ips")
    if options.has("describe"):
        if by_quota:
            await config_entities.describe(cluster, entities)
        else:
            name = entities.names[0] if entities.names else None
            await config_resources.describe(cluster, kind, name, everything=options.has("all"))
        return
    put, delete = added(options), [name.strip() for name in options.values("delete-config")]
    if by_quota:
        await config_entities.alter(cluster, entities, put, delete)
    else:
        await config_resources.alter(cluster, kind, entities.names[0], put, delete)
    if entities.names[0]:
        print(f"Completed updating config for {kind[:-1]} {entities.names[0]}.")
    else:
        print(f"Completed updating default config for {kind} in the cluster.")


def entities_of(options: Options) -> Entities:
    """Kinds and names in the order in which they were given; the specific options come behind the general ones."""
    types = options.values("entity-type") + [kind for name, kind in FLAGS.items() if options.has(name)]
    types += [kind for name, kind in DEFAULTS.items() if options.has(name)]
    names = options.in_order("entity-name", "entity-default")
    names += [options.text(name) for name in FLAGS if options.has(name)]
    return Entities(types, names + ["" for name in DEFAULTS if options.has(name)])


def added(options: Options) -> dict[str, str]:
    """The settings of --add-config and --add-config-file; commas inside of brackets belong to the value."""
    from ottla.cli.kafka.connecting import properties_of

    found = properties_of(options.value("add-config-file")) if options.has("add-config-file") else {}
    for part in re.split("," + OUTSIDE_BRACKETS, options.text("add-config")) if options.has("add-config") else ():
        pair = re.split(r"\s*=\s*" + OUTSIDE_BRACKETS, part)
        if len(pair) != 2:
            form = '"key=val" or  "key=[val1,val2]" to group values which contain commas.'
            raise Failed(
                f"requirement failed: Invalid entity config: all configs to be added must be in the format {form}"
            )
        found[pair[0].strip()] = re.sub(r"[\[\]]", "", pair[1]).strip()
    for name in found:
        if not re.fullmatch(r"[a-zA-Z0-9._-]*", name):
            raise Failed(f"Invalid character found for config key: {name}")
    return found


# Which options go together.


def _check(options: Options, entities: Entities) -> None:
    if options.has("alter") == options.has("describe"):
        raise Usage("Command must include exactly one action: --describe, --alter")
    options.forbid("describe", "add-config", "delete-config")
    _check_connection(options)
    _check_types(options, entities.types)
    _check_names(entities)
    if options.has("describe"):
        _check_describe(options, entities)
    else:
        _check_alter(options, entities)


def _check_types(options: Options, types: list[str]) -> None:
    twice = [kind for at, kind in enumerate(types) if kind in types[:at]]
    if twice:
        raise Failed(f"Duplicate entity type(s) specified: {','.join(twice)}")
    for kind in types:
        if kind not in TYPES:
            one_of = f"the entity type must be one of {', '.join(TYPES)}"
            raise Failed(
                f"Invalid entity type {kind}, {one_of} with a --bootstrap-server or --bootstrap-controller argument"
            )
    if not types:
        raise Failed("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {"users", "clients"}:
        raise Failed("Only 'users' and 'clients' entity types may be specified together")
    general = any(options.has(name) for name in ("entity-name", "entity-type", "entity-default"))
    if general and any(options.has(name) for name in (*FLAGS, *DEFAULTS)):
        raise Failed("--entity-{type,name,default} should not be used in conjunction with specific entity flags")


def _check_connection(options: Options) -> None:
    given = [name for name in ("bootstrap-server", "bootstrap-controller") if options.has(name)]
    if not given:
        raise Failed("Either --bootstrap-server or --bootstrap-controller must be specified.")
    if len(given) == 2:
        raise Failed("Only one of --bootstrap-server or --bootstrap-controller can be specified")


def _check_names(entities: Entities) -> None:
    first = entities.types[0]
    if {"brokers", "broker-loggers"} & set(entities.types):
        for name in filter(None, entities.names):
            if not re.fullmatch(r"[+-]?[0-9]+", name):
                raise Failed(f"The entity name for {first} must be a valid integer broker id, but it is: {name}")
    if "ips" in entities.types:
        for name in filter(None, entities.names):
            if not _resolves(name):
                raise Failed(f"The entity name for {first} must be a valid IP or resolvable host, but it is: {name}")


def _resolves(name: str) -> bool:
    import socket

    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _check_describe(options: Options, entities: Entities) -> None:
    kinds = ",".join(entities.types)
    if options.has("entity-default") and not set(WITH_DEFAULTS) & set(entities.types):
        raise Failed(f"--entity-default must not be specified with --describe of {kinds}")
    if "broker-loggers" in entities.types and not any(entities.names):
        raise Failed(f"An entity name must be specified with --describe of {kinds}")


def _check_alter(options: Options, entities: Entities) -> None:
    if set(WITH_DEFAULTS) & set(entities.types):
        if not entities.names:
            what = "users, clients, brokers or ips"
            raise Failed(f"An entity-name or default entity must be specified with --alter of {what}")
    elif not any(entities.names):
        raise Failed(f"An entity name must be specified with --alter of {','.join(entities.types)}")
    if options.has("add-config") and options.has("add-config-file"):
        raise Failed("Only one of --add-config or --add-config-file must be specified")
    if not any(options.has(name) for name in ("add-config", "add-config-file", "delete-config")):
        what = "--add-config, --add-config-file, or --delete-config"
        raise Failed(f"At least one of {what} must be specified with --alter")
