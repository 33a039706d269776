"""TunnelResponse: a response from the engine as its host gets it, and its failure if the engine cannot complete it."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tpuserve_server.core.errors import Unavailable
from tpuserve_server.frontends.http.response import error_body, error_response, send_response
from tpuserve_server.hosts.grpc.asgi import answer, status_headers
from tpuserve_server.hosts.grpc.failure import RpcFailure
from tpuserve_server.hosts.grpc.headers import is_grpc_request

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send


class TunnelResponse:
    """The `send` of one call, with the state of its response."""

    def __init__(self, scope: "Scope", send: "Send") -> None:
        """Send the response to a request with `scope`."""
        self._send = send
        self._has_content = scope["method"] != "HEAD"
        # Only a gRPC client reads trailers, and errors among them.
        self.is_grpc = is_grpc_request(scope, ())
        self.is_complete = False
        self._has_begun = self._has_trailers = self._has_body = False

    @property
    def can_fail(self) -> bool:
        """Whether the client can still get an error: gRPC has one in the trailers."""
        return not self.is_complete and (self.is_grpc or not self._has_begun)

    async def send(self, message: "Message") -> None:
        """Send a message, and wait until the host accepts more. Raises OSError if the client has disconnected."""
        if message["type"] == "http.response.start":
            self._has_begun = True
            self._has_trailers = message.get("trailers", False)
        elif not message.get("more_body", False):
            is_body = message["type"] == "http.response.body"
            self._has_body = True
            self.is_complete = not (is_body and self._has_trailers)
        sent = self._send(message)
        # Do not cancel a future that the host owns, because the host will set its result.
        await (asyncio.shield(sent) if isinstance(sent, asyncio.Future) else sent)

    async def fail(self, failure: RpcFailure) -> None:
        """End the response with an error that has code UNAVAILABLE, if `can_fail`."""
        with contextlib.suppress(OSError):  # ASGI's signal for a disconnect.
            if not self.is_grpc:
                await self._fail_rest(failure.message)
            elif not self._has_begun:
                await answer(self._send, failure)
            else:
                if not self._has_body:
                    await self._send({"type": "http.response.body", "body": b""})
                await self._send({"type": "http.response.trailers", "headers": status_headers(failure)})

    async def _fail_rest(self, message: str) -> None:
        response = error_response(Unavailable(message), error_body(message))
        # Envoy would pass on the body to a client that expects none.
        await send_response(self._send, response if self._has_content else response._replace(body=b""))
