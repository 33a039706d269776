"""Sampler: which requests are traced, and the identifiers of their spans."""

import os
import random
from typing import Final, Protocol

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.requests.parent import read_parent
from tpuserve_server.observe.requests.rate_limit import RateLimit
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders

_TRACE_ID_BITS: Final = 128
_SPAN_ID_BITS: Final = 64


class TraceMetrics(Protocol):
    """Counter of traced requests by outcome. Cheap and thread-safe."""

    def requests_traced(self, *, outcome: str, count: int) -> None:
        """Count requests: `exported`, or dropped as `rate`, `queue_full`, `export_failed` or `rejected`."""
        ...


class Sampler:
    """Decides at the end of a request, when its latency is known. The event loop's thread owns it.

    The context of a client decides first, then the ratio. A slow request is always traced, up to the maximum rate.
    """

    def __init__(self, ratio: float, slow_s: float, max_per_s: float, clock: Clock, metrics: TraceMetrics) -> None:
        """Trace the share `ratio` of requests without a context, and those from `slow_s` on."""
        self._ratio = ratio
        self._slow_s = slow_s
        self._rate = RateLimit(max_per_s)
        self._clock = clock
        self._metrics = metrics
        # The identifiers need no secrecy, only uniqueness.
        self._random = random.Random(os.urandom(32))
        self._draw = self._random.random

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        """Return the identifiers of the span of a request, or None for one that is not traced."""
        parent = None if headers is None else read_parent(headers)
        is_sampled = self._draw() < self._ratio if parent is None else parent.is_sampled
        if not is_sampled and latency_s < self._slow_s:
            return None
        if not self._rate.admits(self._clock.monotonic_s()):
            self._metrics.requests_traced(outcome="rate", count=1)
            return None
        span_id = f"{self._random.getrandbits(_SPAN_ID_BITS) or 1:016x}"
        if parent is None:
            return TraceContext(f"{self._random.getrandbits(_TRACE_ID_BITS) or 1:032x}", span_id)
        return TraceContext(parent.trace_id, span_id, parent.span_id, parent.state)
