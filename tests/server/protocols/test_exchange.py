"""Tests for the exchange and the table of prefixes, with a small protocol next to TensorFlow Serving's."""

import gzip
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.batching.task import Waiter
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.terms.errors import Code, Internal, NotFound, TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.protocols.exchange import UNKNOWN_ROUTE, HttpCall, RouteFacts, raw_path
from tpuserve_server.protocols.http.response import HttpResponse
from tpuserve_server.protocols.options import ExchangeOptions
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import Mount, RestApp

OPTIONS = ExchangeOptions(max_body_bytes=20_000, timeout_s=2.5)


@dataclass
class EchoProtocol:
    """A protocol that echoes the body. Its errors are text in a list, unlike any other protocol's."""

    name: bytes = b"1"
    fault: Exception | None = None
    calls: list[HttpCall] = field(default_factory=list)

    async def answer(self, call: HttpCall) -> HttpResponse:
        call.measured.method = "Echo"
        self.calls.append(call)
        body = await call.read_body()
        with call.watch_client():
            if self.fault is not None:
                raise self.fault
        return HttpResponse(200, body, headers=((b"x-echo", self.name),))

    def begin(self, call: HttpCall, body: bytes, waiter: Waiter) -> None:
        return None

    def error_body(self, message: str) -> bytes:
        return f'["{message}"]'.encode()

    def facts_of(self, method: str, path: bytes) -> RouteFacts:
        return UNKNOWN_ROUTE


@dataclass
class Site:
    echo: EchoProtocol
    metrics: FakeMetrics
    app: RestApp
    client: httpx.AsyncClient


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    echo, metrics, clock = EchoProtocol(), FakeMetrics(), FakeClock(now_s=10)
    documented = {"/v9/echo": {"post": {"responses": {"200": {"description": "The body."}}}}}
    mounts = (
        Mount("/v9/models/special", EchoProtocol(name=b"special"), {}, {}),
        Mount("/v9/", echo, documented, {"Echo": {"type": "string"}}),
    )
    app = RestApp(
        mounts,
        RequestMeter(FakeService(), metrics, clock, "rest"),
        clock,
        OPTIONS,
        ReceivingBudget(1 << 20, 1 << 20, clock),
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield Site(echo, metrics, app, client)


async def test_the_first_prefix_that_a_path_has_answers_it(site: Site) -> None:
    assert (await site.client.post("/v9/x", content=b"1")).headers["x-echo"] == "1"
    assert (await site.client.post("/V9/X", content=b"1")).headers["x-echo"] == "1"
    assert (await site.client.post("/v9/models/special:predict", content=b"1")).headers["x-echo"] == "special"
    other = await site.client.post("/v9", content=b"1")
    assert (other.status_code, other.json()) == (404, {"error": "Not Found"})
    for path, protocol in (("/v9/x", site.echo), ("/V9/x", site.echo), ("/healthz", None), ("/nothing", None)):
        assert site.app.facts_of({"type": "http", "method": "GET", "path": path})[1] is protocol


async def test_a_protocol_gets_the_body_the_deadline_and_the_priority(site: Site) -> None:
    headers = {"content-encoding": "gzip", "x-tpuserve-timeout-ms": "500", "x-tpuserve-priority": "low"}
    response = await site.client.post("/v9/x%2Fy?z=1", content=gzip.compress(b"[1]"), headers=headers)
    assert (response.status_code, response.content) == (200, b"[1]")
    (call,) = site.echo.calls
    assert (call.deadline.at_s, call.priority) == (10.5, Priority.LOW)
    assert raw_path(call.scope) == b"/v9/x%2Fy"
    assert [finished.method for finished in site.metrics.finished] == ["Echo"]


async def test_a_protocol_says_only_how_an_error_looks(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    too_large = await site.client.post("/v9/x", content=bytes(20_001))
    assert (too_large.status_code, too_large.text) == (
        413,
        '["Request body is larger than the limit of 20000 bytes"]',
    )
    site.echo.fault = NotFound("no such thing")
    missing = await site.client.post("/v9/x", content=b"1")
    assert (missing.status_code, missing.text) == (404, '["no such thing"]')
    site.echo.fault = TooLate("come again", retry_after_s=1.2)
    assert (await site.client.post("/v9/x", content=b"1")).headers["retry-after"] == "2"
    site.echo.fault = ZeroDivisionError("a secret")
    with caplog.at_level(logging.ERROR):
        broken = await site.client.post("/v9/x", content=b"1")
    assert (broken.status_code, broken.text) == (500, '["Internal error"]')
    assert "a secret" in caplog.text
    assert caplog.records[-1].__dict__["fields"] == {"request_id": broken.headers["x-request-id"]}
    codes = [finished.code for finished in site.metrics.finished]
    assert codes[:2] == [Code.RESOURCE_EXHAUSTED, Code.NOT_FOUND]
    assert codes[-1] is Code.INTERNAL


async def test_large_answers_are_compressed_for_who_takes_that(site: Site) -> None:
    body = b"[" + b"1," * 5000 + b"1]"
    compressed = await site.client.post("/v9/x", content=body, headers={"accept-encoding": "gzip"})
    assert (compressed.headers["content-encoding"], compressed.content) == ("gzip", body)
    plain = await site.client.post("/v9/x", content=body, headers={"accept-encoding": ""})
    assert "content-encoding" not in plain.headers


async def test_the_document_has_every_protocols_part(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    assert "/v9/echo" in document["paths"]
    assert document["components"]["schemas"]["Echo"] == {"type": "string"}


async def test_a_valid_request_id_comes_back(site: Site) -> None:
    headers = {"x-request-id": "id-1"}
    assert (await site.client.post("/v9/x", content=b"1", headers=headers)).headers["x-request-id"] == "id-1"
    assert (await site.client.get("/v9/x", headers=headers)).headers["x-request-id"] == "id-1"
    late = await site.client.post("/v9/x", headers={**headers, "x-tpuserve-timeout-ms": "soon"})
    assert (late.status_code, late.headers["x-request-id"]) == (400, "id-1")
    for other in ({"x-request-id": "not valid"}, {}):
        assert "x-request-id" not in (await site.client.post("/v9/x", content=b"1", headers=other)).headers


async def test_an_internal_error_of_a_model_is_logged_with_the_id_of_the_response(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.echo.fault = Internal("Running m failed in batch 3; the server's log has the reason")
    response = await site.client.post("/v9/x", content=b"1")
    assert caplog.messages == [f"Internal error in POST /v9/x: {site.echo.fault.message}"]
    assert caplog.records[0].__dict__["fields"] == {"request_id": response.headers["x-request-id"]}
