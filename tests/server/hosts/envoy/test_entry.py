"""Tests for the Envoy host's application side in this process: scripted ASGI calls, and a supervisor's orders."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.asgi_client import Exchange, body
from tests.server.hosts.plain_envoy import plain_envoy
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.budgets.sending import SendingBudget
from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import Code
from tpuserve_server.core.replacement import Replacement
from tpuserve_server.frontends.guarded import admit_every_call
from tpuserve_server.frontends.rpc import CallContext, UnaryMethod
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.ending import LOST_REQUESTS
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.channel import VARIABLE, Channel, ChildSetup
from tpuserve_server.hosts.envoy.entry import EnvoyEntry
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.identity.access import OPEN

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

OPTIONS = HostOptions(bind_address="127.0.0.1", grpc_port=0, rest_port=None, drain_timeout_s=0.2)


class Recorded:
    """An application that records its events."""

    def __init__(self, start_error: Exception | None = None, stop_error: Exception | None = None) -> None:
        self.told: list[object] = []
        self.gate = asyncio.Event()
        self.doomed = asyncio.Event()
        self.hung = asyncio.Event()
        self.receiving = ReceivingBudget(1 << 20, 1 << 20, SystemClock())
        self.sending = SendingBudget(1 << 20, 1 << 20, 30, SystemClock())
        self.overload_gate = OPEN_GATE
        self.rpc = admit_every_call(
            {"/a.A/Echo": UnaryMethod(self.echo, OPEN), "/a.A/Held": UnaryMethod(self.held, OPEN)}
        )
        self._start_error = start_error
        self._stop_error = stop_error

    async def start(self) -> None:
        self.told.append("start")
        if self._start_error is not None:
            raise self._start_error

    async def ready(self) -> None:
        await self.gate.wait()

    async def failure(self) -> str:
        await self.doomed.wait()
        return "Nothing will ever be served."

    async def replacement(self) -> Replacement:
        await self.hung.wait()
        return Replacement("hung run", "a run has taken too long")

    def add_metrics(self, source: str, read: Callable[[], str]) -> None:
        self.metrics = (source, read)

    def announce(self, listening: Listening) -> None:
        self.told.append(listening)

    def show_certificates(self, status: CertificateStatus) -> None:
        self.told.append(status)

    def reload(self) -> None:
        self.told.append("reload")

    def drain(self) -> None:
        self.told.append("drain")

    async def stop(self) -> None:
        self.told.append("stop")
        if self._stop_error is not None:
            raise self._stop_error

    async def echo(self, request: bytes, _context: CallContext) -> bytes:
        return request

    async def held(self, request: bytes, _context: CallContext) -> bytes:
        self.told.append("held")
        await self.gate.wait()
        return request

    async def rest(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        await receive()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


class Hosted:
    """An entry whose lifespan runs as a task, with the supervisor's end of its channel and its exit code."""

    def __init__(
        self, application: Recorded, admin: Path, monkeypatch: pytest.MonkeyPatch, options: HostOptions = OPTIONS
    ) -> None:
        self.application = application
        self.entry = EnvoyEntry(lambda: application)
        self.ours, theirs = socket.socketpair()
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.lifespan_sent: list[Message] = []
        self.lifespan_end = asyncio.Event()
        setup = ChildSetup(
            options, str(admin), theirs.detach(), -1, os.getcwd(), {"PYTHONHOME": None, "LD_PRELOAD": ""}
        )
        monkeypatch.setenv(VARIABLE, setup.to_json())
        monkeypatch.setenv("PYTHONHOME", "/embedded")
        monkeypatch.delenv("LD_PRELOAD", raising=False)
        # A real exit would end the tests. The entry does nothing after it.
        monkeypatch.setattr(os, "_exit", self.exit_code.set_result)

    async def start(self) -> None:
        self.channel = await Channel.over(self.ours)
        self._lifespan = asyncio.ensure_future(self.entry({"type": "lifespan"}, self._receive, self._send))
        self.heard = self.channel.messages()

    async def close(self) -> None:
        self.lifespan_end.set()
        await self.channel.close()
        await self._lifespan

    async def _receive(self) -> "Message":
        if not self.lifespan_sent and not self.application.told:
            return {"type": "lifespan.startup"}
        await self.lifespan_end.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: "Message") -> None:
        self.lifespan_sent.append(message)


@pytest.fixture
def application() -> Recorded:
    return Recorded()


@pytest.fixture
async def hosted(application: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosted]:
    hosted = Hosted(application, tmp_path / "admin.sock", monkeypatch)
    await hosted.start()
    assert await anext(hosted.heard) == {"type": "ready"}
    yield hosted
    # The lifespan must be able to set its exit code, whatever the test did.
    if hosted.exit_code.done():
        monkeypatch.setattr(os, "_exit", lambda _code: None)
    await hosted.close()


async def test_start_leaves_no_trace_of_the_embedding(hosted: Hosted) -> None:
    assert hosted.lifespan_sent == [{"type": "lifespan.startup.complete"}]
    assert (os.environ.get("PYTHONHOME"), os.environ.get("LD_PRELOAD"), os.environ.get(VARIABLE)) == (
        None,
        "",
        None,
    )


async def test_grpc_goes_by_content_type_and_rest_gets_the_rest(hosted: Hosted) -> None:
    exchange = await Exchange.unary(b"x", path="/a.A/Echo").run(hosted.entry)
    assert exchange.status == (Code.OK, "")
    rest = await Exchange([body(b"")], path="/v1/models/m", headers=[(b"host", b"x")]).run(hosted.entry)
    assert (rest.http_status, rest.content) == (204, b"/v1/models/m")
    json = await Exchange([body(b"")], path="/v1", headers=[(b"content-type", b"application/json")]).run(hosted.entry)
    assert json.http_status == 204


@pytest.mark.parametrize("headers", [[], [(b"content-type", b"application/json")]])
async def test_grpc_method_without_its_content_type_is_415(hosted: Hosted, headers: list[tuple[bytes, bytes]]) -> None:
    assert (await Exchange([body(b"")], path="/a.A/Echo", headers=headers).run(hosted.entry)).http_status == 415


async def test_announcement_reaches_the_application(hosted: Hosted) -> None:
    hosted.channel.send("announce", listening={"grpc": "127.0.0.1:1", "rest": None, "grpc_socket": None})
    hosted.channel.send("drain")
    await hosted.exit_code
    assert hosted.application.told == ["start", Listening(grpc="127.0.0.1:1"), "drain", "stop"]


async def test_drain_waits_for_the_call_in_flight(
    application: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plain_envoy(OPTIONS, tmp_path) as admin:
        await until(EnvoyAdmin(admin).is_live)
        hosted = Hosted(application, admin, monkeypatch, replace(OPTIONS, drain_timeout_s=60.0))
        await hosted.start()
        assert await anext(hosted.heard) == {"type": "ready"}
        running = asyncio.create_task(Exchange.unary(b"slow", path="/a.A/Held").run(hosted.entry))
        hosted.channel.send("drain")
        await until(lambda: "drain" in application.told)
        assert not hosted.exit_code.done()
        application.gate.set()
        assert (await running).status == (Code.OK, "")
        assert await hosted.exit_code == 0
        assert application.told == ["start", "held", "drain", "stop"]
        monkeypatch.setattr(os, "_exit", lambda _code: None)
        await hosted.close()


async def test_drain_ends_although_envoy_does_not_answer(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    hosted.channel.send("drain")
    assert await hosted.exit_code == LOST_REQUESTS
    assert "admin interface does not respond" in caplog.text


async def test_lost_supervisor_drains_and_ends(hosted: Hosted, caplog: pytest.LogCaptureFixture) -> None:
    await hosted.channel.close()
    assert await hosted.exit_code == 1
    assert hosted.application.told == ["start", "drain", "stop"]
    assert "The supervisor has ended" in caplog.text


async def test_application_that_will_never_serve_ends_undrained_and_says_why(hosted: Hosted) -> None:
    hosted.application.doomed.set()
    assert await anext(hosted.heard) == {"type": "failed", "why": "Nothing will ever be served."}
    assert await anext(hosted.heard, None) is None
    assert await hosted.exit_code == 1
    assert hosted.application.told == ["start", "stop"]


async def test_call_that_never_ends_is_cut(
    application: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with plain_envoy(OPTIONS, tmp_path) as admin:
        await until(EnvoyAdmin(admin).is_live)
        hosted = Hosted(application, admin, monkeypatch)
        await hosted.start()
        assert await anext(hosted.heard) == {"type": "ready"}
        running = asyncio.create_task(Exchange.unary(b"", path="/a.A/Held").run(hosted.entry))
        await until(lambda: "held" in application.told)
        hosted.channel.send("drain")
        assert await hosted.exit_code == LOST_REQUESTS
        assert "still in flight after 0.2 s" in caplog.text
        running.cancel()
        monkeypatch.setattr(os, "_exit", lambda _code: None)
        await hosted.close()


async def test_envoys_own_shutdown_stops_the_application(hosted: Hosted) -> None:
    hosted.lifespan_end.set()
    assert await hosted.exit_code == 0
    assert hosted.application.told == ["start", "stop"]


@pytest.mark.parametrize(("error", "logged"), [(HostError("No models."), False), (ValueError("a bug"), True)])
async def test_application_that_cannot_start_tells_why(
    error: Exception, logged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosted = Hosted(Recorded(start_error=error), tmp_path, monkeypatch)
    await hosted.start()
    assert await anext(hosted.heard) == {"type": "failed", "why": str(error)}
    assert await hosted.exit_code == 1
    await hosted.close()
    assert hosted.lifespan_sent == []  # Envoy would log a failed start
    assert ("could not start" in caplog.text) == logged


async def test_application_that_cannot_stop_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = Hosted(Recorded(stop_error=ValueError("a bug")), tmp_path, monkeypatch)
    await hosted.start()
    assert await anext(hosted.heard) == {"type": "ready"}
    hosted.lifespan_end.set()
    assert await hosted.exit_code == 1
    await hosted.close()


async def test_long_headers_refuse_only_their_request(hosted: Hosted) -> None:
    long = (b"x", bytes(61 << 10))
    assert (await Exchange.unary(b"x", long, path="/a.A/Echo").run(hosted.entry)).status == (
        Code.RESOURCE_EXHAUSTED,
        "Headers of more than 61440 bytes",
    )
    for path, headers in (("/v1/models/m", [long]), ("/v1/models/m?" + "x" * (61 << 10), [])):
        rest = await Exchange([body(b"")], path=path, headers=headers).run(hosted.entry)
        assert (rest.http_status, rest.content) == (431, b'{"error":"Headers of more than 61440 bytes"}')
