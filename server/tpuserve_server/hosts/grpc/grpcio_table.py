"""The method table as a grpc.aio generic handler."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio

from tpuserve_server.core.budgets.sending import Delivery, SendingBudget
from tpuserve_server.core.deadline import Clock, Deadline, SystemClock
from tpuserve_server.core.errors import Code
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.core.rare_timers import RareTimersByLoop
from tpuserve_server.frontends.guarded import GuardedMethod, GuardedStream, GuardedTable, GuardedUnary
from tpuserve_server.hosts.client_connections import ClientConnections
from tpuserve_server.hosts.grpc.calls import call_context, client_of
from tpuserve_server.hosts.grpc.failure import PUSHBACK, SHUTTING_DOWN, RpcFailure, failure_of, unknown_method
from tpuserve_server.hosts.grpc.interruption import Interruption
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.inference_paths import INFERENCE_METHODS, OVERLOADED
from tpuserve_server.hosts.limits import DRAIN_UNREAD_S, REQUEST_TIMEOUT_S
from tpuserve_server.hosts.unread_response import SMALL_BYTES

if TYPE_CHECKING:
    from tpuserve_server.frontends.rpc import Trailers

_STATUS = {Code(status.value[0]): status for status in grpc.StatusCode}

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
# grpcio leaves the kinds of handler untyped.
Handler: TypeAlias = Any
Unary: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]
Stream: TypeAlias = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]
# The client, or the limit of a message, may also have ended the call. Then grpcio does not send this status.
_NO_MESSAGE = RpcFailure(Code.UNIMPLEMENTED, "A unary call takes exactly one message")
# Bytes per second that a client must take of a message. grpcio does not report which part of it the client has taken.
_LEAST_RATE = 1 << 19

_GRPCIO_LOG = logging.getLogger("grpc._cython.cygrpc")


def _is_about_server(record: logging.LogRecord) -> bool:
    """Return False for grpcio's reports, with tracebacks, of two faults that concern only the client, which knows them.

    InternalError: the answer to a call that has just ended at its deadline, whose end grpcio has not yet seen.
    UnicodeDecodeError: a call whose path is not UTF-8, which grpcio ends with UNKNOWN.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError | UnicodeDecodeError))


class TableHandler(grpc.GenericRpcHandler):
    """Handler from bytes to bytes: grpcio runs no serializer. One event loop's thread owns it."""

    def __init__(
        self,
        rpc: GuardedTable,
        in_flight: InFlight,
        gate: OverloadGate,
        sending: SendingBudget,
        clock: Clock | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Serve `rpc`. The message of a unary call must arrive within `request_timeout_s`.

        Charge large responses, and the messages of streams, to `sending`.
        """
        _GRPCIO_LOG.addFilter(_is_about_server)
        self._in_flight = in_flight
        self._gate = gate
        self._sending = sending
        self._connections = ClientConnections()
        self._request_timeout_s = request_timeout_s
        self._clock = clock or SystemClock()
        self._timers = RareTimersByLoop()
        self._refusing = False
        self._refused = 0
        self._handlers = {path: self._handler(path, method) for path, method in rpc.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Return the handler for a method path, or one that answers UNIMPLEMENTED for an unknown path."""
        path = handler_call_details.method
        if self._refusing:
            self._refused += 1
            return _refusal(SHUTTING_DOWN)
        return self._handlers.get(path) or _refusal(unknown_method(path))

    def refuse(self) -> None:
        """Answer every new call with UNAVAILABLE, which clients retry on another server."""
        self._refusing = True

    def take_refused(self) -> int:
        """Return the number of calls refused since the last call of this method."""
        refused, self._refused = self._refused, 0
        return refused

    def _handler(self, path: str, method: GuardedMethod) -> Handler:
        if isinstance(method, GuardedUnary):
            # For a unary handler, grpcio itself would wait for the message, without a timeout and before the admission.
            return grpc.stream_unary_rpc_method_handler(self._unary(path, method))
        # A stream of one message and a single message are the same on the wire, so this handles every kind of stream.
        return grpc.stream_stream_rpc_method_handler(self._stream(path, method))

    def _unary(self, path: str, method: GuardedUnary) -> Unary:
        is_inference = path in INFERENCE_METHODS

        async def handle(_requests: AsyncIterator[bytes], context: Context) -> bytes:
            started_s = self._clock.monotonic_s()
            deadline = self._deadline(context)
            if is_inference and self._gate.may_refuse and (late_s := self._gate.lateness_s(deadline)):
                await _abort(context, RpcFailure(Code.RESOURCE_EXHAUSTED, OVERLOADED, late_s))
            trailers: Trailers = []
            # grpcio receives a message when a handler reads it, so a refused call costs no memory for one.
            try:
                call = call_context(context, deadline, trailers, started_s)
                run = await method.admit(call)
            except Exception as error:  # A front-end's edge: the client gets a status for every error.
                await _abort(context, failure_of(error, path, trailers), trailers)
            request = await self._receive(context)
            self._in_flight.begin()
            try:
                response = await run(request, call)
                if len(response) > SMALL_BYTES:
                    # grpcio calls it when the client has taken the response, or left.
                    context.add_done_callback(_ending(self._charge(context, response)))
                if trailers:
                    context.set_trailing_metadata(trailers)
                return response
            except asyncio.CancelledError:
                if not self._in_flight.is_cut:
                    raise
                await _abort(context, SHUTTING_DOWN)
            except Exception as error:  # As above.
                await _abort(context, failure_of(error, path, trailers), trailers)
            finally:
                self._in_flight.end()

        return handle

    async def _receive(self, context: Context) -> bytes:
        """Return the message of a unary call. End a call without a message, or whose message is late."""
        interruption = Interruption(Deadline.after(self._request_timeout_s, self._clock), self._clock, self._timers)
        try:
            # The stubs omit grpc.aio.EOF.
            request = cast("bytes | object", await context.read())
        except asyncio.CancelledError as cancelled:
            interruption.absorb(cancelled)
            late = f"The message did not arrive within {self._request_timeout_s:g} seconds"
            await _abort(context, RpcFailure(Code.DEADLINE_EXCEEDED, late))
        except grpc.aio.UsageError:
            raise asyncio.CancelledError from None  # The server stops.
        finally:
            interruption.disarm()
        if isinstance(request, bytes):
            return request
        return await _abort(context, _NO_MESSAGE)

    def _stream(self, path: str, method: GuardedStream) -> Stream:
        # Not a generator: a generator would miss a cancellation while grpcio writes.
        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            # grpcio itself ends calls at their deadline, so the interruption is only for the shutdown.
            interruption = Interruption(Deadline.never(), self._clock, self._timers)
            self._in_flight.begin()
            self._in_flight.begin_stream(interruption.shut_down)
            trailers: Trailers = []
            messages: AsyncIterator[bytes] | None = None
            try:
                call = call_context(context, self._deadline(context), trailers)
                messages = (await method.admit(call))(requests, call)
                async for message in messages:
                    with self._charge(context, message):
                        await _write(context, message)
                if trailers:
                    context.set_trailing_metadata(trailers)
            except _Unread:
                raise  # grpcio cannot send a status now.
            except asyncio.CancelledError as cancelled:
                await _abort(context, interruption.absorb(cancelled), trailers)
            except grpc.aio.InternalError:
                raise  # A write failed because the client has left. grpcio ends the call and logs nothing.
            except Exception as error:  # The same edge, for streams.
                await _abort(context, failure_of(error, path, trailers), trailers)
            finally:
                # The method does not see a cancellation during a write, so close it. Only generators have `aclose`.
                if (close := getattr(messages, "aclose", None)) is not None:
                    await close()
                interruption.disarm()
                self._in_flight.end_stream(interruption.shut_down)
                self._in_flight.end()

        return handle

    def _charge(self, context: Context, message: bytes) -> Delivery:
        """Charge a message until grpcio has sent it. A cut ends the connection: grpcio cannot reset a stream.

        Raises:
            ResourceExhausted: the message does not fit the budget.
        """
        client, size_bytes = client_of(context), len(message)
        self._sending.check_room(client, size_bytes)
        return self._sending.begin(client, size_bytes, partial(self._connections.end, client), size_bytes / _LEAST_RATE)

    def _deadline(self, context: Context) -> Deadline:
        # None for a call without a deadline, which the stubs omit.
        remaining_s = cast("float | None", context.time_remaining())
        return Deadline.never() if remaining_s is None else Deadline.after(remaining_s, self._clock)


def _ending(delivery: Delivery) -> Any:  # noqa: ANN401 - the stubs have a class for callbacks, which grpcio has not
    return lambda _: delivery.end()


def _refusal(failure: RpcFailure) -> Handler:
    async def handle(_requests: AsyncIterator[bytes], context: Context) -> None:
        await _abort(context, failure)

    return grpc.stream_stream_rpc_method_handler(handle)


class _Unread(asyncio.CancelledError):
    """The server ends a stream whose client does not take its messages."""


async def _write(context: Context, message: bytes) -> None:
    """Write a message. If cancelled, finish the write first: grpcio sends no status during a write.

    Raises:
        _Unread: the client did not take the message in time after the cancellation.
    """
    writing = asyncio.ensure_future(context.write(message))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        if not (await asyncio.wait({writing}, timeout=DRAIN_UNREAD_S))[0]:
            writing.cancel()
            raise _Unread from None
        # A client that has left fails the write. `gather` retrieves the error: asyncio logs unread errors.
        await asyncio.gather(writing, return_exceptions=True)
        raise


async def _abort(context: Context, failure: RpcFailure, trailers: Iterable[tuple[str, str]] = ()) -> NoReturn:
    pushback_ms = failure.pushback_ms
    trailing = (*trailers, *(() if pushback_ms is None else ((PUSHBACK, str(pushback_ms)),)))
    await context.abort(_STATUS[failure.code], failure.message, trailing)
    raise AssertionError("grpcio's abort raises, which its stubs do not say")
