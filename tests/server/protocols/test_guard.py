"""Tests for the guard around test methods and applications. tests/e2e/test_guard.py covers the server's own routes."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tests.support.guards import make_guard
from tpuserve_server.access.access import OPEN, READ, Access
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied, Unauthenticated
from tpuserve_server.observe.options import AccessLogOptions
from tpuserve_server.observe.requests.access_log import MOST_ERRORS_PER_S, AccessLog
from tpuserve_server.observe.requests.request_record import Observers
from tpuserve_server.protocols.guard import Attempt, Guard, Rule
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestApp, RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, GuardedStream, GuardedUnary, StreamMethod, UnaryMethod

CONTEXT = CallContext(Deadline.never(), {"authorization": "me"})


@dataclass
class ScriptedRule:
    fault: Exception | None = None
    attempts: list[Attempt] = field(default_factory=list)

    async def check(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if self.fault is not None:
            raise self.fault


class Methods:
    """One method of each kind."""

    async def unary(self, body: bytes, context: CallContext) -> bytes:
        return body

    async def stream(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


def guarded(guard: Guard, methods: Methods, access: Access) -> tuple[GuardedUnary, GuardedStream]:
    """Return both methods behind a guard."""
    table = guard.wrap_table(
        {"/s.S/U": UnaryMethod(methods.unary, access, 7), "/s.S/S": StreamMethod(methods.stream, access, 7)}
    )
    unary, stream = table["/s.S/U"], table["/s.S/S"]
    assert isinstance(unary, GuardedUnary)
    assert isinstance(stream, GuardedStream)
    return unary, stream


async def two() -> AsyncIterator[bytes]:
    yield b"1"
    yield b"2"


def make_app() -> RestApp:
    return rest_app(FakeService(), FakeMetrics(), FakeClock(), lambda: ([b""], ""), RestOptions())


def ask(app: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")  # type: ignore[arg-type]  # ASGI has several types


async def test_nothing_stands_before_what_everybody_may() -> None:
    methods, app = Methods(), make_app()
    guard = make_guard(None)
    unary, stream = guarded(guard, methods, READ)
    assert await unary.admit(CONTEXT) == methods.unary
    assert await stream.admit(CONTEXT) == methods.stream
    assert guard.wrap_rest(app) is app


async def test_methods_run_when_the_rule_lets_them_pass() -> None:
    rule, methods = ScriptedRule(), Methods()
    unary, stream = guarded(make_guard(rule), methods, READ)
    handle, respond = await unary.admit(CONTEXT), await stream.admit(CONTEXT)
    assert await handle(b"x", CONTEXT) == b"x"
    assert [message async for message in respond(two(), CONTEXT)] == [b"1", b"2"]
    assert [(each.protocol, each.method, each.path) for each in rule.attempts] == [
        ("grpc", "POST", "/s.S/U"),
        ("grpc", "POST", "/s.S/S"),
    ]
    assert {each.access for each in rule.attempts} == {READ}
    assert rule.attempts[0].headers == {"authorization": "me"}


def test_a_guarded_method_keeps_its_access_and_its_limit() -> None:
    rules: tuple[Rule | None, ...] = (None, ScriptedRule())
    for rule in rules:
        for method in guarded(make_guard(rule), Methods(), READ):
            assert (method.access, method.max_message_bytes) == (READ, 7)


@pytest.mark.parametrize("fault", [Unauthenticated("who?"), ZeroDivisionError("a bug of the rule")])
async def test_no_method_runs_when_the_rule_raises(fault: Exception) -> None:
    for method in guarded(make_guard(ScriptedRule(fault)), Methods(), OPEN):
        with pytest.raises(type(fault)):
            await method.admit(CONTEXT)


@pytest.mark.parametrize(
    ("method", "path", "model"),
    [
        ("POST", "/v1/models/a%2Fb/versions/7:predict?x=1", "a/b"),
        ("GET", "/v1/models", None),
        ("GET", "/v1/strange", None),
        ("OPTIONS", "/v1/models/m:predict", None),
        ("GET", "/metrics", None),
    ],
)
async def test_a_rule_sees_the_model_that_a_path_names(method: str, path: str, model: str | None) -> None:
    rule = ScriptedRule()
    async with ask(make_guard(rule).wrap_rest(make_app())) as client:
        await client.request(method, path, headers=[("X-Key", "1"), ("x-key", "2")])
    (attempt,) = rule.attempts
    assert (attempt.protocol, attempt.method, attempt.model) == ("rest", method, model)
    assert attempt.headers["x-key"] == "1,2"
    assert "%" not in attempt.path


@pytest.mark.parametrize("path", ["/v1/models/m:predict", "/metrics", "/nothing"])
async def test_a_refusal_is_answered_in_the_form_of_the_path(path: str) -> None:
    rule = ScriptedRule(PermissionDenied("not you"))
    async with ask(make_guard(rule).wrap_rest(make_app())) as client:
        response = await client.get(path)
    assert (response.status_code, response.json()) == (403, {"error": "not you"})


async def test_refused_requests_are_counted_by_code() -> None:
    metrics = FakeMetrics()
    guard = make_guard(ScriptedRule(Unauthenticated("who?")), metrics)
    for method in guarded(guard, Methods(), READ):
        with pytest.raises(Unauthenticated):
            await method.admit(CONTEXT)
    async with ask(guard.wrap_rest(make_app())) as client:
        for path in ("/v1/models/m:predict", "/metrics", "/nothing", "/v1/strange"):
            response = await client.post(path, headers={"x-request-id": "id-7"})
            assert (response.status_code, response.headers["x-request-id"]) == (401, "id-7")
            assert response.headers["www-authenticate"] == 'Bearer realm="tpuserve"'
        page = await client.get("/openapi.json")
    assert page.headers.get_list("www-authenticate") == ['Basic realm="tpuserve", charset="UTF-8"']
    counted = [(each.protocol, each.method, each.code.name) for each in metrics.finished]
    methods = [
        ("grpc", "U"),
        ("grpc", "S"),
        *(("rest", name) for name in ("Predict", "/metrics", "Unknown", "Unknown", "/openapi.json")),
    ]
    assert counted == [(protocol, name, "UNAUTHENTICATED") for protocol, name in methods]


async def test_repeated_refusals_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observers = Observers((AccessLog(AccessLogOptions("errors")),))
    meter = RequestMeter(FakeService(), FakeMetrics(), FakeClock(), "grpc", observers)
    unary, _ = guarded(Guard(ScriptedRule(Unauthenticated("who?")), meter, meter), Methods(), READ)
    for _ in range(MOST_ERRORS_PER_S + 50):
        with pytest.raises(Unauthenticated):
            await unary.admit(CONTEXT)
    assert caplog.messages == ["U UNAUTHENTICATED"] * MOST_ERRORS_PER_S
    fields = caplog.records[0].__dict__["fields"]()
    assert (fields["protocol"], fields["error"]) == ("grpc", "who?")


async def test_a_broken_rule_lets_nobody_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with ask(
            make_guard(ScriptedRule(ZeroDivisionError("a bug of the rule"))).wrap_rest(make_app())
        ) as client:
            response = await client.get("/v1/models")
    assert (response.status_code, response.json()) == (500, {"error": "Internal error"})
    assert "a bug of the rule" in caplog.text
