"""gRPC handlers for the proxies of Ray Serve: bytes pass unparsed, deadlines reach the replica, and lost replicas show.

`grpc_servicer_functions` in a Serve configuration names `add_tpuserve_services`. The servicer functions of
TensorFlow Serving and of the Open Inference Protocol work, too, without deadlines and with Ray's own statuses.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import grpc

from tpuserve_server.protocols.grpc_methods import IN_RAY, GrpcMethod

# Metadata key in which the replica gets the client's remaining time. gRPC reserves the name, so no client can send it.
TIMEOUT: Final = "grpc-timeout"
# The longest timeout that the form of 8 digits holds.
_MAX_TIMEOUT_MS: Final = 99_999_999
_LOST: Final = "The replica of Ray Serve that had this request failed. Send the request again"

# grpcio leaves handlers and the contexts of calls untyped.
Handler: TypeAlias = Any
Context: TypeAlias = Any
Pair: TypeAlias = tuple[str, str | bytes]


def add_tpuserve_services(servicer: object, server: grpc.aio.Server) -> None:
    """Register TensorFlow Serving's, the Open Inference Protocol's and the health service with a proxy of Ray Serve.

    Ray replaces the functions of `servicer` with its own, which call the replica.
    """
    handlers = {method.path: _handler(method, getattr(servicer, method.name)) for method in IN_RAY}
    server.add_generic_rpc_handlers((IngressHandler(handlers),))


def _handler(method: GrpcMethod, function: Handler) -> Handler:
    if method.is_stream:
        return grpc.stream_stream_rpc_method_handler(function)
    return grpc.unary_unary_rpc_method_handler(function)


class IngressHandler(grpc.GenericRpcHandler):
    """Handlers by path.

    Ray's server reads `_method_handlers` of the handlers that it gets, and assigns the same handlers with its functions
    (ray/serve/_private/grpc_util.py, gRPCGenericServer). `service` wraps whatever functions are there.
    """

    def __init__(self, methods: dict[str, Handler]) -> None:
        self._method_handlers = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a method path, or None for an unknown path."""
        handler = self._method_handlers.get(handler_call_details.method)
        if handler is None:
            return None
        if handler.request_streaming:
            return handler._replace(stream_stream=_stream(handler.stream_stream))
        return handler._replace(unary_unary=_unary(handler.unary_unary))


def _unary(call: Callable[[bytes, Context], Awaitable[bytes]]) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(request: bytes, context: Context) -> bytes:
        held = IngressContext(context)
        response = await call(request, held)
        held.finish()
        return response

    return handle


def _stream(
    call: Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]],
) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]:
    async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        held = IngressContext(context)
        async for response in call(requests, held):
            yield response
        held.finish()

    return handle


class IngressContext:
    """Context of a call, as Ray's proxy sees it: with the client's deadline as metadata. It holds the status back.

    Ray sets the trailing metadata only if a replica has answered, because it always adds its request id. Without it,
    an internal error is Ray's: the replica died, or its node. `finish` reports it as UNAVAILABLE, which clients retry,
    and does not repeat Ray's message, which has a traceback.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailers: Sequence[Pair] | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of grpcio's context
        return getattr(self._context, name)

    def invocation_metadata(self) -> tuple[Pair, ...]:
        """Return the client's metadata, with the remaining time under TIMEOUT."""
        return (*(self._context.invocation_metadata() or ()), *_timeout(self._context.time_remaining()))

    def code(self) -> grpc.StatusCode | None:
        """Return the status so far."""
        return self._code

    def details(self) -> str:
        """Return the message so far."""
        return self._details

    def trailing_metadata(self) -> Sequence[Pair]:
        """Return the trailing metadata so far."""
        return self._trailers or ()

    def set_code(self, code: grpc.StatusCode) -> None:
        """Keep a status until `finish`."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Keep a message until `finish`."""
        self._details = details

    def set_trailing_metadata(self, trailing_metadata: Sequence[Pair]) -> None:
        """Keep trailing metadata until `finish`."""
        self._trailers = trailing_metadata

    def finish(self) -> None:
        """Give the status, the message and the trailing metadata to grpcio."""
        if self._trailers is not None:
            self._context.set_trailing_metadata(tuple(self._trailers))
        elif self._code is grpc.StatusCode.INTERNAL:
            self._code, self._details = grpc.StatusCode.UNAVAILABLE, _LOST
        if self._code is not None:
            self._context.set_code(self._code)
        if self._details:
            self._context.set_details(self._details)


def _timeout(remaining_s: float | None) -> Iterator[Pair]:
    if remaining_s is not None:
        yield TIMEOUT, f"{min(max(int(remaining_s * 1000), 0), _MAX_TIMEOUT_MS)}m"
