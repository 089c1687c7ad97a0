"""How open files are shared out between logs and connections."""

from __future__ import annotations

import resource

from ottla.server.limits import Limits, connection_files, file_warning, segment_files

UNLIMITED = 2**31 - 1


def limits(files: int) -> Limits:
    settings = {
        "max.connections": UNLIMITED,
        "max.connections.per.ip": UNLIMITED,
        "max.connection.creation.rate": UNLIMITED,
    }
    return Limits(settings | {"max.connections.per.ip.overrides": ""}, files)


def test_connections_leave_the_logs_their_descriptors() -> None:
    """LOG-24: three descriptors for two connections, and never none at all."""
    assert all(limits(files=n).admit("a") for n in (1, 0, -50))
    bounded = limits(files=3)
    assert [bounded.admit("a") for _ in range(3)] == [True, True, False]


def test_descriptors_are_shared_out() -> None:
    """LOG-24: segments get half at most, in all directories together; without a limit there is nothing to share."""
    assert segment_files(20_000, 1, 4096) == 4096
    assert segment_files(1024, 1, 4096) == 512
    assert segment_files(1024, 2, 4096) == 256
    assert segment_files(resource.RLIM_INFINITY, 2, 4096) == 4096
    assert connection_files(20_000, 4096) == 20_000 - 4096 - 64
    assert connection_files(resource.RLIM_INFINITY, 4096) is None


def test_too_few_descriptors_are_told() -> None:
    """LOG-24"""
    assert file_warning(None) is None and file_warning(1500) is None
    assert "only 999 connections" in (file_warning(1499) or "")
    assert "only 1 connections" in (file_warning(-5) or "")
