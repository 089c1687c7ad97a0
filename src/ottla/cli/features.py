"""ottla cluster features [describe | upgrade | downgrade | disable]"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ottla.cli.mistakes import Mistake
from ottla.cli.options import add_action, add_action_below
from ottla.cli.text import table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ottla.cli.kafka.features import Feature
    from ottla.client.cluster import Cluster
    from ottla.wire.errors import KafkaError

DONE = {"upgrade": "upgraded", "downgrade": "downgraded", "disable": "disabled"}


def arguments(actions: Any) -> None:
    features = add_action(
        actions,
        "features",
        "what the cluster has agreed on, and changing that",
        "ottla cluster features\n  ottla cluster features upgrade --release 4.3 --dry-run",
    )
    changes = features.add_subparsers(dest="change", metavar="CHANGE")
    add_action_below(
        changes,
        "describe",
        "show levels, and which ones all brokers support; this is what happens without a CHANGE",
        "ottla cluster features describe --json",
    )
    for change, what, example in (
        ("upgrade", "raise levels", "ottla cluster features upgrade group.version=1"),
        ("downgrade", "lower levels", "ottla cluster features downgrade transaction.version=1 --dry-run"),
    ):
        levels = _add_change(changes, change, what, example)
        levels.add_argument("features", nargs="*", metavar="FEATURE=LEVEL", help="also metadata.version=4.3")
        levels.add_argument(
            "--release", metavar="4.3", help="what belongs to this release, of all that the cluster knows"
        )
    disable = _add_change(changes, "disable", "lower levels to 0", "ottla cluster features disable group.version")
    disable.add_argument("features", nargs="+", metavar="FEATURE")


def _add_change(changes: Any, change: str, what: str, example: str) -> argparse.ArgumentParser:
    parser = add_action_below(changes, change, what, example)
    parser.add_argument("--dry-run", action="store_true", help="let the cluster check everything, and change nothing")
    if change != "upgrade":
        parser.add_argument("--unsafe", action="store_true", help="even if metadata is lost by it")
    return parser


async def run(cluster: Cluster, args: argparse.Namespace) -> tuple[Any, str]:
    if args.change in DONE:
        return await _change(cluster, args)
    return _described(await _common_features(cluster))


# describe


async def _common_features(cluster: Cluster) -> list[Feature]:
    """With the levels that every broker supports: those can be agreed on."""
    from ottla.cli.kafka.asking import node_ids
    from ottla.cli.kafka.features import features_of

    told = [{each.name: each for each in await features_of(cluster, broker)} for broker in await node_ids(cluster)]
    names = sorted({name for features in told for name in features})
    return [common_to_all([features[name] for features in told if name in features], len(told)) for name in names]


def common_to_all(told: list[Feature], brokers: int) -> Feature:
    """Whoever has read more of the metadata knows better; whoever does not know a feature has it at 0."""
    newest = max(told, key=lambda each: each.epoch)
    if len(told) < brokers:
        return newest._replace(low=0, high=0)
    return newest._replace(low=max(each.low for each in told), high=min(each.high for each in told))


def _described(features: list[Feature]) -> tuple[Any, str]:
    data = [
        {"feature": each.name, "level": each.level, "min": each.low, "max": each.high, "epoch": each.epoch}
        for each in features
    ]
    rows = [
        (each.name, *(_shown(each.name, level) for level in (each.level, each.low, each.high))) for each in features
    ]
    return data, table([("feature", "level", "lowest", "highest"), *rows])


def _shown(feature: str, level: int) -> str:
    """`30 (4.3-IV0)`: metadata.version is known by its releases."""
    from ottla.cli.kafka import releases

    release = releases.name_of(level) if feature == releases.METADATA_VERSION else None
    return str(level) if release is None else f"{level} ({release})"


# upgrade, downgrade, disable


def _wanted(args: argparse.Namespace, known: Collection[str]) -> dict[str, int]:
    """A release may have features that this cluster does not know; those are left out."""
    from ottla.cli.kafka.features import levels_of_release, once
    from ottla.cli.kafka.options import Failed

    try:
        if args.change == "disable":
            return once((name, 0) for name in args.features)
        if bool(args.release) == bool(args.features):
            raise Mistake(f"say what to {args.change}: FEATURE=LEVEL, such as group.version=1, or --release 4.3")
        if args.release:
            levels = levels_of_release(args.release, is_upgrade=args.change == "upgrade")
            return {name: level for name, level in levels.items() if name in known}
        return once(map(_name_and_level, args.features))
    except Failed as failed:
        raise Mistake(str(failed))


def _name_and_level(text: str) -> tuple[str, int]:
    from ottla.cli.kafka import releases

    name, _, release = text.partition("=")
    if name == releases.METADATA_VERSION and "." in release:
        return name, releases.level_of(release)
    return releases.name_and_level(text)


async def _change(cluster: Cluster, args: argparse.Namespace) -> tuple[Any, str]:
    """All levels are changed, or none; a broker before 4.0 may do some of it."""
    from ottla.cli.kafka.features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE, features_of, refusals

    before = {each.name: each.level for each in await features_of(cluster)}
    wanted = _wanted(args, before)
    kind = UPGRADE if args.change == "upgrade" else UNSAFE_DOWNGRADE if args.unsafe else SAFE_DOWNGRADE
    whole, refused = await refusals(cluster, wanted, kind, is_dry_run=args.dry_run)
    if whole is not None:
        _advise(whole, args.change, wanted, before)
        raise whole
    data = [
        {"feature": name, "before": before.get(name, 0), "after": level, "error": _reason(refused.get(name))}
        for name, level in sorted(wanted.items())
    ]
    return data, _changes_table(data, args)


def _reason(error: KafkaError | None) -> str | None:
    return None if error is None else f"{error.message} ({error.error.name})"


def _changes_table(data: list[dict[str, Any]], args: argparse.Namespace) -> str:
    done = f"can be {DONE[args.change]}" if args.dry_run else DONE[args.change]
    rows: list[tuple[object, ...]] = [("feature", "before", "after", "")]
    for each in data:
        before, after = (_shown(each["feature"], each[when]) for when in ("before", "after"))
        rows.append((each["feature"], before, after, each["error"] or ("as before" if before == after else done)))
    return table(rows) + ("\nnothing was changed: this was a dry run" if args.dry_run else "")


def _advise(error: KafkaError, change: str, wanted: Mapping[str, int], before: Mapping[str, int]) -> None:
    """The cluster says what is wrong; this adds what to type instead."""
    from ottla.cli.parsing import suggestion

    unknown = [name for name in wanted if name not in before]
    if unknown:
        error.add_note(suggestion(unknown[0], before) or ": see `ottla cluster features`")
    elif change == "upgrade" and any(level < before[name] for name, level in wanted.items()):
        error.add_note(": `ottla cluster features downgrade` lowers levels")
    elif change != "upgrade" and any(level > before[name] for name, level in wanted.items()):
        error.add_note(": `ottla cluster features upgrade` raises levels")
