"""Counters, gauges, histograms, and their text for Prometheus.

The hot path must not pay for being watched. A counter is an object with a number (`requests.value += 1`), a histogram one
list lookup; names, labels, escaping and sorting exist only in `render`, when somebody asks. Labelled families hand out
children that their users keep (`bytes_in = family.labels("orders")`), so no label is looked up per request.

What can be read off the node at any time (the number of partitions, the size of a log) is not kept twice: a `Reading`
holds a callable that is asked at the scrape.

There is no global registry: a node owns one, and two nodes in one process do not mix. Nobody locks, since everything runs
on one loop.

Label values come from clients (topic names, client ids), so the number of children is bounded: beyond `children_max`
they all share one child labelled `(other)`, which is not a name a topic can have.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

Labels = tuple[str, ...]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CHILDREN_MAX = 1000
OTHER = "(other)"

# From a tenth of a millisecond, which a quick answer takes, to the longest that clients wait by default.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Metric(Protocol):
    """One time series, or the few that make up a histogram: (suffix, more labels, value)."""

    def samples(self) -> Iterator[tuple[str, str, float]]: ...


M = TypeVar("M", bound=Metric)


class Counter:
    """Goes up. Its user adds to `value` directly."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def samples(self) -> Iterator[tuple[str, str, float]]:
        yield "", "", self.value


class Gauge(Counter):
    """Goes up and down."""

    __slots__ = ()


class Reading:
    """A number that is asked for when it is scraped. Whoever knows it sets `read`."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float] = lambda: 0) -> None:
        self.read = read

    def samples(self) -> Iterator[tuple[str, str, float]]:
        yield "", "", self.read()


class Histogram:
    """How many values fell below each bound. A value equal to a bound counts as below it, as Prometheus has it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        below = 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            below += count
            yield "_bucket", f'le="{number(bound)}"', below
        yield "_sum", "", self.total
        yield "_count", "", below


class Family(Generic[M]):
    """One metric with labels: a child for each combination of their values."""

    def __init__(self, label_names: Labels, make: Callable[[], M], children_max: int) -> None:
        self.label_names = label_names
        self.children: dict[Labels, M] = {}
        self._make = make
        self._children_max = children_max

    def labels(self, *values: str) -> M:
        """The child with these values, made when first asked for. Keep it: this is not for the hot path."""
        if len(values) != len(self.label_names):
            raise ValueError(f"expected values for {self.label_names}, got {values}")
        child = self.children.get(values)
        if child is None:
            child = self._add(values)
        return child

    def _add(self, values: Labels) -> M:
        if len(self.children) >= self._children_max:
            values = (OTHER,) * len(values)
        return self.children.setdefault(values, self._make())

    def forget(self, *values: str) -> None:
        self.children.pop(values, None)

    def series(self) -> Iterator[tuple[Labels, Metric]]:
        yield from self.children.items()


class Readings:
    """A labelled metric that is asked for as a whole: `read` answers pairs of label values and number."""

    def __init__(self, label_names: Labels) -> None:
        self.label_names = label_names
        self.read: Callable[[], Iterable[tuple[Labels, float]]] = tuple

    def series(self) -> Iterator[tuple[Labels, Metric]]:
        for values, value in self.read():
            yield values, Reading(lambda value=value: value)  # type: ignore[misc]


class _Alone:
    """A metric without labels."""

    label_names: Labels = ()

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def series(self) -> Iterator[tuple[Labels, Metric]]:
        yield (), self._metric


class _Series(Protocol):
    @property
    def label_names(self) -> Labels: ...
    def series(self) -> Iterator[tuple[Labels, Metric]]: ...


class Registry:
    """All metrics of one node, in the order of their declaration."""

    def __init__(self) -> None:
        self._declared: dict[str, tuple[str, str, _Series]] = {}
        self.failures = self.counter("ottla_scrape_failures_total", "Metrics left out of a scrape by an error.")

    def counter(self, name: str, help_text: str) -> Counter:
        return self._alone(name, "counter", help_text, Counter())

    def gauge(self, name: str, help_text: str) -> Gauge:
        return self._alone(name, "gauge", help_text, Gauge())

    def histogram(self, name: str, help_text: str, bounds: Sequence[float] = SECONDS) -> Histogram:
        return self._alone(name, "histogram", help_text, Histogram(bounds))

    def reading(self, name: str, help_text: str, *, kind: str = "gauge") -> Reading:
        return self._alone(name, kind, help_text, Reading())

    def counters(
        self, name: str, help_text: str, *label_names: str, children_max: int = CHILDREN_MAX
    ) -> Family[Counter]:
        return self._family(name, "counter", help_text, Family(label_names, Counter, children_max))

    def gauges(self, name: str, help_text: str, *label_names: str, children_max: int = CHILDREN_MAX) -> Family[Gauge]:
        return self._family(name, "gauge", help_text, Family(label_names, Gauge, children_max))

    def histograms(
        self, name: str, help_text: str, *label_names: str, make: Callable[[], M], children_max: int = CHILDREN_MAX
    ) -> Family[M]:
        """`make` gives a Histogram, or something that can be rendered as one."""
        return self._family(name, "histogram", help_text, Family(label_names, make, children_max))

    def readings(self, name: str, help_text: str, *label_names: str, kind: str = "gauge") -> Readings:
        readings = Readings(label_names)
        self._declare(name, kind, help_text, readings)
        return readings

    def render(self) -> str:
        """Prometheus text exposition, format 0.0.4. A metric that cannot be read is left out and counted."""
        lines: list[str] = []
        for name, (kind, help_text, series) in self._declared.items():
            try:
                body = list(_body(name, series))
            except Exception:  # one broken reading must not blind the operator to all the others
                self.failures.value += 1
                continue
            lines += (f"# HELP {name} {_escape_help(help_text)}", f"# TYPE {name} {kind}")
            lines += body
        return "\n".join(lines) + "\n"

    def _alone(self, name: str, kind: str, help_text: str, metric: M) -> M:
        self._declare(name, kind, help_text, _Alone(metric))
        return metric

    def _family(self, name: str, kind: str, help_text: str, family: Family[M]) -> Family[M]:
        self._declare(name, kind, help_text, family)
        return family

    def _declare(self, name: str, kind: str, help_text: str, series: _Series) -> None:
        if not _METRIC_NAME.fullmatch(name) or name in self._declared:
            raise ValueError(f"{name!r} is not a metric name, or is taken")
        for label in series.label_names:
            if not _LABEL_NAME.fullmatch(label) or label == "le":
                raise ValueError(f"{label!r} is not a label name")
        if (kind == "counter") != name.endswith("_total"):
            raise ValueError(f"{name!r}: the names of counters, and of nothing else, end in _total")
        self._declared[name] = (kind, help_text, series)


def _body(name: str, series: _Series) -> Iterator[str]:
    for values, metric in series.series():
        own = ",".join(f'{k}="{_escape(v)}"' for k, v in zip(series.label_names, values, strict=True))
        for suffix, more, value in metric.samples():
            labels = ",".join(filter(None, (own, more)))
            yield f"{name}{suffix}{{{labels}}} {number(value)}" if labels else f"{name}{suffix} {number(value)}"


def number(value: float) -> str:
    """As Prometheus writes numbers; whole ones without a point."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
