"""UpdateFeatures: what the cluster agrees on from now on.

Versions: 0 knows only one kind of downgrade, 1 tells safe from unsafe and may only try (KIP-778), 2 has no answer for each
feature (KIP-1022). All are changed or none. What is finalised is told by ApiVersions.
"""

from __future__ import annotations

from ottla.metadata import controller
from ottla.metadata.upgrades import SAFE_DOWNGRADE, UPGRADE, Update
from ottla.raft.quorum import KRAFT_VERSION
from ottla.server.context import Context
from ottla.server.dispatch import serves
from ottla.wire.errors import Error, KafkaError
from ottla.wire.messages.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse


@serves(UpdateFeaturesRequest, versions="0-2", forwarded=True)
async def update_features(request: UpdateFeaturesRequest, ctx: Context) -> UpdateFeaturesResponse:
    updates = {asked.feature: _update(asked, ctx.version) for asked in request.feature_updates}
    active, me, only_try = ctx.node.controller, ctx.node.config.node_id, request.validate_only
    quorum, wanted = ctx.node.quorum, updates.get(KRAFT_VERSION)
    if not active.is_active:
        raise KafkaError(Error.NOT_CONTROLLER)  # before anything is said of the request, as in Apache Kafka
    try:
        controller.update_features(active.written, me, updates, active.rules, validate_only=True)
        rises = wanted is not None and wanted.level > active.written.kraft_version
        if wanted is not None and rises:
            quorum.consensus.replica.check_upgrade(wanted.level)
        await active.propose(
            lambda image: controller.update_features(image, me, updates, active.rules, validate_only=only_try)
        )
        if wanted is not None and rises and not only_try:
            await quorum.upgrade(wanted.level)
    except KafkaError as error:
        if error.error is not Error.INVALID_UPDATE_VERSION:
            raise
        why = "The update failed for all features since the following feature had an error: "
        return UpdateFeaturesResponse(error_code=error.code, error_message=why + error.message)
    # In a field for what went wrong, Apache Kafka says that nothing did.
    kind = UpdateFeaturesResponse.Result
    done = [kind(feature=asked.feature, error_message="NONE") for asked in request.feature_updates]
    return UpdateFeaturesResponse(results=done)


def _update(asked: UpdateFeaturesRequest.Update, version: int) -> Update:
    oldest = SAFE_DOWNGRADE if asked.allow_downgrade else UPGRADE
    return Update(asked.max_version_level, asked.upgrade_type if version else oldest)
