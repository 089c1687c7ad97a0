"""ApiVersions: what this broker serves, read from the same table that serves it.

Versions: 1 throttle time, 3 flexible, with the client's software and finalised features (KIP-511, KIP-584), 4 lets a
feature's range start at 0. A version we do not know is answered as version 0 with UNSUPPORTED_VERSION and the range of
ApiVersions itself, so that the client can come down (KIP-511).
"""

from __future__ import annotations

import re

from ottla.server.context import Context
from ottla.server.dispatch import HANDLERS, ON_CONTROLLER, serves
from ottla.wire.errors import Error
from ottla.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(ApiVersionsRequest, versions="0-4")
async def api_versions(request: ApiVersionsRequest, ctx: Context) -> ApiVersionsResponse:
    if ctx.version not in ApiVersionsRequest.versions:
        own = [row for row in ranges(ctx) if row.api_key == ApiVersionsRequest.key]
        return ApiVersionsResponse(error_code=Error.UNSUPPORTED_VERSION.code, api_keys=own)
    if ctx.version >= 3 and not (
        SOFTWARE.fullmatch(request.client_software_name) and SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=Error.INVALID_REQUEST.code)
    image = ctx.image
    return ApiVersionsResponse(
        api_keys=ranges(ctx),
        supported_features=[
            ApiVersionsResponse.SupportedFeature(name=name, min_version=low, max_version=high)
            for name, (low, high) in ctx.node.features.items()
            if low > 0 or ctx.version >= 4
        ],
        finalized_features_epoch=image.offset,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeature(name=name, min_version_level=level, max_version_level=level)
            for name, level in ctx.node.finalised_features().items()
        ],
    )


def ranges(ctx: Context) -> list[ApiVersionsResponse.ApiVersion]:
    """What the listener serves that the request came in on."""
    config, handlers = ctx.node.config, ON_CONTROLLER if ctx.is_to_controller else HANDLERS
    return [
        ApiVersionsResponse.ApiVersion(
            api_key=key, min_version=handler.advertised_low, max_version=handler.newest(config)
        )
        for key, handler in sorted(handlers.items())
    ]
