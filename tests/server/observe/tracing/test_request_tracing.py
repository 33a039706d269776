"""Tests for the choice of traced requests."""

import math
from collections import Counter

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders
from tpuserve_server.observe.tracing.request_tracing import Sampler

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = TraceHeaders(f"00-{TRACE}-{SPAN}-01".encode(), b"a=1")
NOT_SAMPLED = TraceHeaders(f"00-{TRACE}-{SPAN}-00".encode())
GARBAGE = TraceHeaders(b"garbage")


class Counts:
    """Counted outcomes."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def requests_traced(self, *, outcome: str, count: int) -> None:
        self.outcomes[outcome] += count


def make_sampler(ratio: float, slow_s: float = math.inf) -> Sampler:
    return Sampler(ratio, slow_s, 1e6, FakeClock(), Counts())


@pytest.mark.parametrize("headers", [None, GARBAGE])
def test_the_ratio_decides_without_a_parent(headers: TraceHeaders | None) -> None:
    assert all(make_sampler(0.0).sample(headers, 1.0) is None for _ in range(100))
    sampler = make_sampler(1.0)
    traces = [sampler.sample(headers, 1.0) for _ in range(100)]
    assert all(trace is not None and not trace.parent_id and not trace.state for trace in traces)
    assert len({trace.trace_id for trace in traces if trace} | {trace.span_id for trace in traces if trace}) == 200
    half = make_sampler(0.5)
    assert 300 < sum(half.sample(headers, 1.0) is not None for _ in range(1000)) < 700


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_parent_decides_before_the_ratio(ratio: float) -> None:
    sampler = make_sampler(ratio)
    trace = sampler.sample(SAMPLED, 1.0)
    assert trace is not None
    assert trace == TraceContext(TRACE, trace.span_id, SPAN, "a=1")
    assert len(trace.span_id) == 16
    assert trace.header == f"00-{TRACE}-{trace.span_id}-01"
    assert sampler.sample(NOT_SAMPLED, 1.0) is None


def test_slow_requests_are_always_traced() -> None:
    sampler = make_sampler(0.0, slow_s=2.0)
    for headers in (None, GARBAGE, NOT_SAMPLED):
        assert sampler.sample(headers, 1.9) is None
        assert sampler.sample(headers, 2.0) is not None
    slow = sampler.sample(NOT_SAMPLED, 2.0)
    assert slow is not None
    assert (slow.trace_id, slow.parent_id) == (TRACE, SPAN)


def test_a_client_that_samples_everything_is_limited() -> None:
    clock, counts = FakeClock(), Counts()
    sampler = Sampler(0.0, math.inf, 10.0, clock, counts)
    assert sum(sampler.sample(SAMPLED, 1.0) is not None for _ in range(25)) == 10
    assert counts.outcomes == {"rate": 15}
    clock.now_s += 0.5
    assert sum(sampler.sample(SAMPLED, 1.0) is not None for _ in range(25)) == 5
    clock.now_s += 60.0
    assert sum(sampler.sample(SAMPLED, 1.0) is not None for _ in range(25)) == 10
