"""Which replica a consumer had better ask (KIP-392): one in its own rack, so that records do not cross between racks.

The leader, if it is in that rack itself. Otherwise, of the followers there that are in sync and have what is asked for, the
one that is furthest, then the one that was caught up most recently.
"""

from __future__ import annotations

from ottla.metadata.image import Image
from ottla.replication.leadership import Leadership

NOBODY = -1


def closest(leadership: Leadership, image: Image, offset: int, rack: str) -> int:
    """The id of a follower, or -1 where the leader itself should answer."""
    partition = leadership.partition
    leader = image.brokers.get(partition.leader)
    if leader is None or leader.rack == rack:
        return NOBODY
    near = [
        (follower.end, follower.caught_up, follower.id)
        for follower in leadership.followers.values()
        if follower.id in partition.isr
        and follower.start <= offset <= follower.end
        and (broker := image.brokers.get(follower.id)) is not None
        and broker.rack == rack
        and not broker.fenced
    ]
    return max(near)[2] if near else NOBODY
