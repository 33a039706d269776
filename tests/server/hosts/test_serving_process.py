"""Tests for the life of an application under a supervisor, in this process: orders, starts and ends."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement, Traffic
from tpuserve_server.hosts import serving_process
from tpuserve_server.hosts.application import HostError, HostOptions, Listening
from tpuserve_server.hosts.channel import LOST_REQUESTS, ORPHANED, VARIABLE, Channel, ProcessSetup
from tpuserve_server.hosts.http_server import HttpServer
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.rpc import admit_every_call

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

OPTIONS = HostOptions(bind_address="127.0.0.1", grpc_port=None, rest_port=0, drain_timeout_s=0.2)
LISTENING = Listening(rest="127.0.0.1:1")


class Recorded:
    """An application that records its events."""

    def __init__(self, start_error: Exception | None = None, stop_error: Exception | None = None) -> None:
        self.told: list[object] = []
        self.gate = asyncio.Event()
        self.doomed = asyncio.Event()
        self.hung = asyncio.Event()
        self.entered = asyncio.Event()
        self.receiving = ReceivingBudget(1 << 20, 1 << 20, SystemClock())
        self.sending = SendingBudget(1 << 20, 1 << 20, 30, SystemClock())
        self.overload_gate = OPEN_GATE
        self.traffic = Traffic()
        self.load_reports = LoadReports(PrometheusMetrics(), SystemClock())
        self.rpc = admit_every_call({})
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

    rest_exchanges = None

    async def rest(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer with the path. `/held` waits for ever."""
        if scope["path"] == "/held":
            self.entered.set()
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


class Ended(Exception):
    """The process would have ended with this code."""


class Life:
    """A process that runs as a task, and the supervisor's end of its channel."""

    def __init__(self, application: Recorded, supervisor: Channel, running: "asyncio.Task[None]", port: int) -> None:
        self.application = application
        self.order = supervisor.send
        self.heard = supervisor.messages()
        self.running = running
        self.port = port
        self._supervisor = supervisor

    async def hear(self, kind: str) -> dict[str, Any]:
        message = await anext(self.heard)
        assert message["type"] == kind, message
        return message

    async def open(self) -> None:
        await self.hear("loading")
        await self.hear("open")
        self.order("announce", listening=asdict(LISTENING))

    async def leave(self) -> None:
        """End as the supervisor, so that the process is alone."""
        await self._supervisor.close()

    async def exit_code(self) -> int:
        with pytest.raises(Ended) as ended:
            await self.running
        code: int = ended.value.args[0]
        return code


@pytest.fixture
async def live(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Yield a function that starts a process with an application, options and `is_respawn`."""

    def end(code: int) -> None:
        raise Ended(code)

    servers: list[HttpServer] = []

    class Server(HttpServer):
        def __init__(self, make: Any, sockets: dict[str, socket.socket], options: HostOptions) -> None:  # noqa: ANN401
            super().__init__(make, sockets, options)
            servers.append(self)

    # A real exit would end the tests, and leave its sockets to the system.
    monkeypatch.setattr(serving_process, "end_process", end)
    monkeypatch.setattr(serving_process, "HttpServer", Server)
    lives: list[Life] = []

    async def start(application: Recorded | None = None, *, is_respawn: bool = False, **options: Any) -> Life:  # noqa: ANN401
        application = application or Recorded()
        ours, theirs = socket.socketpair()
        rest = socket.socket()
        rest.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rest.bind(("127.0.0.1", 0))
        setup = ProcessSetup(
            replace(OPTIONS, **options), {"rest": rest.fileno()}, theirs.detach(), -1, is_respawn=is_respawn
        )
        port = rest.getsockname()[1]
        rest.detach()
        supervisor = await Channel.over(ours)
        supervisor.send("start", tls=None)
        running = asyncio.create_task(serving_process._run(lambda: application, None, setup))
        lives.append(Life(application, supervisor, running, port))
        return lives[-1]

    yield start
    # A process that is cancelled leaves its end of the channel to the system.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for life in lives:
            life.running.cancel()
            with contextlib.suppress(BaseException):
                await life.running
            await life.leave()
        await asyncio.gather(*(server.close() for server in servers))
        lives.clear()
        gc.collect()


async def request(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    return response


async def test_orders_reach_the_application_before_the_drain(live: Callable[..., Any]) -> None:
    life = await live()
    await life.open()
    assert (await request(life.port, "/here")).endswith(b"\r\n\r\n/here")
    life.order("reload")
    life.order("drain")
    assert await life.exit_code() == 0
    assert life.application.told == ["start", LISTENING, "reload", "drain", "stop"]
    with pytest.raises(ConnectionRefusedError):
        await request(life.port, "/here")


async def test_ports_open_once_the_application_is_ready(live: Callable[..., Any]) -> None:
    life = await live(opens_when_ready=True)
    await life.hear("loading")
    with pytest.raises(ConnectionRefusedError):
        await request(life.port, "/here")
    life.application.gate.set()
    await life.hear("open")
    assert (await request(life.port, "/here")).endswith(b"\r\n\r\n/here")


async def test_a_later_process_waits_for_its_models_but_not_for_ever(
    live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_process, "_RESPAWN_S", 0.05)
    life = await live(is_respawn=True)
    await life.hear("loading")
    await life.hear("open")


async def test_drain_before_the_ports_open_ends_the_process(live: Callable[..., Any]) -> None:
    life = await live(opens_when_ready=True)
    life.order("drain")
    assert await life.exit_code() == 0
    assert life.application.told == ["start", "stop"]


async def test_supervisor_that_is_gone_before_the_ports_open_ends_the_process(live: Callable[..., Any]) -> None:
    life = await live(opens_when_ready=True)
    await life.leave()
    assert await life.exit_code() == ORPHANED


async def test_application_that_will_never_be_ready_ends_the_process_with_the_reason(live: Callable[..., Any]) -> None:
    life = await live(opens_when_ready=True)
    await life.hear("loading")
    life.application.doomed.set()
    assert (await life.hear("failed"))["why"] == "Nothing will ever be served."
    assert await life.exit_code() == 1


@pytest.mark.parametrize(
    ("error", "why"), [(HostError("No models."), "No models."), (ZeroDivisionError(), "ZeroDivisionError")]
)
async def test_application_that_cannot_start_ends_the_process_with_the_reason(
    live: Callable[..., Any], error: Exception, why: str
) -> None:
    life = await live(Recorded(start_error=error))
    assert (await life.hear("failed"))["why"] == why
    assert await life.exit_code() == 1


async def test_damage_is_reported_before_the_process_drains(live: Callable[..., Any]) -> None:
    life = await live(drain_delay_s=600)
    await life.open()
    life.application.hung.set()
    assert await life.hear("replace") == {"type": "replace", "damage": "hung run", "why": "a run has taken too long"}
    assert await life.exit_code() == 0
    assert life.application.told[-2:] == ["drain", "stop"]


async def test_loss_of_the_supervisor_drains(live: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    life = await live()
    await life.open()
    await life.leave()
    assert await life.exit_code() == ORPHANED
    assert life.application.told[-2:] == ["drain", "stop"]
    assert "The supervisor has ended" in caplog.text


async def test_requests_that_never_end_are_cut(live: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    life = await live()
    await life.open()
    held = asyncio.create_task(request(life.port, "/held"))
    await life.application.entered.wait()
    life.order("drain")
    assert await life.exit_code() == LOST_REQUESTS
    assert (await held).startswith(b"HTTP/1.1 503 ")
    assert "Cancelled the requests that were still in flight after 0.2 s: 1 without" in caplog.text


async def test_application_that_cannot_stop_is_an_error(
    live: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    life = await live(Recorded(stop_error=ZeroDivisionError()))
    await life.open()
    with caplog.at_level(logging.ERROR):
        life.order("drain")
        assert await life.exit_code() == 1
    assert "The application failed to stop" in caplog.text


async def test_address_that_another_process_has_taken_ends_the_process(live: Callable[..., Any]) -> None:
    life = await live(opens_when_ready=True)
    await life.hear("loading")
    with socket.create_server(("127.0.0.1", life.port)):
        life.application.gate.set()
        assert "the address is in use" in (await life.hear("failed"))["why"]
    assert await life.exit_code() == 1


def test_the_setup_comes_from_the_environment_and_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = ProcessSetup(OPTIONS, {"rest": 5}, 3, 4, is_respawn=True)
    monkeypatch.setenv(VARIABLE, setup.to_json())
    assert ProcessSetup.from_environment().to_json() == setup.to_json()
    assert VARIABLE not in os.environ


@dataclass
class Stopping:
    """An application whose only tested method is `stop`."""

    fault: Exception | None = None
    lasts: bool = False

    async def stop(self) -> None:
        if self.fault is not None:
            raise self.fault
        if self.lasts:
            await asyncio.Event().wait()


async def test_a_stop_that_ends_is_waited_for() -> None:
    assert await serving_process.stop_in_time(Stopping())  # type: ignore[arg-type]  # all that is asked of it


async def test_what_a_stop_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="stuck"):
        await serving_process.stop_in_time(Stopping(RuntimeError("stuck")))  # type: ignore[arg-type]  # as above


async def test_a_stop_without_end_is_given_up_and_what_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving_process, "STOP_TIMEOUT_S", 0.05)
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="a-model-that-runs")
    thread.start()
    try:
        with caplog.at_level(logging.ERROR):
            assert not await serving_process.stop_in_time(Stopping(lasts=True))  # type: ignore[arg-type]  # as above
    finally:
        gate.set()
        thread.join()
    assert "a-model-that-runs" in caplog.text
