"""Tests for the list of slow requests."""

import pytest

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.request_record import WINDOW_S, RequestRecord, SlowRequests


def make_record(ended_s: float, latency_s: float) -> RequestRecord:
    started_s = ended_s - latency_s
    return RequestRecord(
        "rest", "Predict", "m", 1, "s", Code.OK, started_s, started_s, ended_s, 1e9, is_cached=False, times=()
    )


def offer(slow: SlowRequests, *records: RequestRecord) -> None:
    for record in records:
        if slow.wants(record.latency_s, record.ended_s, record.code):
            slow.watch(record)


def test_the_slowest_of_a_minute_are_kept() -> None:
    slow = SlowRequests()
    offer(slow, *(make_record(100.0 + number / 100, float(1 + number * 7 % 1000)) for number in range(1000)))
    latencies_s = [round(record.latency_s) for record in slow.slowest(110.0)]
    assert latencies_s == list(range(1000, 980, -1))
    assert not slow.wants(980.0, 110.0, Code.OK)


def test_each_minute_begins_anew_and_the_list_covers_ten() -> None:
    slow = SlowRequests()
    offer(slow, *(make_record(60.0 * minute + 1, 2.0 - minute / 100) for minute in range(1, 16)))
    now_s = 60.0 * 15 + 2
    kept = slow.slowest(now_s)
    assert [round(now_s - record.ended_s) // 60 for record in kept] == list(range(9, -1, -1))
    assert slow.slowest(now_s + WINDOW_S) == []


def test_a_burst_does_not_displace_the_slowest_of_the_minute_before() -> None:
    slow = SlowRequests()
    offer(slow, make_record(10.0, 0.5), make_record(11.0, 0.4))
    offer(slow, *(make_record(100.0 + number / 1000, 2.0 + number / 10_000) for number in range(10_000)))
    listed = [record.latency_s for record in slow.slowest(111.0)]
    assert listed == sorted(listed, reverse=True)
    assert listed[:2] == [pytest.approx(2.9999), pytest.approx(2.9998)]
    assert listed[-1] == pytest.approx(0.5)
    assert len(listed) == 20
    assert [round(record.latency_s, 1) for record in slow.slowest(111.0, limit=1)] == [3.0]
    assert round(slow.slowest(111.0, limit=100)[-1].latency_s, 1) == 0.4


def test_memory_is_bounded() -> None:
    slow = SlowRequests()
    offer(slow, *(make_record(float(number), 1.0 + number) for number in range(10_000)))
    assert len(slow.slowest(10_000.0, limit=10_000)) <= 220


def test_requests_with_equal_latencies_are_kept() -> None:
    slow = SlowRequests()
    offer(slow, *(make_record(10.0, 1.0) for _ in range(50)))
    assert len(slow.slowest(11.0)) == 20
