"""Exchanges over HTTP, blocking and asyncio (httpx)."""

import asyncio
import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from tpuserve_client.errors import DeadlineExceeded, Internal, TpuserveError, Unavailable, from_http
from tpuserve_client.exchange import Exchange, Reply

_HEADERS = {"content-type": "application/json"}
_LONGEST_MESSAGE = 1024  # characters of a body that is not the server's JSON, such as a proxy's page


class RestTransport:
    """A pool of connections to one base URL. Safe to share between threads."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.Client(base_url=base_url, headers=_HEADERS)

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        # httpx limits each wait on the socket, not their sum: a body that trickles in is checked piece by piece.
        expires = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self._client.stream(
                exchange.method, exchange.path, content=exchange.body, timeout=timeout_s
            ) as response:
                pieces = []
                for piece in response.iter_bytes():
                    pieces.append(piece)
                    if expires is not None and time.monotonic() > expires:
                        raise DeadlineExceeded(_deadline_message(timeout_s))
        except httpx.HTTPError as error:
            raise _translated(error, timeout_s) from None
        return _reply(response, b"".join(pieces))

    def close(self) -> None:
        self._client.close()


class AsyncRestTransport:
    """A pool of connections to one base URL, on one event loop."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.AsyncClient(base_url=base_url, headers=_HEADERS, timeout=None)

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(exchange.method, exchange.path, content=exchange.body)
        except TimeoutError:
            raise DeadlineExceeded(_deadline_message(timeout_s)) from None
        except httpx.HTTPError as error:
            raise _translated(error, timeout_s) from None
        return _reply(response, response.content)

    async def close(self) -> None:
        await self._client.aclose()


def _deadline_message(timeout_s: float | None) -> str:
    return f"Deadline exceeded: no answer within {timeout_s:.3g} s" if timeout_s is not None else "Deadline exceeded"


def _translated(error: httpx.HTTPError, timeout_s: float | None) -> TpuserveError:
    if isinstance(error, httpx.TimeoutException):
        return DeadlineExceeded(_deadline_message(timeout_s))
    if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol):
        return Unavailable(f"{type(error).__name__}: {error}")  # refused, reset, closed in the middle
    return Internal(f"{type(error).__name__}: {error}")


def _reply(response: httpx.Response, body: bytes) -> Reply:
    if response.is_success:
        return Reply(body, dict(response.headers))  # httpx gives their names in lower case
    raise from_http(
        response.status_code,
        _message(body) or f"HTTP {response.status_code} {response.reason_phrase}",
        retry_after_s=_retry_after_s(response.headers.get("retry-after")),
    )


def _message(body: bytes) -> str:
    """The server's `{"error": message}`, or the beginning of whatever else came."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        return str(document["error"])
    return body.decode("utf-8", "replace")[:_LONGEST_MESSAGE].strip()


def _retry_after_s(value: str | None) -> float | None:
    """Seconds from a Retry-After header: a number of them, or a date (RFC 9110, 10.2.3). None for anything else."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    now = datetime.now(UTC)
    return max(0.0, (moment - (now if moment.tzinfo else now.replace(tzinfo=None))).total_seconds())
