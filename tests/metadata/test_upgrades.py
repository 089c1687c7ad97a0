"""Levels of features: what may rise, what may fall, and who is asked."""

from __future__ import annotations

import pytest

from ottla.metadata import controller
from ottla.metadata import records as r
from ottla.metadata.controller import Registration, Rules
from ottla.metadata.image import BROKER, Endpoint, Image
from ottla.metadata.replay import replay
from ottla.metadata.upgrades import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE, Update, update_features
from ottla.wire.errors import KafkaError

RULES = Rules(min_insync_replicas=2)
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092, 0)


def with_levels(**levels: int) -> Image:
    records = [r.FeatureLevelRecord(name=name.replace("_", "."), feature_level=level) for name, level in levels.items()]
    return replay(Image(), records, 1, 1)[0]


def updated(image: Image, name: str, level: int, kind: int = UPGRADE) -> dict[str, int]:
    decision = update_features(image, 1, {name: Update(level, kind)}, RULES)
    return dict(replay(image, [record for record, _ in decision.records], 2, 1)[0].features)


def refused(image: Image, name: str, level: int, kind: int = UPGRADE) -> str:
    with pytest.raises(KafkaError) as error:
        updated(image, name, level, kind)
    assert error.value.code == 95
    return error.value.message


def test_up_and_down_and_off() -> None:
    image = with_levels(metadata_version=30)
    assert updated(image, "group.version", 1)["group.version"] == 1
    high = with_levels(metadata_version=30, group_version=1)
    assert "group.version" not in updated(high, "group.version", 0, SAFE_DOWNGRADE)
    assert refused(high, "group.version", 0).endswith("either safe or unsafe downgrade.")
    assert refused(image, "group.version", 1, SAFE_DOWNGRADE).endswith("Can't downgrade to a newer version.")
    assert refused(image, "group.version", 2).endswith("Local controller 1 only supports versions 0-1")
    assert refused(image, "group.version", -1).endswith("A feature version cannot be less than 0.")
    assert refused(image, "group.version", 1, 9).endswith("does not support the given upgrade type.")


def test_transactions_change_their_generation_while_the_cluster_runs() -> None:
    """PRT-07: up and down by any step, at whatever level the metadata is."""
    image = with_levels(metadata_version=7)
    assert updated(image, "transaction.version", 2)["transaction.version"] == 2
    second = with_levels(metadata_version=30, transaction_version=2)
    assert refused(second, "transaction.version", 1).endswith("either safe or unsafe downgrade.")
    assert updated(second, "transaction.version", 1, SAFE_DOWNGRADE)["transaction.version"] == 1
    assert "transaction.version" not in updated(second, "transaction.version", 0, UNSAFE_DOWNGRADE)
    assert refused(second, "transaction.version", 3).endswith("Local controller 1 only supports versions 0-2")


def test_features_that_nobody_knows() -> None:
    image = with_levels(metadata_version=30)
    assert refused(image, "none", 1) == (
        "Invalid update version 1 for feature none. Local controller 1 does not support this feature."
    )
    assert refused(image, "none", 0).endswith("Feature none not found.")
    taken_over = with_levels(metadata_version=30, share_version=1)
    assert "share.version" not in updated(taken_over, "share.version", 0, UNSAFE_DOWNGRADE)


def test_metadata_falls_only_where_its_records_stay_readable() -> None:
    assert refused(with_levels(metadata_version=30), "metadata.version", 29, SAFE_DOWNGRADE) == (
        "Unsupported metadata.version downgrade from 30 to 29. "
        "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    assert "Unsafe" in refused(with_levels(metadata_version=30), "metadata.version", 29, UNSAFE_DOWNGRADE)
    assert updated(with_levels(metadata_version=29), "metadata.version", 23, SAFE_DOWNGRADE)["metadata.version"] == 23
    assert updated(with_levels(metadata_version=21), "metadata.version", 30)["metadata.version"] == 30
    assert refused(with_levels(metadata_version=30), "metadata.version", 31).endswith("only supports versions 7-30")


def test_every_registered_broker_must_be_able_to_follow() -> None:
    image = with_levels(metadata_version=30)
    who = Registration(7, bytes(16), [ENDPOINT], [b"d" * 16], features={"metadata.version": (7, 30)})
    decision = controller.register_broker(image, who, RULES)
    image = replay(image, [record for record, _ in decision.records], 3, 1)[0]
    assert refused(image, "group.version", 1).endswith("Broker 7 does not support this feature.")


def test_eligible_leaders_need_one_minimum() -> None:
    own = r.ConfigRecord(resource_type=BROKER, resource_name="7", name="min.insync.replicas", value="3")
    image = with_levels(metadata_version=30)
    who = Registration(7, bytes(16), [ENDPOINT], [b"d" * 16])
    decision = controller.register_broker(image, who, RULES)
    image = replay(image, [*(record for record, _ in decision.records), own], 3, 1)[0]
    decision_ = update_features(image, 1, {"eligible.leader.replicas.version": Update(1, UPGRADE)}, RULES)
    after = replay(image, [record for record, _ in decision_.records], 4, 1)[0]
    assert after.elr_enabled and after.configs(BROKER, "") == {"min.insync.replicas": "2"}
    assert after.configs(BROKER, "7") == {}
    low = with_levels(metadata_version=21)
    assert "depends on metadata.version level 23" in refused(low, "eligible.leader.replicas.version", 1)


def test_the_version_of_the_quorum_stays() -> None:
    image = with_levels(metadata_version=30)
    assert updated(image, "kraft.version", 0) == {"metadata.version": 30}
    assert updated(image, "kraft.version", 1) == {"metadata.version": 30}, (
        "the quorum writes that down, and nobody else"
    )


def test_all_or_nothing_and_only_to_see() -> None:
    image = with_levels(metadata_version=30)
    with pytest.raises(KafkaError):
        update_features(image, 1, {"group.version": Update(1, UPGRADE), "none": Update(1, UPGRADE)}, RULES)
    seen = update_features(image, 1, {"group.version": Update(1, UPGRADE)}, RULES, validate_only=True)
    assert seen.records == []
