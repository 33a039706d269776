"""Decides where a request is answered: a prediction in its front-end process, everything else in the engine.

A prediction that a front-end cannot answer exactly goes to the engine, too: streams, those of some models, those of the
Open Inference Protocol with shared memory, and, while there are such models, those whose model is not certain.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from tpuserve_formats.errors import FormatError
from tpuserve_server.frontends.exchange import RestProtocol
from tpuserve_server.frontends.guarded import GuardedTable, GuardedUnary
from tpuserve_server.frontends.oip_grpc.table import OIP_SERVICE
from tpuserve_server.frontends.oip_rest.v2 import V2
from tpuserve_server.frontends.route_facts import RouteFacts
from tpuserve_server.hosts.grpc.asgi import answer
from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN
from tpuserve_server.hosts.grpc.frames import whole_message
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.access import PREDICT
from tpuserve_server.tunnel.client import Tunnel
from tpuserve_server.wire.proto_fields import delimited_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine
    from typing import Any

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OIP: Final = f"/{OIP_SERVICE}/"
_PREDICTION: Final = "/tensorflow.serving.PredictionService/"
# Depth of the model's name in the request of a method: so deep in nested messages, each with field number 1. The other
# methods may name several models, or are streams, whose later messages can name other ones.
_NAME_DEPTHS: Final = {
    f"{_PREDICTION}Predict": 2,
    f"{_PREDICTION}Classify": 2,
    f"{_PREDICTION}Regress": 2,
    f"{_OIP}ModelInfer": 1,
}
# A request has few fields, unless it has many inputs. The engine takes such a request.
_MOST_FIELDS: Final = 64


class EngineOnly(NamedTuple):
    """Predictions that only the engine answers: of some models, and whether all of the Open Inference Protocol."""

    models: Callable[[], Collection[str]]
    has_oip: Callable[[], bool]


class SplitRest:
    """ASGI application for the REST requests of a front-end. Raises what the chosen application raises."""

    def __init__(
        self,
        local: "ASGIApp",
        tunnel: Tunnel,
        facts_of: Callable[["Scope"], tuple[RouteFacts, RestProtocol | None]],
        engine_only: EngineOnly,
    ) -> None:
        """Answer predictions with `local`. `facts_of` is that of the front-end's RestApp."""
        self._local = local
        self._tunnel = tunnel
        self._facts_of = facts_of
        self._engine_only = engine_only

    def __call__(  # both branches return a coroutine; `async def` would add a frame to the hot path
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Awaitable[None]":
        """Answer an `http` scope."""
        app = self._local if self._is_local(scope) else self._tunnel
        return app(scope, receive, send)

    def _is_local(self, scope: "Scope") -> bool:
        facts, protocol = self._facts_of(scope)
        if facts.access is not PREDICT or (isinstance(protocol, V2) and self._engine_only.has_oip()):
            return False
        models = self._engine_only.models()
        return not models or (facts.model is not None and facts.model not in models)


class SplitGrpc:
    """ASGI application for the gRPC calls of a front-end."""

    def __init__(
        self,
        local: "ASGIApp",
        tunnel: Tunnel,
        rpc: GuardedTable,
        engine_only: EngineOnly,
        in_flight: InFlight,
    ) -> None:
        """Answer predictions with `local`. `rpc` has at least its methods, and `in_flight` counts its calls."""
        self._local = local
        self._tunnel = tunnel
        self._rpc = rpc
        self._engine_only = engine_only
        self._in_flight = in_flight

    def __call__(  # all branches return a coroutine, as above
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Awaitable[None]":
        """Answer an `http` scope."""
        path = scope["path"]
        method = self._rpc.get(path)
        # A stream may outlive the models of its start, and name one later that only the engine answers.
        if not isinstance(method, GuardedUnary) or method.access is not PREDICT:
            return self._tunnel(scope, receive, send)
        if path.startswith(_OIP) and self._engine_only.has_oip():
            return self._tunnel(scope, receive, send)
        if not self._engine_only.models():
            return self._local(scope, receive, send)
        depth = _NAME_DEPTHS.get(path)
        if depth is None:
            return self._tunnel(scope, receive, send)
        return self._by_name(depth, scope, receive, send)

    async def _by_name(self, depth: int, scope: "Scope", receive: "Receive", send: "Send") -> None:
        # The call counts from here on, as it does in GrpcOverAsgi before its first message.
        self._in_flight.begin()
        try:
            first = await receive()
        except asyncio.CancelledError:
            if not self._in_flight.is_cut:
                raise
            return await answer(send, SHUTTING_DOWN)
        finally:
            self._in_flight.end()
        name = find_model_name(first, depth)
        if name is None or name in self._engine_only.models():
            return await self._tunnel.carry(scope, receive, send, first)
        return await self._local(scope, _replaying(first, receive), send)


def find_model_name(first: "Message", depth: int) -> str | None:
    """Return the model that the first chunk of a call's body certainly names, or None.

    The chunk must be one whole uncompressed message: a later field of the same number would replace the name.
    """
    body = whole_message(first, len(first.get("body", b"")))
    if body is None:
        return None
    start, stop = 0, len(body)
    try:
        for _ in range(depth):
            [(start, stop)] = [
                (begin, end) for number, begin, end in delimited_fields(body, start, stop, _MOST_FIELDS) if number == 1
            ]
        return body[start:stop].decode()
    except (FormatError, IndexError, ValueError):  # ValueError: there is no such field or several, or no UTF-8.
        return None


def _replaying(first: "Message", receive: "Receive") -> "Receive":
    """Return a `receive` that returns `first` before the other messages."""
    unread = [first]

    def receive_next() -> "Awaitable[Message]":
        return _returning(unread.pop()) if unread else receive()

    return receive_next


def _returning(message: "Message") -> "Coroutine[Any, Any, Message]":
    async def receive() -> "Message":
        return message

    return receive()
