"""Times and lengths of time as people and Java write them."""

from __future__ import annotations

import pytest

from ottla.cli.resetting import Unreadable, duration_ms, moment_ms


def test_durations() -> None:
    assert duration_ms("P1D") == 86_400_000
    assert duration_ms("PT1H2M3.5S") == 3_723_500
    assert duration_ms("-PT10S") == duration_ms("PT-10S") == -10_000
    assert duration_ms("p1dt1s") == 86_401_000
    for wrong in ("", "P", "10d", "P1H", "PT"):
        with pytest.raises(Unreadable):
            duration_ms(wrong)


def test_moments() -> None:
    """CLI-10: without a time zone it is UTC, whatever the machine's is."""
    assert moment_ms("2023-11-14T22:13:20.000") == 1_700_000_000_000
    assert moment_ms("2023-11-14T23:13:20.500+01:00") == 1_700_000_000_500
    assert moment_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    with pytest.raises(Unreadable, match="does not contain a 'T'"):
        moment_ms("2023-11-14")
    with pytest.raises(Unreadable, match="Unparseable date"):
        moment_ms("2023-31-14T00:00:00")
