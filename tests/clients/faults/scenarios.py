"""The scenarios of the fault table and of the tests."""

from typing import Final

from tests.clients.faults.fault import UNAVAILABLE, Fault, grpc_error, page, rest_error
from tests.clients.faults.trial import Scenario

_HOUR_MS: Final = 3_600_000
_HTTP2: Final = (Fault.REFUSED_STREAM, Fault.GOAWAY_UNPROCESSED, Fault.ENHANCE_YOUR_CALM, Fault.GOAWAY_AFTER_RESPONSE)


def _once(fault: Fault) -> Scenario:
    return Scenario(fault.value, fault, protocols=("grpc",) if fault in _HTTP2 else ("grpc", "rest"))


NOT_EXECUTED: Final = [
    _once(Fault.CUT_BEFORE_READ),
    _once(Fault.REFUSED_STREAM),
    _once(Fault.GOAWAY_UNPROCESSED),
    _once(Fault.ENHANCE_YOUR_CALM),
    Scenario("503", rest_error(503, "loading"), protocols=("rest",)),
    Scenario("503 with Retry-After: 1", rest_error(503, "loading", "1"), protocols=("rest",)),
    Scenario("429 with Retry-After: 1", rest_error(429, "slow down", "1"), protocols=("rest",)),
    Scenario("gRPC UNAVAILABLE", grpc_error(UNAVAILABLE, "loading"), protocols=("grpc",)),
    Scenario("gRPC UNAVAILABLE, pushback 100 ms", grpc_error(UNAVAILABLE, "wait", 100), protocols=("grpc",)),
    Scenario("HTML page with status 502", page(502)),
    Scenario("HTML page with status 503", page(503)),
]
EXECUTED: Final = [_once(fault) for fault in (Fault.CUT_AFTER_READ, Fault.CUT_IN_RESPONSE, Fault.HALF_CLOSE)]
ANSWERED: Final = [
    _once(Fault.GOAWAY_AFTER_RESPONSE),
    _once(Fault.CLOSE_AFTER_RESPONSE),
    Scenario("TLS handshake 0.5 s late", Fault.SLOW_HANDSHAKE, is_tls=True),
]
PERMANENT: Final = [
    Scenario(Fault.REFUSE.value, Fault.REFUSE),
    Scenario("always: " + Fault.CUT_BEFORE_READ.value, Fault.CUT_BEFORE_READ, None),
    Scenario("always: " + Fault.CUT_AFTER_READ.value, Fault.CUT_AFTER_READ, None),
    Scenario("always: " + Fault.CUT_IN_RESPONSE.value, Fault.CUT_IN_RESPONSE, None),
    Scenario("always: " + Fault.HALF_CLOSE.value, Fault.HALF_CLOSE, None),
    Scenario("always: HTML page with status 502", page(502), None),
    Scenario("always: 503", rest_error(503, "loading"), None, protocols=("rest",)),
    Scenario("always: 429 without Retry-After", rest_error(429, "quota"), None, protocols=("rest",)),
    Scenario("always: gRPC UNAVAILABLE", grpc_error(UNAVAILABLE, "loading"), None, protocols=("grpc",)),
    Scenario("always: gRPC UNAVAILABLE, pushback -1", grpc_error(UNAVAILABLE, "stop", -1), None, protocols=("grpc",)),
    Scenario(
        "always: gRPC UNAVAILABLE, pushback 1 h, no timeout",
        grpc_error(UNAVAILABLE, "wait", _HOUR_MS),
        None,
        timeout_s=None,
        protocols=("grpc",),
    ),
    Scenario(
        "always: 503 with Retry-After: 3600, no timeout",
        rest_error(503, "wait", "3600"),
        None,
        timeout_s=None,
        protocols=("rest",),
    ),
]
LATE: Final = [
    Scenario(Fault.BLACK_HOLE.value, Fault.BLACK_HOLE, None, timeout_s=1.0),
    Scenario(Fault.DRIP.value, Fault.DRIP, None, timeout_s=1.0),
    Scenario("TLS handshake 3 s late", Fault.SLOW_HANDSHAKE, None, timeout_s=1.0, is_tls=True, stall_s=3.0),
]
MALFORMED: Final = [_once(Fault.TRUNCATE)]

ALL: Final = [*PERMANENT, *NOT_EXECUTED, *EXECUTED, *ANSWERED, *LATE, *MALFORMED]
