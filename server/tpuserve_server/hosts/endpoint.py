"""Endpoint: the ASGI application of the server. It passes each request to gRPC or to REST, by its content type."""

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.access.credentials import CERTIFICATE_KEY
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.certificates import names_of_scope
from tpuserve_server.hosts.departed_clients import DepartedClients
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_headers import is_grpc_request
from tpuserve_server.hosts.grpc_status import SHUTTING_DOWN
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import PART_BYTES, SMALL_BYTES, TAKEN_AHEAD_BYTES
from tpuserve_server.hosts.load_reports import ReportedResponses
from tpuserve_server.hosts.refusals import LONG_HEADERS, OVER_RATE, OVERLOADED, RateLimit, has_long_headers, is_late

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Endpoint:
    """Answers `http` scopes. One event loop's thread owns it."""

    def __init__(
        self,
        application: Application,
        options: HostOptions,
        in_flight: InFlight,
        rate: RateLimit | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Serve `application`. `in_flight` counts the calls, and `rate` limits inference requests.

        `loop` is the one of a server that cancels what this endpoint returns. See GrpcOverAsgi.
        """
        self._rest = RestCalls(application.rest, in_flight, application.overload_gate)
        self._rpc = application.rpc
        self._responses = ChargedResponses(application.sending)
        self._rate = rate
        mode = options.load_reports
        self._reported = None if mode == "never" else ReportedResponses(application.load_reports, mode)
        self._traffic = application.traffic
        self._departed = DepartedClients()
        # The clients of connections with a call that waits for `release`.
        self._held: set[tuple[str, int] | None] = set()
        self._released = asyncio.Event()
        self._has_client_ca = options.tls is not None and options.tls.client_ca is not None
        self._grpc = GrpcOverAsgi(
            application.rpc,
            max_message_bytes=options.max_message_bytes,
            in_flight=in_flight,
            receiving=application.receiving,
            sending=application.sending,
            gate=application.overload_gate,
            loop=loop,
        )

    def __call__(  # all branches return an awaitable; `async def` would need a task for each of them
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Awaitable[None]":
        """Answer an HTTP request, or refuse a WebSocket."""
        if scope["type"] != "http":
            return send({"type": "websocket.close"})
        self._traffic.requests[scope["http_version"]] += 1
        # A loop over the headers takes twice as long.
        headers = dict(scope["headers"])
        is_grpc = is_grpc_request(scope, headers, self._rpc)
        if has_long_headers(scope):
            self._traffic.refused["header_size"] += 1
            return LONG_HEADERS.send(send, is_grpc=is_grpc)
        if self._rate is not None and self._rate.is_over(scope):
            self._traffic.refused["rate"] += 1
            return OVER_RATE.send(send, is_grpc=is_grpc, retry_after_s=self._rate.retry_after_s)
        if self._has_client_ca:
            scope[CERTIFICATE_KEY] = partial(names_of_scope, scope)
        send = self._responses.charged(scope, send)
        if self._reported is not None:
            send = self._reported.reported(scope, headers, send, is_grpc=is_grpc)
        if is_grpc:
            if self._rest.farewell:
                return self._hold(scope, receive, send)
            return self._grpc.begin(scope, headers, receive, send)
        if scope["http_version"] == "1.1":
            receive = self._departed.receive(scope, receive)
        return self._rest(scope, receive, send)

    async def _hold(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a call, and keep the task of one answered call of each connection until `release`.

        The server closes a connection without tasks as soon as it has said GOAWAY, and calls on their way would fail.
        With a task, it refuses them first, and clients retry refused calls by themselves (RFC 9113, 8.7).
        """
        await self._grpc(scope, receive, send)
        client = scope.get("client")
        if client not in self._held:
            self._held.add(client)
            await self._released.wait()

    def release(self) -> None:
        """End the tasks that wait for it."""
        self._released.set()

    @property
    def holds(self) -> bool:
        """Whether tasks wait for `release`."""
        return bool(self._held)

    def take_farewells(self) -> int:
        """Return the number of responses that have asked their client to connect again since the last call."""
        taken, self._rest.farewells = self._rest.farewells, 0
        return taken

    def say_farewell(self) -> None:
        """Ask clients of HTTP/1.1 with every response to close their connection."""
        self._rest.farewell = True


_CLOSE = (b"connection", b"close")
# The error form of the REST application.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]


class RestCalls:
    """ASGI application around another one. One event loop's thread owns it."""

    def __init__(self, app: "ASGIApp", in_flight: InFlight, gate: OverloadGate) -> None:
        """Count the calls of `app` in `in_flight`, and refuse those that `gate` predicts to be late."""
        self._app = app
        self._gate = gate
        self._clock = SystemClock()
        self._in_flight = in_flight
        # Whether every response asks its client to close the connection.
        self.farewell = False
        # Responses that have asked for it.
        self.farewells = 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer an `http` scope."""
        if self.farewell and scope["http_version"] == "1.1":
            send = self._with_farewell(send)
        if self._gate.may_refuse and is_late(self._gate, scope, self._clock):
            return await OVERLOADED.send(send, is_grpc=False)
        begun = False

        # A plain function returns the server's own awaitable.
        def send_on(message: "Message") -> "Awaitable[None]":
            nonlocal begun
            begun = True
            return send(message)

        task = self._in_flight.begin()
        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            # A response that has begun cannot be replaced: raise, so that the server closes the connection.
            if begun or not self._in_flight.is_cut:
                raise
            await send({"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS})
            await send({"type": "http.response.body", "body": _CUT_BODY})
        finally:
            self._in_flight.end(task)
        return None

    def _with_farewell(self, send: "Send") -> "Send":
        def send_on(message: "Message") -> "Awaitable[None]":
            if message["type"] == "http.response.start":
                self.farewells += 1
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            return send(message)

        return send_on


class ChargedResponses:
    """Charges responses to the budget of those that clients have not read, in parts, for any ASGI server.

    A server that conforms makes `send` wait while its client takes no bytes. The budget then cuts the response, and
    `send` raises ResponseCut, which is an OSError as after a disconnect. One event loop's thread owns it.
    """

    def __init__(self, budget: SendingBudget) -> None:
        """Charge to `budget`."""
        self._budget = budget

    def charged(self, scope: "Scope", send: "Send") -> "Send":
        """Return a `send` that charges the response to a request."""

        # A plain function returns the server's own awaitable for a small response, so that it costs nothing more.
        def send_on(message: "Message") -> "Awaitable[None]":
            body = message.get("body")
            if body is None or (len(body) <= SMALL_BYTES and not message.get("more_body", False)):
                return send(message)
            return self._deliver(scope, send, message, body)

        return send_on

    async def _deliver(self, scope: "Scope", send: "Send", message: "Message", body: bytes) -> None:
        with self._budget.begin(scope.get("client"), len(body)) as delivery:
            more_body, at = message.get("more_body", False), 0
            while len(body) - at > PART_BYTES:
                await delivery.wait(send({**message, "body": body[at : at + PART_BYTES], "more_body": True}))
                at += PART_BYTES
                if at > TAKEN_AHEAD_BYTES:
                    delivery.taken()
            await delivery.wait(send({**message, "body": body[at:], "more_body": more_body}))
