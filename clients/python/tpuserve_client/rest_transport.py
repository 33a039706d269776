"""Exchanges over HTTP, blocking and asyncio (httpx)."""

import asyncio
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from tpuserve_client.deadline_backend import DeadlineBackend
from tpuserve_client.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
    from_http,
)
from tpuserve_client.exchange import CANNOT_CONNECT, CONNECTION_ENDED, Exchange, Reply
from tpuserve_client.limits import Pool
from tpuserve_client.rest_pool import AsyncPooledTransport, PooledTransport
from tpuserve_client.tls import Tls

_HEADERS = {"content-type": "application/json"}
# tpuserve's header, in milliseconds. TensorFlow Serving ignores it. tpuserve accepts a limited number of digits.
TIMEOUT_HEADER: Final = "x-tpuserve-timeout-ms"
_SHORTEST_MS, _LONGEST_MS = 0.001, 1e12

_LONGEST_MESSAGE = 1024  # characters of a body other than the server's JSON, such as a proxy's page


class RestTransport:
    """A pool of connections to one base URL. Safe to share between threads."""

    def __init__(
        self,
        base_url: str,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        pool: Pool = Pool(),  # noqa: B008  frozen
    ) -> None:
        """Create the pool. `headers` come from `read_headers`."""
        self._backend = DeadlineBackend()
        context = _context(base_url, tls)
        self._extensions = _extensions(tls)
        self._url = _urls(base_url)
        transport = None if _is_proxied(base_url) else PooledTransport(self._backend, context, pool)
        with _as_our_errors():
            self._client = httpx.Client(
                headers={**_HEADERS, **(headers or {})},
                verify=context or True,
                transport=transport,
                limits=_limits(pool),
            )

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        with (
            _as_our_errors(timeout_s),
            self._backend.deadline(timeout_s),
            self._client.stream(
                exchange.method,
                self._url(exchange.path),
                content=exchange.body,
                headers=_headers(exchange, timeout_s),
                timeout=timeout_s,
                extensions=self._extensions,
            ) as response,
        ):
            pieces = []
            for piece in response.iter_bytes():
                pieces.append(piece)
                self._backend.remaining()  # with a proxy, httpx uses its own sockets, which ignore the deadline
        return _reply(response, b"".join(pieces))

    def close(self) -> None:
        self._client.close()


def _is_proxied(base_url: str) -> bool:
    """Return whether the environment names a proxy for this URL. httpx then finds the proxy and connects to it."""
    parts = urlsplit(base_url)
    proxies = getproxies()
    return not {parts.scheme, "all"}.isdisjoint(proxies) and not proxy_bypass(parts.netloc)


class AsyncRestTransport:
    """A pool of connections to one base URL, on one event loop."""

    def __init__(
        self,
        base_url: str,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        pool: Pool = Pool(),  # noqa: B008  frozen
    ) -> None:
        """Create the pool. See `RestTransport`."""
        context = _context(base_url, tls)
        self._extensions = _extensions(tls)
        self._url = _urls(base_url)
        with _as_our_errors():
            self._client = httpx.AsyncClient(
                headers={**_HEADERS, **(headers or {})},
                verify=context or True,
                timeout=None,
                transport=None if _is_proxied(base_url) else AsyncPooledTransport(context, pool),
                limits=_limits(pool),
            )

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        with _as_our_errors(timeout_s):
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(
                    exchange.method,
                    self._url(exchange.path),
                    content=exchange.body,
                    headers=_headers(exchange, timeout_s),
                    extensions=self._extensions,
                )
        return _reply(response, response.content)

    def release_idle(self) -> bool:
        """Keep the connections: a child closes its copies of their sockets without harm."""
        return False

    async def close(self) -> None:
        await self._client.aclose()


def _urls(base_url: str) -> Callable[[str], httpx.URL]:
    """Return a function that appends a path to the URL. It keeps the results: httpx takes long to join two URLs."""
    base = base_url.rstrip("/")
    with _as_our_errors():
        httpx.URL(base)
    return lru_cache(maxsize=1024)(lambda path: httpx.URL(base + path))


def _limits(pool: Pool) -> httpx.Limits:
    return httpx.Limits(
        max_connections=pool.max_connections,
        max_keepalive_connections=pool.max_connections,
        keepalive_expiry=pool.idle_timeout_s,
    )


def _context(base_url: str, tls: Tls | None) -> ssl.SSLContext | None:
    """Return a TLS context, or None for http, because reading certificates is slow."""
    return (tls or Tls()).context() if base_url.startswith("https:") else None


def _extensions(tls: Tls | None) -> dict[str, str]:
    """Return httpx's extension for the server name in the certificate."""
    return {"sni_hostname": tls.server_name} if tls is not None and tls.server_name else {}


def _headers(exchange: Exchange, timeout_s: float | None) -> dict[str, str]:
    """Return the exchange's headers and the timeout, so that the server skips requests that have expired."""
    if timeout_s is None or exchange.method != "POST":
        return dict(exchange.headers)
    milliseconds = min(max(timeout_s * 1000, _SHORTEST_MS), _LONGEST_MS)
    return {**exchange.headers, TIMEOUT_HEADER: f"{milliseconds:.3f}"}


@contextmanager
def _as_our_errors(timeout_s: float | None = None) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, httpx.TimeoutException, httpcore.TimeoutException):
        raise DeadlineExceeded(_deadline_message(timeout_s)) from None
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as error:
        raise InvalidArgument(f"Invalid URL: {error}") from None
    except (httpx.ConnectError, httpcore.ConnectError, httpx.ProxyError) as error:
        raise Unavailable(f"{CANNOT_CONNECT}: {_reason(error)}") from None
    except (httpx.WriteError, httpcore.WriteError) as error:  # the server does not run half a request
        raise Unavailable(f"The connection ended while the client sent the request: {_reason(error)}") from None
    except (httpx.TransportError, httpcore.NetworkError, httpcore.ProtocolError) as error:
        message = f"{CONNECTION_ENDED}: {_reason(error)}"
        raise Unavailable(message, may_have_run=True) from None
    except httpx.HTTPError as error:
        raise Internal(f"{type(error).__name__}: {error}") from None
    except RuntimeError as error:  # a closed client
        raise FailedPrecondition(f"The client cannot make this call: {error}") from None


def _deadline_message(timeout_s: float | None) -> str:
    return "No response before the deadline" if timeout_s is None else f"No response within {timeout_s:.3g} s"


def _reason(error: Exception) -> str:
    """Return the system's text of a connection error, without its number."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionError) and cause.errno is not None:
            return os.strerror(cause.errno)  # asyncio's own text lacks the reason
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _reply(response: httpx.Response, body: bytes) -> Reply:
    if response.is_success:
        return Reply(body, response.headers)  # httpx finds names of either case
    raise from_http(
        response.status_code,
        _message(response, body),
        retry_after_s=_retry_after_s(response.headers.get("retry-after")),
    )


def _message(response: httpx.Response, body: bytes) -> str:
    """Return the text of the server's `{"error": message}`, or the status and the beginning of any other body."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        return str(document["error"])
    status = f"HTTP {response.status_code} {response.reason_phrase}"
    text = body.decode("utf-8", "replace")[:_LONGEST_MESSAGE].strip()
    return f"{status}: {text}" if text else status


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3), or None."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    now = datetime.now(UTC)
    try:
        moment = parsedate_to_datetime(value)
        return max(0.0, (moment - (now if moment.tzinfo else now.replace(tzinfo=None))).total_seconds())
    except (ValueError, OverflowError):  # the latter for a huge time zone, and near the years 1 and 9999
        return None
