"""Refusals of REST requests under overload from their path and timeout, before the body is read."""

from typing import TYPE_CHECKING, Final

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.frontends.http.headers import find_timeout_s
from tpuserve_server.frontends.http.response import error_body
from tpuserve_server.hosts.inference_paths import INFERENCE_ENDS, OVERLOADED

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

_BODY: Final = error_body(OVERLOADED)
_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_BODY)),
    # Whole seconds (RFC 9110, 10.2.3).
    (b"retry-after", b"1"),
)
_START: "Final[Message]" = {"type": "http.response.start", "status": 429, "headers": list(_HEADERS)}
_END: "Final[Message]" = {"type": "http.response.body", "body": _BODY}


def is_late(gate: OverloadGate, scope: "Scope", clock: Clock) -> bool:
    """Return whether a request would miss the deadline of its timeout header. See `OverloadGate.lateness_s`."""
    if scope["method"] != "POST" or not scope["path"].endswith(INFERENCE_ENDS):
        return False
    return gate.lateness_s(Deadline.after(find_timeout_s(scope), clock)) > 0.0


async def refuse(send: "Send") -> None:
    """Answer 429 with a retry hint."""
    await send(_START)
    await send(_END)
