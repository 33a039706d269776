"""Exchanges over a gRPC channel, blocking and asyncio, with official method paths and no generated stubs."""

import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tpuserve_client.errors import FailedPrecondition, TpuserveError, from_code
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.request_headers import BINARY, HOST, binary_value
from tpuserve_client.tls import Tls

_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
_AsyncCall: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

_Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

_OPTIONS: Final[list[tuple[str, int | str]]] = [
    # The server limits the size of its messages. gRPC's default limit, 4 MiB, is one large image.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A channel fails calls without connecting while it backs off. By default it backs off for one second to two
    # minutes, longer than this client's retries take. Retry must decide when to try again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


_PUSHBACK: Final = "grpc-retry-pushback-ms"


class GrpcTransport:
    """A channel that connects at the first call. Safe to share between threads."""

    def __init__(self, target: str, tls: Tls | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Create a channel, without TLS if `tls` is None. `headers` come from `read_headers`."""
        options = [*_OPTIONS, *_names(target, tls, headers or {})]
        if tls is None:
            self._channel = grpc.insecure_channel(target, options=options)
        else:
            self._channel = grpc.secure_channel(target, _credentials(tls), options=options)
        self._metadata = _metadata(headers or {})
        self._calls: dict[str, _Call] = {}  # by method path; creating one twice is harmless

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            call = self._calls.get(exchange.path)
            if call is None:
                call = self._calls[exchange.path] = self._channel.unary_unary(exchange.path)
            return Reply(call(exchange.body, timeout=timeout_s, metadata=self._of(exchange)))
        except grpc.RpcError as error:
            raise _translated(error) from None
        except ValueError as error:  # a closed channel
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None

    def close(self) -> None:
        self._channel.close()

    def _of(self, exchange: Exchange) -> _Metadata | None:
        return (*self._metadata, *exchange.headers.items()) or None


class AsyncGrpcTransport:
    """A channel on the running event loop that connects at the first call."""

    def __init__(self, target: str, tls: Tls | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Create a channel. See `GrpcTransport`."""
        options = [*_OPTIONS, *_names(target, tls, headers or {})]
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        else:
            self._channel = grpc.aio.secure_channel(target, _credentials(tls), options=options)
        self._metadata = _metadata(headers or {})
        self._calls: dict[str, _AsyncCall] = {}

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            call = self._calls.get(exchange.path)
            if call is None:
                call = self._calls[exchange.path] = self._channel.unary_unary(exchange.path)
            return Reply(await call(exchange.body, timeout=timeout_s, metadata=self._of(exchange)))
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from None
        except (grpc.aio.UsageError, ValueError) as error:  # a closed channel
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None

    async def close(self) -> None:
        await self._channel.close()

    def _of(self, exchange: Exchange) -> _Metadata | None:
        return (*self._metadata, *exchange.headers.items()) or None


def _translated(error: grpc.RpcError) -> TpuserveError:
    code: grpc.StatusCode = error.code()
    return from_code(code.value[0], error.details() or code.name, retry_after_s=_retry_after_s(error))


def _metadata(headers: Mapping[str, str]) -> _Metadata:
    return tuple(
        (name, binary_value(value) if name.endswith(BINARY) else value)
        for name, value in headers.items()
        if name != HOST
    )


def _names(target: str, tls: Tls | None, headers: Mapping[str, str]) -> list[tuple[str, int | str]]:
    """Return options that set the server's name in requests and in its certificate.

    gRPC uses either name for both unless both are set.
    """
    names: list[tuple[str, int | str]] = []
    if HOST in headers:
        names.append(("grpc.default_authority", headers[HOST]))
    if tls is not None and (tls.server_name or HOST in headers):
        names.append(("grpc.ssl_target_name_override", tls.server_name or target.rpartition(":")[0].strip("[]")))
    return names


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Return channel credentials. Without `ca`, trust the system's certificates instead of gRPC's own list.

    OpenSSL lists the system's certificates. Raises InvalidArgument for files that are not certificates or keys.
    """
    context = tls.context()
    roots = tls.pem("ca") or "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
    chain = tls.pem("cert")
    return grpc.ssl_channel_credentials(roots or None, tls.pem("key") or chain, chain)


def _retry_after_s(error: Any) -> float | None:  # noqa: ANN401  the stubs' RpcError has no trailing metadata
    """Return the seconds of the server's pushback (gRPC proposal A6, client retries), or None without one."""
    for key, value in error.trailing_metadata() or ():
        if key == _PUSHBACK and value.isascii() and value.isdigit():
            return int(value) / 1000
    return None
