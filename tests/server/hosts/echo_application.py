"""An echo application that the host serves: `echo_application.py OPTIONS` is the supervisor.

It reports events as JSON lines on standard output.
"""

import asyncio
import dataclasses
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.access.access import OPEN
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, ServingError, TooLate
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement, Traffic
from tpuserve_server.hosts import serving_process, supervisor
from tpuserve_server.hosts.application import HostError, HostOptions, Listening, TlsOptions
from tpuserve_server.hosts.channel import VARIABLE
from tpuserve_server.observe.logs.configuration import configure_logging
from tpuserve_server.observe.metrics.load_report import LoadReports
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod, admit_every_call

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

UNASKED = {"/unread": (413, b""), "/hello": (200, b"hello")}
ERRORS: dict[Code, type[ServingError]] = {
    code: type(code.name, (ServingError,), {"code": code}) for code in Code if code is not Code.OK
}


def say(event: str, **fields: object) -> None:
    # One write: a server and its successor may share the pipe, and `print` may write the end of the line by itself.
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


async def _read_fifo(path: str) -> bytes:
    """Wait for a FIFO without a thread, because a thread would delay the end of the process."""
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(fifo, readable.set)
    await readable.wait()
    asyncio.get_running_loop().remove_reader(fifo)
    return os.read(fifo, 100)


class EchoApplication:
    """An application with every kind of method that a host supports, over bytes."""

    def __init__(self) -> None:
        configure_logging("text")
        if os.environ.get("ECHO_FAILS"):
            raise HostError("There is nothing to echo.")
        if fifo := os.environ.get("ECHO_LOADS"):
            Path(fifo).read_text()
        # By default larger than any message of a test.
        connection_bytes = int(os.environ.get("ECHO_RECEIVING_BYTES", 128 << 20))
        self.receiving = ReceivingBudget(4 * connection_bytes, connection_bytes, SystemClock())
        sending_bytes = int(os.environ.get("ECHO_SENDING_BYTES", 512 << 20))
        write_timeout_s = float(os.environ.get("ECHO_WRITE_TIMEOUT_S", HostOptions().write_timeout_s))
        self.sending = SendingBudget(sending_bytes, sending_bytes // 2, write_timeout_s, SystemClock())
        self.traffic = Traffic()
        self.load_reports = LoadReports(PrometheusMetrics(), SystemClock())
        self.overload_gate = OverloadGate(tuple, self.traffic, SystemClock())
        self._gate = asyncio.Event()
        self._doomed = asyncio.Event()
        self._hung = asyncio.Event()
        self.answered = 0
        table: RpcTable = {
            "/echo.Echo/Unary": UnaryMethod(self.unary, OPEN),
            "/echo.Echo/Size": UnaryMethod(self.size, OPEN),
            "/echo.Echo/Client": UnaryMethod(self.client, OPEN),
            "/echo.Echo/Held": UnaryMethod(self.held, OPEN),
            "/echo.Echo/Open": UnaryMethod(self.open, OPEN),
            "/echo.Echo/Context": UnaryMethod(self.context, OPEN),
            "/echo.Echo/Environment": UnaryMethod(self.environment, OPEN),
            "/echo.Echo/Fail": UnaryMethod(self.fail, OPEN),
            "/echo.Echo/Doom": UnaryMethod(self.doom, OPEN),
            "/echo.Echo/Hang": UnaryMethod(self.hang, OPEN),
            "/echo.Echo/Count": StreamMethod(self.count, OPEN),
            "/echo.Echo/Each": StreamMethod(self.each, OPEN),
            "/echo.Echo/Watch": StreamMethod(self.watch, OPEN),
        }
        self.rpc = admit_every_call(table)
        self._draining = False

    async def start(self) -> None:
        say("start")
        if port := os.environ.get("ECHO_TAKES_PORT"):
            self._taken = socket.create_server(("127.0.0.1", int(port)))

    async def ready(self) -> None:
        """Return at once, or after a test has written to a FIFO. After `doom`, never return."""
        if fifo := os.environ.get("ECHO_BECOMES_READY"):
            say("waits")
            if await _read_fifo(fifo) == b"doom":
                self._doomed.set()
                await asyncio.Event().wait()
        say("ready")

    async def failure(self) -> str:
        await self._doomed.wait()
        return "There will never be an echo."

    async def replacement(self) -> Replacement:
        await self._hung.wait()
        return Replacement("hung run", "an echo has taken too long")

    def announce(self, listening: Listening) -> None:
        say("announce", **dataclasses.asdict(listening), pid=os.getpid())

    def show_certificates(self, status: CertificateStatus) -> None:
        say("certificates", **dataclasses.asdict(status))

    def reload(self) -> None:
        say("reload")

    def drain(self) -> None:
        self._draining = True
        say("drain")

    async def stop(self) -> None:
        say("stop", answered=self.answered)
        if os.environ.get("ECHO_NEVER_STOPS"):
            # Simulate a stuck model in a thread, which cannot be cancelled.
            await asyncio.to_thread(threading.Event().wait)
        if os.environ.get("ECHO_CANNOT_STOP"):
            raise ZeroDivisionError("a bug in stop")

    async def doom(self, request: bytes, _context: CallContext) -> bytes:
        self._doomed.set()
        return request

    async def hang(self, request: bytes, _context: CallContext) -> bytes:
        self._hung.set()
        return request

    async def unary(self, request: bytes, _context: CallContext) -> bytes:
        self.answered += 1
        return request

    async def client(self, _request: bytes, context: CallContext) -> bytes:
        """Return the client's address."""
        return str(context.find_client()).encode()

    async def size(self, request: bytes, _context: CallContext) -> bytes:
        """Return as many bytes as the request's number, or the size of a request that is not a number."""
        return bytes(int(request)) if request.isdigit() else str(len(request)).encode()

    async def held(self, request: bytes, _context: CallContext) -> bytes:
        say("held")
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            say("cancelled")
            raise
        self.answered += 1
        return request

    async def open(self, _request: bytes, _context: CallContext) -> bytes:
        self._gate.set()
        return b""

    async def context(self, _request: bytes, context: CallContext) -> bytes:
        remaining_s = context.deadline.remaining_s(asyncio.get_running_loop().time())
        deadline = remaining_s if context.deadline.is_finite else None
        return json.dumps(
            {"metadata": dict(context.metadata), "deadline": deadline, "priority": context.priority}
        ).encode()

    async def environment(self, _request: bytes, _context: CallContext) -> bytes:
        return json.dumps({**os.environ, "own_pid": os.getpid(), "cwd": os.getcwd(), "path": sys.path}).encode()

    async def fail(self, request: bytes, _context: CallContext) -> bytes:
        code, _, message = request.decode().partition(" ")
        if code == "late":
            raise TooLate("come again later", float(message))
        if code == "bug":
            raise ZeroDivisionError("a secret of the server")
        raise ERRORS[Code[code]](message)

    async def count(self, requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            for number in range(int(request)):
                yield str(number).encode()
            raise ERRORS[Code.ABORTED]("counted, and that is all")

    async def each(self, requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def watch(self, _requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        try:
            yield b"watching"
            say("watching")
            await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            # GeneratorExit occurs when a cancellation arrives while the message is being sent.
            say("cancelled")
            raise

    rest_exchanges = None

    async def rest(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve the REST routes.

        POST echoes up to a limit. /ready returns the readiness, /pid the process. /held waits until its client leaves,
        /stuck until /open. /unread and /hello respond without reading the body.
        """
        if scope["path"] in UNASKED:
            status, content = UNASKED[scope["path"]]
            headers = [(b"content-length", b"%d" % len(content))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            return await send({"type": "http.response.body", "body": content})
        limit = 1 << 20 if scope["path"] == "/limited" else 1 << 40
        body = bytearray()
        while len(body) <= limit:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status = 413 if len(body) > limit else 503 if scope["path"] == "/ready" and self._draining else 200
        if scope["path"] == "/pid":
            body += str(os.getpid()).encode()
        if scope["path"] == "/open":
            self._gate.set()
        if scope["path"] == "/held":
            say("held")
            say((await receive())["type"])
        if scope["path"] == "/stuck":
            say("held")
            await self._gate.wait()
        self.answered += 1
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-echo", b"1")]})
        await send({"type": "http.response.body", "body": bytes(body) if status == 200 else b""})
        return None


def read_tls() -> TlsOptions:
    """Read the certificates again from a test's file, after SIGHUP or a change."""
    try:
        return TlsOptions(**json.loads(Path(os.environ["ECHO_TLS"]).read_text()))
    except FileNotFoundError:
        raise HostError("ECHO_TLS does not exist.") from None


def main() -> int:
    configure_logging("text")
    if VARIABLE in os.environ:
        serving_process.run(EchoApplication, read_tls)
    given = json.loads(sys.argv[1])
    if given.get("tls"):
        given["tls"] = TlsOptions(**given["tls"])
    return supervisor.run("echo_application", HostOptions(**given), {})


if __name__ == "__main__":
    sys.exit(main())
