"""The settings of a node, from its file; or from a copy of the one that every tutorial names, where that is not here.

Who unpacks the archive of Apache Kafka has `config/server.properties` in it, and tutorials begin with that path. Who installs
Ottla has no archive, so a copy comes with the package. It is said aloud that it is used, because what is in it (every
interface, data in /tmp) is Kafka's choice for a first try, and nobody has typed it.
"""

from __future__ import annotations

import os
import sys

from ottla.cli.kafka.connecting import NoSuchFile, properties_of

COPIES = os.path.join(os.path.dirname(__file__), "config")
# Paths in the archive, and which copy has the same settings. Archives of 3.3 to 3.9 have theirs in a folder of its own.
IN_THE_ARCHIVE = {
    os.path.join("config", "server.properties"): "server.properties",
    os.path.join("config", "kraft", "reconfig-server.properties"): "server.properties",
    os.path.join("config", "kraft", "server.properties"): os.path.join("kraft", "server.properties"),
}


def node_settings(path: str) -> dict[str, str]:
    try:
        return properties_of(path)
    except NoSuchFile as missing:
        name = IN_THE_ARCHIVE.get(os.path.normpath(path))
        copy = os.path.join(COPIES, name or "server.properties")
        if name is None:
            raise NoSuchFile(path, f": Kafka's own, to begin with, is {copy}") from missing
    settings = properties_of(copy)
    print(_told(path, copy, settings), file=sys.stderr)
    return settings


def _told(path: str, copy: str, settings: dict[str, str]) -> str:
    """On standard error, since scripts read what `kafka-storage` says on standard output."""
    directory = os.path.dirname(path)
    return (
        f"{path} is not here: using Kafka's own, data in {settings['log.dirs']}, listeners {settings['listeners']}; "
        f"to change it: mkdir -p {directory} && cp {copy} {path}"
    )
