"""RequestTracing: decides which requests are traced, and exports them. See `Tracing` in request_record.py."""

import math
import os
import random
from typing import Final

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.requests.access_log import RateLimit
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders, read_parent
from tpuserve_server.observe.tracing.export import TraceExport, TraceMetrics
from tpuserve_server.observe.tracing.message import find_resource
from tpuserve_server.observe.tracing.options import TracingOptions, find_target
from tpuserve_server.observe.tracing.transport import RetryingSender, open_transport

_TRACE_ID_BITS: Final = 128
_SPAN_ID_BITS: Final = 64


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


class RequestTracing:
    """Implementation of `Tracing` over OTLP. The event loop's thread owns it."""

    def __init__(self, sampler: Sampler, export: TraceExport) -> None:
        """Export the requests that `sampler` chooses."""
        # The methods themselves, without wrappers: every request calls the first one.
        self.sample = sampler.sample
        self.export = export.add
        self.start = export.start
        self.stop = export.stop


def open_tracing(options: TracingOptions, clock: Clock, metrics: TraceMetrics) -> RequestTracing | None:
    """Return the tracing of the options, without connecting, or None without an endpoint.

    Raises:
        ExportError: a certificate cannot be used.
    """
    if options.endpoint is None:
        return None
    target = find_target(options.endpoint, os.environ)
    sender = RetryingSender(open_transport(target), target.timeout_s, clock)
    export = TraceExport(sender, target.url, find_resource(os.environ), metrics)
    slow_s = options.slow_ms / 1000 if options.slow_ms else math.inf
    return RequestTracing(Sampler(options.sample_ratio, slow_s, options.max_per_s, clock, metrics), export)
