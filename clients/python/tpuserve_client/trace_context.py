"""The caller's trace context as request headers, if the process uses OpenTelemetry."""

import sys
from typing import Any


def trace_headers() -> dict[str, str]:
    """Return `traceparent` and whatever else OpenTelemetry's propagators write for the current span.

    Returns no headers if the process has not imported opentelemetry. This module never imports it itself.
    """
    propagate: Any = sys.modules.get("opentelemetry.propagate")  # an optional package
    if propagate is None:
        return {}
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name.lower(): value for name, value in carrier.items()}
