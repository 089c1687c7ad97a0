"""What kafka-configs.sh does for topics, brokers, loggers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.cli.kafka import asking
from ottla.cli.kafka.options import Failed
from ottla.client.cluster import Cluster
from ottla.client.connection import check
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.groups import ListGroupsRequest
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest, ListConfigResourcesRequest

RESOURCES = {
    "topics": asking.TOPIC,
    "brokers": asking.BROKER,
    "broker-loggers": asking.BROKER_LOGGER,
    "client-metrics": asking.CLIENT_METRICS,
    "groups": asking.GROUP,
}
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
# The source whose settings count as a thing's own.
OWN = {"topics": 1, "brokers": 2, "client-metrics": 7, "groups": 8}
DYNAMIC_DEFAULT = 3
SET, DELETE = 0, 1


async def describe(cluster: Cluster, kind: str, name: str | None, *, everything: bool) -> None:
    if name and not everything and name not in await existing(cluster, kind):
        print(f"The {kind[:-1]} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    names = [name] if name is not None else await existing(cluster, kind)
    if name is None and kind == "brokers":
        names.append("")
    for each in names:
        if each:
            print(f"{'All' if everything else 'Dynamic'} configs for {kind[:-1]} {each} are:")
        else:
            print(f"Default configs for {kind} in the cluster are:")
        for config in await configs_of(cluster, kind, each, everything=everything):
            print(_line(config))


def _line(config: asking.Config) -> str:
    synonyms = ", ".join(f"{SOURCES[each.source]}:{each.name}={_java(each.value)}" for each in config.synonyms)
    sensitive = str(config.is_sensitive).lower()
    return f"  {config.name}={_java(config.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _java(value: str | None) -> str:
    return "null" if value is None else value


async def existing(cluster: Cluster, kind: str) -> list[str]:
    """The names of all things of that kind that are there, or at least have settings."""
    if kind == "topics":
        return list(await asking.topic_ids(cluster))
    if kind in ("brokers", "broker-loggers"):
        return [str(node_id) for node_id in await asking.node_ids(cluster)]
    if kind == "groups":
        groups = [group.group_id for group in (await asking.ask(cluster, ListGroupsRequest())).groups]
        return list(dict.fromkeys([*groups, *await _with_settings(cluster, asking.GROUP)]))
    return await _with_settings(cluster, asking.CLIENT_METRICS)


async def _with_settings(cluster: Cluster, resource: int) -> list[str]:
    answer = await asking.ask(cluster, ListConfigResourcesRequest(resource_types=[resource]))
    check(answer.error_code)
    return [found.resource_name for found in answer.config_resources]


async def configs_of(cluster: Cluster, kind: str, name: str, *, everything: bool) -> list[asking.Config]:
    node_id = int(name) if name and kind in ("brokers", "broker-loggers") else None
    found = (await asking.configs(cluster, RESOURCES[kind], [name], synonyms=True, node_id=node_id))[name]
    own = OWN.get(kind) if name or kind != "brokers" else DYNAMIC_DEFAULT
    if not everything and own is not None:
        found = [config for config in found if config.config_source == own]
    return sorted(found, key=lambda config: config.name)


async def alter(cluster: Cluster, kind: str, name: str, put: Mapping[str, str], delete: Sequence[str]) -> None:
    if kind == "broker-loggers":
        known = {config.name for config in await configs_of(cluster, kind, name, everything=False)}
        unknown = [logger for logger in (*delete, *put) if logger not in known]
        if unknown:
            raise Failed(f"Invalid broker logger(s): {','.join(unknown)}")
    change = IncrementalAlterConfigsRequest.Resource.Config
    changes = [change(name=key, config_operation=SET, value=value) for key, value in put.items()]
    changes += [change(name=key, config_operation=DELETE, value="") for key in delete]
    resource = IncrementalAlterConfigsRequest.Resource(
        resource_type=RESOURCES[kind], resource_name=name, configs=changes
    )
    node_id = int(name) if name and kind in ("brokers", "broker-loggers") else None
    answer = await asking.ask(cluster, IncrementalAlterConfigsRequest(resources=[resource]), node_id)
    refused = answer.responses[0]
    if refused.error_code == Error.UNKNOWN_TOPIC_OR_PARTITION.code:
        raise KafkaError(
            Error.UNKNOWN_TOPIC_OR_PARTITION, refused.error_message or f"The topic '{name}' does not exist."
        )
    check(refused.error_code, refused.error_message)
