"""Where replicas could live: round and round over the brokers, and over the racks where there are any.

The first replica of each partition goes to the next broker, the others to brokers behind it, with a step that grows after
every full round, so that the followers of one broker's partitions are spread over all others. With racks, brokers are
taken in an order that changes the rack at every step, and a rack is used twice only after all were used.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from ottla.cli.kafka.options import Failed

Partition = tuple[str, int]
RACKS = (
    "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica assignment without "
    "rack information."
)


def proposed_placement(
    current: Mapping[Partition, list[int]], racks: Mapping[int, str | None], rng: random.Random
) -> dict[Partition, list[int]]:
    """Brokers for each partition, as many as it has now."""
    known = [rack for rack in racks.values() if rack is not None]
    if known and len(known) != len(racks):
        raise Failed(RACKS)
    if not racks:
        raise Failed("All brokers are currently fenced, or have all their log directories cordoned.")
    brokers = _alternating(racks) if known else sorted(racks)
    found: dict[Partition, list[int]] = {}
    for topic in sorted({topic for topic, _ in current}):
        partitions = sorted(where for where in current if where[0] == topic)
        factor = len(current[partitions[0]])
        if factor > len(brokers):
            reached = (
                f"The target replication factor of {factor} cannot be reached because only {len(brokers)} broker(s)"
            )
            raise Failed(f"Unable to replicate the partition {factor} time(s): {reached} are registered.")
        start, shift = rng.randrange(len(brokers)), rng.randrange(len(brokers))
        for number, where in enumerate(partitions):
            step = shift + number // len(brokers)
            found[where] = _row(brokers, racks, start + number, step, factor)
    return found


def _alternating(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers in an order in which neighbours stand in different racks, as far as that goes."""
    groups: dict[str, list[int]] = {}
    for broker in sorted(racks):
        groups.setdefault(racks[broker] or "", []).append(broker)
    longest = max(len(group) for group in groups.values())
    return [groups[rack][n] for n in range(longest) for rack in sorted(groups) if n < len(groups[rack])]


def _row(brokers: list[int], racks: Mapping[int, str | None], first: int, step: int, factor: int) -> list[int]:
    """The first broker, and others behind it; a rack comes again when all racks are there."""
    count = len(brokers)
    leader = brokers[first % count]
    behind = [brokers[(first + 1 + (step + n) % (count - 1)) % count] for n in range(count - 1)] if count > 1 else []
    row, all_racks = [leader], {racks[broker] for broker in brokers}
    while len(row) < factor:
        used = {racks[broker] for broker in row}
        fresh = [b for b in behind if b not in row and (racks[b] not in used or used == all_racks)]
        row.append(fresh[0] if fresh else next(broker for broker in behind if broker not in row))
    return row
