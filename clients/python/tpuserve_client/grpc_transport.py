"""Exchanges over a gRPC channel, blocking and asyncio. Official method paths, bytes both ways, no generated stubs."""

from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tpuserve_client.errors import FailedPrecondition, TpuserveError, from_code
from tpuserve_client.exchange import Exchange, Reply

_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
_AsyncCall: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

_OPTIONS: Final[list[tuple[str, int]]] = [
    # What the server may send is the server's choice: 4 MiB, gRPC's own limit, is one large image.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # While a channel backs off it fails calls without trying to connect. By default that is a second and up to two
    # minutes, longer than our own retries take: Retry must be what decides.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


_PUSHBACK: Final = "grpc-retry-pushback-ms"


class GrpcTransport:
    """A channel without TLS; it connects at the first call. Safe to share between threads."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._calls: dict[str, _Call] = {}  # by method path; making one twice does no harm

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            call = self._calls.get(exchange.path)
            if call is None:
                call = self._calls[exchange.path] = self._channel.unary_unary(exchange.path)
            return Reply(call(exchange.body, timeout=timeout_s, metadata=_metadata(exchange)))
        except grpc.RpcError as error:
            raise _translated(error) from None
        except ValueError as error:  # gRPC's word for a closed channel
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None

    def close(self) -> None:
        self._channel.close()


class AsyncGrpcTransport:
    """A channel without TLS on the running event loop; it connects at the first call."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._calls: dict[str, _AsyncCall] = {}

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            call = self._calls.get(exchange.path)
            if call is None:
                call = self._calls[exchange.path] = self._channel.unary_unary(exchange.path)
            return Reply(await call(exchange.body, timeout=timeout_s, metadata=_metadata(exchange)))
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from None
        except (grpc.aio.UsageError, ValueError) as error:  # gRPC's words for a closed channel
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None

    async def close(self) -> None:
        await self._channel.close()


def _translated(error: grpc.RpcError) -> TpuserveError:
    code: grpc.StatusCode = error.code()
    return from_code(code.value[0], error.details() or code.name, retry_after_s=_retry_after_s(error))


def _metadata(exchange: Exchange) -> tuple[tuple[str, str], ...] | None:
    return tuple(exchange.headers.items()) if exchange.headers else None


def _retry_after_s(error: Any) -> float | None:  # noqa: ANN401  the stubs' RpcError has no trailing metadata
    """Seconds from the server's pushback (gRPC proposal A6, client retries); None where there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == _PUSHBACK and value.isascii() and value.isdigit():
            return int(value) / 1000
    return None
