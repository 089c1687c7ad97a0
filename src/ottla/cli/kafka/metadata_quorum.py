"""kafka-metadata-quorum.sh: who holds the metadata, who leads, and how far the others are behind."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ottla.cli.kafka.commands import Command, add_bootstrap, integer, run
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ottla.client.cluster import Cluster
    from ottla.wire.messages.voters import DescribeQuorumResponse, ReplicaState

HEADINGS = ("NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status")


def _parser() -> Command:
    parser = Command("kafka-metadata-quorum", description="This tool describes kraft metadata quorum status.")
    add_bootstrap(parser)
    parser.add_argument(
        "--command-config",
        help="Property file containing configs to be passed to Admin Client. For add-controller, the file is used to "
        "specify the controller properties as well.",
    )
    commands = parser.commands()
    describe = commands.add_parser("describe", help="Describe the metadata quorum info")
    describe.add_argument("--status", action="store_true", help="A short summary of the quorum status.")
    describe.add_argument("--replication", action="store_true", help="Detailed information about replication")
    describe.add_argument("--human-readable", action="store_true", help="Human-readable output")
    add = commands.add_parser("add-controller", help="Add a controller to the KRaft controller cluster")
    add.add_argument("--dry-run", action="store_true", help="Print what would be done, but do not do it.")
    remove = commands.add_parser("remove-controller", help="Remove a controller from the KRaft controller cluster")
    remove.add_argument(
        "--controller-id", "-i", type=integer, required=True, help="The id of the controller to remove."
    )
    remove.add_argument(
        "--controller-directory-id", "-d", required=True, help="The directory ID of the controller to remove."
    )
    remove.add_argument("--dry-run", action="store_true", help="Print what would be done, but do not do it.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.kafka.connecting import with_cluster

    if args.command_config and not os.path.exists(args.command_config):
        raise Failed(f"Properties file {args.command_config} does not exists!")
    if args.command == "add-controller" and not args.command_config:
        raise Failed(
            "You must supply the configuration file of the controller you are adding when using add-controller."
        )
    action = _describe(args) if args.command == "describe" else _change(args)
    bootstrap = args.bootstrap_server or args.bootstrap_controller
    with_cluster(bootstrap, args.command_config, action, controllers=bool(args.bootstrap_controller))
    return 0


def _describe(args: argparse.Namespace) -> Callable[[Cluster], Awaitable[None]]:
    if args.status and args.replication:
        raise Failed("Only one of --status or --replication should be specified with describe sub-command")
    if args.status and args.human_readable:
        raise Failed("The option --human-readable is only supported along with --replication")
    if not args.status and not args.replication:
        raise Failed("One of --status or --replication must be specified with describe sub-command")

    async def work(cluster: Cluster) -> None:
        answer = await quorum_of(cluster)
        if args.status:
            await _print_status(cluster, answer)
        else:
            _print_replication(answer, args.human_readable)

    return work


async def quorum_of(cluster: Cluster) -> DescribeQuorumResponse:
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.quorum import METADATA_TOPIC
    from ottla.wire.messages.voters import DescribeQuorumRequest

    topic = DescribeQuorumRequest.Topic
    wanted = topic(topic_name=METADATA_TOPIC, partitions=[topic.Partition(partition_index=0)])
    answer: DescribeQuorumResponse = await ask(cluster, DescribeQuorumRequest(topics=[wanted]))
    check(answer.error_code, answer.error_message)
    check(answer.topics[0].partitions[0].error_code, answer.topics[0].partitions[0].error_message)
    return answer


async def _print_status(cluster: Cluster, answer: DescribeQuorumResponse) -> None:
    from ottla.cli.kafka.asking import node_ids

    await node_ids(cluster)  # by which the cluster's own id is learned
    cluster_id = cluster.cluster_id
    partition = answer.topics[0].partitions[0]
    leader = next(voter for voter in partition.current_voters if voter.replica_id == partition.leader_id)
    last = min(partition.current_voters, key=lambda voter: voter.log_end_offset)
    lag_ms = 0
    if last is not leader:
        times = (leader.last_caught_up_timestamp, last.last_caught_up_timestamp)
        lag_ms = times[0] - times[1] if min(times) >= 0 else -1
    rows = {
        "ClusterId": cluster_id,
        "LeaderId": partition.leader_id,
        "LeaderEpoch": partition.leader_epoch,
        "HighWatermark": partition.high_watermark,
        "MaxFollowerLag": leader.log_end_offset - last.log_end_offset,
        "MaxFollowerLagTimeMs": lag_ms,
        "CurrentVoters": _replicas(answer, partition.current_voters),
        "CurrentObservers": _replicas(answer, partition.observers),
    }
    for name, value in rows.items():
        print(f"{name + ':':23} {value}")


def _replicas(answer: DescribeQuorumResponse, replicas: Sequence[ReplicaState]) -> str:
    from ottla.wire.ids import uuid_text
    from ottla.wire.schema import ZERO_UUID

    listeners = {node.node_id: node.listeners for node in answer.nodes}
    shown = []
    for replica in replicas:
        directory = replica.replica_directory_id
        text = f'"{uuid_text(directory)}"' if directory != ZERO_UUID else "null"
        places = ", ".join(f'"{at.name}://{_host(at.host)}:{at.port}"' for at in listeners.get(replica.replica_id, ()))
        endpoints = f', "endpoints": [{places}]' if places else ""
        shown.append(f'{{"id": {replica.replica_id}, "directoryId": {text}{endpoints}}}')
    return f"[{', '.join(shown)}]"


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _print_replication(answer: DescribeQuorumResponse, human_readable: bool) -> None:
    from ottla.cli.kafka.columns import pretty

    partition = answer.topics[0].partitions[0]
    leader = next(voter for voter in partition.current_voters if voter.replica_id == partition.leader_id)
    groups = {
        "Leader": [leader],
        "Follower": [voter for voter in partition.current_voters if voter is not leader],
        "Observer": list(partition.observers),
    }
    rows = [
        _replication_row(replica, leader, status, human_readable)
        for status, replicas in groups.items()
        for replica in replicas
    ]
    print(pretty(HEADINGS, rows))


def _replication_row(replica: ReplicaState, leader: ReplicaState, status: str, human_readable: bool) -> list[str]:
    from ottla.wire.ids import uuid_text

    fetched, caught_up = (
        _moment(at, human_readable) for at in (replica.last_fetch_timestamp, replica.last_caught_up_timestamp)
    )
    lag = leader.log_end_offset - replica.log_end_offset
    directory = uuid_text(replica.replica_directory_id)
    return [str(replica.replica_id), directory, str(replica.log_end_offset), str(lag), fetched, caught_up, status]


def _moment(timestamp: int, human_readable: bool) -> str:
    from ottla.world import wall_clock_ms

    if timestamp < 0 or not human_readable:
        return str(timestamp)
    return f"{wall_clock_ms() - timestamp} ms ago"


def _change(args: argparse.Namespace) -> Callable[[Cluster], Awaitable[None]]:
    """Adding and removing controllers; what is to be added is told by its own settings file."""
    return _adding(args) if args.command == "add-controller" else _removing(args)


def _adding(args: argparse.Namespace) -> Callable[[Cluster], Awaitable[None]]:
    from ottla.cli.kafka.connecting import properties_of
    from ottla.cli.kafka.new_controller import described_by

    new = described_by(properties_of(args.command_config))

    async def work(cluster: Cluster) -> None:
        from ottla.cli.kafka.asking import ask
        from ottla.client.connection import check
        from ottla.wire.messages.voters import AddRaftVoterRequest

        if not args.dry_run:
            listeners = [AddRaftVoterRequest.Listener(name=n, host=h, port=p) for n, h, p in new.endpoints]
            request = AddRaftVoterRequest(
                cluster_id=None,
                timeout_ms=60000,
                voter_id=new.node_id,
                voter_directory_id=new.directory_id,
                listeners=listeners,
            )
            answer = await ask(cluster, request)
            check(answer.error_code, answer.error_message)
        places = ", ".join(f"{name}://{_host(host)}:{port}" for name, host, port in new.endpoints)
        verb = "DRY RUN of adding" if args.dry_run else "Added"
        print(f"{verb} controller {new.node_id} with directory id {new.directory_text} and endpoints: {places}")

    return work


def _removing(args: argparse.Namespace) -> Callable[[Cluster], Awaitable[None]]:
    from ottla.cli.kafka.identities import uuid_of

    if args.controller_id < 0:
        raise Failed(f"Invalid negative --controller-id: {args.controller_id}")
    try:
        directory = uuid_of(args.controller_directory_id)
    except Failed as wrong:
        raise Failed(f"Failed to parse --controller-directory-id: {wrong}")

    async def work(cluster: Cluster) -> None:
        from ottla.cli.kafka.asking import ask
        from ottla.client.connection import check
        from ottla.wire.messages.voters import RemoveRaftVoterRequest

        if not args.dry_run:
            answer = await ask(
                cluster,
                RemoveRaftVoterRequest(cluster_id=None, voter_id=args.controller_id, voter_directory_id=directory),
            )
            check(answer.error_code, answer.error_message)
        verb = "DRY RUN of removing " if args.dry_run else "Removed"
        print(f"{verb} KRaft controller {args.controller_id} with directory id {args.controller_directory_id}")

    return work
