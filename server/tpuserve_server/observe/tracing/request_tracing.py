"""RequestTracing: decides which requests are traced, and exports them. See `Tracing` in observers.py."""

import math
import os

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.tracing.export import TraceExport
from tpuserve_server.observe.tracing.options import TracingOptions
from tpuserve_server.observe.tracing.resource import find_resource
from tpuserve_server.observe.tracing.retrying_sender import RetryingSender
from tpuserve_server.observe.tracing.sampler import Sampler, TraceMetrics
from tpuserve_server.observe.tracing.target import find_target
from tpuserve_server.observe.tracing.transport import open_transport


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
