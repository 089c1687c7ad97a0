"""The settings of one node: what its properties say, what was changed since, and what follows for topics.

A value comes from the first of these places that has one, and each place has a number in DescribeConfigs:

    2  dynamic, for this broker    ConfigRecords named after its id
    3  dynamic, for all brokers    ConfigRecords with an empty name
    4  static                      server.properties, --set
    5  default                     the tables

`set_dynamic` replaces the two dynamic places whenever the metadata changed, so values change while the node runs.
Whoever keeps a value instead of asking again says so with `listen`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from ottla.config.consistency import check_change, check_together
from ottla.config.kinds import Setting, Value
from ottla.config.listeners import (
    Endpoint,
    check_advertised,
    check_ports,
    effective_protocols,
    parse_listeners,
    refused,
)
from ottla.config.removed import replacement
from ottla.config.settings import (
    DYNAMIC_ONLY,
    LISTENER_PREFIX,
    MILLISECONDS,
    NODE_SETTINGS,
    SAME_VALUE,
    TOPIC_SETTINGS,
    base_name,
    broker_setting,
)
from ottla.wire.errors import KafkaError

log = logging.getLogger("ottla.config")

DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5

# Apache Kafka listens on every interface when nobody says where. Without passwords and TLS that is for people to decide.
LOOPBACK = {"listeners": "PLAINTEXT://localhost:9092"}
ONLY_HERE = (
    "listeners is not set: only programs on this machine can connect, at localhost:9092; "
    "listeners=PLAINTEXT://:9092 lets in others"
)

# What the broker grants to all its listeners together. One listener may have a limit of its own beside that, and has none
# unless it is set: the broker's is not its share.
GRANTED_TO_ALL_LISTENERS = ("max.connections", "max.connection.creation.rate")
OBEYED_BY_LOGS = ("producer.id.expiration.ms",)

Changed = Callable[[frozenset[str]], None]


def single_node_defaults() -> dict[str, str]:
    """What `ottla serve` runs with when nobody says otherwise: one node, for the programs on this machine."""
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "controller.listener.names": "CONTROLLER",
        # Nobody asked for this port: a second node on this machine must not fail because of it.
        "ottla.controller.port.fallback": "true",
        "log.dirs": "./ottla-data",
        # Kafka's default is 3 copies: on a single node no group and no transaction would ever start.
        "offsets.topic.replication.factor": "1",
        # Nor does anybody want to wait three seconds here for members that might come as well. But not at once either: a
        # client that joins before it knows its topic joins again a moment later, and kafka-python 3.0 may then forget to
        # send heartbeats.
        "group.initial.rebalance.delay.ms": "50",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


class BrokerConfig:
    """`config["log.segment.bytes"]` is the value that counts now, with its type."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises INVALID_CONFIG for what no node could run with; what can be ignored is in `warnings`."""
        self.warnings: list[str] = [line for name in properties if (line := _warning(name))]
        self.static = _completed(properties)
        if not {"listeners", "advertised.listeners"} & properties.keys():
            self.warnings.append(ONLY_HERE)
        self.dynamic_broker: dict[str, str] = {}
        self.dynamic_default: dict[str, str] = {}
        self._listeners: list[Changed] = []
        self._defaults = {name: setting.default_value() for name, setting in NODE_SETTINGS.items()}
        self._values = self._defaults | {name: _parse(name, text) for name, text in self.static.items()}
        self._topic_defaults = self._topic_fallbacks()
        check_together(self._values)
        self.protocols = effective_protocols(
            self["listener.security.protocol.map"],
            explicit="listener.security.protocol.map" in self.static,
            controller_names=self["controller.listener.names"],
        )
        self.endpoints = parse_listeners("listeners", self["listeners"], self.protocols)
        check_ports("listeners", self.endpoints)
        self.advertised = self._advertised()
        check_advertised(self.advertised, self.endpoints)
        for endpoint, name in product(self.endpoints, GRANTED_TO_ALL_LISTENERS):
            self.of_listener(endpoint.name, name)  # raises, if it cannot be
        _check_not_left_open(self)
        _check_inter_broker_listener(self)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def of_listener(self, listener: str, name: str) -> Any:
        """What was set for this listener alone (listener.name.NAME.setting), otherwise what counts for the broker."""
        text = self._values.get(f"{LISTENER_PREFIX}{listener.lower()}.{name}")
        if text is not None:
            return NODE_SETTINGS[name].parse(str(text))
        return self._defaults[name] if name in GRANTED_TO_ALL_LISTENERS else self._values[name]

    # What follows from several settings

    @property
    def node_id(self) -> int:
        node_id: int = self._values["node.id"]  # type: ignore[assignment]
        return node_id

    @property
    def is_one_of_several(self) -> bool:
        """Whether these settings are of a node that others must know: it cannot invent a cluster by itself."""
        controllers = self["controller.quorum.voters"] or self["controller.quorum.bootstrap.servers"]
        return len(controllers) > 1 or "controller" not in self["process.roles"]

    @property
    def log_dirs(self) -> tuple[str, ...]:
        dirs: tuple[str, ...] = self["log.dirs"] or self["log.dir"]
        return dirs

    @property
    def metadata_log_dir(self) -> str:
        return self["metadata.log.dir"] or self.log_dirs[0]

    @property
    def broker_endpoints(self) -> tuple[Endpoint, ...]:
        """Listeners for clients and other brokers."""
        names = {name.upper() for name in self["controller.listener.names"]}
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name not in names)

    @property
    def controller_endpoints(self) -> tuple[Endpoint, ...]:
        names = {name.upper() for name in self["controller.listener.names"]}
        return tuple(endpoint for endpoint in self.endpoints if endpoint.name in names)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves: as it is said, or one with the protocol that is said.

        Kafka takes only a listener that is named like its protocol. Any other one of the same protocol is as safe, and of one
        protocol there is usually one listener."""
        named: str | None = self["inter.broker.listener.name"]
        if named is not None:
            return named.upper()
        protocol: str = self["security.inter.broker.protocol"]
        names = [endpoint.name for endpoint in self.advertised if endpoint.protocol == protocol]
        return names[0] if names and protocol not in names else protocol

    def _advertised(self) -> tuple[Endpoint, ...]:
        """What clients are told, by listener; the listeners themselves where nothing is advertised."""
        entries = self["advertised.listeners"]
        if entries is None:
            return self.broker_endpoints
        given = parse_listeners("advertised.listeners", entries, self.protocols)
        controllers = {endpoint.name for endpoint in self.controller_endpoints}
        return tuple(endpoint for endpoint in given if endpoint.name not in controllers)

    @property
    def advertised_controllers(self) -> tuple[Endpoint, ...]:
        """Where other nodes find the controller of this one: as it is advertised, or else where it listens."""
        entries = self["advertised.listeners"] or ()
        given = {each.name: each for each in parse_listeners("advertised.listeners", entries, self.protocols)}
        return tuple(given.get(endpoint.name, endpoint) for endpoint in self.controller_endpoints)

    # Changes while the node runs

    def set_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over the dynamic settings of the metadata. One that makes no sense is left out, with a warning."""
        self.dynamic_default = _acceptable(defaults)
        self.dynamic_broker = _acceptable(own)
        values = self._with(self.dynamic_default, self.dynamic_broker)
        changed = frozenset(name for name in values if values[name] != self._values.get(name, None))
        changed |= self._values.keys() - values.keys()
        self._values = values
        self._topic_defaults = self._topic_fallbacks()
        if changed:
            for callback in self._listeners:
                callback(changed)

    def check_dynamic(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Raise INVALID_CONFIG unless the node could run on with these as its dynamic settings."""
        values = self._with(defaults, own)
        check_together(values)
        check_change(self._values, values)

    def _with(self, defaults: Mapping[str, str], own: Mapping[str, str]) -> dict[str, Value]:
        texts = dict(self.static)
        for name, text in (*defaults.items(), *own.items()):
            for other in SAME_VALUE.get(name, ()):
                texts.pop(other, None)  # hours in the properties count no more once milliseconds were set
            texts[name] = text
        return self._defaults | {name: _parse(name, text) for name, text in texts.items()}

    def listen(self, changed: Changed) -> None:
        """Call `changed` with the names of settings whose value is another one from now on."""
        self._listeners.append(changed)

    # Topics

    def topic_settings(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """Every topic setting with the value that counts for a topic that has these of its own.

        What a log obeys but a topic cannot set is among them, under its broker name."""
        values: dict[str, Any] = self._topic_defaults.copy()
        for name, text in overrides.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is None:
                continue  # Stored by another release; it means nothing here.
            try:
                values[name] = setting.parse(text)
            except KafkaError as error:
                log.warning("a topic keeps the default, because its setting cannot be used: %s", error.message)
        return values

    def _topic_fallbacks(self) -> dict[str, Value]:
        fallbacks = {name: self.stand_in(setting) for name, setting in TOPIC_SETTINGS.items()}
        return fallbacks | {name: self._values[name] for name in OBEYED_BY_LOGS}

    def stand_in(self, setting: Setting) -> Value:
        """The value of a topic or group setting that was not given: the broker's, in the unit of the setting."""
        for name in setting.stand_ins:
            value = self._values[name]
            if value is not None:
                unit = name.rpartition(".")[2]
                scaled = value * MILLISECONDS[unit] if unit in MILLISECONDS and isinstance(value, int) else value
                return max(scaled, -1) if setting.name == "retention.ms" and isinstance(scaled, int) else scaled
        return setting.default_value()


def _parse(name: str, text: str) -> Value:
    """Settings of one listener stay text, like those that nobody knows: whoever uses them knows what they are."""
    setting = NODE_SETTINGS.get(name)
    return text if setting is None else setting.parse(text)


def _warning(name: str) -> str | None:
    instead = replacement(name)
    if instead:
        return f"{name} was removed: {instead}"
    if broker_setting(name) is None or base_name(name) in DYNAMIC_ONLY:
        return f"{name} is not a setting of this broker and is ignored"
    return None


def _acceptable(texts: Mapping[str, str]) -> dict[str, str]:
    kept = {}
    for name, text in texts.items():
        try:
            _parse(name, text)
            kept[name] = text
        except KafkaError as error:
            log.warning("a dynamic setting is left out: %s", error.message)
    return kept


def _completed(given: Mapping[str, str]) -> dict[str, str]:
    """node.id and broker.id stand in for each other. A file from before KRaft names no roles: we take both. Whoever is told
    an address for others, and not where to listen, listens everywhere."""
    static = dict(given) if "advertised.listeners" in given else {**LOOPBACK, **given}
    node_id = static.get("node.id", static.get("broker.id", "1"))
    if static.setdefault("node.id", node_id) != static.setdefault("broker.id", node_id):
        raise refused(f"node.id ({static['node.id']}) and broker.id ({static['broker.id']}) must be the same")
    static.setdefault("process.roles", "broker,controller")
    static.setdefault("controller.listener.names", "CONTROLLER")
    return static


def _check_not_left_open(config: BrokerConfig) -> None:
    """What is meant to be protected must not be served unprotected, so a node that cannot protect it does not start."""
    for endpoint in config.endpoints:
        if endpoint.protocol != "PLAINTEXT":
            raise refused(
                f"listeners: {endpoint.name} speaks {endpoint.protocol}; only PLAINTEXT is served by this release"
            )
    # Who is only a broker does not listen there, but connects to others.
    for name in config["controller.listener.names"]:
        protocol = config.protocols.get(name.upper(), "PLAINTEXT")
        if protocol != "PLAINTEXT":
            raise refused(f"controller.listener.names: {name} speaks {protocol}; this release can only speak PLAINTEXT")
    if config["authorizer.class.name"]:
        raise refused(
            "authorizer.class.name: this release does not check who may do what, so it refuses to start with one"
        )


def _check_inter_broker_listener(config: BrokerConfig) -> None:
    """What brokers tell one another must go where it was meant to go, or nowhere. The rules are Kafka's."""
    named, picked = config["inter.broker.listener.name"], config.inter_broker_listener
    if named is not None and "security.inter.broker.protocol" in config.static:
        raise refused("only one of inter.broker.listener.name and security.inter.broker.protocol should be set")
    if named is not None and picked not in config.protocols:
        raise refused(f"inter.broker.listener.name: {named} is not found in listener.security.protocol.map")
    names = [endpoint.name for endpoint in config.advertised]
    if "broker" not in config["process.roles"] or picked in names:
        return
    if named is None:
        protocol = config["security.inter.broker.protocol"]
        raise refused(
            f"security.inter.broker.protocol: none of the advertised listeners ({', '.join(names)}) speaks {protocol}"
        )
    raise refused(f"inter.broker.listener.name: {named} is not one of the advertised listeners ({', '.join(names)})")
