"""Envoy's fixed limits: connections, heap and the rate of inference requests."""

import math
from typing import Any, Final

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.inference_paths import INFERENCE_ENDS, INFERENCE_METHODS

Config = dict[str, Any]

# Regular expression of the paths of inference requests. Envoy limits its size, so it has only the ends of the methods:
# no other service has methods of these names.
INFERENCE_PATH: Final = ".*(?:{})(?:\\?.*)?".format(
    "|".join([*(f"/{path.rpartition('/')[2]}" for path in sorted(INFERENCE_METHODS)), *INFERENCE_ENDS])
)
_HEAP: Final = "envoy.resource_monitors.fixed_heap"
# Shares of the heap's limit.
_SPARING, _REFUSING = 0.9, 0.95
_LEAST_IDLE_S = 10
_REFRESH_S = 0.25
# Envoy allows no shorter one.
_FILL_S = 0.05
_ENVOY = "type.googleapis.com/envoy.extensions"


def overload_manager(options: HostOptions) -> Config:
    """Return the limits of connections and of the heap.

    Envoy refuses a connection over the limit before it reads any bytes. Each takes a file descriptor and about 30 KB.
    """
    monitors = [
        {
            "name": "envoy.resource_monitors.global_downstream_max_connections",
            "typed_config": {
                "@type": f"{_ENVOY}.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                "max_active_downstream_connections": options.max_connections,
            },
        }
    ]
    if not options.max_heap_bytes:
        return {"resource_monitors": monitors}
    heap = {
        "name": _HEAP,
        "typed_config": {
            "@type": f"{_ENVOY}.resource_monitors.fixed_heap.v3.FixedHeapConfig",
            "max_heap_size_bytes": options.max_heap_bytes,
        },
    }
    idle = {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": f"{_LEAST_IDLE_S}s"}
    return {
        "refresh_interval": f"{_REFRESH_S}s",
        "resource_monitors": [*monitors, heap],
        "actions": [
            {
                "name": "envoy.overload_actions.reduce_timeouts",
                "triggers": [
                    {"name": _HEAP, "scaled": {"scaling_threshold": _SPARING, "saturation_threshold": _REFUSING}}
                ],
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig",
                    "timer_scale_factors": [idle],
                },
            },
            {
                "name": "envoy.overload_actions.stop_accepting_requests",
                "triggers": [{"name": _HEAP, "threshold": {"value": _REFUSING}}],
            },
        ],
    }


def rate_limit(options: HostOptions) -> list[Config]:
    """Return the filter that limits the rate of inference requests, or none."""
    rate = options.max_requests_per_s
    if not rate:
        return []
    # A slow rate fills one token at a time.
    fill_s = max(_FILL_S, 1.0 / rate)
    limit = {
        "@type": f"{_ENVOY}.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "tpuserve",
        "token_bucket": {
            "max_tokens": max(math.ceil(rate), 1),
            "tokens_per_fill": max(round(rate * fill_s), 1),
            "fill_interval": f"{fill_s:.9f}s",
        },
        "filter_enabled": {"default_value": {"numerator": 100}},
        "filter_enforced": {"default_value": {"numerator": 100}},
        "rate_limited_as_resource_exhausted": True,
    }
    return [{"name": "envoy.filters.http.local_ratelimit", "typed_config": _for_inference(limit)}]


def _for_inference(filter_config: Config) -> Config:
    """Return the configuration of a filter that skips all other requests, such as health checks."""
    path = {"name": "path", "typed_config": {"@type": _input("HttpRequestHeaderMatchInput"), "header_name": ":path"}}
    other = {
        "not_matcher": {
            "single_predicate": {
                "input": path,
                "value_match": {"safe_regex": {"google_re2": {}, "regex": INFERENCE_PATH}},
            },
        }
    }
    skip = {
        "name": "skip",
        "typed_config": {"@type": f"{_ENVOY}.filters.common.matcher.action.v3.SkipFilter"},
    }
    return {
        "@type": f"{_ENVOY}.common.matching.v3.ExtensionWithMatcher",
        "extension_config": {"name": "limited", "typed_config": filter_config},
        "xds_matcher": {"matcher_list": {"matchers": [{"predicate": other, "on_match": {"action": skip}}]}},
    }


def _input(name: str) -> str:
    return f"type.googleapis.com/envoy.type.matcher.v3.{name}"
