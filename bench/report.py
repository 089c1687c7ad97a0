"""Medians and ratios: as a table for the terminal, as JSON to keep, and as a picture to look at."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.lines import LINES, Line

SERVERS = ("ottla", "apache")
Measured = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Row:
    line: Line
    ottla: float | None
    apache: float | None
    ottla_cost: float | None = None
    apache_cost: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ottla / self.apache if self.ottla is not None and self.apache else None

    @property
    def met(self) -> bool | None:
        return None if self.ottla is None else self.line.meets(self.ottla, self.ratio)


def rows(measured: Measured, costs: Measured) -> list[Row]:
    """One row for each line that either server has a figure for."""
    made = [Row(line, *(_median(of, name, line.key) for of in (measured, costs) for name in SERVERS)) for line in LINES]
    return [row for row in made if row.ottla is not None or row.apache is not None]


def table(found: Sequence[Row]) -> str:
    head = f"{'':56}{'Ottla':>14}{'Apache Kafka':>14}  {'unit':6}{'ratio':>8}  {'goal':9} {'':9}broker us each"
    return "\n".join([head, "-" * len(head), *map(_table_line, found)])


def _table_line(row: Row) -> str:
    goal = row.line.goal or (f"{row.line.own_goal} {row.line.unit}" if row.line.own_goal else "")
    verdict = {True: "reached", False: "MISSED", None: ""}[row.met]
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
    figures = f"{_number(row.ottla):>14}{_number(row.apache):>14}  {row.line.unit:6}{ratio:>8}"
    costs = f"{row.ottla_cost:.2f} | {row.apache_cost or 0:.2f}" if row.ottla_cost is not None else ""
    return f"{row.line.title:56}{figures}  {goal:9} {verdict:9}{costs}"


def markdown(found: Sequence[Row]) -> str:
    """The rows as docs/performance.md has them."""
    return "\n".join(
        ["| load | Ottla | Apache Kafka | ratio | goal |", "|---|---|---|---|---|", *map(_markdown_line, found)]
    )


def _markdown_line(row: Row) -> str:
    ours, theirs = (
        f"{_number(value)} {row.line.unit}" if value is not None else "" for value in (row.ottla, row.apache)
    )
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
    goal = (row.line.goal or row.line.own_goal) + (" (missed)" if row.met is False else "")
    return f"| {row.line.title} | {ours} | {theirs} | {ratio} | {goal} |"


def write_json(path: Path, found: Sequence[Row], measured: Measured, costs: Measured, about: Mapping[str, Any]) -> None:
    kept = {"about": about, "lines": [_json_line(row) for row in found], "measured": measured, "cpu_us_each": costs}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def _json_line(row: Row) -> dict[str, Any]:
    line = {
        "line": row.line.key,
        "title": row.line.title,
        "unit": row.line.unit,
        "goal": row.line.goal or row.line.own_goal,
    }
    return {**line, "ottla": row.ottla, "apache": row.apache, "ratio": row.ratio, "met": row.met}


LEGEND = "Ottla / Apache Kafka 4.3.1, medians of one run; black mark: goal; green: reached"
WIDTH, LEFT, ROW_HEIGHT, TOP = 1000, 400, 26, 60
LOWEST, HIGHEST = 0.01, 10.0
COLOURS = {True: "#2e7d32", False: "#c62828", None: "#607d8b"}


def write_svg(path: Path, found: Sequence[Row], title: str) -> None:
    """A bar for each ratio on a logarithmic scale, with a mark where its goal is."""
    drawn = [row for row in found if row.ratio is not None]
    height = TOP + ROW_HEIGHT * len(drawn) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="16" y="46" fill="#555">{LEGEND}</text>',
        *_scale(height),
        *(part for n, row in enumerate(drawn) for part in _bar(row, TOP + n * ROW_HEIGHT)),
        "</svg>",
    ]
    path.write_text("\n".join(parts) + "\n")


def _scale(height: int) -> list[str]:
    parts = []
    for tick in (0.01, 0.1, 0.5, 1, 2, 5, 10):
        x = _x(tick)
        colour = "#999" if tick == 1 else "#e0e0e0"
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{height - 24}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="{height - 8}" text-anchor="middle" fill="#555">{tick:g}</text>')
    return parts


def _bar(row: Row, y: int) -> list[str]:
    assert row.ratio is not None
    start, end = sorted((_x(1.0), _x(row.ratio)))
    box = f'x="{start}" y="{y + 5}" width="{max(end - start, 1)}" height="16"'
    side, anchor = (6, "start") if row.ratio >= 1 else (-6, "end")
    parts = [
        f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(row.line.title)}</text>',
        f'<rect {box} fill="{COLOURS[row.met]}" fill-opacity="0.75"/>',
        f'<text x="{_x(row.ratio) + side}" y="{y + 17}" text-anchor="{anchor}">{row.ratio:.2f}</text>',
    ]
    if row.line.goal:
        goal = _x(float(row.line.goal.split()[1]))
        parts.append(f'<line x1="{goal}" y1="{y + 2}" x2="{goal}" y2="{y + 24}" stroke="black" stroke-width="2.5"/>')
    return parts


def _x(ratio: float) -> float:
    part = math.log(min(max(ratio, LOWEST), HIGHEST) / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(LEFT + part * (WIDTH - LEFT - 60), 1)


def _median(measured: Measured, server: str, key: str) -> float | None:
    values = measured.get(server, {}).get(key)
    return statistics.median(values) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
