"""What HTTP servers and proxies do beyond answering well, against a server that does it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.clients.model_server import http_address
from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable, Unknown
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.rest_transport import AsyncRestTransport, RestTransport


async def trickle(_request: Request) -> Response:
    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b"."
            await asyncio.sleep(0.02)

    return StreamingResponse(drops())


async def cut_short(_request: Request) -> Response:
    async def start() -> AsyncIterator[bytes]:
        yield b"half"

    return StreamingResponse(start(), headers={"content-length": "100"})


async def proxy_page(_request: Request) -> Response:
    return PlainTextResponse("<h1>Bad Gateway</h1>", 502)


async def empty_page(_request: Request) -> Response:
    return Response(status_code=503, headers={"retry-after": "soon"})


async def come_back(_request: Request) -> Response:
    return Response(status_code=503, headers={"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1))})


@pytest.fixture
def address() -> Iterator[str]:
    pages = [trickle, cut_short, proxy_page, empty_page, come_back]
    with http_address(Starlette(routes=[Route(f"/{page.__name__}", page) for page in pages])) as place:
        yield place


def send(kind: str, address: str, path: str, timeout_s: float | None) -> Reply:
    exchange = Exchange(path, method="GET")
    if kind == "sync":
        transport = RestTransport(address)
        try:
            return transport.send(exchange, timeout_s)
        finally:
            transport.close()

    async def awaited() -> Reply:
        transport = AsyncRestTransport(address)
        try:
            return await transport.send(exchange, timeout_s)
        finally:
            await transport.close()

    return asyncio.run(awaited())


def test_body_that_trickles_in_is_given_up_at_the_deadline(kind: str, address: str) -> None:
    with pytest.raises(DeadlineExceeded, match=r"within 0.3 s"):
        send(kind, address, "/trickle", 0.3)


@pytest.mark.filterwarnings("ignore")  # the server complains about its own broken promise
def test_connection_that_breaks_in_the_middle_is_unavailable(kind: str, address: str) -> None:
    with pytest.raises(Unavailable):
        send(kind, address, "/cut_short", 5.0)


def test_proxys_page_is_the_message(kind: str, address: str) -> None:
    with pytest.raises(Unknown, match="<h1>Bad Gateway</h1>"):
        send(kind, address, "/proxy_page", 5.0)


def test_empty_body_leaves_the_status_as_the_message(kind: str, address: str) -> None:
    with pytest.raises(Unavailable, match="HTTP 503 Service Unavailable") as caught:
        send(kind, address, "/empty_page", 5.0)
    assert caught.value.retry_after_s is None  # "soon" is no time


def test_retry_after_can_be_a_date(kind: str, address: str) -> None:
    with pytest.raises(TpuserveError) as caught:
        send(kind, address, "/come_back", 5.0)
    assert caught.value.retry_after_s == pytest.approx(3600, abs=60)
