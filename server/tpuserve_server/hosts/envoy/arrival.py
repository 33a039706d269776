"""Arrival times: Envoy stamps each request, so that its deadline counts from there and not from a busy event loop."""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Scope

ARRIVAL_HEADER = "x-tpuserve-arrived"

_NAME = ARRIVAL_HEADER.encode()
# A clock that was set meanwhile must not expire requests.
_MOST_S = 60.0
_ENVOY = "type.googleapis.com/envoy.extensions"


def arrival_filter() -> dict[str, Any]:
    """Return the HTTP filter that sets the header to the time of arrival, and replaces one that a client sent."""
    header = {"key": ARRIVAL_HEADER, "value": "%START_TIME(%s.%6f)%"}
    stamp = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    return {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": f"{_ENVOY}.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [stamp]},
        },
    }


def lag_s(scope: "Scope") -> float:
    """Return the seconds since the arrival of a request, or 0 without a credible stamp."""
    # Envoy usually adds the header behind all others.
    for name, value in reversed(scope["headers"]):
        if name == _NAME:
            try:
                seconds = time.time() - float(value)
            except ValueError:
                return 0.0
            return seconds if 0.0 < seconds < _MOST_S else 0.0
    return 0.0
