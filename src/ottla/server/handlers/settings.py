"""Reading and changing the settings of topics, brokers, loggers, client metrics subscriptions and groups.

DescribeConfigs versions: 1 synonyms (KIP-226), 3 documentation and types (KIP-569), 4 flexible. AlterConfigs: 2 flexible.
IncrementalAlterConfigs: 1 flexible. ListConfigResources: 1 of all kinds, not only client metrics (KIP-1142).

A change is worked out against the written picture, inside the decision that writes it, so that two clients who append to
one list both succeed. Log levels are this node's own affair and are never written down.

A node that is not the active controller looks at a request first: it changes its log levels, and refuses what it could not
live with itself. What is left it passes on. On its own listener the controller takes settings of any broker.

AlterConfigs replaces all settings of a resource, which is why the incremental form exists (KIP-339). In Apache Kafka,
naming one resource twice in AlterConfigs never gets an answer; here each gets INVALID_REQUEST, as in the incremental form.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ottla.config import BrokerConfig, loggers, validate_topic_configs
from ottla.config.changes import (
    SET,
    SUBTRACT,
    Operation,
    UnknownOperation,
    applied,
    check_broker,
    check_client_metrics,
    check_group,
    check_operations,
    list_settings_of_brokers,
    outcome,
)
from ottla.config.describe import (
    Entry,
    describe_all_brokers,
    describe_broker,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from ottla.config.kinds import Setting
from ottla.config.settings import TOPIC_SETTINGS
from ottla.metadata.controller import Decision, incremental_alter_configs
from ottla.metadata.decisions import MIN_INSYNC_REPLICAS
from ottla.metadata.image import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, Image, Resource
from ottla.metadata.topics import check_name
from ottla.server.context import Context
from ottla.server.dispatch import Exchange, serves
from ottla.server.forwarding import may_forward, relay
from ottla.server.handlers.cluster import alive_on
from ottla.server.portions import Portions
from ottla.wire.errors import Error, KafkaError
from ottla.wire.frames import request_frame
from ottla.wire.messages.settings import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KNOWN_TYPES = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
LOGGER_SOURCE = 6

Asked = DescribeConfigsRequest.Resource
Described = DescribeConfigsResponse.Resource
Shown = DescribeConfigsResponse.Resource.Config
Altering = AlterConfigsRequest | IncrementalAlterConfigsRequest
Answer = TypeVar("Answer", AlterConfigsResponse.Resource, IncrementalAlterConfigsResponse.Resource)


# --- DescribeConfigs


@serves(DescribeConfigsRequest, versions="1-4")
async def describe_configs(request: DescribeConfigsRequest, ctx: Context) -> DescribeConfigsResponse:
    if any(asked.resource_type not in KNOWN_TYPES for asked in request.resources):
        # One type that nobody knows spoils the whole request, as it does in Apache Kafka.
        refusal = KafkaError(Error.INVALID_REQUEST)
        return DescribeConfigsResponse(results=[_refused(asked, refusal) for asked in request.resources])
    portions = Portions(DescribeConfigsResponse, len(request.resources), ctx)
    for asked in request.resources:
        await portions.add((asked.resource_type, asked.resource_name), _describe(asked, request, ctx))
    return portions.answer


def _describe(asked: Asked, request: DescribeConfigsRequest, ctx: Context) -> Described:
    try:
        entries = _entries(asked, ctx)
    except KafkaError as error:
        return _refused(asked, error)
    wanted = asked.configuration_keys
    shown = [_shown(entry, request) for entry in entries if not wanted or entry.name in wanted]
    return Described(
        error_message="", resource_type=asked.resource_type, resource_name=asked.resource_name, configs=shown
    )


def _refused(asked: Asked, error: KafkaError) -> Described:
    return Described(
        error_code=error.code,
        error_message=error.message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


def _shown(entry: Entry, request: DescribeConfigsRequest) -> Shown:
    synonyms = [Shown.Synonym(name=s.name, value=s.value, source=s.source) for s in entry.synonyms]
    return Shown(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=entry.kind_code,
        documentation=entry.why if request.include_documentation or entry.source == LOGGER_SOURCE else None,
    )


def _entries(asked: Asked, ctx: Context) -> list[Entry]:
    return ENTRIES[asked.resource_type](asked.resource_name, ctx.node.config, ctx.image)


def _topic_entries(name: str, config: BrokerConfig, image: Image) -> list[Entry]:
    check_name(name)
    if image.topic(name) is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, "")
    return describe_topic(config, image.configs(TOPIC, name))


def _broker_entries(name: str, config: BrokerConfig, image: Image) -> list[Entry]:
    if not name:
        return describe_all_brokers(config)
    if _number(name, "Broker id must be an integer, but it is: ") != config.node_id:
        why = f"Unexpected broker id, expected {config.node_id} or empty string, but received {name}"
        raise KafkaError(Error.INVALID_REQUEST, why)
    return describe_broker(config)


def _logger_entries(name: str, config: BrokerConfig, image: Image) -> list[Entry]:
    if not name:
        raise KafkaError(Error.INVALID_REQUEST, "Broker id must not be empty")
    if _number(name, "Broker id must be an integer, but it is: ") != config.node_id:
        why = f"Unexpected broker id, expected {config.node_id} but received {name}"
        raise KafkaError(Error.INVALID_REQUEST, why)
    return [Entry(logger, level, False, LOGGER_SOURCE, False, (), 0, "") for logger, level in loggers.levels().items()]


def _client_metrics_entries(name: str, config: BrokerConfig, image: Image) -> list[Entry]:
    if not name:
        raise KafkaError(Error.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    return describe_client_metrics(config, image.configs(CLIENT_METRICS, name))


def _group_entries(name: str, config: BrokerConfig, image: Image) -> list[Entry]:
    if not name:
        raise KafkaError(Error.INVALID_REQUEST, "Group name must not be empty")
    return describe_group(config, image.configs(GROUP, name))


def _number(text: str, complaint: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or not -(2**31) <= int(text) < 2**31:
        raise KafkaError(Error.INVALID_REQUEST, complaint + text)
    return int(text)


ENTRIES: dict[int, Callable[[str, BrokerConfig, Image], list[Entry]]] = {
    TOPIC: _topic_entries,
    BROKER: _broker_entries,
    BROKER_LOGGER: _logger_entries,
    CLIENT_METRICS: _client_metrics_entries,
    GROUP: _group_entries,
}


# --- ListConfigResources


@serves(ListConfigResourcesRequest, versions="0-1")
async def list_config_resources(request: ListConfigResourcesRequest, ctx: Context) -> ListConfigResourcesResponse:
    wanted = set(request.resource_types) or set(KNOWN_TYPES) if ctx.version else {CLIENT_METRICS}
    if not wanted <= set(KNOWN_TYPES):
        return ListConfigResourcesResponse(error_code=Error.UNSUPPORTED_VERSION.code)
    listed = ListConfigResourcesResponse.Resource
    return ListConfigResourcesResponse(
        config_resources=[
            listed(resource_name=name, resource_type=kind)
            for kind in (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)
            if kind in wanted
            for name in _names(kind, ctx)
        ]
    )


def _names(kind: int, ctx: Context) -> list[str]:
    """Topics and brokers are there whether they have settings of their own or not; of the others nothing else is known."""
    if kind == TOPIC:
        return list(ctx.image.topic_ids)
    if kind in (BROKER, BROKER_LOGGER):
        return [str(broker.id) for broker in alive_on(ctx.image, ctx.listener)]
    return [name for of, name in ctx.image.settings if of == kind]


# --- AlterConfigs and IncrementalAlterConfigs


class Wish(NamedTuple):
    """What a request wants of one resource. `replaces`: settings that it does not name go away."""

    resource: Resource
    operations: list[Operation]
    replaces: bool


@serves(AlterConfigsRequest, versions="0-2")
async def alter_configs(request: AlterConfigsRequest, ctx: Context) -> AlterConfigsResponse:
    wishes = [
        Wish((asked.resource_type, asked.resource_name), [Operation(c.name, SET, c.value) for c in asked.configs], True)
        for asked in request.resources
    ]
    errors = await _alter(wishes, request, ctx)
    return AlterConfigsResponse(responses=_answers(AlterConfigsResponse.Resource, wishes, errors))


@serves(IncrementalAlterConfigsRequest, versions="0-1")
async def incrementally_alter_configs(
    request: IncrementalAlterConfigsRequest, ctx: Context
) -> IncrementalAlterConfigsResponse:
    wishes = []
    for asked in request.resources:
        operations = [Operation(c.name, c.config_operation, c.value) for c in asked.configs]
        wishes.append(Wish((asked.resource_type, asked.resource_name), operations, False))
    errors = await _alter(wishes, request, ctx)
    return IncrementalAlterConfigsResponse(responses=_answers(IncrementalAlterConfigsResponse.Resource, wishes, errors))


def _answers(answer: type[Answer], wishes: Sequence[Wish], errors: Sequence[KafkaError | None]) -> list[Answer]:
    return [
        answer(
            error_code=error.code if error else 0,
            error_message=error.message if error and error.error is not Error.UNKNOWN_SERVER_ERROR else None,
            resource_type=wish.resource[0],
            resource_name=wish.resource[1],
        )
        for wish, error in zip(wishes, errors, strict=True)
    ]


async def _alter(wishes: Sequence[Wish], request: Altering, ctx: Context) -> list[KafkaError | None]:
    """What became of each wish. One that fails does not keep the others from being granted."""
    errors = _first_look(wishes, ctx)
    granted = [index for index, error in enumerate(errors) if error is None]
    for index in [index for index in granted if wishes[index].resource[0] == BROKER_LOGGER]:
        granted.remove(index)
        if not request.validate_only:
            loggers.change(wishes[index].operations)
    try:
        if ctx.node.controller.is_active or not may_forward(ctx):
            await _decide(wishes, granted, errors, request.validate_only, ctx)
            return errors
    except KafkaError as error:
        if error.error is not Error.NOT_CONTROLLER or not may_forward(ctx):
            raise
    if granted:
        assert isinstance(ctx, Exchange)
        await _pass_on(request, granted, errors, ctx)
    return errors


async def _decide(
    wishes: Sequence[Wish], granted: list[int], errors: list[KafkaError | None], validate_only: bool, ctx: Context
) -> None:
    config = ctx.node.config

    def decide(written: Image) -> Decision[None]:
        changes: dict[Resource, Mapping[str, str | None]] = {}
        for index in granted:
            wish = wishes[index]
            try:
                changes[wish.resource] = _changes(wish, written, config)
            except UnknownOperation as error:
                # It makes the controller of Apache Kafka fail on all that came along with it.
                errors[:] = [error if other in granted else errors[other] for other in range(len(wishes))]
                return Decision([], None)
            except KafkaError as error:
                errors[index] = error
        return Decision([], None) if validate_only else incremental_alter_configs(written, changes)

    await ctx.node.controller.propose(decide)


async def _pass_on(request: Altering, granted: list[int], errors: list[KafkaError | None], exchange: Exchange) -> None:
    """The controller decides about the rest."""
    resources: list[Any] = [request.resources[index] for index in granted]
    rest = type(request)(resources=resources, validate_only=request.validate_only)
    parts = request_frame(rest, exchange.version, exchange.correlation_id, exchange.client_id)
    answer: Any = await relay(b"".join(bytes(part) for part in parts)[4:], rest, exchange)  # type: ignore[arg-type]
    told = {(each.resource_type, each.resource_name): each for each in answer.responses} if answer else {}
    for index, asked in zip(granted, resources, strict=True):
        each = told.get((asked.resource_type, asked.resource_name))
        errors[index] = None  # whatever a controller said that was deposed meanwhile
        if each is None or each.error_code:
            error = Error.UNKNOWN_SERVER_ERROR if each is None else Error(each.error_code)  # type: ignore[call-arg]
            errors[index] = KafkaError(error, each and each.error_message)


def _first_look(wishes: Sequence[Wish], ctx: Context) -> list[KafkaError | None]:
    """What can be refused without asking the controller."""
    named = Counter(wish.resource for wish in wishes)
    errors: list[KafkaError | None] = []
    for wish in wishes:
        try:
            if named[wish.resource] > 1:
                raise KafkaError(Error.INVALID_REQUEST, "Each resource must appear at most once.")
            check_operations(wish.operations)
            _check_resource(wish, ctx)
            errors.append(None)
        except KafkaError as error:
            errors.append(error)
    return errors


def _check_resource(wish: Wish, ctx: Context) -> None:
    (kind, name), config = wish.resource, ctx.node.config
    if kind not in KNOWN_TYPES or (kind == BROKER_LOGGER and wish.replaces):
        raise KafkaError(Error.INVALID_REQUEST, f"Unknown resource type {kind}")
    one_node = kind == BROKER_LOGGER or (kind == BROKER and name and not ctx.is_to_controller)
    if one_node and _number(name, "Node id must be an integer, but it is: ") != config.node_id:
        why = f"Unexpected broker id, expected {config.node_id}, but received {name}"
        raise KafkaError(Error.INVALID_REQUEST, why)
    if kind == BROKER_LOGGER:
        loggers.check(wish.operations)
    if kind == BROKER:
        for operation in wish.operations:
            if not SET <= operation.kind <= SUBTRACT:
                raise KafkaError(Error.INVALID_REQUEST, f"Unknown operations type {operation.kind}")
        if not ctx.is_to_controller:
            _broker_changes(wish, ctx.image, config)


def _changes(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    """What the wish changes, if it may."""
    return CHANGES[wish.resource[0]](wish, written, config)


def _topic_changes(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    name = wish.resource[1]
    current = written.configs(TOPIC, name)
    changes = _worked_out(wish, current, TOPIC_SETTINGS)
    if not name:
        raise KafkaError(Error.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_name(name)
    validate_topic_configs(applied(current, changes), broker=config, existing=current)
    if written.topic(name) is None:
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return changes


def _broker_changes(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    name = wish.resource[1]
    current = written.configs(*wish.resource)
    changes = _worked_out(wish, current, list_settings_of_brokers())
    check_broker(config, applied(current, changes), for_all=not name)
    return changes


def _broker_changes_of_controller(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    name = wish.resource[1]
    changes = _worked_out(wish, written.configs(BROKER, name), list_settings_of_brokers())
    _check_minimum(name, changes, written)
    if name:
        _check_node(_number(name, "Unable to parse broker name as a base 10 number: "), written)
    return _broker_changes(wish, written, config)


def _group_changes(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    current = written.configs(*wish.resource)
    changes = _worked_out(wish, current, {})
    if not wish.resource[1]:
        raise KafkaError(Error.INVALID_REQUEST, "Default group resources are not allowed.")
    check_group(config, applied(current, changes))
    return changes


def _client_metrics_changes(wish: Wish, written: Image, config: BrokerConfig) -> dict[str, str | None]:
    current = written.configs(*wish.resource)
    # Some of these are lists, but Apache Kafka does not offer to append to them.
    changes = _worked_out(wish, current, {})
    if not wish.resource[1]:
        raise KafkaError(Error.INVALID_REQUEST, "Subscription name can't be empty")
    check_client_metrics(applied(current, changes))
    return changes


CHANGES: dict[int, Callable[[Wish, Image, BrokerConfig], dict[str, str | None]]] = {
    TOPIC: _topic_changes,
    BROKER: _broker_changes_of_controller,
    CLIENT_METRICS: _client_metrics_changes,
    GROUP: _group_changes,
}


def _worked_out(wish: Wish, current: Mapping[str, str], lists: Mapping[str, Setting]) -> dict[str, str | None]:
    changes = outcome(wish.operations, current, lists)
    if wish.replaces:
        changes |= {name: None for name in current if name not in changes}
    return changes


def _check_node(node: int, written: Image) -> None:
    if node < 0:
        raise KafkaError(Error.INVALID_REQUEST, "Invalid negative broker ID.")
    if node not in written.brokers and node not in written.controllers:
        raise KafkaError(Error.BROKER_ID_NOT_REGISTERED, f"No node with id {node} found.")


def _check_minimum(name: str, changes: Mapping[str, str | None], written: Image) -> None:
    """Who is eligible to lead depends on one minimum for the whole cluster, so it must exist and be the only one."""
    if not written.elr_enabled or MIN_INSYNC_REPLICAS not in changes:
        return
    if name:
        why = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        raise KafkaError(Error.INVALID_CONFIG, why)
    if changes[MIN_INSYNC_REPLICAS] is None:
        why = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        raise KafkaError(Error.INVALID_CONFIG, why)
