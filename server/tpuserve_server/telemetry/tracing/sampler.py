"""Sampler: which requests are traced, and the identifiers of their spans."""

import os
import random
from typing import Final, Protocol

from tpuserve_server.core.deadline import Clock
from tpuserve_server.telemetry.parent import Parent, read_envoy_span, read_parent
from tpuserve_server.telemetry.rate_limit import RateLimit
from tpuserve_server.telemetry.trace_context import TraceContext, TraceHeaders

_TRACE_ID_BITS: Final = 128
_SPAN_ID_BITS: Final = 64
_PER_MILLION: Final = 1_000_000


class TraceMetrics(Protocol):
    """Counter of traced requests by outcome. Cheap and thread-safe."""

    def requests_traced(self, *, outcome: str, count: int) -> None:
        """Count requests: `exported`, or dropped as `rate`, `queue_full`, `export_failed` or `rejected`."""
        ...


class Sampler:
    """Decides at the end of a request, when its latency is known. The event loop's thread owns it.

    The context of a client decides first, then the ratio. A slow request is always traced, up to the maximum rate.
    """

    def __init__(
        self,
        ratio: float,
        slow_s: float,
        max_per_s: float,
        clock: Clock,
        metrics: TraceMetrics,
        *,
        has_envoy_span: bool = False,
    ) -> None:
        """Trace the share `ratio` of requests without a context, and those from `slow_s` on.

        With `has_envoy_span`, Envoy has a span for each request, and exports those that `envoy_samples` names.
        """
        self._ratio = ratio
        self._slow_s = slow_s
        self._rate = RateLimit(max_per_s)
        self._clock = clock
        self._metrics = metrics
        self._has_envoy_span = has_envoy_span
        # The identifiers need no secrecy, only uniqueness.
        self._random = random.Random(os.urandom(32))
        self._draw = self._random.random

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        """Return the identifiers of the span of a request, or None for one that is not traced."""
        if headers is None:
            if latency_s < self._slow_s and self._draw() >= self._ratio:
                return None
            parent, is_sampled = None, True
        else:
            parent, is_sampled = self._decide(headers)
            if not is_sampled and latency_s < self._slow_s:
                return None
        if not self._rate.admits(self._clock.monotonic_s()):
            self._metrics.requests_traced(outcome="rate", count=1)
            return None
        span_id = f"{self._random.getrandbits(_SPAN_ID_BITS) or 1:016x}"
        if parent is None:
            return TraceContext(f"{self._random.getrandbits(_TRACE_ID_BITS) or 1:032x}", span_id)
        return TraceContext(parent.trace_id, span_id, parent.span_id, parent.state)

    def _decide(self, headers: TraceHeaders) -> tuple[Parent | None, bool]:
        """Return the span to continue, and whether the request is sampled apart from its latency."""
        parent = read_parent(headers) if headers.traceparent else None
        envoy = read_envoy_span(headers.envoy_span) if self._has_envoy_span and headers.envoy_span else None
        if envoy is None:
            return parent, self._draw() < self._ratio if parent is None else parent.is_sampled
        is_sampled = envoy_samples(envoy[0], self._ratio) if parent is None else parent.is_sampled
        # Envoy exports no other spans, and a parent that the receiver does not know would hide the request.
        return (Parent(*envoy, True, "" if parent is None else parent.state) if is_sampled else parent), is_sampled


def envoy_samples(trace_id: str, ratio: float) -> bool:
    """Return the decision of Envoy's sampler `trace_id_ratio_based` for a trace that Envoy began.

    The sampler compares the first eight bytes of the identifier, read as a little-endian integer.
    """
    return int.from_bytes(bytes.fromhex(trace_id[:16]), "little") % _PER_MILLION < envoy_share(ratio)


def envoy_share(ratio: float) -> int:
    """Return a ratio in millionths, in which Envoy's sampler expresses it."""
    return round(ratio * _PER_MILLION)
