"""gRPC as an ASGI application, for any server that supports HTTP/2 with trailers."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuserve_server.access.credentials import CERTIFICATE_KEY, no_certificate
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.system.at_once import take_at_once
from tpuserve_server.core.terms.deadline import Clock, SystemClock
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import Body
from tpuserve_server.hosts.grpc_frames import FrameReader, whole_message
from tpuserve_server.hosts.grpc_headers import (
    TRACE_NAME,
    deadline_of,
    is_grpc,
    trace_headers_of,
)
from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.hosts.grpc_status import (
    END,
    SHUTTING_DOWN,
    RpcFailure,
    answer,
    failure_of,
    send_all,
    unknown_method,
)
from tpuserve_server.hosts.grpc_streams import StreamedResponse
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import SMALL_BYTES
from tpuserve_server.hosts.quick_rpc import QuickRpc
from tpuserve_server.hosts.refusals import OVERLOADED, call_lateness_s, refuse_late_call
from tpuserve_server.observe.requests.trace_context import REQUEST_ID_HEADER, echo_request_id
from tpuserve_server.protocols.control import asgi_client
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS
from tpuserve_server.protocols.interruption import INTERVAL_S, Interruption, Interruptions
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.rpc import (
    CallContext,
    GuardedMethod,
    GuardedTable,
    GuardedUnary,
    Lane,
    Trailers,
    UnaryHandler,
)
from tpuserve_server.protocols.timing import TIMING_REQUEST_HEADER, wants_timing

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_PRIORITY = PRIORITY_HEADER.encode()
_TIMING = TIMING_REQUEST_HEADER.encode()
_REQUEST_ID = REQUEST_ID_HEADER.encode()
_NO_TRAILERS = RpcFailure(Code.INTERNAL, "The request lacks the header te: trailers, which gRPC requires")


class GrpcOverAsgi:
    """Serves a GuardedTable. Runs on one event loop."""

    def __init__(
        self,
        rpc: GuardedTable,
        *,
        max_message_bytes: int,
        in_flight: InFlight,
        receiving: ReceivingBudget,
        sending: SendingBudget,
        gate: OverloadGate,
        clock: Clock | None = None,
        poll_interval_s: float = INTERVAL_S,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """With the running `loop`, calls of lanes need no task.

        `allow_quick_calls` has prepared it, and the server cancels what this application returns when a client leaves.
        """
        self._rpc = rpc
        self._loop = loop
        self._gate = gate
        self._receiving = receiving
        self._sending = sending
        self._max_message_bytes = max_message_bytes
        self._in_flight = in_flight
        self._clock = clock or SystemClock()
        self._interruptions = Interruptions(poll_interval_s)

    def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> Awaitable[None]:
        """Answer one HTTP request. Non-gRPC requests get status 405 or 415, all others 200 and a grpc-status."""
        return self.begin(scope, dict(scope["headers"]), receive, send)

    def begin(self, scope: "Scope", headers: dict[bytes, bytes], receive: "Receive", send: "Send") -> Awaitable[None]:
        """Answer as `__call__`, with the headers by name."""
        method = self._rpc.get(scope["path"])
        if (
            self._loop is not None
            and isinstance(method, GuardedUnary)
            and method.lane is not None
            and headers.get(b"content-type") == b"application/grpc"
            and b"grpc-encoding" not in headers
            and scope["method"] == "POST"
            and "http.response.trailers" in scope.get("extensions", ())
            and not self._gate.may_refuse
        ):
            return self._begin_quickly(self._loop, method.lane, method.max_message_bytes, scope, headers, receive, send)
        return self._answer(scope, headers, receive, send)

    def _begin_quickly(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: Lane,
        limit_bytes: int | None,
        scope: "Scope",
        headers: dict[bytes, bytes],
        receive: "Receive",
        send: "Send",
    ) -> Awaitable[None]:
        """Begin a call of a method with a lane, in a task if the lane does not take it."""
        first, coming = take_at_once(receive())
        if first is None:
            return self._answer(scope, headers, receive, send, coming)
        request = whole_message(first, self._limit(limit_bytes))
        if request is not None:
            try:
                context = self._context(scope, headers, [], is_unary=True)
            except ServingError:  # The task reports it.
                return self._answer(scope, headers, receive, send, first)
            call = QuickRpc(scope, send, context, self._in_flight, self._sending, self._clock, loop)
            if call.begin(lane, request):
                return call
            return self._answer(scope, headers, receive, send, first, lane.long_way)
        return self._answer(scope, headers, receive, send, first)

    async def _answer(
        self,
        scope: "Scope",
        headers: dict[bytes, bytes],
        receive: "Receive",
        send: "Send",
        coming: "Message | Awaitable[Message] | None" = None,
        long_way: UnaryHandler | None = None,
    ) -> None:
        """Answer a request in a task.

        `coming` is the first message, if it has been requested. `long_way` answers a call that its lane has left.
        """
        if scope["method"] != "POST":
            return await _refuse(send, 405, (b"allow", b"POST"))
        if not is_grpc(headers.get(b"content-type", b"")):
            return await _refuse(send, 415, (b"accept-post", b"application/grpc"))
        if "http.response.trailers" not in scope.get("extensions", ()):
            return await answer(send, _NO_TRAILERS)
        if self._gate.may_refuse and (late_s := call_lateness_s(self._gate, scope, headers, self._clock)):
            return await refuse_late_call(send, late_s)
        task = self._in_flight.begin()
        try:
            trailers: Trailers = []
            reply = await self._reply(scope, headers, receive, send, trailers, task, coming, long_way)
            if reply is not None:
                sending = answer(send, reply, trailers)
                # The client may read slowly.
                del reply
                await sending
        finally:
            self._in_flight.end(task)
        return None

    async def _reply(
        self,
        scope: "Scope",
        headers: dict[bytes, bytes],
        receive: "Receive",
        send: "Send",
        trailers: Trailers,
        task: "asyncio.Task[Any]",
        coming: "Message | Awaitable[Message] | None",
        long_way: UnaryHandler | None,
    ) -> bytes | RpcFailure | None:
        """Return the response to one call, or None if a stream has sent it. A unary method may add to `trailers`.

        `task` is the current one. `coming` is the first message, if it has been requested. `long_way` answers a call
        that its lane has left, and which needs no admission.
        """
        path = scope["path"]
        method = self._rpc.get(path)
        if method is None:
            return unknown_method(path)
        try:
            context = self._context(scope, headers, trailers, is_unary=isinstance(method, GuardedUnary))
            # Before `receive` is called, or memory is held for the message.
            if isinstance(method, GuardedUnary):
                handle = long_way or await method.admit(context)
                first: Message | None = None
                request: Body | None = None
                if b"grpc-encoding" not in headers:
                    coming = coming or receive()
                    first = await coming if isinstance(coming, Awaitable) else coming
                    request = whole_message(first, self._limit(method.max_message_bytes))
                if request is None:
                    request = await self._frames(scope, headers, receive, method).only(first)
                reply = await self._unary(handle, path, context, request, receive, task)
                if isinstance(reply, bytes) and len(reply) > SMALL_BYTES:
                    self._sending.check_room(scope.get("client"), len(reply))
                return reply
            respond = await method.admit(context)
            interruption = Interruption(self._interruptions, receive, task)
            # The interruption reads ahead to notice a disconnect.
            frames = self._frames(scope, headers, interruption.receive, method)
            check_room = partial(self._sending.check_room, scope.get("client"))
            response = StreamedResponse(send, check_room, path, trailers, self._in_flight, self._clock)
            await response.answer(respond, context, frames, interruption, task)
            return None
        except Exception as error:  # A front-end's edge: the client gets a status for every error.
            return failure_of(error, path, trailers)

    def _context(
        self, scope: "Scope", headers: dict[bytes, bytes], trailers: Trailers, *, is_unary: bool
    ) -> CallContext:
        """Return the context of a call. Raises Internal if its timeout is malformed."""
        request_id = headers.get(_REQUEST_ID)
        if request_id is not None:
            echo_request_id(request_id, trailers)
        return CallContext(
            deadline_of(headers.get(b"grpc-timeout"), self._clock),
            Metadata(scope["headers"]),
            headers.get(_PRIORITY),
            partial(asgi_client, scope),
            self._clock.monotonic_s() if is_unary else 0.0,
            trailers if is_unary else None,
            _TIMING in headers and wants_timing(headers[_TIMING]),
            trace_headers_of(scope["headers"]) if TRACE_NAME in headers else None,
            request_id,
            scope.get(CERTIFICATE_KEY, no_certificate),
        )

    def _frames(
        self, scope: "Scope", headers: dict[bytes, bytes], receive: "Receive", method: GuardedMethod
    ) -> FrameReader:
        encoding = headers.get(b"grpc-encoding", b"identity")
        begin_upload = partial(self._receiving.begin, scope.get("client"))
        limit_bytes = self._limit(method.max_message_bytes)
        return FrameReader(receive, limit_bytes, encoding, begin_upload, method.find_contents)

    def _limit(self, limit_bytes: int | None) -> int:
        return self._max_message_bytes if limit_bytes is None else min(limit_bytes, self._max_message_bytes)

    async def _unary(
        self,
        handle: UnaryHandler,
        path: str,
        context: CallContext,
        request: Body,
        receive: "Receive",
        task: "asyncio.Task[Any]",
    ) -> bytes | RpcFailure:
        # Calls that arrive together are all checked before any of them is queued. From here on, a call is queued before
        # the next one is checked.
        if self._gate.may_refuse and path in INFERENCE_PATHS:
            late_s = self._gate.lateness_s(context.deadline, context.started_s)
            if late_s:
                return RpcFailure(Code.RESOURCE_EXHAUSTED, OVERLOADED.message, late_s)
        try:
            with Interruption(self._interruptions, receive, task) as interruption:
                interruption.expire_at(context.deadline, self._clock)
                return await handle(request, context)
        except asyncio.CancelledError:
            if self._in_flight.is_cut:
                return SHUTTING_DOWN
            raise


async def _refuse(send: "Send", status: int, why: tuple[bytes, bytes]) -> None:
    headers = [(b"content-length", b"0"), why]
    await send_all(send, {"type": "http.response.start", "status": status, "headers": headers}, END)
