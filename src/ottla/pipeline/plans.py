"""What a micro-batch was to hold, as the checkpoint says it: told apart from another with the same number.

Spark writes down from where to where a micro-batch goes (`offsets/<number>`, with the time of writing) before it runs it, and
reads that again when it repeats it. A checkpoint that was put back, or whose last file did not survive a loss of power, has no
such file: Spark makes another micro-batch of the same number, with more in it. The number alone would pass for a repetition,
and what is more would never be written. So a digest of that file is kept with the marker.

Only checkpoints on the driver's own disks are looked at; of others it is not known.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

UNKNOWN = ""
DIGITS = 16


def plan_of(checkpoint: str | None, batch_id: int) -> str:
    """A digest of what Spark has planned under this number; UNKNOWN if that cannot be read from here."""
    place = urlsplit(checkpoint or "")
    if place.scheme not in ("", "file") or not place.path:
        return UNKNOWN
    root = unquote(place.path) if place.scheme else checkpoint or ""
    try:
        planned = (Path(root) / "offsets" / str(batch_id)).read_bytes()
    except OSError:
        return UNKNOWN
    return hashlib.sha256(planned).hexdigest()[:DIGITS]
