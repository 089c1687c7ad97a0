"""Chores that a node does for its logs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from desk import on_loop
from ottla.server import upkeep
from served import serving, until


@on_loop
async def test_a_chore_is_done_again_after_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error that nobody had thought of, and a full disk was never looked at again until the node was started anew."""
    monkeypatch.setattr(upkeep, "ROOM_CHECK_S", 0.01)
    told: list[dict[str, Any]] = []
    async with serving(tmp_path) as served:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        look, looks = served.node.disks.look, 0

        async def fail_once() -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise ValueError("a defect")
            await look()

        monkeypatch.setattr(served.node.disks, "look", fail_once)
        await until(lambda: looks > 2)
    assert [(context["message"], str(context["exception"])) for context in told] == [("room failed", "a defect")]
