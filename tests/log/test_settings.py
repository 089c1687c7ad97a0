"""Topic settings as logs understand them."""

from __future__ import annotations

from ottla.log.settings import LogSettings


def test_kafkas_names_and_defaults() -> None:
    """TRAP-17, RET-01: Kafka's defaults; names that are not the log's business are passed over."""
    plain = LogSettings()
    assert plain.message_timestamp_after_max_ms == 3_600_000 and plain.retention_ms == 7 * 24 * 3_600_000
    assert plain.segment_bytes == 1 << 30 and plain.max_message_bytes == 1_048_588
    assert LogSettings.of({}) == plain == LogSettings.of({"min.insync.replicas": 2, "retention.ms": None})
    given = {"segment.bytes": 1 << 20, "cleanup.policy": "compact, delete", "compression.type": "zstd"}
    settings = LogSettings.of(given)
    assert settings.segment_bytes == 1 << 20 and settings.compression_type == "zstd"
    assert settings.compacts and settings.deletes and not LogSettings.of({"cleanup.policy": ["compact"]}).deletes


def test_small_segments_for_tests() -> None:
    """TRAP-17: `internal.segment.bytes` goes where `segment.bytes` may not."""
    assert LogSettings.of({"segment.bytes": 1 << 30, "internal.segment.bytes": 100}).segment_bytes == 100
