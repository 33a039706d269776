"""Tests for CORS on every route, with the flag and without (tensorflow_serving/model_servers/http_server.cc)."""

from collections.abc import AsyncIterator
from typing import Final

import httpx
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.terms.errors import PermissionDenied
from tpuserve_server.observe.requests.request_record import NO_OBSERVERS
from tpuserve_server.protocols.guard import Attempt, Guard
from tpuserve_server.protocols.http.cross_origin import CrossOrigin
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestOptions, rest_app

PREDICT = "/v1/models/m:predict"
CORS: Final = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": (
        "Content-Type, Content-Encoding, x-tpuserve-timeout-ms, x-tpuserve-priority, authorization, x-api-key, "
        "x-request-id, traceparent, tracestate, x-tpuserve-timing, Inference-Header-Content-Length"
    ),
    "access-control-expose-headers": (
        "x-tpuserve-model-version, x-tpuserve-cache, x-request-id, server-timing, traceresponse, retry-after, "
        "Inference-Header-Content-Length"
    ),
}


def cors_of(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


@pytest.fixture(params=[True, False], ids=["on", "off"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    app = rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b""], ""), RestOptions())
    transport = httpx.ASGITransport(CrossOrigin(app) if request.param else app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as made:
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
        ("GET", "/v2/health/live", None, 200),
        ("GET", "/v2/models/z", None, 404),
        ("GET", "/metrics", None, 200),
        ("GET", "/nothing", None, 404),
    ],
)
async def test_every_response_has_the_headers_when_it_is_on(
    client: httpx.AsyncClient, method: str, path: str, body: bytes | None, status: int
) -> None:
    response = await client.request(method, path, content=body)
    assert response.status_code == status
    assert cors_of(response) == expected(client)


@pytest.mark.parametrize("origin", ["http://a.example", "https://a.example:8443"])
@pytest.mark.parametrize("path", [PREDICT, "/v1/anything", "/v2/models/m/infer", "/metrics"])
async def test_preflights_of_web_pages_are_answered(client: httpx.AsyncClient, origin: str, path: str) -> None:
    response = await client.options(path, headers={"origin": origin, "access-control-request-method": "POST"})
    assert cors_of(response) == expected(client)
    if expected(client) or path.startswith("/v1/"):
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("headers", [{}, {"origin": "null"}, {"origin": "file:///x"}])
async def test_preflights_of_nobody_are_refused(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    response = await client.options(PREDICT, headers={**headers, "access-control-request-method": "POST"})
    assert response.status_code == 400
    assert response.json() == {"error": "Origin header is missing in CORS preflight"}
    assert cors_of(response) == expected(client)


class Refusing:
    """A rule that allows nothing."""

    async def check(self, attempt: Attempt) -> None:
        raise PermissionDenied("not you")


async def test_a_preflight_needs_no_credentials_and_a_page_may_read_a_refusal() -> None:
    app = rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b""], ""), RestOptions())
    meter = RequestMeter(FakeService(), FakeMetrics(), FakeClock(), "rest", NO_OBSERVERS)
    transport = httpx.ASGITransport(CrossOrigin(Guard(Refusing(), meter, meter).wrap_rest(app)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        page = {"origin": "http://a.example"}
        preflight = await client.options(PREDICT, headers={**page, "access-control-request-method": "POST"})
        response = await client.post(PREDICT, headers=page)
    assert (preflight.status_code, response.status_code, response.json()) == (200, 403, {"error": "not you"})
    assert cors_of(preflight) == cors_of(response) == CORS
