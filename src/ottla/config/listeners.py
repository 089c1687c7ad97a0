"""Listeners: NAME://host:port lists, which protocol each name speaks, and which of them clients are told about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.wire.errors import Error, KafkaError

# What is said on a listener; in requests and records each is the number of its place here.
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ADDRESS = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")
# An address to listen on, but not one to connect to.
UNROUTABLE = ("0.0.0.0", "::")


class Endpoint(NamedTuple):
    """One listener. An empty host means every interface, or, where it is advertised, the name of this machine."""

    name: str
    host: str
    port: int
    protocol: str

    @property
    def family(self) -> str:
        """v4, v6, or nothing for a name or no host at all."""
        if ":" in self.host:
            return "v6"
        return "v4" if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", self.host) else ""


def refused(text: str) -> KafkaError:
    return KafkaError(Error.INVALID_CONFIG, text)


def protocol_map(text: str) -> dict[str, str]:
    """NAME:PROTOCOL pairs, as listener.security.protocol.map is written."""
    pairs: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = entry.rpartition(":")
        if not name or protocol.upper() not in PROTOCOLS:
            allowed = ", ".join(PROTOCOLS)
            raise refused(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL with a protocol of {allowed}"
            )
        pairs[name.strip().upper()] = protocol.upper()
    return pairs


def effective_protocols(text: str, *, explicit: bool, controller_names: Iterable[str]) -> dict[str, str]:
    """The protocol of each listener name. While nobody wrote a map, controller listeners speak plaintext."""
    protocols = protocol_map(text)
    if not explicit:
        for name in controller_names:
            protocols.setdefault(name.upper(), "PLAINTEXT")
    return protocols


def parse_listeners(key: str, entries: Iterable[str], protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    endpoints = tuple(_endpoint(key, entry, protocols) for entry in entries)
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise refused(f"{key}: each listener must have a different name: {','.join(entries)}")
    return endpoints


def _endpoint(key: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    match = ADDRESS.fullmatch(entry.strip())
    if not match:
        raise refused(
            f"{key}: cannot read {entry!r}; a listener is written NAME://host:port, for example PLAINTEXT://:9092"
        )
    name, host, port = match[1].upper(), match[2], int(match[3])
    if name not in protocols:
        raise refused(
            f"{key}: no security protocol is defined for listener {name}; add it to listener.security.protocol.map"
        )
    if not 0 <= port <= 65535:
        raise refused(f"{key}: {entry!r} has no valid port")
    return Endpoint(name, host, port, protocols[name])


def check_ports(key: str, endpoints: Iterable[Endpoint]) -> None:
    """Each port once, or twice where one is an IPv4 and the other an IPv6 address. Port 0 (any free one) is fine."""
    by_port: dict[int, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, sharing in by_port.items():
        if port and len(sharing) > 1 and sorted(endpoint.family for endpoint in sharing) != ["v4", "v6"]:
            names = ", ".join(endpoint.name for endpoint in sharing)
            raise refused(f"{key}: each listener must have a different port; {names} share port {port}")


def check_advertised(advertised: Iterable[Endpoint], listeners: Iterable[Endpoint]) -> None:
    known = {endpoint.name for endpoint in listeners}
    for endpoint in advertised:
        if endpoint.name not in known:
            raise refused(f"advertised.listeners: {endpoint.name} is not one of listeners ({', '.join(sorted(known))})")
        if endpoint.host in UNROUTABLE:
            raise refused(
                f"advertised.listeners cannot use the nonroutable meta-address {endpoint.host}. "
                f"Set advertised.listeners to an address that clients can reach, for example {endpoint.name}://localhost:"
                f"{endpoint.port}"
            )
