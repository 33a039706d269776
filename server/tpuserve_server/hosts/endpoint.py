"""Endpoint: the ASGI application of the server. It passes each request to gRPC or to REST, by its content type."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.access.credentials import CERTIFICATE_KEY
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.certificates import names_of_scope
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_headers import is_grpc_request
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import PART_BYTES, SMALL_BYTES, TAKEN_AHEAD_BYTES
from tpuserve_server.hosts.load_reports import ReportedResponses
from tpuserve_server.hosts.refusals import LONG_HEADERS, OVER_RATE, RateLimit, has_long_headers
from tpuserve_server.hosts.rest_calls import RestCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Receive, Scope, Send


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

        `loop` is the one of a server that cancels what this endpoint returns. See GrpcOverAsgi and RestCalls.
        """
        self._rest = RestCalls(application.rest, in_flight, application.overload_gate, application.rest_exchanges, loop)
        self._rpc = application.rpc
        self._responses = ChargedResponses(application.sending)
        self._rate = rate
        mode = options.load_reports
        self._reported = None if mode == "never" else ReportedResponses(application.load_reports, mode)
        self._traffic = application.traffic
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
        return self._rest.begin(scope, receive, send)

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
