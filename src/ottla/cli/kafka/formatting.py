"""Making data directories ready, as Apache Kafka's own tool leaves them: each gets `meta.properties` and
`bootstrap.checkpoint`, and the one for metadata, on a controller of a dynamic quorum, a first snapshot with the voters.

What this node does not serve is not switched on unless it was asked for by name.
"""

from __future__ import annotations

import base64
import os
import random
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ottla.cli.kafka import releases
from ottla.cli.kafka.identities import uuid_of
from ottla.cli.kafka.options import Failed
from ottla.config import BrokerConfig
from ottla.log.directory import METADATA_LOG, make_durable_directory
from ottla.log.identity import BadIdentity, MetaProperties, read_meta_properties, write_meta_properties
from ottla.metadata.features import SERVED
from ottla.metadata.records import FeatureLevelRecord, UserScramCredentialRecord, frame
from ottla.raft import snapshots
from ottla.raft.quorum import KRAFT_VERSION, Address, Voter, VoterSet
from ottla.wire import scram
from ottla.wire.ids import random_id
from ottla.world import RealDisk, wall_clock_ms

VOTER = re.compile(r"(?P<id>[0-9]+)@(?P<host>\[[^\]]*\]|[^:]*):(?P<port>[0-9]+):(?P<directory>.+)")
READ_ONLY = 0o400


@dataclass
class Plan:
    """What the directories are formatted with. Without voters nobody is named as one."""

    cluster_id: str
    voters: VoterSet | None
    levels: dict[str, int]
    credentials: list[UserScramCredentialRecord]


@dataclass
class Found:
    """What is in the directories now."""

    directories: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    first: MetaProperties | None = None


def look(paths: Sequence[str]) -> Found:
    found, disk = Found(), RealDisk()
    for path in paths:
        if not os.path.exists(path):
            found.problems.append(f"{path} does not exist")
            continue
        if not os.path.isdir(path):
            found.problems.append(f"{path} is not a directory")
            continue
        found.directories.append(path)
        try:
            meta = read_meta_properties(disk, path)
        except BadIdentity as error:
            found.problems.append(f"Error loading {path}/meta.properties: {error}")
            continue
        if meta is None:
            found.problems.append(f"{path} is not formatted.")
        elif found.first is None:
            found.first = meta
        elif found.first.cluster_id != meta.cluster_id:
            found.problems.append("Mismatched cluster IDs between storage directories.")
        elif found.first.node_id != meta.node_id:
            found.problems.append("Mismatched node IDs between storage directories.")
    return found


# What was asked for.


def voters_of(config: BrokerConfig, standalone: bool, initial: str | None) -> VoterSet | None:
    if (standalone or initial) and config["controller.quorum.voters"]:
        raise Failed(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or --standalone. "
            "If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    if standalone:
        return _alone(config)
    return VoterSet(tuple(_voter(config, part) for part in initial.split(","))) if initial else None


def _alone(config: BrokerConfig) -> VoterSet:
    if "controller" not in config["process.roles"]:
        raise Failed("You can only use --standalone on a controller.")
    if not config.controller_endpoints:
        raise Failed("No controller listeners found.")
    at = config.advertised_controllers[0]
    address = Address(at.name, at.host or "localhost", at.port)
    return VoterSet((Voter(config.node_id, random_id(random.SystemRandom()), (address,)),))


def _voter(config: BrokerConfig, text: str) -> Voter:
    match = VOTER.fullmatch(text.strip())
    if match is None:
        raise Failed(_what_is_missing(text.strip()))
    name = config["controller.listener.names"][0]
    address = Address(name, match["host"].strip("[]"), int(match["port"]))
    return Voter(int(match["id"]), uuid_of(match["directory"]), (address,))


def _what_is_missing(text: str) -> str:
    if "@" not in text:
        return "No @ found in dynamic voter string."
    if ":" not in text.partition("@")[2]:
        return "No colon following hostname could be found."
    return "No colon following port could be found." if text.count(":") < 2 else f"Failed to parse {text!r}"


def levels_of(metadata_level: int, asked: Sequence[str], *, dynamic: bool) -> dict[str, int]:
    """The level of every feature: those of the release as far as this node serves them, and what was asked for."""
    served = {name: min(at, SERVED.get(name, (0, 0))[1]) for name, at in releases.defaults(metadata_level).items()}
    levels = {releases.METADATA_VERSION: metadata_level} | served
    for name, level in map(releases.name_and_level, asked):
        if name not in levels:
            supported = ", ".join(sorted(releases.FEATURES))
            raise Failed(f"Unsupported feature: {name}. Supported features are: {supported}")
        if name != releases.METADATA_VERSION and not 0 <= level <= releases.FEATURES[name][0]:
            raise Failed(f"No feature:{name} with feature level {level}")
        levels[name] = level
        if name == KRAFT_VERSION and dynamic and level == 0:
            raise Failed(
                "Cannot set kraft.version to 0 if controller.quorum.voters is empty and one of the flags --standalone, "
                "--initial-controllers, or --no-initial-controllers is used. For dynamic controllers support, try "
                "removing the --feature flag for kraft.version."
            )
    return levels


def credential_of(text: str) -> UserScramCredentialRecord:
    """`SCRAM-SHA-256=[name=alice,password=secret]`, or with salt and saltedpassword instead."""
    mechanism, equals, rest = text.partition("=")
    if not equals:
        raise Failed(f"Failed to find equals sign in SCRAM argument '{text}'")
    if mechanism not in scram.BY_NAME:
        raise Failed(f"The add-scram mechanism {mechanism} is not supported.")
    if not rest.startswith("[") or not rest.endswith("]"):
        raise Failed(f"Expected configuration for {mechanism} to start with [ and to end with ], but it is {rest}")
    parts = dict(re.findall(r'(name|iterations|salt|saltedpassword|password)=("[^"]*"|[^,]*)', rest[1:-1]))
    parts = {name: value.strip('"') for name, value in parts.items()}
    if "name" not in parts:
        raise Failed("You must supply 'name' to add-scram")
    if ("password" in parts) == ("saltedpassword" in parts):
        what = "only one of" if "password" in parts else "one of"
        raise Failed(f"You must supply {what} 'password' or 'saltedpassword' to add-scram")
    return _credential(mechanism, parts)


def _credential(mechanism: str, parts: dict[str, str]) -> UserScramCredentialRecord:
    how, least, most = scram.BY_NAME[mechanism], scram.ITERATIONS_MIN, scram.ITERATIONS_MAX
    iterations = int(parts.get("iterations", least))
    if not least <= iterations <= most:
        bound = f"less than {least}" if iterations < least else f"greater than {most}"
        raise Failed(f"The 'iterations' value must be >= {least} and <= {most}, but it is {bound}")
    salt = base64.b64decode(parts["salt"]) if "salt" in parts else secrets.token_bytes(24)
    if "saltedpassword" in parts:
        if "salt" not in parts:
            raise Failed("You must supply 'salt' with 'saltedpassword' to add-scram")
        salted = base64.b64decode(parts["saltedpassword"])
    else:
        salted = scram.salted(how, parts["password"], salt, iterations)
    keys = scram.keys(how, salted)
    return UserScramCredentialRecord(
        name=parts["name"],
        mechanism=how.number,
        salt=salt,
        stored_key=keys.stored,
        server_key=keys.server,
        iterations=iterations,
    )


# Doing it.


def perform(config: BrokerConfig, plan: Plan, *, ignore_formatted: bool) -> Iterator[str]:
    """Format what is not formatted yet, and say so line by line."""
    disk, home = RealDisk(), config.metadata_log_dir
    paths = list(dict.fromkeys([home, *config.log_dirs]))
    empty = [path for path in paths if not _is_formatted(disk, path, plan, config.node_id, ignore_formatted)]
    if not empty:
        yield "All of the log directories are already formatted."
        return
    yield _bootstrap_line(plan)
    for path in empty:
        kind = _kind(path, home, plan, config.node_id)
        yield f"Formatting {kind} {path} with metadata.version {releases.name_of(plan.levels[releases.METADATA_VERSION])}."
        _format(disk, path, plan, config.node_id, is_home=path == home)


def _is_formatted(disk: RealDisk, path: str, plan: Plan, node_id: int, ignore: bool) -> bool:
    try:
        meta = read_meta_properties(disk, path)
    except BadIdentity as error:
        raise Failed(str(error))
    if meta is None:
        return False
    where = f"{path}/meta.properties"
    if not ignore and meta.cluster_id == plan.cluster_id and meta.node_id == node_id:
        advice = "Use --ignore-formatted to ignore this directory and format the others."
        raise Failed(f"Log directory {path} is already formatted. {advice}")
    if meta.cluster_id != plan.cluster_id:
        raise Failed(f"Invalid cluster.id in: {where}. Expected {plan.cluster_id}, but read {meta.cluster_id}")
    if meta.node_id != node_id:
        raise Failed(
            f"Stored node id {meta.node_id} doesn't match previous node id {node_id} in {where}. If you moved your data, "
            "make sure your configured node id matches. If you intend to create a new node, you should remove all data in "
            "your data directories."
        )
    return True


def _kind(path: str, home: str, plan: Plan, node_id: int) -> str:
    if path != home:
        return "data directory"
    if plan.voters is None:
        return "metadata directory"
    return "dynamic metadata voter directory" if plan.voters.voter(node_id) else "dynamic metadata directory"


def _bootstrap_line(plan: Plan) -> str:
    shown = [
        f"ApiMessageAndVersion(FeatureLevelRecord(name='{name}', featureLevel={level}) at version 0)"
        for name, level in _features(plan)
    ]
    shown += [
        f"ApiMessageAndVersion(UserScramCredentialRecord(name='{each.name}', mechanism={each.mechanism}) at version 0)"
        for each in plan.credentials
    ]
    level = plan.levels[releases.METADATA_VERSION]
    what = f"records=[{', '.join(shown)}], metadataVersionLevel={level}, source=format command"
    return f"Bootstrap metadata: BootstrapMetadata({what})"


def _features(plan: Plan) -> list[tuple[str, int]]:
    """metadata.version first, the others by name; kraft.version has a place of its own, and 0 is not written down."""
    others = sorted(
        (name, at) for name, at in plan.levels.items() if at and name not in (releases.METADATA_VERSION, KRAFT_VERSION)
    )
    return [(releases.METADATA_VERSION, plan.levels[releases.METADATA_VERSION]), *others]


def _format(disk: RealDisk, path: str, plan: Plan, node_id: int, *, is_home: bool) -> None:
    make_durable_directory(disk, path)
    now_ms = wall_clock_ms()
    own = plan.voters.voter(node_id) if plan.voters and is_home else None
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in _features(plan)]
    values = [frame(record, 0) for record in (*records, *plan.credentials)]
    disk.replace(f"{path}/{snapshots.BOOTSTRAP}", _snapshot(values, 0, VoterSet(), now_ms))
    if own is not None and plan.voters is not None:
        disk.make_directory(f"{path}/{METADATA_LOG}")
        first = f"{path}/{METADATA_LOG}/{snapshots.SnapshotId(0, 0).file_name}"
        disk.replace(first, _snapshot([], 1, plan.voters, now_ms))
        disk.set_mode(first, READ_ONLY)
    # Last, because it is what says that the directory is ready.
    directory_id = own.directory if own else random_id(random.SystemRandom())
    write_meta_properties(disk, path, MetaProperties(plan.cluster_id, node_id, directory_id), now_ms)


def _snapshot(values: list[bytes], kraft_version: int, voters: VoterSet, now_ms: int) -> bytes:
    timestamp = now_ms if kraft_version else 0
    return b"".join(
        snapshots.pieces(
            values, last_timestamp=timestamp, kraft_version=kraft_version, voters=voters, epoch=0, now_ms=now_ms
        )
    )
