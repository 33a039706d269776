"""Tests for CORS under /v1/, with the flag and without (tensorflow_serving/model_servers/http_server.cc)."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.protocols.rest import RestOptions, rest_app

PREDICT = "/v1/models/m:predict"
CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": (
        "Content-Type, x-tpuserve-timeout-ms, x-tpuserve-priority, authorization, x-api-key"
    ),
}


def cors_of(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


@pytest.fixture(params=[True, False], ids=["on", "off"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    options = RestOptions(allow_cors=request.param)
    app = rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b""], ""), options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as made:
        made.headers["x-expected"] = "cors" if request.param else ""
        yield made


def expected(client: httpx.AsyncClient) -> dict[str, str]:
    return CORS if client.headers["x-expected"] else {}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", PREDICT, b'{"instances": [1]}', 200),
        ("POST", PREDICT, b"{", 400),
        ("GET", "/v1/models/m", None, 200),
        ("GET", "/v1/models/z", None, 404),
        ("PUT", "/v1/x", None, 400),
    ],
)
async def test_every_response_has_the_headers_when_it_is_on(
    client: httpx.AsyncClient, method: str, path: str, body: bytes | None, status: int
) -> None:
    response = await client.request(method, path, content=body)
    assert response.status_code == status
    assert cors_of(response) == expected(client)


@pytest.mark.parametrize("origin", ["http://a.example", "https://a.example:8443"])
@pytest.mark.parametrize("path", [PREDICT, "/v1/anything"])
async def test_preflights_of_web_pages_are_answered(client: httpx.AsyncClient, origin: str, path: str) -> None:
    response = await client.options(path, headers={"origin": origin, "access-control-request-method": "POST"})
    assert (response.status_code, response.content) == (200, b"")
    assert cors_of(response) == expected(client)


@pytest.mark.parametrize("headers", [{}, {"origin": "null"}, {"origin": "file:///x"}])
async def test_preflights_of_nobody_are_refused(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    response = await client.options(PREDICT, headers=headers)
    assert response.status_code == 400
    assert response.json() == {"error": "Origin header is missing in CORS preflight"}
    assert cors_of(response) == expected(client)
