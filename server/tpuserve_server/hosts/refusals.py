"""Refusals of requests from their path and headers, before the message is read: long headers, a high rate, overload.

Aliases of paths, as on Vertex AI, are not among the requests of inference.
"""

from typing import TYPE_CHECKING, Final

from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import Clock, Deadline, SystemClock
from tpuserve_server.core.terms.errors import Code, Internal
from tpuserve_server.hosts.grpc_headers import deadline_of
from tpuserve_server.hosts.grpc_status import (
    CONTENT_TYPE,
    END,
    PUSHBACK,
    RpcFailure,
    answer,
    pushback_ms,
    send_all,
    status_headers,
)
from tpuserve_server.hosts.limits import MAX_HEADER_BYTES
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS
from tpuserve_server.protocols.http.headers import find_timeout_s
from tpuserve_server.protocols.http.response import error_body

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

# Ends of REST paths that wait for a device.
_INFERENCE_ENDS: Final = (":predict", ":classify", ":regress", "/infer")


class Refusal:
    """One reason, as RESOURCE_EXHAUSTED over gRPC and as a status over REST. Encoded once: a refusal costs little."""

    def __init__(self, message: str, status: int) -> None:
        """Answer `status` over REST, with a retry hint for 429."""
        body = error_body(message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if status == 429:
            # Whole seconds (RFC 9110, 10.2.3).
            headers.append((b"retry-after", b"1"))
        self.message = message
        self._start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        self._body: Message = {"type": "http.response.body", "body": body}

    async def send(self, send: "Send", *, is_grpc: bool, retry_after_s: float | None = None) -> None:
        """Answer a request. Clients of gRPC may retry after `retry_after_s`."""
        if is_grpc:
            await answer(send, RpcFailure(Code.RESOURCE_EXHAUSTED, self.message, retry_after_s))
            return
        await send(self._start)
        await send(self._body)


# RFC 6585, 5.
LONG_HEADERS: Final = Refusal(f"Headers of more than {MAX_HEADER_BYTES} bytes", 431)
OVER_RATE: Final = Refusal("The server gets more inference requests than --max_requests_per_second allows", 429)
OVERLOADED: Final = Refusal("The server is overloaded and would answer this request after its deadline", 429)


def has_long_headers(scope: "Scope") -> bool:
    """Return whether the path, the query and the names and values of the headers are over the limit."""
    size_bytes = len(scope["path"]) + len(scope["query_string"])
    # A plain loop takes half the time of `sum` or `join` for the few headers of a request.
    for name, value in scope["headers"]:
        size_bytes += len(name) + len(value)
    return size_bytes > MAX_HEADER_BYTES


def is_inference(scope: "Scope") -> bool:
    """Return whether a request waits for a device, by its path."""
    path = scope["path"]
    return path in INFERENCE_PATHS or path.endswith(_INFERENCE_ENDS)


class RateLimit:
    """A token bucket, which holds the tokens of one second. One event loop's thread owns it."""

    def __init__(self, rate: float, clock: Clock | None = None) -> None:
        """Allow `rate` requests a second, and at least one at a time."""
        self._rate = rate
        self._most = max(rate, 1.0)
        self._tokens = self._most
        self._clock = clock or SystemClock()
        self._filled_s = self._clock.monotonic_s()

    @property
    def retry_after_s(self) -> float:
        """Time in which the bucket gets one token."""
        return 1.0 / self._rate

    def is_over(self, scope: "Scope") -> bool:
        """Count a request, and return whether it is one of inference over the limit."""
        if not is_inference(scope):
            return False
        now_s = self._clock.monotonic_s()
        self._tokens = min(self._tokens + (now_s - self._filled_s) * self._rate, self._most)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return True
        self._tokens -= 1.0
        return False


def is_late(gate: OverloadGate, scope: "Scope", clock: Clock) -> bool:
    """Return whether a REST request would miss the deadline of its timeout header. See `OverloadGate.lateness_s`."""
    if scope["method"] != "POST" or not scope["path"].endswith(_INFERENCE_ENDS):
        return False
    return gate.lateness_s(Deadline.after(find_timeout_s(scope), clock)) > 0.0


def call_lateness_s(gate: OverloadGate, scope: "Scope", headers: dict[bytes, bytes], clock: Clock) -> float:
    """Return by how many seconds a gRPC call would miss its deadline, or 0 to accept it.

    A call with a malformed timeout is accepted: it gets an error for it later.
    """
    timeout = headers.get(b"grpc-timeout")
    if timeout is None or scope["path"] not in INFERENCE_PATHS:
        return 0.0
    try:
        deadline = deadline_of(timeout, clock)
    except Internal:
        return 0.0
    return gate.lateness_s(deadline)


_LATE: Final = (CONTENT_TYPE, *status_headers(RpcFailure(Code.RESOURCE_EXHAUSTED, OVERLOADED.message)))


async def refuse_late_call(send: "Send", late_s: float) -> None:
    """Answer RESOURCE_EXHAUSTED with a retry hint, in headers alone."""
    headers = [*_LATE, (PUSHBACK.encode(), b"%d" % pushback_ms(late_s))]
    await send_all(send, {"type": "http.response.start", "status": 200, "headers": headers}, END)
