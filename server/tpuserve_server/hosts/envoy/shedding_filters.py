"""Envoy filters that refuse a share of the inference requests with a deadline. The share is a runtime value.

Fault injection is Envoy's only filter that refuses a share by header and without a cluster. `admission_control`
measures the share itself, but over all models and for at least a second. `adaptive_concurrency` measures latencies,
which are close to the deadlines whenever the queue is full.
"""

from typing import Any, Final

from tpuserve_server.hosts.inference_paths import INFERENCE_ENDS, INFERENCE_METHODS

Config = dict[str, Any]

REFUSED_PERCENT: Final = "tpuserve.refused_percent"
# Code of gRPC. Core modules are too heavy for the supervisor.
_RESOURCE_EXHAUSTED = 8
_TOO_MANY_REQUESTS = 429

_ENVOY = "type.googleapis.com/envoy.extensions"


def shedding_filters() -> list[Config]:
    """Return a filter for calls of gRPC and one for requests of REST."""
    # Envoy limits the size of an expression. No other service has methods of these names.
    methods = "|".join(sorted(path.rpartition("/")[2] for path in INFERENCE_METHODS))
    ends = "|".join(INFERENCE_ENDS)
    return [
        _filter("grpc", "grpc-timeout", f".*/(?:{methods})", {"grpc_status": _RESOURCE_EXHAUSTED}),
        _filter("rest", "x-tpuserve-timeout-ms", rf".*(?:{ends})(?:\?.*)?", {"http_status": _TOO_MANY_REQUESTS}),
    ]


def _filter(name: str, timeout_header: str, path: str, abort: Config) -> Config:
    headers = [
        # The cheaper matcher first.
        {"name": timeout_header, "present_match": True},
        {"name": ":path", "string_match": {"safe_regex": {"regex": path}}},
    ]
    return {
        "name": f"tpuserve.shedding.{name}",
        "typed_config": {
            "@type": f"{_ENVOY}.filters.http.fault.v3.HTTPFault",
            "abort": {**abort, "percentage": {"numerator": 0}},
            "headers": headers,
            "abort_percent_runtime": REFUSED_PERCENT,
        },
    }
