"""kafka-features.sh: which levels of which features a cluster has agreed on, and changing that."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ottla.cli.kafka import releases
from ottla.cli.kafka.commands import Command, add_bootstrap, integer, run
from ottla.cli.kafka.options import Failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.client.cluster import Cluster
    from ottla.wire.errors import KafkaError

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
SOFTWARE = "ottla-tools"


class _Features(Command):
    """This tool alone words its complaints in one line."""

    def error(self, message: str) -> NoReturn:
        from ottla.cli.kafka.commands import reworded

        self.exit(1, f"Command line error: {reworded(message)}. Type --help for help.")


def _parser() -> Command:
    parser = _Features("kafka-features", description="This tool manages feature flags in Kafka.")
    add_bootstrap(parser, is_required=False)
    parser.add_argument("--command-config", help="Property file containing configs to be passed to Admin Client.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Features)
    describe = commands.add_parser("describe", help="Describes the current active feature flags.")
    describe.add_argument("--node-id", type=integer, help="The node id to which the requests should be sent.")
    for verb in ("upgrade", "downgrade"):
        command = commands.add_parser(verb, help=f"{verb.capitalize()} one or more feature flags.")
        command.add_argument("--metadata", help=f"DEPRECATED -- The level to which we should {verb} the metadata.")
        command.add_argument("--release-version", help=f"The release version to {verb} all features to.")
        command.add_argument("--feature", action="append", help=f"A feature {verb} to perform, as feature=level.")
        if verb == "downgrade":
            command.add_argument("--unsafe", action="store_true", help="Even if it may irreversibly destroy metadata.")
        command.add_argument("--dry-run", action="store_true", help=f"Validate this {verb}, but do not perform it.")
    disable = commands.add_parser("disable", help="Disable one or more feature flags: the same as downgrading to zero.")
    disable.add_argument("--feature", action="append", help="A feature flag to disable.")
    disable.add_argument("--unsafe", action="store_true", help="Even if it may irreversibly destroy metadata.")
    disable.add_argument("--dry-run", action="store_true", help="Perform a dry-run of this disable operation.")
    mapping = commands.add_parser("version-mapping", help="Look up the features for a given metadata version.")
    mapping.add_argument("--release-version", help=f"The release version; the default is {releases.LATEST}")
    needs = commands.add_parser("feature-dependencies", help="Look up dependencies for a given feature version.")
    needs.add_argument("--feature", action="append", required=True, help="A feature and level, as feature=version.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run(_parser(), argv, _run)


def _run(args: argparse.Namespace) -> int:
    if args.command == "version-mapping":
        print("\n".join(releases.mapping_lines(args.release_version)))
    elif args.command == "feature-dependencies":
        for text in args.feature:
            print("\n".join(_dependencies(*releases.name_and_level(text))))
    else:
        _with_cluster(args)
    return 0


def _dependencies(feature: str, level: int) -> list[str]:
    try:
        return releases.dependency_lines(feature, level)
    except ValueError:
        raise Failed(f"No feature:{feature} with feature level {level}")


def _with_cluster(args: argparse.Namespace) -> None:
    from ottla.cli.kafka.connecting import with_cluster

    bootstrap = args.bootstrap_server or args.bootstrap_controller
    if not bootstrap:
        what = "You must specify either --bootstrap-controller or --bootstrap-server."
        raise Failed(f"Command line error: {what}. Type --help for help.")
    if args.command == "describe" and (args.node_id or 0) < 0:
        raise Failed(f"Invalid node id {args.node_id}: must be non-negative.")
    updates = {} if args.command == "describe" else _updates(args)

    async def work(cluster: Cluster) -> None:
        if args.command == "describe":
            await _describe(cluster, args.node_id)
        else:
            await _update(cluster, args, updates)

    with_cluster(bootstrap, args.command_config, work, controllers=bool(args.bootstrap_controller))


async def _describe(cluster: Cluster, node_id: int | None) -> None:
    for feature in await features_of(cluster, node_id):
        low, high, now = (_level_text(feature.name, level) for level in (feature.low, feature.high, feature.level))
        epoch = feature.epoch if feature.epoch >= 0 else "-"
        print(
            f"Feature: {feature.name:40}  SupportedMinVersion: {low:15}  SupportedMaxVersion: {high:15}"
            f"  FinalizedVersionLevel: {now:15}  Epoch: {epoch}"
        )


class Feature(NamedTuple):
    """What a node supports, and the level that its cluster has agreed on; the epoch is below zero if it does not know."""

    name: str
    low: int
    high: int
    level: int
    epoch: int


async def features_of(cluster: Cluster, node_id: int | None = None) -> list[Feature]:
    """As one node tells it, or any."""
    from ottla import __version__
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import check
    from ottla.wire.messages.cluster import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=__version__)
    answer = await ask(cluster, request, node_id)
    check(answer.error_code)
    agreed = {each.name: each.max_version_level for each in answer.finalized_features}
    epoch = answer.finalized_features_epoch
    supported = sorted(answer.supported_features, key=lambda each: each.name)
    return [
        Feature(each.name, each.min_version, each.max_version, agreed.get(each.name, 0), epoch) for each in supported
    ]


def _level_text(feature: str, level: int) -> str:
    if feature == releases.METADATA_VERSION:
        return releases.name_of(level) or f"UNKNOWN {level}"
    return str(level)


def _updates(args: argparse.Namespace) -> dict[str, int]:
    """The wanted levels, by feature."""
    if args.command == "disable":
        return once([(name, 0) for name in args.feature or ()])
    if args.release_version and (args.metadata or args.feature):
        raise Failed("Can not specify `release-version` with other feature flags.")
    if args.release_version:
        return levels_of_release(args.release_version, is_upgrade=args.command == "upgrade")
    wanted = []
    if args.metadata:
        print(" `metadata` flag is deprecated and may be removed in a future release.")
        wanted.append((releases.METADATA_VERSION, releases.level_of(args.metadata)))
    return once(wanted + [releases.name_and_level(text) for text in args.feature or ()])


def levels_of_release(release: str, *, is_upgrade: bool) -> dict[str, int]:
    """An upgrade leaves features alone that the release has switched off."""
    level = releases.level_of(release)
    others = {name: at for name, at in releases.defaults(level).items() if at or not is_upgrade}
    return {releases.METADATA_VERSION: level} | others


def once(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, level in pairs:
        if name in found:
            raise Failed(f"Feature {name} was specified more than once.")
        found[name] = level
    return found


async def _update(cluster: Cluster, args: argparse.Namespace, updates: Mapping[str, int]) -> None:
    verb, dry = args.command, args.dry_run
    if not updates:
        raise Failed(f"You must specify at least one feature to {verb}")
    kind = UPGRADE if verb == "upgrade" else UNSAFE_DOWNGRADE if args.unsafe else SAFE_DOWNGRADE
    whole, errors = await refusals(cluster, updates, kind, is_dry_run=dry)
    if whole is not None:
        errors = dict.fromkeys(updates, whole)
    for feature, level in sorted(updates.items()):
        if feature in errors:
            what = f"disable {feature}" if verb == "disable" else f"{verb} {feature} to {level}"
            print(f"{'Can not' if dry else 'Could not'} {what}. {errors[feature].message}")
        else:
            done = "disabled." if verb == "disable" else f"{verb}d to {level}."
            print(f"{feature} {'can be' if dry else 'was'} {done}")
    if errors:
        raise Failed(f"{len(errors)} out of {len(updates)} operation(s) failed.")


async def refusals(
    cluster: Cluster, updates: Mapping[str, int], kind: int, *, is_dry_run: bool
) -> tuple[KafkaError | None, dict[str, KafkaError]]:
    """Why nothing was done, or None; and what was refused by itself, by feature: brokers before 4.0 do the others."""
    from ottla.cli.kafka.asking import ask
    from ottla.client.connection import failure
    from ottla.wire.messages.cluster import UpdateFeaturesRequest

    update = UpdateFeaturesRequest.Update
    wanted = [
        update(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind != UPGRADE)
        for name, level in sorted(updates.items())
    ]
    answer = await ask(cluster, UpdateFeaturesRequest(feature_updates=wanted, validate_only=is_dry_run))
    if answer.error_code:
        return failure(answer.error_code, answer.error_message), {}
    refused = [result for result in answer.results if result.error_code]
    return None, {each.feature: failure(each.error_code, each.error_message) for each in refused}
