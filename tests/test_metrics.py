"""Metrics: what is counted is what is rendered, in a form that a strict reader of Prometheus text accepts."""

import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metrics import OTHER, Histogram, Registry, number
from ottla.server.measures import NodeMetrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
NUMBER = re.compile(r"NaN|[+-]Inf|-?\d+(\.\d+)?(e[+-]?\d+)?")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> tuple[dict[str, str], Samples]:
    """A strict little reader of the text format: the types by name, the samples by name and labels.

    Every sample stands in the block of its family, after one HELP and one TYPE; no series comes twice."""
    assert text.endswith("\n") and "\n\n" not in text
    types: dict[str, str] = {}
    samples: Samples = {}
    family, helped = "", ""
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (?:[^\\\n]|\\[\\n])*", line):
            helped = match[1]
            assert helped not in types
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            family = match[1]
            assert family == helped and family not in types
            types[family] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match[1], match[2] or "", match[match.re.groups]
            suffixes = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
            assert name in [family + suffix for suffix in suffixes], line
            assert NUMBER.fullmatch(value), line
            key = (name, tuple((k, unescape(v)) for k, v in re.findall(LABEL, labels)))
            assert key not in samples, line
            samples[key] = float(value)
    return types, samples


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def read(registry: Registry) -> Samples:
    return parse(registry.render())[1]


def test_a_counter_and_a_gauge_show_their_value():
    registry = Registry()
    requests = registry.counter("requests_total", "Requests.")
    level = registry.gauge("level", "Level.")
    requests.value += 3
    level.value = -1.5
    types, samples = parse(registry.render())
    assert types["requests_total"] == "counter" and types["level"] == "gauge"
    assert samples["requests_total", ()] == 3 and samples["level", ()] == -1.5


def test_children_are_kept_and_made_once():
    registry = Registry()
    family = registry.counters("bytes_total", "Bytes.", "topic", "way")
    family.labels("a", "in").value += 1
    family.labels("a", "in").value += 1
    family.labels("a", "out").value += 5
    samples = read(registry)
    assert samples["bytes_total", (("topic", "a"), ("way", "in"))] == 2
    assert samples["bytes_total", (("topic", "a"), ("way", "out"))] == 5
    family.forget("a", "out")
    assert ("bytes_total", (("topic", "a"), ("way", "out"))) not in read(registry)
    with pytest.raises(ValueError):
        family.labels("a")


def test_the_number_of_children_is_bounded():
    """Clients choose names: a million topics must not become a million series."""
    registry = Registry()
    family = registry.counters("bytes_total", "Bytes.", "topic", children_max=3)
    for name in range(100):
        family.labels(str(name)).value += 1
    samples = {labels[0][1]: value for (name, labels), value in read(registry).items() if name == "bytes_total"}
    assert samples == {"0": 1, "1": 1, "2": 1, OTHER: 97}


@given(st.text(), st.text())
def test_any_label_value_and_help_survives(value: str, help_text: str):
    registry = Registry()
    registry.gauges("g", help_text, "name").labels(value).value = 1
    assert read(registry)["g", (("name", value),)] == 1


@given(st.lists(st.floats(-5, 50)), st.lists(st.floats(-5, 50), unique=True, min_size=1).map(sorted))
def test_histogram_buckets_count_what_is_at_most_their_bound(values: list[float], bounds: list[float]):
    registry = Registry()
    histogram = registry.histogram("h", "H.", bounds)
    for value in values:
        histogram.observe(value)
    samples = read(registry)
    for bound in [*bounds, math.inf]:
        assert samples["h_bucket", (("le", number(bound)),)] == sum(value <= bound for value in values)
    assert samples["h_count", ()] == len(values) == histogram.count
    assert samples["h_sum", ()] == pytest.approx(math.fsum(values))


@given(st.floats() | st.integers(-(2**70), 2**70))
def test_numbers_read_back_as_they_were(value: float):
    assert NUMBER.fullmatch(number(value))
    back = float(number(value))
    assert back == float(value) or (math.isnan(back) and math.isnan(value))


def test_readings_are_asked_when_rendered_and_a_broken_one_hides_only_itself():
    registry = Registry()
    size = registry.reading("size", "Size.")
    sizes = registry.readings("sizes", "Sizes.", "topic")
    broken = registry.reading("broken", "Broken.")
    known = [1]
    size.read = lambda: len(known)
    sizes.read = lambda: [(("a",), 1), (("b",), len(known))]
    broken.read = lambda: 1 // 0
    known.append(2)
    samples = read(registry)
    assert samples["size", ()] == 2 and samples["sizes", (("topic", "b"),)] == 2
    assert not any(name == "broken" for name, _ in samples)
    assert read(registry)["ottla_scrape_failures_total", ()] == 1


@pytest.mark.parametrize("name", ["1st_total", "a-b_total", "", "no_suffix", "ottla_scrape_failures_total"])
def test_names_that_prometheus_would_not_take_are_refused_at_declaration(name: str):
    with pytest.raises(ValueError):
        Registry().counter(name, "")


@pytest.mark.parametrize("label", ["le", "__name__", "a-b", ""])
def test_label_names_too(label: str):
    with pytest.raises(ValueError):
        Registry().gauges("g", "", label)


class TestNodeMetrics:
    def test_the_page_of_a_fresh_node_can_be_read(self):
        metrics = NodeMetrics({0: "Produce", 1: "Fetch"}, version="1.2.3")
        types, samples = parse(metrics.render())
        assert samples["ottla_under_replicated_partitions", ()] == 0
        assert samples["process_resident_memory_bytes", ()] > 1 << 20
        assert 0 < samples["process_open_fds", ()] <= samples["process_max_fds", ()]
        assert samples["process_cpu_seconds_total", ()] > 0
        assert next(labels for name, labels in samples if name == "ottla_build_info")[0] == ("version", "1.2.3")
        assert all(name.startswith(("ottla_", "process_")) for name in types)
        assert samples["ottla_scrape_failures_total", ()] == 0

    def test_requests_by_api(self):
        metrics = NodeMetrics({0: "Produce", 1: "Fetch"})
        metrics.api[0].observe(0.002, 100, 40)
        metrics.api[0].observe(0.2, 100, 40)
        metrics.api[1].fail("OFFSET_OUT_OF_RANGE")
        metrics.api[1].fail("OFFSET_OUT_OF_RANGE")
        samples = parse(metrics.render())[1]
        produce = (("api", "Produce"),)
        assert samples["ottla_request_seconds_count", produce] == 2
        assert samples["ottla_request_seconds_sum", produce] == pytest.approx(0.202)
        assert samples["ottla_request_bytes_total", produce] == 200
        assert samples["ottla_response_bytes_total", produce] == 80
        assert samples["ottla_request_errors_total", (("api", "Fetch"), ("error", "OFFSET_OUT_OF_RANGE"))] == 2

    def test_traffic_by_topic_is_bounded(self):
        metrics = NodeMetrics({}, topics_max=2)
        for name in ("a", "b", "c", "d"):
            metrics.topic(name).bytes_in += 10
            metrics.topic(name).records_in += 1
        samples = parse(metrics.render())[1]
        by_topic = {labels[0][1]: v for (name, labels), v in samples.items() if name == "ottla_topic_bytes_in_total"}
        assert by_topic == {"a": 10, "b": 10, OTHER: 20}
        metrics.forget_topic("a")
        metrics.topic("e").bytes_out += 1
        assert ("ottla_topic_bytes_in_total", (("topic", "a"),)) not in parse(metrics.render())[1]

    def test_observing_a_request_costs_less_than_half_a_microsecond(self):
        """Measured 0.17 us on a quiet machine; the best of many short runs, because this one may be busy."""
        measure = NodeMetrics({0: "Produce"}).api[0]
        best = math.inf
        for _ in range(50):
            started = time.process_time()
            for _ in range(1000):
                measure.observe(0.0003, 200, 50)
            best = min(best, time.process_time() - started)
        assert best / 1000 < 0.5e-6

    def test_a_thousand_topics_render_quickly(self):
        metrics = NodeMetrics({key: str(key) for key in range(70)})
        for name in range(1000):
            metrics.topic(str(name)).bytes_in += 1
        started = time.process_time()
        metrics.render()
        assert time.process_time() - started < 0.2


def test_a_plain_histogram_has_the_default_bounds():
    histogram = Histogram()
    histogram.observe(100)
    assert histogram.counts[-1] == 1 and histogram.bounds == sorted(histogram.bounds)


def test_the_documentation_lists_exactly_what_there_is():
    """docs/metrics.md has a row with name, type and labels for each metric, and none for others."""
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `((?:ottla|process)_\w+)` \| (\w+) \| ([\w, ]*?) *\|", page, re.MULTILINE)
    registry = NodeMetrics({}).registry
    declared = [(name, kind, ", ".join(series.label_names)) for name, (kind, _, series) in registry._declared.items()]
    assert sorted(rows) == sorted(declared)
    mentioned = set(re.findall(r"(?:ottla|process)_[a-z_]+[a-z]", page))
    names = {name for name, _, _ in declared}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in mentioned} <= names
