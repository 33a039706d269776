"""The caller's trace context as request headers, if the process uses OpenTelemetry."""

import sys
from typing import Any


def trace_headers() -> dict[str, str]:
    """Return `traceparent` and whatever else OpenTelemetry's propagators write for the current span.

    Returns no headers without a current span, or if the process has not imported `opentelemetry.trace`.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")  # an optional package
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name.lower(): value for name, value in carrier.items()}
