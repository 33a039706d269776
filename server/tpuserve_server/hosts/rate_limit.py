"""RateLimit: the limit on the rate of inference requests, before their messages are read."""

from typing import TYPE_CHECKING, Final

from tpuserve_server.core.terms.deadline import Clock, SystemClock
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.hosts.grpc.asgi import answer
from tpuserve_server.hosts.grpc.failure import RpcFailure
from tpuserve_server.hosts.inference_paths import INFERENCE_ENDS
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS
from tpuserve_server.protocols.http.response import error_body

if TYPE_CHECKING:
    from starlette.types import Scope, Send

_REASON: Final = "The server gets more inference requests than --max_requests_per_second allows"
_BODY: Final = error_body(_REASON)
_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_BODY)),
    # Whole seconds (RFC 9110, 10.2.3).
    (b"retry-after", b"1"),
]


class RateLimit:
    """A token bucket, which holds the tokens of one second. One event loop's thread owns it."""

    def __init__(self, rate: float, clock: Clock | None = None) -> None:
        """Allow `rate` requests a second, and at least one at a time."""
        self._rate = rate
        self._most = max(rate, 1.0)
        self._tokens = self._most
        self._clock = clock or SystemClock()
        self._filled_s = self._clock.monotonic_s()

    def is_over(self, scope: "Scope") -> bool:
        """Count a request, and return whether it is one of inference over the limit."""
        path = scope["path"]
        if path not in INFERENCE_PATHS and not path.endswith(INFERENCE_ENDS):
            return False
        now_s = self._clock.monotonic_s()
        self._tokens = min(self._tokens + (now_s - self._filled_s) * self._rate, self._most)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return True
        self._tokens -= 1.0
        return False

    async def refuse(self, send: "Send", *, is_grpc: bool) -> None:
        """Answer RESOURCE_EXHAUSTED over gRPC, and 429 over REST, with a retry hint."""
        if is_grpc:
            await answer(send, RpcFailure(Code.RESOURCE_EXHAUSTED, _REASON, 1.0 / self._rate))
            return
        await send({"type": "http.response.start", "status": 429, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": _BODY})
