"""The actions of kafka-reassign-partitions.sh.

A plan is a JSON file that names, for each partition, the brokers that shall hold it, and maybe a directory on each.
Throttles are settings of brokers and topics that this tool sets while partitions move and takes away again afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.cli.kafka import asking
from ottla.cli.kafka.asking import ask, describe_topics, reassignments
from ottla.cli.kafka.options import Failed, Options
from ottla.cli.kafka.placing import proposed_placement
from ottla.cli.text import compact
from ottla.client.cluster import Cluster
from ottla.client.connection import check, failure
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import DescribeLogDirsRequest
from ottla.wire.messages.placement import AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest
from ottla.wire.messages.settings import IncrementalAlterConfigsRequest

ANY = "any"
SET, DELETE = 0, 1
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RETRY_SECONDS = 0.1
EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a new "
    "partition assignment in addition to the existing one. The --additional flag can also be used to change the throttle "
    "by resubmitting the current reassignment."
)
VERIFY = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)

Partition = tuple[str, int]


class Replica(NamedTuple):
    """A copy of a partition on one broker."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker}"


class Directories(NamedTuple):
    """Where a replica lies, and where it is being moved to."""

    current: str | None
    future: str | None


class Terse(Exception):
    """Refused in words of the tool's own."""


async def act(action: str, cluster: Cluster, options: Options) -> None:
    actions = {"generate": _generate, "execute": _execute, "verify": _verify, "cancel": _cancel, "list": _list}
    await actions[action](cluster, options)


# Plans.


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        raise Failed(f"Unable to read file {path}")


def _json(path: str) -> dict[str, Any]:
    text = _text(path)
    if not text.strip():
        raise Failed("The input string shouldn't be empty")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Failed(f"{path}: {error}")
    if not isinstance(data, dict):
        raise Failed(f"{path}: this is no JSON object")
    if data.get("version", 1) != 1:
        raise Failed(f"Not supported version field value {data['version']}")
    return data


def _plan(options: Options) -> tuple[list[tuple[Partition, list[int]]], dict[Replica, str]]:
    """Wanted brokers by partition, in the order of the file, and wanted directories by replica."""
    path = options.text("reassignment-json-file")
    parts: list[tuple[Partition, list[int]]] = []
    moves: dict[Replica, str] = {}
    try:
        for entry in _json(path).get("partitions", ()):
            where, replicas = (str(entry["topic"]), int(entry["partition"])), [int(each) for each in entry["replicas"]]
            places = entry.get("log_dirs", [ANY] * len(replicas))
            if len(places) != len(replicas):
                shown = f"[{', '.join(places)}] for partition {_name(where)}"
                raise Failed(f"Size of replicas list {replicas} is different from size of log dirs list {shown}")
            parts.append((where, replicas))
            moves.update({Replica(b, *where): at for b, at in zip(replicas, places, strict=True) if at != ANY})
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(f"{path}: every partition needs a topic, a partition and replicas ({error})")
    return parts, moves


def _checked(parts: list[tuple[Partition, list[int]]]) -> dict[Partition, list[int]]:
    if not parts:
        raise Failed("Partition reassignment list cannot be empty")
    if any(not replicas for _, replicas in parts):
        raise Failed("Partition replica list cannot be empty")
    twice = _repeated([where for where, _ in parts])
    if twice:
        names = ",".join(map(_name, twice))
        raise Failed(f"Partition reassignment contains duplicate topic partitions: {names}")
    doubled = [(where, _repeated(replicas)) for where, replicas in parts if _repeated(replicas)]
    if doubled:
        told = ". ".join(f"{_name(where)} contains multiple entries for {_ids(ids)}" for where, ids in doubled)
        raise Failed(f"Partition replica lists may not contain duplicate entries: {told}")
    return dict(parts)


def _repeated(items: Sequence[Any]) -> list[Any]:
    return [item for item in dict.fromkeys(items) if items.count(item) > 1]


def _name(where: Partition) -> str:
    return f"{where[0]}-{where[1]}"


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _as_plan(parts: Mapping[Partition, list[int]], places: Mapping[Replica, str]) -> str:
    partitions = [
        {
            "topic": where[0],
            "partition": where[1],
            "replicas": replicas,
            "log_dirs": [places.get(Replica(broker, *where), ANY) for broker in replicas],
        }
        for where, replicas in sorted(parts.items())
    ]
    return compact({"version": 1, "partitions": partitions}).decode()


# What the cluster says.


async def _brokers(cluster: Cluster) -> dict[int, str | None]:
    """Those that live, with their racks."""
    return {broker.node_id: broker.rack for broker in (await cluster.metadata([])).brokers}


async def _current(cluster: Cluster, topics: Iterable[str]) -> dict[Partition, list[int]]:
    names = sorted(set(topics))
    known = await asking.topic_ids(cluster)
    for name in names:
        if name not in known:
            raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} not found.")
    return {
        (topic.name or "", each.partition_index): list(each.replica_nodes)
        for topic in await describe_topics(cluster, names)
        for each in topic.partitions
    }


async def _directories(cluster: Cluster, brokers: Iterable[int]) -> dict[Replica, Directories]:
    found: dict[Replica, Directories] = {}
    for broker in sorted(set(brokers) & (await _brokers(cluster)).keys()):
        answer = await ask(cluster, DescribeLogDirsRequest(topics=None), broker)
        check(answer.error_code)
        for directory in answer.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    replica = Replica(broker, topic.name, each.partition_index)
                    known = found.get(replica, Directories(None, None))
                    found[replica] = (
                        known._replace(future=directory.log_dir)
                        if each.is_future_key
                        else known._replace(current=directory.log_dir)
                    )
    return found


async def _places(cluster: Cluster, parts: Mapping[Partition, list[int]]) -> dict[Replica, str]:
    brokers = {broker for replicas in parts.values() for broker in replicas}
    found = await _directories(cluster, brokers)
    return {replica: where.current for replica, where in found.items() if where.current is not None}


# The actions.


async def _list(cluster: Cluster, options: Options) -> None:
    moving = await reassignments(cluster)
    if not moving:
        print("No partition reassignments found.")
        return
    print("Current partition reassignments:")
    for where, each in sorted(moving.items()):
        adding = f" adding: {_ids(each.adding_replicas)}." if each.adding_replicas else ""
        removing = f" removing: {_ids(each.removing_replicas)}." if each.removing_replicas else ""
        print(f"{_name(where)}: replicas: {_ids(each.replicas)}.{adding}{removing}")


async def _generate(cluster: Cluster, options: Options) -> None:
    try:
        wanted = [int(part) for part in options.text("broker-list").split(",")]
    except ValueError:
        wrong = next(part for part in options.text("broker-list").split(",") if not part.lstrip("-").isdigit())
        raise Failed(f'For input string: "{wrong}"')
    if _repeated(wanted):
        raise Failed(f"Broker list contains duplicate entries: {_repeated(wanted)}")
    topics = [str(entry["topic"]) for entry in _json(options.text("topics-to-move-json-file")).get("topics", ())]
    if _repeated(topics):
        raise Failed(f"List of topics to reassign contains duplicate entries: [{', '.join(_repeated(topics))}]")
    current = await _current(cluster, topics)
    racks = {broker: rack for broker, rack in (await _brokers(cluster)).items() if broker in wanted}
    if options.has("disable-rack-aware"):
        racks = dict.fromkeys(racks)
    proposed = proposed_placement(current, racks, random.SystemRandom())
    print(f"Current partition replica assignment\n{_as_plan(current, await _places(cluster, current))}\n")
    print(f"Proposed partition reassignment configuration\n{_as_plan(proposed, {})}")


async def _execute(cluster: Cluster, options: Options) -> None:
    throttle, directory_throttle = options.number("throttle"), options.number("replica-alter-log-dirs-throttle")
    parts, moves = _plan(options)
    wanted = _checked(parts)
    under_way = await reassignments(cluster)
    if under_way and not options.has("additional"):
        raise Terse(EXISTING)
    live = await _brokers(cluster)
    for broker in sorted({broker for replicas in wanted.values() for broker in replicas}):
        if broker not in live:
            raise Failed(f"Unknown broker id {broker}")
    current = await _chosen(cluster, wanted)
    print(f"Current partition replica assignment\n\n{_as_plan(current, await _places(cluster, current))}\n")
    print("Save this to use as the --reassignment-json-file option during rollback")
    if max(throttle or 0, directory_throttle or 0) > 0 or 0 in (throttle, directory_throttle):
        print(VERIFY)
        await _throttle(cluster, _moves(under_way, wanted, current), throttle or 0)
        await _throttle_directories(cluster, {replica.broker for replica in moves}, directory_throttle or 0)
    await _reassign(cluster, wanted, keep_factor=options.has("disallow-replication-factor-change"))
    plural = "" if len(wanted) == 1 else "s"
    print(f"Successfully started partition reassignment{plural} for {','.join(map(_name, sorted(wanted)))}")
    if moves:
        await _move(cluster, moves, options.number("timeout") or 0)


async def _chosen(cluster: Cluster, wanted: Mapping[Partition, list[int]]) -> dict[Partition, list[int]]:
    current = await _current(cluster, (topic for topic, _ in wanted))
    missing = [where for where in wanted if where not in current]
    if missing:
        names = ", ".join(map(_name, missing))
        raise KafkaError(Error.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition: {names}")
    return {where: current[where] for where in wanted}


async def _verify(cluster: Cluster, options: Options) -> None:
    parts, moves = _plan(options)
    under_way = await reassignments(cluster)
    known = await asking.topic_ids(cluster)
    current = await _current(cluster, {topic for (topic, _), _ in parts if topic in known})
    print("Status of partition reassignment:")
    for where, wanted in sorted(parts):
        print(_partition_status(where, wanted, current.get(where, []), where in under_way))
    found = await _directories(cluster, {replica.broker for replica in moves})
    lines = [_move_status(replica, moves[replica], found.get(replica)) for replica in sorted(moves)]
    print("\n".join(lines))
    moving = any(found.get(replica, Directories(None, None)).future is not None for replica in moves)
    if not under_way and not moving and not options.has("preserve-throttles"):
        await _clear_throttles(cluster, parts)


def _partition_status(where: Partition, wanted: list[int], current: list[int], is_moving: bool) -> str:
    if is_moving:
        return f"Reassignment of partition {_name(where)} is still in progress."
    if current == wanted:
        return f"Reassignment of partition {_name(where)} is completed."
    sets = f"replica set is {_ids(current)} rather than {_ids(wanted)}."
    return f"There is no active reassignment of partition {_name(where)}, but {sets}"


def _move_status(replica: Replica, target: str, found: Directories | None) -> str:
    partition = f"Partition {replica.topic}-{replica.partition}"
    if found is None:
        return f"{partition} cannot be found in any live log directory on broker {replica.broker}."
    if found.current is None:
        where = f"is not found in any live log dir on broker {replica.broker}."
        return f"{partition} {where} There is likely an offline log directory on the broker."
    if found.future is None and found.current == target:
        return f"Reassignment of replica {replica} completed successfully."
    if found.future is None:
        return f"{partition} on broker {replica.broker} is not being moved from log dir {found.current} to {target}."
    if found.future == target:
        return f"Reassignment of replica {replica} is still in progress."
    return f"{partition} on broker {replica.broker} is being moved to log dir {found.future} instead of {target}."


async def _cancel(cluster: Cluster, options: Options) -> None:
    parts, moves = _plan(options)
    topics: dict[str, list[int]] = {}
    for (topic, partition), _ in parts:
        topics.setdefault(topic, []).append(partition)
    active = sorted(await reassignments(cluster, topics))
    if active:
        await _reassign(cluster, dict.fromkeys(active), verb="cancelling")
        plural = "" if len(active) == 1 else "s"
        print(f"Successfully cancelled partition reassignment{plural} for: {','.join(map(_name, active))}")
    else:
        print("None of the specified partition reassignments are active.")
    found = await _directories(cluster, {replica.broker for replica in moves})
    back = {each: at.current for each, at in found.items() if each in moves and at.future and at.current}
    if back:
        await _move(cluster, back, options.number("timeout") or 0)
    else:
        print("None of the specified partition moves are active.", end="")
    if not options.has("preserve-throttles"):
        await _clear_throttles(cluster, parts)
    elif not back:
        print()


# Changing things.


async def _reassign(
    cluster: Cluster, wanted: Mapping[Partition, list[int] | None], *, verb: str = "", keep_factor: bool = False
) -> None:
    request = AlterPartitionReassignmentsRequest
    topics: dict[str, list[Any]] = {}
    for (topic, partition), replicas in wanted.items():
        entry = request.Topic.Partition(partition_index=partition, replicas=replicas)
        topics.setdefault(topic, []).append(entry)
    answer = await ask(
        cluster,
        request(
            topics=[request.Topic(name=name, partitions=entries) for name, entries in topics.items()],
            allow_replication_factor_change=not keep_factor,
        ),
    )
    check(answer.error_code, answer.error_message)
    errors = {
        (topic.name, each.partition_index): failure(each.error_code, each.error_message).message
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code
    }
    if errors:
        lines = "\n".join(f"{_name(where)}: {text}" for where, text in sorted(errors.items()))
        plural = "" if len(errors) == 1 else "s"
        head = f"Error cancelling partition reassignment{plural} for:" if verb else "Error reassigning partition(s):"
        raise Terse(f"{head}\n{lines}")


async def _move(cluster: Cluster, moves: Mapping[Replica, str], timeout_ms: int) -> None:
    """Begin moves between directories; a replica that is only on its way to a broker is tried again."""
    import asyncio

    pending, loop = dict(moves), asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while True:
        for replica in await _begin_moves(cluster, pending):
            place = f"{replica.topic}-{replica.partition} with broker {replica.broker}"
            print(f"Successfully started moving log directory to {pending.pop(replica)} for replica {place} ")
        if not pending:
            return
        if loop.time() >= deadline:
            plural = "" if len(pending) == 1 else "s"
            names = ",".join(map(str, sorted(pending)))
            raise Terse(f"Timed out before log directory move{plural} could be started for: {names}")
        await asyncio.sleep(RETRY_SECONDS)


async def _begin_moves(cluster: Cluster, moves: Mapping[Replica, str]) -> list[Replica]:
    begun = []
    for replica, path in sorted(moves.items()):
        directory = AlterReplicaLogDirsRequest.Directory
        topic = directory.Topic(name=replica.topic, partitions=[replica.partition])
        request = AlterReplicaLogDirsRequest(dirs=[directory(path=path, topics=[topic])])
        answer = await ask(cluster, request, replica.broker)
        code = answer.results[0].partitions[0].error_code
        if code == Error.REPLICA_NOT_AVAILABLE.code:
            continue
        if code:
            raise Failed(f"Failed to alter dir for {replica}")
        begun.append(replica)
    return begun


class Move(NamedTuple):
    sources: set[int]
    destinations: set[int]


def _moves(
    under_way: Mapping[Partition, asking.Moving],
    wanted: Mapping[Partition, list[int]],
    current: Mapping[Partition, list[int]],
) -> dict[Partition, Move]:
    """Who reads from whom, of what moves already and of what is about to."""
    found = {
        where: Move(set(each.replicas) - set(each.adding_replicas), set(each.adding_replicas))
        for where, each in under_way.items()
    }
    for where, replicas in wanted.items():
        sources = found[where].sources if where in found else set(current[where])
        found[where] = Move(sources, set(replicas) - sources)
    return found


async def _throttle(cluster: Cluster, moves: Mapping[Partition, Move], rate: int) -> None:
    if rate < 0:
        return
    for topic in sorted({topic for topic, _ in moves}):
        ours = {partition: move for (name, partition), move in moves.items() if name == topic}
        leaders = sorted(f"{at}:{broker}" for at, move in ours.items() for broker in move.sources)
        followers = sorted(f"{at}:{broker}" for at, move in ours.items() for broker in move.destinations)
        changes = {LEADERS: ",".join(leaders), FOLLOWERS: ",".join(followers)}
        await _alter(cluster, asking.TOPIC, topic, changes)
    brokers = {broker for move in moves.values() for broker in move.sources | move.destinations}
    for broker in sorted(brokers):
        await _alter(cluster, asking.BROKER, str(broker), {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})
    print(f"The inter-broker throttle limit was set to {rate} B/s")


async def _throttle_directories(cluster: Cluster, brokers: set[int], rate: int) -> None:
    if rate < 0:
        return
    for broker in sorted(brokers):
        await _alter(cluster, asking.BROKER, str(broker), {DIRECTORY_RATE: str(rate)})
    print(f"The replica-alter-dir throttle limit was set to {rate} B/s")


async def _clear_throttles(cluster: Cluster, parts: list[tuple[Partition, list[int]]]) -> None:
    brokers = sorted((await _brokers(cluster)).keys() | {broker for _, replicas in parts for broker in replicas})
    print(f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {_ids(brokers)}")
    for broker in brokers:
        await _alter(cluster, asking.BROKER, str(broker), dict.fromkeys((LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)))
    topics = sorted({topic for (topic, _), _ in parts})
    print(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {','.join(topics)}")
    for topic in topics:
        await _alter(cluster, asking.TOPIC, topic, dict.fromkeys((LEADERS, FOLLOWERS)))


async def _alter(cluster: Cluster, kind: int, name: str, values: Mapping[str, str | None]) -> None:
    """Set settings; None takes one away."""
    change = IncrementalAlterConfigsRequest.Resource.Config
    changes = [change(name=key, config_operation=DELETE if at is None else SET, value=at) for key, at in values.items()]
    resource = IncrementalAlterConfigsRequest.Resource(resource_type=kind, resource_name=name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await ask(cluster, request, int(name) if kind == asking.BROKER else None)
    check(answer.responses[0].error_code, answer.responses[0].error_message)
