"""Refusals of calls under overload from their path and timeout, before the message is read."""

from typing import TYPE_CHECKING, Final

from tpuserve_server.core.serving.overload_gate import OverloadGate
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import Code, Internal
from tpuserve_server.hosts.grpc.failure import PUSHBACK, pushback_ms
from tpuserve_server.hosts.grpc.headers import deadline_of, encode_message
from tpuserve_server.hosts.inference_paths import OVERLOADED
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

# Encoded once: a refusal should cost little.
_HEADERS: Final = (
    (b"content-type", b"application/grpc"),
    (b"grpc-status", b"%d" % Code.RESOURCE_EXHAUSTED),
    (b"grpc-message", encode_message(OVERLOADED)),
)
_PUSHBACK: Final = PUSHBACK.encode()
_END: "Final[Message]" = {"type": "http.response.body", "body": b""}


def lateness_s(gate: OverloadGate, scope: "Scope", headers: dict[bytes, bytes], clock: Clock) -> float:
    """Return by how many seconds a call would miss its deadline, or 0 to accept it. See `OverloadGate.lateness_s`.

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


async def refuse(send: "Send", retry_s: float) -> None:
    """Answer RESOURCE_EXHAUSTED with a retry hint, in headers alone."""
    headers = [*_HEADERS, (_PUSHBACK, b"%d" % pushback_ms(retry_s))]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_END)
    except OSError:  # ASGI's signal for a disconnect.
        return
