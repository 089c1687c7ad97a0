"""What a topic's settings mean to its logs: Kafka's names and defaults, in snake case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

LONG_MAX = 2**63 - 1
# How far in the future timestamps may lie, where nobody says otherwise.
AFTER_MAX_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The part of a topic's configuration that its logs obey. Times are milliseconds; -1 means without limit."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = AFTER_MAX_MS
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    # A broker setting (producer.id.expiration.ms): when a silent producer's sequences are forgotten.
    producer_id_expiration_ms: int = 86_400_000
    # What a batch may inflate to when its records have to be looked at.
    inflated_max: int = field(default=100 << 20)

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def takes_headers_word(self) -> bool:
        """Whether no setting can make us look at the records of a batch, unless its timestamps lie in the future."""
        return (
            not self.compacts
            and self.compression_type == "producer"
            and self.message_timestamp_before_max_ms == LONG_MAX
        )

    @property
    def looks_inside(self) -> bool:
        """Whether there is more to a usual batch than its header tells."""
        return not self.takes_headers_word or self.message_timestamp_after_max_ms < AFTER_MAX_MS

    @property
    def roll_ms(self) -> int:
        """How old a segment may grow. One that takes appends is never compacted, so it must end in time for that."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def stamps_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LogSettings:
        """From topic configuration with Kafka's dotted names; names that do not concern the log are passed over."""
        known = {f.name for f in fields(cls)}
        chosen = {name.replace(".", "_"): value for name, value in values.items()}
        if chosen.get("internal_segment_bytes") is not None:
            chosen["segment_bytes"] = chosen["internal_segment_bytes"]
        policy = chosen.get("cleanup_policy")
        if policy is not None:
            chosen["cleanup_policy"] = _policies(policy)
        return cls(**{name: value for name, value in chosen.items() if name in known and value is not None})


def _policies(value: Any) -> frozenset[str]:
    words = value.split(",") if isinstance(value, str) else value
    return frozenset(word.strip() for word in words)
