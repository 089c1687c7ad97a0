"""The status page says what the tests say."""

from __future__ import annotations

import pytest

import status

FAMILIES = [
    *("LOG", "REC", "IO", "RET", "IDM", "TXN", "GRP", "OFF", "REP", "KRF", "STR", "CLI", "OPS", "PRT", "TRAP"),
]


def test_the_status_page_is_up_to_date() -> None:
    assert status.PAGE.read_text() == status.page(), "run `make status`"


@pytest.mark.parametrize("family", FAMILIES)
def test_each_behaviour_has_a_test_or_a_reason_but_not_both(family: str) -> None:
    count = next(count for name, count, _ in status.FAMILIES if name == family)
    wanted = {f"{family}-{number:02}" for number in range(1, count + 1)}
    shown = wanted & set(status.tests_by_id())
    excused = wanted & set().union(*(status.ids_in(ids) for ids, _ in status.REASONS))
    assert sorted(wanted - shown - excused) == [], "neither a test nor a reason"
    assert sorted(shown & excused) == [], "there is a test now: the reason is out of date"


def test_ids_are_found_alone_and_in_ranges() -> None:
    assert status.ids_in("LOG-12, IDM-01..03 and TRAP-06 to TRAP-07") == {
        *("LOG-12", "IDM-01", "IDM-02", "IDM-03", "TRAP-06", "TRAP-07")
    }
