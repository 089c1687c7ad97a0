"""ottla cluster show | versions | features | quorum | disks | elect | unregister"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ottla.cli import features
from ottla.cli.options import add_action, cluster_of
from ottla.cli.text import compact, table

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

EXAMPLES = """examples:
  ottla cluster show                     the cluster's id, its brokers, fenced ones too, and its features
  ottla cluster versions --json          which versions of each API every broker speaks
  ottla cluster features                 levels of features: what they are, and what they may become
  ottla cluster features upgrade group.version=1
  ottla cluster quorum                   who holds the metadata, and how far they are
  ottla cluster disks                    how much lies in which data directory
  ottla cluster elect --topic orders     lets the preferred replicas lead again
  ottla cluster unregister 3             forgets a broker that will not come back"""

WHAT = {
    "show": "the cluster's id, its brokers and its features",
    "versions": "which versions of each API the brokers speak",
    "quorum": "who holds the metadata, who leads, and how far the others are behind",
    "disks": "data directories, what lies in them and what is left",
}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, what in WHAT.items():
        add_action(actions, name, what, f"ottla cluster {name}")
    features.arguments(actions)
    elect = add_action(
        actions, "elect", "let preferred replicas lead again, or any that lives", "ottla cluster elect --topic orders"
    )
    elect.add_argument("-t", "--topic", action="append", metavar="TOPIC[:0,1]", help="which partitions (default: all)")
    elect.add_argument("--unclean", action="store_true", help="where nobody leads, somebody who may lack records")
    unregister = add_action(
        actions, "unregister", "forget a broker that will not come back", "ottla cluster unregister 3"
    )
    unregister.add_argument("broker", type=int, metavar="BROKER", help="its number")


def run(args: argparse.Namespace) -> int:
    import asyncio

    actions = {"show": _show, "versions": _versions, "quorum": _quorum, "disks": _disks}
    changes = {"features": features.run, "elect": _elect, "unregister": _unregister}

    async def connected() -> tuple[Any, str]:
        async with cluster_of(args) as cluster:
            if args.action in changes:
                return await changes[args.action](cluster, args)
            return await actions[args.action](cluster)

    data, text = asyncio.run(connected())
    print(compact(data).decode() if args.json else text)
    return 1 if args.action in ("features", "elect") and any(each.get("error") for each in data) else 0


async def _show(cluster: Cluster) -> tuple[Any, str]:
    from ottla.cli.kafka.asking import ask
    from ottla.cli.kafka.features import features_of
    from ottla.client.connection import check
    from ottla.wire.messages.cluster import DescribeClusterRequest

    answer = await ask(cluster, DescribeClusterRequest(include_fenced_brokers=True))
    check(answer.error_code, answer.error_message)
    levels = {each.name: each.level for each in await features_of(cluster) if each.level}
    brokers = [
        {"id": each.broker_id, "host": each.host, "port": each.port, "rack": each.rack, "fenced": each.is_fenced}
        for each in sorted(answer.brokers, key=lambda each: each.broker_id)
    ]
    data = {
        "cluster_id": answer.cluster_id,
        "controller": answer.controller_id,
        "brokers": brokers,
        "features": levels,
    }
    rows: list[tuple[object, ...]] = [("  broker", "address", "rack", "")]
    rows += [
        (f"  {b['id']}", f"{b['host']}:{b['port']}", b["rack"] or "-", "fenced" if b["fenced"] else "") for b in brokers
    ]
    agreed: list[tuple[object, ...]] = [(f"  {name}", level) for name, level in levels.items()]
    # It need not be a controller itself: any broker passes on what is meant for one, and `quorum` shows who leads.
    head = f"cluster {answer.cluster_id}  requests for the controller go to broker {answer.controller_id}"
    return data, "\n".join([head, table(rows), "features", table(agreed) if agreed else "  none"])


async def _versions(cluster: Cluster) -> tuple[Any, str]:
    from ottla.cli.kafka.apis import APIS

    names = {api.key: api.name for api in APIS}
    data, rows = [], [("broker", "key", "api", "versions")]
    for broker in sorted((await cluster.metadata([])).brokers, key=lambda broker: broker.node_id):
        served = (await cluster.broker(broker.node_id)).served
        data.append(
            {
                "broker": broker.node_id,
                "apis": [
                    {"key": k, "name": names.get(k), "min": low, "max": high}
                    for k, (low, high) in sorted(served.items())
                ],
            }
        )
        rows += [
            (str(broker.node_id), str(key), names.get(key, "?"), f"{low}-{high}" if low < high else str(low))
            for key, (low, high) in sorted(served.items())
        ]
    return data, table([tuple(row) for row in rows])


async def _quorum(cluster: Cluster) -> tuple[Any, str]:
    from ottla.cli.kafka.metadata_quorum import quorum_of

    answer = await quorum_of(cluster)
    partition = answer.topics[0].partitions[0]
    end = next((v.log_end_offset for v in partition.current_voters if v.replica_id == partition.leader_id), 0)
    members = [
        {"id": each.replica_id, "role": role, "end": each.log_end_offset, "behind": end - each.log_end_offset}
        for role, replicas in (("voter", partition.current_voters), ("observer", partition.observers))
        for each in replicas
    ]
    data = {
        "leader": partition.leader_id,
        "epoch": partition.leader_epoch,
        "high_watermark": partition.high_watermark,
        "members": members,
    }
    head = f"leader {partition.leader_id}  epoch {partition.leader_epoch}  high watermark {partition.high_watermark}"
    rows: list[tuple[object, ...]] = [("  node", "role", "end", "behind")]
    rows += [(f"  {each['id']}", each["role"], each["end"], each["behind"]) for each in members]
    return data, f"{head}\n{table(rows)}"


async def _disks(cluster: Cluster) -> tuple[Any, str]:
    data = await disks_of(cluster)
    rows: list[tuple[object, ...]] = [("broker", "directory", "partitions", "holds", "free", "of", "")]
    for row in data:
        sizes = (shown_bytes(row[name]) for name in ("bytes", "free", "total"))
        rows.append((row["broker"], row["directory"], row["partitions"], *sizes, row["error"] or ""))
    return data, table(rows)


async def disks_of(cluster: Cluster) -> list[dict[str, Any]]:
    """Every data directory of every broker."""
    brokers = sorted(broker.node_id for broker in (await cluster.metadata([])).brokers)
    return [disk for broker in brokers for disk in await disks_of_broker(cluster, broker, broker)]


async def disks_of_broker(cluster: Cluster, broker: int, node_id: int | None) -> list[dict[str, Any]]:
    """The data directories of one broker, which is asked where it advertises itself, or with None wherever it was found."""
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check, failure
    from ottla.wire.messages.cluster import DescribeLogDirsRequest

    answer = await ask(cluster, DescribeLogDirsRequest(topics=None), node_id)
    check(answer.error_code)
    data = []
    for each in answer.results:
        partitions = [partition for topic in each.topics for partition in topic.partitions]
        data.append(
            {
                "broker": broker,
                "directory": each.log_dir,
                "partitions": len(partitions),
                "bytes": sum(partition.partition_size for partition in partitions),
                "free": each.usable_bytes,
                "total": each.total_bytes,
                "error": failure(each.error_code).error.name if each.error_code else None,
            }
        )
    return data


async def _elect(cluster: Cluster, args: argparse.Namespace) -> tuple[Any, str]:
    """Where nothing was to be done is no failure."""
    from ottla.cli.group import partitions_of
    from ottla.cli.kafka.leader_election import elections
    from ottla.client.connection import failure
    from ottla.wire.errors import Error

    wanted: list[tuple[str, int]] | None = None
    if args.topic:
        wanted = [(where.topic, where.partition) for text in args.topic for where in await partitions_of(cluster, text)]
    data = []
    for name, code, why in await elections(cluster, "UNCLEAN" if args.unclean else "PREFERRED", wanted):
        error = failure(code, why) if code not in (0, Error.ELECTION_NOT_NEEDED.code) else None
        reason = None if error is None else f"{error.message} ({error.error.name})"
        data.append({"partition": name, "elected": code == 0, "error": reason})
    rows = [(each["partition"], each["error"] or ("elected" if each["elected"] else "led already")) for each in data]
    return data, table([("partition", ""), *rows])


async def _unregister(cluster: Cluster, args: argparse.Namespace) -> tuple[Any, str]:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.brokers import UnregisterBrokerRequest

    answer = await ask(cluster, UnregisterBrokerRequest(broker_id=args.broker))
    check(answer.error_code, answer.error_message)
    return {"broker": args.broker, "registered": False}, f"broker {args.broker} is no longer registered"


def shown_bytes(count: int) -> str:
    """`1.5 GiB`; a number below zero was not told."""
    if count < 0:
        return "-"
    size, unit = float(count), 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {UNITS[unit]}" if unit else f"{count} B"
