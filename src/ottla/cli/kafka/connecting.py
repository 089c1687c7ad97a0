"""How a tool finds its cluster: `--bootstrap-server` and the settings of `--command-config`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeVar

    from ottla.client.admin import Admin
    from ottla.client.cluster import Cluster

    T = TypeVar("T")

# Kafka's pattern for an address; unlike our own verbs, Kafka insists on the port.
ADDRESS = re.compile(r"(?:.*?://)?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)")
CLIENT_ID = "ottla-tool"
# How long we wait for what may pass by itself.
BUDGET_SECONDS = 15.0


class NoSuchFile(Failed):
    """There is no file of that name. Java says the name alone; people want to know what is with it."""

    def __init__(self, path: str, hint: str = "") -> None:
        super().__init__(f"there is no file {path}{hint}")
        self.path = path


def properties_of(path: str | None) -> dict[str, str]:
    """The settings in a file, none without one."""
    from ottla.properties import read_properties

    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except FileNotFoundError:
        raise NoSuchFile(path)


def cluster_of(bootstrap: str, settings: Mapping[str, str] | None = None, *, controllers: bool = False) -> Cluster:
    """The cluster behind these addresses: those of brokers, or of controllers."""
    from ottla.client.cluster import Cluster

    settings = settings or {}
    protocol = settings.get("security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise Failed(f"security.protocol={protocol}: these tools connect by PLAINTEXT only")
    _check_addresses(bootstrap)
    kind = Cluster
    if controllers:
        from ottla.cli.kafka.controllers import Controllers

        kind = Controllers
    return kind(bootstrap, client_id=settings.get("client.id", CLIENT_ID), budget_s=BUDGET_SECONDS)


def _check_addresses(bootstrap: str) -> None:
    addresses = [part.strip() for part in bootstrap.split(",") if part.strip()]
    for address in addresses:
        match = ADDRESS.fullmatch(address)
        if match is None or not match[1]:
            raise Failed(f"Failed to create new KafkaAdminClient\nInvalid url in bootstrap.servers: {address}")
        if not 0 < int(match[2]) < 65536:
            raise Failed(f"Failed to create new KafkaAdminClient\nInvalid port in bootstrap.servers: {address}")
    if not addresses:
        raise Failed("Failed to create new KafkaAdminClient\nNo bootstrap urls given in bootstrap.servers")


def with_cluster(
    bootstrap: str, config_path: str | None, work: Callable[[Cluster], Awaitable[T]], *, controllers: bool = False
) -> T:
    """Connect, do the work, disconnect."""
    import asyncio

    cluster = cluster_of(bootstrap, properties_of(config_path), controllers=controllers)

    async def connected() -> T:
        async with cluster:
            return await work(cluster)

    return asyncio.run(connected())


def with_admin(bootstrap: str, config_path: str | None, work: Callable[[Admin], Awaitable[T]]) -> T:
    """The same for work that goes through `Admin`."""
    from ottla.client.admin import Admin

    return with_cluster(bootstrap, config_path, lambda cluster: work(Admin(cluster)))
