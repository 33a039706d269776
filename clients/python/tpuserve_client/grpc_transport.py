"""Exchanges over a gRPC channel, blocking and asyncio, with official method paths and no generated stubs."""

import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tpuserve_client.decimal_text import read_decimal
from tpuserve_client.errors import DeadlineExceeded, FailedPrecondition, Internal, TpuserveError, from_code
from tpuserve_client.exchange import CANNOT_CONNECT, CONNECTION_ENDED, Exchange, Reply
from tpuserve_client.fork import has_lost_poller, is_child
from tpuserve_client.limits import Pool
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
    # A new channel must not get the connection of the channel that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
]

# Calls in a row without a response, after which a channel is replaced. A path that loses packets, or a proxy that lost
# its upstream, looks like a slow server: only a new connection shows the difference.
_SILENT_CALLS: Final = 2

_PUSHBACK: Final = "grpc-retry-pushback-ms"
# Texts of the UNAVAILABLE that gRPC creates here: without a connection, and for a connection that ended during a call.
_NO_CONNECTION: Final = re.compile(
    r"failed to connect to all addresses; last error: \w+: \S+: (?:Failed to connect to remote host: )?(.*)", re.DOTALL
)
_CONNECTION_ENDED: Final = re.compile(
    r"Stream removed|Socket closed|(recv|send)msg:|Broken pipe|Connection reset|[Kk]eepalive|ping timeout|Endpoint"
)
_REFUSED_STREAM: Final = "RST_STREAM with error code 7"  # the server has not run the request (RFC 9113, 8.7)


# Values with which gRPC's core switches its fork handlers off (gRPC's parse_bool_value).
_FALSE: Final = ("0", "f", "false", "n", "no")


class _Silence:
    """Count of a channel's calls that timed out since its last response. Losing a count between threads is harmless."""

    def __init__(self) -> None:
        self._calls = 0

    def hear(self) -> None:
        self._calls = 0

    def is_dead_after(self, error: TpuserveError) -> bool:
        """Count a failed call. Return whether the channel must be replaced."""
        if not isinstance(error, DeadlineExceeded):
            self._calls = 0
            return False
        self._calls += 1
        return self._calls == _SILENT_CALLS


class _Channel:
    """A channel with its calls by method path. Creating a call twice is harmless."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls: dict[str, _Call] = {}
        self.silence = _Silence()

    def call(self, path: str) -> _Call:
        call = self.calls.get(path)
        if call is None:
            call = self.calls[path] = self.channel.unary_unary(path)
        return call


class GrpcTransport:
    """A channel that connects at the first call. Safe to share between threads."""

    def __init__(
        self,
        target: str,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        pool: Pool = Pool(),  # noqa: B008  frozen
    ) -> None:
        """Create a channel, without TLS if `tls` is None. `headers` come from `read_headers`."""
        self._target = target
        self._options = [*_OPTIONS, *_keepalive(pool), *_names(target, tls, headers or {})]
        self._credentials = None if tls is None else _credentials(tls)
        self._headers = headers or {}
        self._metadata = _metadata(self._headers)
        self._channel = self._open()

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        channel = self._channel
        try:
            reply = channel.call(exchange.path)(exchange.body, timeout=timeout_s, metadata=self._of(exchange))
        except grpc.RpcError as error:
            translated = _translated(error, timeout_s)
            if channel.silence.is_dead_after(translated) and channel is self._channel:
                self._channel = self._open()  # calls under way end on the old channel, which then closes itself
            raise translated from None
        except ValueError as error:  # a closed channel, or a path that is not ASCII
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None
        channel.silence.hear()
        return _reply(reply)

    def close(self) -> None:
        self._channel.channel.close()

    def _open(self) -> _Channel:
        _check_fork()
        if self._credentials is None:
            return _Channel(grpc.insecure_channel(self._target, options=self._options))
        return _Channel(grpc.secure_channel(self._target, self._credentials, options=self._options))

    def _of(self, exchange: Exchange) -> _Metadata | None:
        if not exchange.headers:
            return self._metadata or None
        return _metadata({**self._headers, **exchange.headers}) or None


class _AsyncChannel:
    """An asyncio channel with its calls by method path."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls: dict[str, _AsyncCall] = {}
        self.silence = _Silence()

    def call(self, path: str) -> _AsyncCall:
        call = self.calls.get(path)
        if call is None:
            call = self.calls[path] = self.channel.unary_unary(path)
        return call


class AsyncGrpcTransport:
    """A channel on the running event loop that connects at the first call."""

    def __init__(
        self,
        target: str,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        pool: Pool = Pool(),  # noqa: B008  frozen
    ) -> None:
        """Create a channel. See `GrpcTransport`."""
        self._target = target
        self._options = [*_OPTIONS, *_keepalive(pool), *_names(target, tls, headers or {})]
        self._credentials = None if tls is None else _credentials(tls)
        self._headers = headers or {}
        self._metadata = _metadata(self._headers)
        self._channel: _AsyncChannel | None = None
        self._pending = 0

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        self._pending += 1  # first: a fork may happen in another thread
        try:
            return await self._send(exchange, timeout_s)
        finally:
            self._pending -= 1

    async def _send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        channel = self._channel or self._open()
        try:
            reply = await channel.call(exchange.path)(exchange.body, timeout=timeout_s, metadata=self._of(exchange))
        except grpc.aio.AioRpcError as error:
            translated = _translated(error, timeout_s)
            if channel.silence.is_dead_after(translated) and channel is self._channel:
                self._channel = None
            raise translated from None
        except (grpc.aio.UsageError, ValueError) as error:  # a closed channel, or a path that is not ASCII
            raise FailedPrecondition(f"The client cannot make this call: {error}") from None
        channel.silence.hear()
        return _reply(reply)

    def release_idle(self) -> bool:
        """Drop the channel unless calls use it. The next call opens another."""
        if self._pending or self._channel is None:
            return False
        self._channel = None
        return True

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.channel.close()
            self._channel = None

    def _open(self) -> _AsyncChannel:
        _check_fork()
        if has_lost_poller():
            raise FailedPrecondition(
                "This process was forked while asyncio calls over gRPC were pending. gRPC cannot make such calls here. "
                "Fork before the first call, or use REST or the blocking Client."
            )
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(self._target, options=self._options)
        else:
            channel = grpc.aio.secure_channel(self._target, self._credentials, options=self._options)
        self._channel = _AsyncChannel(channel)
        return self._channel

    def _of(self, exchange: Exchange) -> _Metadata | None:
        if not exchange.headers:
            return self._metadata or None
        return _metadata({**self._headers, **exchange.headers}) or None


def _reply(body: bytes | None) -> Reply:
    if body is None:  # gRPC's answer to a message that is shorter than its length
        raise Internal("The server's response is incomplete")
    return Reply(body)


def _check_fork() -> None:
    """Raise FailedPrecondition where gRPC would block for ever: in a child of a process without its fork support."""
    if is_child() and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in _FALSE:
        raise FailedPrecondition(
            "GRPC_ENABLE_FORK_SUPPORT disables gRPC in forked processes. Unset it, or use REST in this process."
        )


def _translated(error: grpc.RpcError, timeout_s: float | None) -> TpuserveError:
    code: grpc.StatusCode = error.code()
    pushback_ms = _pushback_ms(error)
    return from_code(
        code.value[0],
        _message(error, timeout_s),
        retry_after_s=None if pushback_ms is None or pushback_ms < 0 else pushback_ms / 1000,
        forbids_retry=pushback_ms is not None and pushback_ms < 0,
        may_have_run=_may_have_run(error),
    )


def _message(error: Any, timeout_s: float | None) -> str:  # noqa: ANN401  the stubs' RpcError has no details
    """Return the server's message, or a plain one for the statuses that gRPC creates here."""
    details = error.details() or str(error.code().name)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded" and timeout_s is not None:
        return f"No response within {timeout_s:.3g} s"
    if refused := _NO_CONNECTION.match(details):
        return f"{CANNOT_CONNECT}: {refused[1]}"
    if _may_have_run(error):
        return f"{CONNECTION_ENDED}: {details.removeprefix('Stream removed ')}"
    return str(details)


def _may_have_run(error: Any) -> bool:  # noqa: ANN401  as above
    """Return whether the connection ended after gRPC had sent the request."""
    details = error.details() or ""
    is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
    return is_unavailable and bool(_CONNECTION_ENDED.match(details)) and _REFUSED_STREAM not in details


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


def _pushback_ms(error: Any) -> int | None:  # noqa: ANN401  as above
    """Return the server's pushback in milliseconds (gRPC proposal A6, client retries), or None without one.

    A negative number, or a value that is not a number, means "do not retry".
    """
    for key, value in error.trailing_metadata() or ():
        if key == _PUSHBACK:
            pause_ms = read_decimal(value)
            return -1 if pause_ms is None else pause_ms
    return None


def _keepalive(pool: Pool) -> list[tuple[str, int | str]]:
    """Return gRPC's keepalive options. On Linux they also limit the time that sent data stays unacknowledged.

    gRPC proposals A8 and A18.
    """
    if pool.keepalive_s is None:
        return []
    timeout_ms = max(1, round(pool.keepalive_timeout_s * 1000))
    return [
        ("grpc.keepalive_time_ms", max(1, round(pool.keepalive_s * 1000))),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # Without it, a ping without an answer ends the connection only after a minute.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
    ]
