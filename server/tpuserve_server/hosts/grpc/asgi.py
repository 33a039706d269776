"""gRPC as an ASGI application, for any server that supports HTTP/2 with trailers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuserve_server.access.certificate import CERTIFICATE_KEY, no_certificate
from tpuserve_server.core.serving.overload_gate import OverloadGate
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.system.timers import RareTimersByLoop
from tpuserve_server.core.terms.deadline import Clock, SystemClock
from tpuserve_server.core.terms.errors import Cancelled, Code
from tpuserve_server.hosts.disconnects import Caller, DisconnectWatch
from tpuserve_server.hosts.grpc.failure import PUSHBACK, SHUTTING_DOWN, RpcFailure, failure_of, unknown_method
from tpuserve_server.hosts.grpc.frames import ACCEPTED_ENCODINGS, FrameReader, Receiving, frame, whole_message
from tpuserve_server.hosts.grpc.headers import (
    TRACE_NAME,
    Metadata,
    deadline_of,
    encode_message,
    is_grpc,
    trace_headers_of,
)
from tpuserve_server.hosts.grpc.interruption import Interruption
from tpuserve_server.hosts.grpc.refusal import lateness_s, refuse
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.inference_paths import OVERLOADED
from tpuserve_server.hosts.unread_response import SMALL_BYTES
from tpuserve_server.observe.requests.request_id import REQUEST_ID_HEADER, echo_request_id
from tpuserve_server.protocols.control import asgi_client
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS
from tpuserve_server.protocols.guarded import GuardedTable, GuardedUnary, StreamHandler, UnaryHandler
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.rpc import CallContext, Trailers
from tpuserve_server.protocols.timing import TIMING_REQUEST_HEADER, wants_timing

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_PRIORITY = PRIORITY_HEADER.encode()
_TIMING = TIMING_REQUEST_HEADER.encode()
_REQUEST_ID = REQUEST_ID_HEADER.encode()
_CONTENT_TYPE = (b"content-type", b"application/grpc")
# Servers do not modify messages, so all calls share these.
_START: "Message" = {"type": "http.response.start", "status": 200, "headers": [_CONTENT_TYPE], "trailers": True}
_END: "Message" = {"type": "http.response.body", "body": b""}
_NO_TRAILERS = RpcFailure(Code.INTERNAL, "The request lacks the header te: trailers, which gRPC requires")
_OK: "Message" = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}


class GrpcOverAsgi:
    """Serves a GuardedTable. Runs on one event loop."""

    def __init__(
        self,
        rpc: GuardedTable,
        *,
        max_message_bytes: int,
        in_flight: InFlight,
        watch: DisconnectWatch,
        receiving: ReceivingBudget,
        sending: SendingBudget,
        gate: OverloadGate,
        clock: Clock | None = None,
    ) -> None:
        self._rpc = rpc
        self._gate = gate
        self._receiving = receiving
        self._sending = sending
        self._max_message_bytes = max_message_bytes
        self._in_flight = in_flight
        self._watch = watch
        self._clock = clock or SystemClock()
        self._timers = RareTimersByLoop()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one HTTP request. Non-gRPC requests get status 405 or 415, all others 200 and a grpc-status."""
        headers = dict(scope["headers"])
        if scope["method"] != "POST":
            return await _refuse(send, 405, (b"allow", b"POST"))
        if not is_grpc(headers.get(b"content-type", b"")):
            return await _refuse(send, 415, (b"accept-post", b"application/grpc"))
        if "http.response.trailers" not in scope.get("extensions", ()):
            return await answer(send, _NO_TRAILERS)
        if self._gate.may_refuse and (late_s := lateness_s(self._gate, scope, headers, self._clock)):
            return await refuse(send, late_s)
        task = self._in_flight.begin()
        try:
            trailers: Trailers = []
            await answer(send, await self._reply(scope, headers, receive, send, trailers, task), trailers)
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
        task: "asyncio.Task[Any] | None",
    ) -> bytes | RpcFailure | None:
        """Return the response to one call, or None if a stream has sent it. A unary method may add to `trailers`.

        `task` is the current one.
        """
        path = scope["path"]
        method = self._rpc.get(path)
        if method is None:
            return unknown_method(path)
        try:
            is_unary = isinstance(method, GuardedUnary)
            request_id = headers.get(_REQUEST_ID)
            if request_id is not None:
                echo_request_id(request_id, trailers)
            context = CallContext(
                deadline_of(headers.get(b"grpc-timeout"), self._clock),
                Metadata(scope["headers"]),
                headers.get(_PRIORITY),
                partial(asgi_client, scope),
                self._clock.monotonic_s() if is_unary else 0.0,
                trailers if is_unary else None,
                wants_timing(headers.get(_TIMING)),
                trace_headers_of(scope["headers"]) if TRACE_NAME in headers else None,
                request_id,
                scope.get(CERTIFICATE_KEY, no_certificate),
            )
            # Before `receive` is called, or memory is held for the message.
            if isinstance(method, GuardedUnary):
                handle = await method.admit(context)
                first, request = None, None
                if b"grpc-encoding" not in headers:
                    first = await receive()
                    request = whole_message(first, self._limit(method.max_message_bytes))
                if request is None:
                    request = await self._frames(scope, headers, receive, method.max_message_bytes).only(first)
                reply = await self._unary(handle, path, context, request, receive, task)
                if isinstance(reply, bytes) and len(reply) > SMALL_BYTES:
                    self._sending.check_room(scope.get("client"), len(reply))
                return reply
            respond = await method.admit(context)
            frames = self._frames(scope, headers, receive, method.max_message_bytes)
            check_room = partial(self._sending.check_room, scope.get("client"))
            await self._stream(respond, context, frames, receive, _StreamedResponse(send, check_room, path, trailers))
            return None
        except Exception as error:  # A front-end's edge: the client gets a status for every error.
            return failure_of(error, path, trailers)

    def _frames(
        self, scope: "Scope", headers: dict[bytes, bytes], receive: "Receive", limit_bytes: int | None
    ) -> FrameReader:
        encoding = headers.get(b"grpc-encoding", b"identity")
        receiving = Receiving(self._receiving, scope.get("client"))
        return FrameReader(receive, self._limit(limit_bytes), encoding, receiving)

    def _limit(self, limit_bytes: int | None) -> int:
        return self._max_message_bytes if limit_bytes is None else min(limit_bytes, self._max_message_bytes)

    async def _unary(
        self,
        handle: UnaryHandler,
        path: str,
        context: CallContext,
        request: bytes,
        receive: "Receive",
        task: "asyncio.Task[Any] | None",
    ) -> bytes | RpcFailure:
        # Calls that arrive together are all checked before any of them is queued. From here on, a call is queued before
        # the next one is checked.
        if self._gate.may_refuse and path in INFERENCE_PATHS:
            late_s = self._gate.lateness_s(context.deadline)
            if late_s:
                return RpcFailure(Code.RESOURCE_EXHAUSTED, OVERLOADED, late_s)
        interruption = Interruption(context.deadline, self._clock, self._timers, task)
        caller = Caller(receive, interruption.leave)
        self._watch.add(caller)
        try:
            return await handle(request, context)
        except asyncio.CancelledError as cancelled:
            if self._in_flight.is_cut:
                return SHUTTING_DOWN
            return interruption.absorb(cancelled)
        finally:
            interruption.disarm()
            self._watch.remove(caller)

    async def _stream(
        self,
        respond: StreamHandler,
        context: CallContext,
        frames: FrameReader,
        receive: "Receive",
        response: "_StreamedResponse",
    ) -> None:
        interruption = Interruption(context.deadline, self._clock, self._timers)
        caller = Caller(receive, interruption.leave)
        # The caller reads ahead to notice a disconnect.
        requests = _messages(frames.reading(caller.receive))
        self._watch.add(caller)
        self._in_flight.begin_stream(interruption.shut_down)
        try:
            await response.send_all(respond(requests, context))
        except asyncio.CancelledError as cancelled:
            await response.fail(interruption.absorb(cancelled))
        finally:
            frames.close()
            interruption.disarm()
            self._watch.remove(caller)
            self._in_flight.end_stream(interruption.shut_down)


class _StreamedResponse:
    """Response of a stream. Its status goes into trailers if the response has begun, and otherwise into the headers."""

    def __init__(self, send: "Send", check_room: Callable[[int], None], path: str, trailers: Trailers) -> None:
        self._send = send
        self._check_room = check_room
        self._path = path
        self._trailers = trailers
        self._begun = False

    async def send_all(self, messages: AsyncIterator[bytes]) -> None:
        """Send every message, then the status. Raises only if this task is cancelled."""
        try:
            async for message in messages:
                self._check_room(len(message))
                await self._begin()
                await self._wait_for_room({"type": "http.response.body", "body": frame(message), "more_body": True})
            await self._begin()
            await self._finish(_ok(_encoded(self._trailers)))
        except Exception as error:  # A front-end's edge, as above.
            await self.fail(failure_of(error, self._path, self._trailers))
        finally:
            # Only generators have `aclose`.
            if (close := getattr(messages, "aclose", None)) is not None:
                await close()

    async def fail(self, failure: RpcFailure) -> None:
        """End the response with a status other than OK."""
        if self._begun:
            headers = [*_status_headers(failure), *_encoded(self._trailers)]
            await self._finish({"type": "http.response.trailers", "headers": headers})
        else:
            await answer(self._send, failure, self._trailers)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._wait_for_room(_START)

    async def _finish(self, trailers: "Message") -> None:
        await _send_all(self._send, _END, trailers)

    async def _wait_for_room(self, message: "Message") -> None:
        """Send a message and wait until the server accepts more.

        Do not cancel a future that the server owns, because the server will set its result.
        """
        try:
            sent = self._send(message)
            await (asyncio.shield(sent) if isinstance(sent, asyncio.Future) else sent)
        except OSError:  # ASGI's signal for a disconnect.
            raise Cancelled("The client disconnected") from None


async def _messages(frames: FrameReader) -> AsyncIterator[bytes]:
    while (message := await frames.next()) is not None:
        yield message


def _status_headers(failure: RpcFailure) -> list[tuple[bytes, bytes]]:
    headers = [(b"grpc-status", b"%d" % failure.code), (b"grpc-message", encode_message(failure.message))]
    if (pushback_ms := failure.pushback_ms) is not None:
        headers.append((PUSHBACK.encode(), b"%d" % pushback_ms))
    return headers


def _encoded(trailers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in trailers] if trailers else []


def _ok(more: list[tuple[bytes, bytes]]) -> "Message":
    return {**_OK, "headers": [*_OK["headers"], *more]} if more else _OK


async def answer(send: "Send", reply: bytes | RpcFailure | None, trailers: Sequence[tuple[str, str]] = ()) -> None:
    """Send a whole response. A failure has only headers, which gRPC calls trailers-only."""
    more = _encoded(trailers)
    if isinstance(reply, bytes):
        body = frame(reply)
        # The client may read slowly.
        del reply
        try:
            await send(_START)
            await send({"type": "http.response.body", "body": body})
            await send(_ok(more))
        except OSError:  # See `_send_all`.
            return
    elif reply is not None:
        headers = [_CONTENT_TYPE, *_status_headers(reply), (b"grpc-accept-encoding", ACCEPTED_ENCODINGS), *more]
        await _send_all(send, {"type": "http.response.start", "status": 200, "headers": headers}, _END)


async def _refuse(send: "Send", status: int, why: tuple[bytes, bytes]) -> None:
    headers = [(b"content-length", b"0"), why]
    await _send_all(send, {"type": "http.response.start", "status": status, "headers": headers}, _END)


async def _send_all(send: "Send", *messages: "Message") -> None:
    try:
        for message in messages:
            await send(message)
    except OSError:  # ASGI's signal for a disconnect.
        return
