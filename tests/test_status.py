"""The status page says what the tests say."""

from __future__ import annotations

import status


def test_the_status_page_is_up_to_date() -> None:
    assert status.PAGE.read_text() == status.page(), "run `make status`"


def test_ids_are_found_alone_and_in_ranges() -> None:
    assert status.ids_in("LOG-12, IDM-01..03 and TRAP-06 to TRAP-07") == {
        *("LOG-12", "IDM-01", "IDM-02", "IDM-03", "TRAP-06", "TRAP-07")
    }
