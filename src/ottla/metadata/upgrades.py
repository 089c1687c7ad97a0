"""Changing the levels of features: what a cluster may agree on next (KIP-584, KIP-778).

All changes of one request are made, or none. A level may rise as far as every registered node can follow; it falls only if
whoever asks says that this is meant. `metadata.version` falls only over levels that brought no new records: others could
not be read back. `kraft.version` is told by the control records of the quorum itself, which writes them; it only rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.metadata.decisions import MIN_INSYNC_REPLICAS, Decision, Rules, Versioned
from ottla.metadata.features import (
    ELIGIBLE_LEADER_REPLICAS,
    ELIGIBLE_LEADER_REPLICAS_NEED,
    METADATA_VERSION,
    SERVED,
    WITH_NEW_RECORDS,
)
from ottla.metadata.image import BROKER, FeatureRange, Image
from ottla.metadata.records import ConfigRecord, FeatureLevelRecord
from ottla.raft.quorum import KRAFT_VERSION
from ottla.wire.errors import Error, KafkaError

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
NO_LEVELS: FeatureRange = (0, 0)


class Update(NamedTuple):
    level: int
    kind: int


def update_features(
    image: Image, node_id: int, updates: Mapping[str, Update], rules: Rules, *, validate_only: bool = False
) -> Decision[None]:
    """Raises KafkaError for the first update that cannot be made."""
    proposed = {**image.finalised, **{name: update.level for name, update in updates.items()}}
    records: list[Versioned] = []
    for name, update in updates.items():
        _check(image, node_id, name, update)
        _check_needs(name, update.level, proposed)
        if name != KRAFT_VERSION:
            records.append((FeatureLevelRecord(name=name, feature_level=update.level), 0))
        if name == ELIGIBLE_LEADER_REPLICAS and update.level > 0:
            records += _one_minimum(image, rules)
    return Decision([] if validate_only else records, None)


def _check(image: Image, node_id: int, name: str, update: Update) -> None:
    level, kind = update
    now = _level_now(image, name)
    if not UPGRADE <= kind <= UNSAFE_DOWNGRADE:
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    _check_support(image, node_id, name, level)
    if level < now and kind == UPGRADE:
        why = "without setting the upgrade type to either safe or unsafe downgrade."
        raise _invalid(name, level, f"Can't downgrade the version of this feature {why}")
    if level > now and kind != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION and level < now:
        _check_fall(now, level, kind)
    if name == KRAFT_VERSION and level < now:
        raise _invalid(name, level, "Can't downgrade the version of this feature.")


def _level_now(image: Image, name: str) -> int:
    return image.metadata_version if name == METADATA_VERSION else image.finalised.get(name, 0)


def _check_support(image: Image, node_id: int, name: str, level: int) -> None:
    """Whether this node, and every other that is registered, can do it. All can switch off what they do not know."""
    if name not in SERVED and name not in image.finalised and level == 0:
        raise _invalid(name, level, f"Feature {name} not found.")
    _check_range(f"Local controller {node_id}", SERVED, name, level)
    for broker_id, broker in sorted(image.brokers.items()):
        _check_range(f"Broker {broker_id}", broker.features, name, level)
    for controller_id, controller in sorted(image.controllers.items()):
        if controller_id != node_id:
            _check_range(f"Controller {controller_id}", controller.features, name, level)


def _check_range(who: str, features: Mapping[str, FeatureRange], name: str, level: int) -> None:
    low, high = features.get(name, NO_LEVELS)
    if low <= level <= high or (name not in features and level == 0):
        return
    if (low, high) == NO_LEVELS:
        raise _invalid(name, level, f"{who} does not support this feature.")
    raise _invalid(name, level, f"{who} only supports versions {low}-{high}")


def _check_fall(now: int, level: int, kind: int) -> None:
    if not any(level < changed <= now for changed in WITH_NEW_RECORDS):
        return
    if kind == UNSAFE_DOWNGRADE:
        why = "Unsafe metadata downgrade is not supported in this version."
    else:
        why = "Refusing to perform the requested downgrade because it might delete metadata information."
    raise _refused(f"Unsupported metadata.version downgrade from {now} to {level}. {why}")


def _check_needs(name: str, level: int, proposed: Mapping[str, int]) -> None:
    needed = ELIGIBLE_LEADER_REPLICAS_NEED
    if name == ELIGIBLE_LEADER_REPLICAS and level > 0 and proposed.get(METADATA_VERSION, 0) < needed:
        depends = f"{name} could not be set to {level} because it depends on {METADATA_VERSION} level {needed}"
        raise _invalid(name, level, depends)


def _one_minimum(image: Image, rules: Rules) -> list[Versioned]:
    """Who is eligible depends on one minimum for the whole cluster: it must be there, and no broker may differ."""
    records: list[Versioned] = []
    if MIN_INSYNC_REPLICAS not in image.configs(BROKER, ""):
        value = str(rules.min_insync_replicas)
        records.append((ConfigRecord(resource_type=BROKER, name=MIN_INSYNC_REPLICAS, value=value), 0))
    for broker_id in sorted(image.brokers):
        if MIN_INSYNC_REPLICAS in image.configs(BROKER, str(broker_id)):
            own = ConfigRecord(resource_type=BROKER, resource_name=str(broker_id), name=MIN_INSYNC_REPLICAS, value=None)
            records.append((own, 0))
    return records


def _invalid(name: str, level: int, why: str) -> KafkaError:
    return _refused(f"Invalid update version {level} for feature {name}. {why}")


def _refused(why: str) -> KafkaError:
    return KafkaError(Error.INVALID_UPDATE_VERSION, why)
