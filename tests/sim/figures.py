"""Figures of plays, for the end of a run: what one of several processes prints is seen by nobody. What was noted while a test
ran travels with its report, and `conftest.py` has it shown: a line for each play, and the faults of all of them by kind."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping

FAULT = "fault: "
WIDTH = 120

# By a play's name. Of the test that runs; `taken` empties it.
_noted: list[tuple[str, dict[str, int]]] = []


def note(title: str, figures: Mapping[str, int], simulated_s: float) -> None:
    """`seeds`, `restarts` and faults are looked at."""
    _noted.append((title, {**figures, "simulated seconds": round(simulated_s)}))


def taken() -> list[tuple[str, dict[str, int]]]:
    noted = list(_noted)
    _noted.clear()
    return noted


def lines(noted: Iterable[tuple[str, Mapping[str, int]]]) -> list[str]:
    plays: dict[str, Counter[str]] = {}
    for title, figures in noted:
        plays.setdefault(title, Counter()).update(figures)
    faults: Counter[str] = Counter()
    for figures in plays.values():
        faults.update(_by_kind(figures))
    told = [f"{kind} {count}" for kind, count in sorted(faults.items(), key=lambda item: (-item[1], item[0]))]
    listed = textwrap.wrap(f"{faults.total()} faults: {', '.join(told)}", WIDTH, subsequent_indent="  ")
    return [_line(title, plays[title]) for title in sorted(plays)] + (listed if plays else [])


def _line(title: str, figures: Counter[str]) -> str:
    hours, faults = figures["simulated seconds"] / 3600, _by_kind(figures).total()
    return (
        f"{title}: {figures['seeds']} seeds, {hours:.2f} simulated hours, {figures['restarts']} starts, {faults} faults"
    )


def _by_kind(figures: Mapping[str, int]) -> Counter[str]:
    """Whatever became of what was not synced, and whoever it was."""
    kinds: Counter[str] = Counter()
    for name, count in figures.items():
        if name.startswith(FAULT):
            kinds[name.removeprefix(FAULT).partition(",")[0].partition(":")[0]] += count
    return kinds
