"""The process dies, or the power goes, at disk calls of a node that serves groups: what was acknowledged is still there."""

from __future__ import annotations

import pytest

from sim.group_script import cut_at
from sim.many_seeds import cut_everywhere, quiet

__all__ = ["quiet"]


@pytest.mark.timeout(600)
def test_groups_survive_cuts_at_disk_calls() -> None:
    """OFF-02, GRP-15: commits, rebalances and the deletion of a group, with a cut at every seventh call."""
    wrong, cuts, _ = cut_everywhere(cut_at, 7)
    assert not wrong, "\n".join(wrong[:20])
    assert cuts > 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_groups_survive_a_cut_at_every_disk_call(capsys: pytest.CaptureFixture[str]) -> None:
    wrong, cuts, _ = cut_everywhere(cut_at, 1)
    with capsys.disabled():
        print(f"\n{cuts} cuts of a node with groups")
    assert not wrong, "\n".join(wrong[:20])
