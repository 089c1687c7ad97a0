"""A controller as its settings file describes it, for adding it to a quorum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.cli.kafka.options import Failed
from ottla.wire.ids import uuid_text

VALID = "Is this a valid controller configuration file?"


class Controller(NamedTuple):
    node_id: int
    directory_id: bytes
    endpoints: list[tuple[str, str, int]]

    @property
    def directory_text(self) -> str:
        return uuid_text(self.directory_id)


def described_by(settings: Mapping[str, str]) -> Controller:
    """Its number, the id of its directory, and where it listens."""
    if "node.id" not in settings:
        raise Failed(f"node.id not found in configuration file. {VALID}")
    node_id = int(settings["node.id"])
    if node_id < 0:
        raise Failed(f"node.id was negative in configuration file. {VALID}")
    if "controller" not in settings.get("process.roles", ""):
        raise Failed(f"process.roles did not contain 'controller' in configuration file. {VALID}")
    return Controller(node_id, _directory_id(settings), _endpoints(settings))


def _directory_id(settings: Mapping[str, str]) -> bytes:
    from ottla.log.identity import BadIdentity, read_meta_properties
    from ottla.world import RealDisk

    home = settings.get("metadata.log.dir") or settings.get("log.dirs", "").split(",")[0].strip()
    if not home:
        raise Failed(f"Neither metadata.log.dir nor log.dirs were found. {VALID}")
    try:
        meta = read_meta_properties(RealDisk(), home)
    except (BadIdentity, OSError):
        meta = None
    if meta is None:
        raise Failed(f"Unable to read meta.properties from {home}")
    return meta.directory_id


def _endpoints(settings: Mapping[str, str]) -> list[tuple[str, str, int]]:
    from ottla.config.listeners import parse_listeners

    if "controller.listener.names" not in settings:
        raise Failed(f"controller.listener.names was not found. {VALID}")
    names = [name.strip().upper() for name in settings["controller.listener.names"].split(",")]
    found = {}
    for key in ("listeners", "advertised.listeners"):
        texts = [text.strip() for text in settings.get(key, "").split(",") if text.strip()]
        protocols = {text.partition("://")[0].upper(): "PLAINTEXT" for text in texts}
        found.update({endpoint.name: endpoint for endpoint in parse_listeners(key, texts, protocols)})
    for name in names:
        if name not in found:
            raise Failed(f"Cannot find information about controller listener name: {name}")
    return [(name, found[name].host or "localhost", found[name].port) for name in names]
