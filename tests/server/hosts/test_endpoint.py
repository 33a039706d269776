"""Tests that the endpoint counts requests, and refuses those over the rate before it reads them."""

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.support.fakes import FakeClock
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.endpoint import Endpoint
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.refusals import RateLimit

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

PREDICT_GRPC = "/tensorflow.serving.PredictionService/Predict"
PREDICT_REST = "/v1/models/m:predict"
REASON = "The server gets more inference requests than --max_requests_per_second allows"


async def _rest(_scope: "Scope", _receive: "Receive", send: "Send") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def endpoint(traffic: Traffic, clock: FakeClock) -> Endpoint:
    budgets = Budgets.of(BudgetOptions(), 1000, clock)
    application: Any = SimpleNamespace(
        rest=_rest,
        rpc={},
        receiving=budgets.receiving,
        sending=budgets.sending,
        overload_gate=OverloadGate(tuple, traffic, clock),
        traffic=traffic,
    )
    return Endpoint(application, HostOptions(), InFlight(), RateLimit(2.0, clock))


async def ask(endpoint: Endpoint, path: str, *, is_grpc: bool = False) -> Exchange:
    async def unread() -> "Message":
        raise AssertionError("The endpoint has read a request that it refuses")

    exchange = Exchange([body(b"")], path=path, headers=list(HEADERS) if is_grpc else [])
    exchange.receive = unread  # type: ignore[method-assign]  # replaced for this request alone
    return await exchange.run(endpoint)


async def test_requests_are_counted_by_version_of_http(endpoint: Endpoint, traffic: Traffic) -> None:
    await ask(endpoint, "/v1/models/m")
    await ask(endpoint, "/v1/models/m")
    await ask(endpoint, "/unknown.Service/Method", is_grpc=True)
    assert traffic.requests == {"1.1": 2, "2": 1}


async def test_inference_over_the_rate_is_refused_unread_and_counted(
    endpoint: Endpoint, traffic: Traffic, clock: FakeClock
) -> None:
    for _ in range(2):
        assert (await ask(endpoint, PREDICT_REST)).http_status == 200
    refused = await ask(endpoint, PREDICT_REST)
    assert (refused.http_status, json.loads(refused.sent[1]["body"])) == (429, {"error": REASON})
    call = await ask(endpoint, PREDICT_GRPC, is_grpc=True)
    assert call.status == (Code.RESOURCE_EXHAUSTED, REASON)
    assert traffic.refused == {"rate": 2, "too_late": 0}
    # Other requests have no limit.
    assert (await ask(endpoint, "/v1/models/m")).http_status == 200
    clock.now_s += 0.5
    assert [(await ask(endpoint, PREDICT_REST)).http_status for _ in range(2)] == [200, 429]
