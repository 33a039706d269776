"""Exchanges over a gRPC channel, blocking and asyncio. Official method paths, bytes both ways, no generated stubs."""

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
    """A channel; it connects at the first call. Safe to share between threads."""

    def __init__(self, target: str, tls: Tls | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Without `tls` in the clear. `headers` as `read_headers` gives them."""
        options = [*_OPTIONS, *_names(target, tls, headers or {})]
        if tls is None:
            self._channel = grpc.insecure_channel(target, options=options)
        else:
            self._channel = grpc.secure_channel(target, _credentials(tls), options=options)
        self._metadata = _metadata(headers or {})
        self._calls: dict[str, _Call] = {}  # by method path; making one twice does no harm

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            call = self._calls.get(exchange.path)
            if call is None:
                call = self._calls[exchange.path] = self._channel.unary_unary(exchange.path)
            return Reply(call(exchange.body, timeout=timeout_s, metadata=self._of(exchange)))
        except grpc.RpcError as error:
            raise _translated(error) from None
        except ValueError as error:  # gRPC's word for a closed channel
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None

    def close(self) -> None:
        self._channel.close()

    def _of(self, exchange: Exchange) -> _Metadata | None:
        return (*self._metadata, *exchange.headers.items()) or None


class AsyncGrpcTransport:
    """A channel on the running event loop; it connects at the first call."""

    def __init__(self, target: str, tls: Tls | None = None, headers: Mapping[str, str] | None = None) -> None:
        """As GrpcTransport's."""
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
        except (grpc.aio.UsageError, ValueError) as error:  # gRPC's words for a closed channel
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
    """The server's name in requests, and in its certificate: gRPC takes the one for the other unless told both."""
    names: list[tuple[str, int | str]] = []
    if HOST in headers:
        names.append(("grpc.default_authority", headers[HOST]))
    if tls is not None and (tls.server_name or HOST in headers):
        names.append(("grpc.ssl_target_name_override", tls.server_name or target.rpartition(":")[0].strip("[]")))
    return names


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """What the system trusts is OpenSSL's word; gRPC brings a list of its own. InvalidArgument for files of nothing."""
    context = tls.context()
    roots = tls.pem("ca") or "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
    chain = tls.pem("cert")
    return grpc.ssl_channel_credentials(roots or None, tls.pem("key") or chain, chain)


def _retry_after_s(error: Any) -> float | None:  # noqa: ANN401  the stubs' RpcError has no trailing metadata
    """Seconds from the server's pushback (gRPC proposal A6, client retries); None where there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == _PUSHBACK and value.isascii() and value.isdigit():
            return int(value) / 1000
    return None
