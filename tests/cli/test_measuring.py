"""Figures of the perf tools: windows, percentiles, and records that are the same in every run."""

from __future__ import annotations

from itertools import islice

import pytest

from ottla.cli.kafka.consumer_perf_test import java_date
from ottla.cli.kafka.options import Failed
from ottla.cli.measuring import Latencies, Window, random_payloads


def test_percentiles_and_totals() -> None:
    latencies = Latencies(100, 1e12, None)
    for value in range(100):
        latencies.add(value, 10, latencies.started)
    assert latencies.percentiles(0.5, 0.95, 0.99, 0.999) == [50, 95, 99, 99]
    total = latencies.total()
    assert (total.records, total.size, total.latency_mean_ms, total.latency_max_ms) == (100, 1000, 49.5, 99)
    assert Latencies(10, 1, None).percentiles(0.5) == [0]


def test_windows_close_when_they_are_due() -> None:
    seen: list[Window] = []
    latencies = Latencies(10, 100, seen.append)
    for step in range(5):
        latencies.add(step, 1, latencies.started + 40 * step)
    assert [(window.records, window.latency_max_ms) for window in seen] == [(4, 3)]


def test_of_very_many_records_one_in_so_many_is_kept() -> None:
    latencies = Latencies(2_000_000, 1e12, None)
    for value in range(10):
        latencies.add(value, 1, 0)
    assert latencies.percentiles(0.999) == [8]


def test_payloads() -> None:
    first, second = (list(islice(random_payloads(40), 3)) for _ in range(2))
    assert first == second and len(set(first)) == 3
    assert all(len(payload) == 40 and payload.isupper() for payload in first)


def test_dates_by_java_patterns() -> None:
    assert java_date("yyyy 'at' ''SSS", 1_700_000_000_123) == "2023 at '123"
    assert len(java_date("yyyy-MM-dd HH:mm:ss:SSS", 1_700_000_000_123)) == 23
    with pytest.raises(Failed, match="Illegal pattern character 'q'"):
        java_date("q", 0)
