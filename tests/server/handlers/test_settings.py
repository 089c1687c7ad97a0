"""Settings over the wire's objects, on a real metadata log. What is expected was answered by Apache Kafka 4.3.1."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from desk import Governed
from ottla.config import BrokerConfig, single_node_defaults
from ottla.log.directories import Directories
from ottla.log.producers import Origin
from ottla.log.settings import LogSettings
from ottla.metadata.controller import NewTopic, create_topics
from ottla.metadata.image import BROKER, Delta, Image
from ottla.replication.moves import Moves
from ottla.server.context import Context
from ottla.server.handlers.log_dirs import describe_log_dirs
from ottla.server.handlers.settings import alter_configs, describe_configs, incrementally_alter_configs
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import DescribeLogDirsRequest
from ottla.wire.messages.settings import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.records import Record, build
from ottla.world import World

SET, DELETE, APPEND, SUBTRACT, NO_SUCH = 0, 1, 2, 3, 9
T, B, LOGGER, METRICS, G = 2, 4, 8, 16, 32

Ops = list[tuple[str, int, str | None]]
Change = tuple[int, str, Ops]


class Admin:
    """A node without sockets: settings, metadata log, directories, and the handlers in front of them."""

    def __init__(self, path: Path) -> None:
        self.world = World(random=random.Random(7))
        self.config = BrokerConfig(single_node_defaults() | {"log.dirs": str(path / "a") + "," + str(path / "b")})
        self.directories = Directories(
            self.world.disk, self.config.log_dirs, self.config.node_id, self.world.now_ms, self.world.random
        )
        self.governed = Governed(self.config, self.world, self.directories, self._fatal)
        self.quorum = self.governed.quorum
        self.quorum.listen(self._follow)

    def _fatal(self, error: BaseException) -> None:
        raise error

    async def _follow(self, old: Image, new: Image, delta: Delta) -> None:
        self.config.set_dynamic(new.configs(BROKER, ""), new.configs(BROKER, "1"))

    async def start(self) -> None:
        self.directories.open()
        await self.governed.start({})
        new, active = NewTopic("t1", 1, 1), self.governed.controller
        await active.propose(lambda image: create_topics(image, [new], active.rules, self.world.random))

    async def stop(self) -> None:
        await self.governed.stop()
        await self.directories.close(-1)

    async def call(self, handler: Callable[[Any, Context], Awaitable[Any]], request: Any) -> Any:
        replicas = SimpleNamespace(moves=Moves(self.directories, self.world.random, 1))
        node: Any = SimpleNamespace(replicas=replicas, **vars(self.governed))
        connection: Any = SimpleNamespace(listener=SimpleNamespace(is_controller=False))
        return await handler(request, Context(node, connection, "test", 4))

    # Requests in short

    async def describe(self, *asked: tuple[int, str, list[str] | None], **more: bool) -> DescribeConfigsResponse:
        resources = [
            DescribeConfigsRequest.Resource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in asked
        ]
        answer: DescribeConfigsResponse = await self.call(
            describe_configs, DescribeConfigsRequest(resources=resources, **more)
        )
        return answer

    async def value(self, kind: int, name: str, setting: str) -> tuple[str | None, int]:
        answer = await self.describe((kind, name, [setting]))
        [config] = answer.results[0].configs
        return config.value, config.config_source

    async def change(self, *changes: Change, validate_only: bool = False) -> list[tuple[str, str | None]]:
        Resource = IncrementalAlterConfigsRequest.Resource
        resources = []
        for kind, name, operations in changes:
            configs = [Resource.Config(name=n, config_operation=op, value=value) for n, op, value in operations]
            resources.append(Resource(resource_type=kind, resource_name=name, configs=configs))
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
        answer = await self.call(incrementally_alter_configs, request)
        return [(Error(r.error_code).name, r.error_message) for r in answer.responses]

    async def replace(self, *wanted: tuple[int, str, dict[str, str | None]], validate_only: bool = False) -> list[str]:
        Resource = AlterConfigsRequest.Resource
        resources = []
        for kind, name, values in wanted:
            configs = [Resource.Config(name=n, value=value) for n, value in values.items()]
            resources.append(Resource(resource_type=kind, resource_name=name, configs=configs))
        answer = await self.call(alter_configs, AlterConfigsRequest(resources=resources, validate_only=validate_only))
        return [Error(r.error_code).name for r in answer.responses]


Play = Callable[[Callable[[Admin], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Runs a script of requests against a fresh node."""

    def run(script: Callable[[Admin], Awaitable[None]]) -> None:
        async def whole() -> None:
            admin = Admin(tmp_path)
            await admin.start()
            try:
                await script(admin)
            finally:
                await admin.stop()

        asyncio.run(whole())

    yield run


# --- DescribeConfigs


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (T, "t1", "NONE", ""),
        (T, "nope", "UNKNOWN_TOPIC_OR_PARTITION", ""),
        (T, "bad/name", "INVALID_TOPIC_EXCEPTION", "'bad/name' contains one or more characters"),
        (T, "", "INVALID_TOPIC_EXCEPTION", ""),
        (T, "..", "INVALID_TOPIC_EXCEPTION", ""),
        (B, "1", "NONE", ""),
        (B, "01", "NONE", ""),
        (B, "", "NONE", ""),
        (B, "2", "INVALID_REQUEST", "Unexpected broker id, expected 1 or empty string, but received 2"),
        (B, "abc", "INVALID_REQUEST", "Broker id must be an integer, but it is: abc"),
        (B, "-1", "INVALID_REQUEST", "Unexpected broker id"),
        (LOGGER, "1", "NONE", ""),
        (LOGGER, "", "INVALID_REQUEST", "Broker id must not be empty"),
        (LOGGER, "2", "INVALID_REQUEST", "Unexpected broker id, expected 1 but received 2"),
        (METRICS, "any", "NONE", ""),
        (METRICS, "", "INVALID_REQUEST", "Client metrics subscription name must not be empty"),
        (G, "any", "NONE", ""),
        (G, "", "INVALID_REQUEST", "Group name must not be empty"),
    ],
)
def test_which_resources_can_be_described(play: Play, kind: int, name: str, error: str, message: str) -> None:
    async def script(admin: Admin) -> None:
        [result] = (await admin.describe((kind, name, None))).results
        assert (result.resource_type, result.resource_name) == (kind, name)
        assert Error(result.error_code).name == error
        assert message in (result.error_message or "")
        if error == "NONE":
            assert result.error_message == ""
            assert bool(result.configs) == ((kind, name) != (B, "") or admin.quorum.image.elr_enabled)

    play(script)


@pytest.mark.parametrize("kind", [0, 1, 3, 99, -1])
def test_an_unknown_type_spoils_the_whole_request(play: Play, kind: int) -> None:
    async def script(admin: Admin) -> None:
        answer = await admin.describe((kind, "x", None), (T, "t1", None))
        assert [Error(result.error_code).name for result in answer.results] == ["INVALID_REQUEST"] * 2
        assert not answer.results[1].configs

    play(script)


def test_what_is_left_out_and_what_is_added(play: Play) -> None:
    async def script(admin: Admin) -> None:
        everything, none_named, unknown, one = (
            await admin.describe((T, "t1", None), (T, "t1", []), (T, "t1", ["no.such"]), (T, "t1", ["cleanup.policy"]))
        ).results
        assert len(everything.configs) == len(none_named.configs) == 33
        assert unknown.configs == []
        [plain] = one.configs
        assert (plain.synonyms, plain.documentation) == ([], None)
        full = await admin.describe((T, "t1", ["cleanup.policy"]), include_synonyms=True, include_documentation=True)
        [config] = full.results[0].configs
        assert [(s.name, s.value, s.source) for s in config.synonyms] == [("log.cleanup.policy", "delete", 5)]
        assert config.documentation and config.config_type == 7

    play(script)


def test_passwords_are_never_shown(play: Play) -> None:
    async def script(admin: Admin) -> None:
        assert (await admin.change((B, "1", [("sasl.jaas.config", SET, "secret")])))[0][0] == "NONE"
        answer = await admin.describe((B, "1", ["sasl.jaas.config"]), include_synonyms=True)
        [config] = answer.results[0].configs
        assert config.is_sensitive and config.value is None and config.config_source == 2
        assert [s.value for s in config.synonyms] == [None]

    play(script)


# --- IncrementalAlterConfigs

REFUSED: list[tuple[Change, str, str]] = [
    ((T, "t1", [("retention.ms", SET, "banana")]), "INVALID_CONFIG", "Not a number of type LONG"),
    ((T, "t1", [("retention.ms", SET, "-2")]), "INVALID_CONFIG", "at least -1"),
    ((T, "t1", [("retention.ms", SET, None)]), "INVALID_REQUEST", "Null value not supported for : retention.ms"),
    ((T, "t1", [("no.such.config", SET, "1")]), "INVALID_CONFIG", "Unknown topic config name: no.such.config"),
    ((T, "t1", [("no.such.config", APPEND, "1")]), "INVALID_CONFIG", "Can't APPEND to key no.such.config"),
    ((T, "t1", [("retention.ms", SUBTRACT, "1")]), "INVALID_CONFIG", "Can't SUBTRACT to key retention.ms"),
    ((T, "t1", [("retention.ms", NO_SUCH, "1")]), "UNKNOWN_SERVER_ERROR", ""),
    ((T, "t1", [("cleanup.policy", APPEND, "banana")]), "INVALID_CONFIG", "compact, delete"),
    ((T, "t1", [("cleanup.policy", APPEND, "")]), "INVALID_CONFIG", "must not be empty"),
    ((T, "t1", [("segment.bytes", SET, "1048575")]), "INVALID_CONFIG", "1048576"),
    ((T, "t1", [("remote.storage.enable", SET, "true")]), "INVALID_CONFIG", "disabled in the broker"),
    (
        (T, "t1", [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")]),
        "INVALID_CONFIG",
        "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    (
        (T, "t1", [("retention.ms", SET, "1"), ("retention.ms", DELETE, "2")]),
        "INVALID_REQUEST",
        "duplicate config keys",
    ),
    ((T, "nope", [("retention.ms", SET, "1")]), "UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nope' does not exist."),
    ((T, "nope", []), "UNKNOWN_TOPIC_OR_PARTITION", ""),
    ((T, "nope", [("retention.ms", SET, "banana")]), "INVALID_CONFIG", ""),
    ((T, "bad/name", [("retention.ms", SET, "1")]), "INVALID_TOPIC_EXCEPTION", ""),
    ((T, "", [("retention.ms", SET, "1")]), "INVALID_REQUEST", "Default topic resources are not allowed."),
    ((0, "x", [("a", SET, "1")]), "INVALID_REQUEST", "Unknown resource type 0"),
    ((99, "x", []), "INVALID_REQUEST", "Unknown resource type 99"),
    ((B, "1", [("message.max.bytes", SET, "banana")]), "INVALID_REQUEST", "Not a number of type INT"),
    ((B, "1", [("message.max.bytes", NO_SUCH, "1")]), "INVALID_REQUEST", "Unknown operations type 9"),
    ((B, "1", [("message.max.bytes", APPEND, "1")]), "INVALID_CONFIG", ""),
    ((B, "1", [("no.such", APPEND, "1")]), "INVALID_CONFIG", ""),
    ((B, "1", [("node.id", SET, "3")]), "INVALID_REQUEST", "Cannot update these configs dynamically: [node.id]"),
    ((B, "1", [("log.retention.hours", SET, "3")]), "INVALID_REQUEST", "Cannot update these configs dynamically"),
    ((B, "1", [("log.dirs", APPEND, "/x")]), "INVALID_REQUEST", "Cannot update these configs dynamically"),
    ((B, "1", [("log.retention.ms", SET, "0")]), "INVALID_REQUEST", "log.retention.ms must be unlimited (-1)"),
    ((B, "1", [("log.cleanup.policy", APPEND, "banana")]), "INVALID_REQUEST", ""),
    ((B, "1", [("num.io.threads", SET, "3")]), "INVALID_REQUEST", "half"),
    ((B, "", [("num.io.threads", SET, "17")]), "INVALID_REQUEST", "double"),
    ((B, "1", [("log.cleaner.threads", SET, "0")]), "INVALID_REQUEST", ""),
    ((B, "1", [("max.connection.creation.rate", SET, "0")]), "INVALID_REQUEST", ""),
    ((B, "1", [("max.connections.per.ip", SET, "0")]), "INVALID_REQUEST", "max.connections.per.ip.overrides"),
    ((B, "1", [("max.connections.per.ip.overrides", SET, "x")]), "INVALID_REQUEST", ""),
    ((B, "1", [("cordoned.log.dirs", SET, "/nonexistent")]), "INVALID_REQUEST", "/nonexistent"),
    ((B, "1", [("principal.builder.class", SET, "no.Such")]), "INVALID_REQUEST", "could not be found"),
    ((B, "1", [("ssl.keystore.location", SET, "/x")]), "INVALID_REQUEST", "only per-listener"),
    ((B, "", [("listeners", SET, "PLAINTEXT://:1")]), "INVALID_REQUEST", "broker id must be specified: [listeners]"),
    ((B, "", [("listener.name.x.ssl.keystore.location", SET, "/x")]), "INVALID_REQUEST", "broker id must be specified"),
    (
        (B, "2", [("message.max.bytes", SET, "1")]),
        "INVALID_REQUEST",
        "Unexpected broker id, expected 1, but received 2",
    ),
    ((B, "x", [("message.max.bytes", SET, "1")]), "INVALID_REQUEST", "Node id must be an integer, but it is: x"),
    ((LOGGER, "1", [("root", SET, "banana")]), "INVALID_CONFIG", "DEBUG, ERROR, FATAL, INFO, TRACE, WARN"),
    ((LOGGER, "1", [("root", DELETE, None)]), "INVALID_REQUEST", "Removing the log level of the root logger"),
    ((LOGGER, "1", [("no.logger", SET, "INFO")]), "INVALID_CONFIG", "Logger no.logger does not exist!"),
    ((LOGGER, "1", [("root", APPEND, "INFO")]), "INVALID_REQUEST", "APPEND operation is not allowed"),
    ((LOGGER, "1", [("root", NO_SUCH, "INFO")]), "UNKNOWN_SERVER_ERROR", ""),
    ((LOGGER, "2", [("root", SET, "INFO")]), "INVALID_REQUEST", ""),
    ((LOGGER, "", [("root", SET, "INFO")]), "INVALID_REQUEST", "Node id must be an integer"),
    ((METRICS, "cm", [("interval.ms", SET, "1")]), "INVALID_REQUEST", "must be between 100 and 3600000"),
    ((METRICS, "cm", [("interval.ms", SET, "x")]), "INVALID_CONFIG", ""),
    ((METRICS, "", [("interval.ms", SET, "1000")]), "INVALID_REQUEST", "Subscription name can't be empty"),
    ((METRICS, "cm", [("nope", SET, "1")]), "INVALID_REQUEST", "Unknown client metrics configuration: nope"),
    ((METRICS, "cm", [("match", SET, "x")]), "INVALID_CONFIG", "Illegal client matching pattern: x"),
    ((METRICS, "cm", [("match", SET, "foo=a")]), "INVALID_CONFIG", ""),
    ((METRICS, "cm", [("match", SET, "client_id=(")]), "INVALID_CONFIG", ""),
    ((METRICS, "cm", [("metrics", APPEND, "a")]), "INVALID_CONFIG", "because its type is not LIST"),
    ((G, "g", [("consumer.session.timeout.ms", SET, "5")]), "INVALID_CONFIG", "group.consumer.min.session.timeout.ms"),
    ((G, "g", [("consumer.session.timeout.ms", SET, "x")]), "INVALID_CONFIG", ""),
    ((G, "g", [("share.delivery.count.limit", SET, "11")]), "INVALID_CONFIG", "group.share.max.delivery.count.limit"),
    ((G, "g", [("streams.num.standby.replicas", SET, "3")]), "INVALID_CONFIG", "group.streams.max.standby.replicas"),
    ((G, "g", [("nope", SET, "x")]), "INVALID_CONFIG", "Unknown group config name: nope"),
    ((G, "", [("consumer.session.timeout.ms", SET, "50000")]), "INVALID_REQUEST", "Default group resources"),
]


def test_changes_that_are_refused(play: Play) -> None:
    """Kafka's code, and nothing changes. TRAP-17 for segment.bytes."""

    async def script(admin: Admin) -> None:
        before = admin.quorum.image.settings
        wrong = []
        for change, error, message in REFUSED:
            [(got, text)] = await admin.change(change)
            if got != error or message not in (text or ""):
                wrong.append((change, got, text))
        assert wrong == []
        assert dict(admin.quorum.image.settings.items()) == dict(before.items())

    play(script)


ACCEPTED: list[Change] = [
    (T, "t1", []),
    (T, "t1", [("no.such.config", DELETE, None)]),
    (T, "t1", [("cleanup.policy", SUBTRACT, " compact")]),
    (T, "t1", [("internal.segment.bytes", SET, "100")]),
    (T, "t1", [("leader.replication.throttled.replicas", APPEND, "0:1")]),
    (B, "1", [("no.such", SET, "3")]),
    (B, "1", [("node.id", DELETE, None)]),
    (B, "1", [("ssl.key.password", DELETE, None)]),
    (B, "1", [("log.retention.ms", SET, "-7")]),
    (B, "1", [("num.network.threads", SET, "4")]),
    (B, "1", [("listener.name.x.ssl.keystore.location", SET, "/x")]),
    (B, "1", [("listener.name.x.node.id", SET, "banana")]),
    (B, "", [("listener.name.x.max.connections", SET, "3")]),
    (METRICS, "cm", [("match", SET, "client_id=.*"), ("interval.ms", SET, "1000")]),
    (G, "g", [("consumer.session.timeout.ms", SET, "50000"), ("share.auto.offset.reset", SET, "earliest")]),
]


def test_changes_that_are_accepted(play: Play) -> None:
    async def script(admin: Admin) -> None:
        for change in ACCEPTED:
            assert await admin.change(change) == [("NONE", None)], change

    play(script)


def test_lists_grow_and_shrink(play: Play) -> None:
    """PRT-17: APPEND begins with the default, takes nothing twice; SUBTRACT may empty a list."""

    async def script(admin: Admin) -> None:
        steps: list[tuple[str, int, str | None]] = [
            ("delete,compact", APPEND, "compact"),
            ("delete,compact", APPEND, "compact,delete"),
            ("compact", SUBTRACT, "delete"),
            ("", SUBTRACT, "compact"),
            ("delete", DELETE, "whatever"),
        ]
        for expected, operation, value in steps:
            assert (await admin.change((T, "t1", [("cleanup.policy", operation, value)])))[0][0] == "NONE"
            assert await admin.value(T, "t1", "cleanup.policy") == (expected, 5 if operation == DELETE else 1)

    play(script)


def test_two_who_append_at_once_both_succeed(play: Play) -> None:
    async def script(admin: Admin) -> None:
        name = "leader.replication.throttled.replicas"
        await asyncio.gather(
            admin.change((T, "t1", [(name, APPEND, "0:1")])), admin.change((T, "t1", [(name, APPEND, "0:2")]))
        )
        assert await admin.value(T, "t1", name) == ("0:1,0:2", 1)

    play(script)


def test_only_looking_changes_nothing(play: Play) -> None:
    async def script(admin: Admin) -> None:
        assert await admin.change((T, "t1", [("retention.ms", SET, "5")]), validate_only=True) == [("NONE", None)]
        assert (await admin.change((T, "t1", [("retention.ms", SET, "x")]), validate_only=True))[0][
            0
        ] == "INVALID_CONFIG"
        assert await admin.replace((T, "t1", {"retention.ms": "5"}), validate_only=True) == ["NONE"]
        level = logging.root.level
        assert (await admin.change((LOGGER, "1", [("root", SET, "FATAL")]), validate_only=True))[0][0] == "NONE"
        assert logging.root.level == level
        assert await admin.value(T, "t1", "retention.ms") == ("604800000", 5)

    play(script)


def test_one_bad_resource_does_not_hold_up_the_others(play: Play) -> None:
    async def script(admin: Admin) -> None:
        errors = await admin.change(
            (T, "t1", [("retention.ms", SET, "5")]), (T, "nope", [("retention.ms", SET, "5")]), (99, "x", [])
        )
        assert [error for error, _ in errors] == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST"]
        assert await admin.value(T, "t1", "retention.ms") == ("5", 1)

    play(script)


def test_a_resource_named_twice_is_refused_twice(play: Play) -> None:
    async def script(admin: Admin) -> None:
        twice: list[Change] = [(T, "t1", [("retention.ms", SET, "1")]), (T, "t1", [("retention.ms", SET, "2")])]
        assert [error for error, _ in await admin.change(*twice)] == ["INVALID_REQUEST"] * 2
        assert await admin.replace((T, "t1", {}), (T, "t1", {})) == ["INVALID_REQUEST"] * 2
        assert await admin.value(T, "t1", "retention.ms") == ("604800000", 5)

    play(script)


def test_an_unknown_operation_spoils_all_that_goes_to_the_controller(play: Play) -> None:
    async def script(admin: Admin) -> None:
        errors = await admin.change(
            (T, "t1", [("retention.ms", SET, "7")]),
            (B, "", [("message.max.bytes", SET, "x")]),
            (G, "g", [("consumer.session.timeout.ms", NO_SUCH, "7")]),
        )
        assert [error for error, _ in errors] == ["UNKNOWN_SERVER_ERROR", "INVALID_REQUEST", "UNKNOWN_SERVER_ERROR"]
        assert await admin.value(T, "t1", "retention.ms") == ("604800000", 5)

    play(script)


def test_broker_settings_change_at_once(play: Play) -> None:
    async def script(admin: Admin) -> None:
        await admin.change((B, "", [("message.max.bytes", SET, "3000000")]))
        assert await admin.value(T, "t1", "max.message.bytes") == ("3000000", 3)
        await admin.change((B, "1", [("message.max.bytes", SET, "2000000")]))
        assert await admin.value(T, "t1", "max.message.bytes") == ("2000000", 2)
        assert admin.config["message.max.bytes"] == 2_000_000
        answer = await admin.describe((B, "", None))
        assert [c.name for c in answer.results[0].configs if c.name != "min.insync.replicas"] == ["message.max.bytes"]
        await admin.replace((B, "1", {}))
        assert await admin.value(B, "1", "message.max.bytes") == ("3000000", 3)

    play(script)


def test_the_minimum_in_sync_stays_one_for_all_brokers(play: Play) -> None:
    """With eligible leader replicas it must exist, and only once. TRAP-31."""

    async def script(admin: Admin) -> None:
        if not admin.quorum.image.elr_enabled:
            assert (await admin.change((B, "1", [("min.insync.replicas", SET, "1")])))[0][0] == "NONE"
            return
        for change in ((B, "1", [("min.insync.replicas", SET, "2")]), (B, "", [("min.insync.replicas", DELETE, None)])):
            assert (await admin.change(change))[0][0] == "INVALID_CONFIG"
        assert await admin.replace((B, "", {})) == ["INVALID_CONFIG"]
        assert (await admin.change((B, "", [("min.insync.replicas", SET, "1")])))[0][0] == "NONE"

    play(script)


def test_log_levels(play: Play) -> None:
    async def script(admin: Admin) -> None:
        logger = logging.getLogger("ottla.config")
        before = logger.level
        try:
            assert (await admin.change((LOGGER, "1", [("ottla.config", SET, "FATAL")])))[0][0] == "NONE"
            assert logger.level == logging.CRITICAL
            assert await admin.value(LOGGER, "1", "ottla.config") == ("FATAL", 6)
            await admin.change((LOGGER, "1", [("ottla.config", DELETE, None)]))
            assert logger.level == logging.NOTSET
        finally:
            logger.setLevel(before)

    play(script)


# --- AlterConfigs


def test_alter_configs_replaces_everything(play: Play) -> None:
    async def script(admin: Admin) -> None:
        assert await admin.replace((T, "t1", {"retention.ms": "1000", "cleanup.policy": "compact"})) == ["NONE"]
        assert await admin.replace((T, "t1", {"retention.ms": "2000"})) == ["NONE"]
        assert await admin.value(T, "t1", "retention.ms") == ("2000", 1)
        assert await admin.value(T, "t1", "cleanup.policy") == ("delete", 5)
        assert await admin.replace((T, "t1", {})) == ["NONE"]
        assert await admin.value(T, "t1", "retention.ms") == ("604800000", 5)

    play(script)


@pytest.mark.parametrize(
    ("kind", "name", "values", "error"),
    [
        (T, "t1", {"retention.ms": None}, "INVALID_REQUEST"),
        (T, "t1", {"zz": "1"}, "INVALID_CONFIG"),
        (T, "t1", {"retention.ms": "x"}, "INVALID_CONFIG"),
        (T, "nope", {"retention.ms": "1"}, "UNKNOWN_TOPIC_OR_PARTITION"),
        (T, "bad/name", {}, "INVALID_TOPIC_EXCEPTION"),
        (T, "", {}, "INVALID_REQUEST"),
        (B, "2", {}, "INVALID_REQUEST"),
        (B, "1", {"node.id": "1"}, "INVALID_REQUEST"),
        (B, "1", {}, "NONE"),
        (LOGGER, "1", {"root": "INFO"}, "INVALID_REQUEST"),
        (METRICS, "cm", {"interval.ms": "2000"}, "NONE"),
        (G, "g", {"consumer.session.timeout.ms": "50000"}, "NONE"),
        (0, "x", {}, "INVALID_REQUEST"),
    ],
)
def test_alter_configs_answers(play: Play, kind: int, name: str, values: dict[str, str | None], error: str) -> None:
    async def script(admin: Admin) -> None:
        assert await admin.replace((kind, name, values)) == [error]

    play(script)


# --- DescribeLogDirs


def test_data_directories_are_listed_with_what_is_in_them(play: Play, tmp_path: Path) -> None:
    async def script(admin: Admin) -> None:
        [topic] = admin.quorum.image.topics.values()
        log = await admin.directories.log("t1", 0, topic.id, LogSettings(), bytes(16))
        batch = build([Record(timestamp=admin.world.now_ms(), value=b"something")])
        log.append(memoryview(bytearray(batch)), Origin.CLIENT, 0, admin.world.now_ms())
        log.publish()
        wanted = DescribeLogDirsRequest.Topic(topic="t1", partitions=[0, 5])
        unknown = DescribeLogDirsRequest.Topic(topic="nope", partitions=[0])
        for topics, expected in ((None, [0]), ([], []), ([wanted, unknown], [0]), ([unknown], [])):
            answer = await admin.call(describe_log_dirs, DescribeLogDirsRequest(topics=topics))
            assert [result.log_dir for result in answer.results] == [str(tmp_path / "a"), str(tmp_path / "b")]
            listed = [
                (t.name, p.partition_index, p.partition_size)
                for r in answer.results
                for t in r.topics
                for p in t.partitions
            ]
            assert listed == [("t1", index, len(batch)) for index in expected]
            assert all(r.total_bytes > r.usable_bytes > 0 and not r.is_cordoned for r in answer.results)

    play(script)
