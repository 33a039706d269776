"""QuickCall: a gRPC call without a task, whose response goes out when its batch ends.

The HTTP server makes a task of what an application returns, by the event loop's factory. A QuickCall needs none: it has
the few methods of a task that the server uses, and those of a task's waiter in the batcher. A task takes several turns
of the event loop, and each of them may wake the server's thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.batching.task import Outcome
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.system.at_once import run_at_once
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DeadlineExceeded
from tpuserve_server.hosts.grpc_status import SHUTTING_DOWN, RpcFailure, answer, failure_of
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import SMALL_BYTES
from tpuserve_server.protocols.interruption import deadline_passed
from tpuserve_server.protocols.rpc import CallContext, Lane, LaneCall

if TYPE_CHECKING:
    from starlette.types import Scope, Send


class QuickCall:
    """Implements core's Waiter, and the part of asyncio.Task that the HTTP server uses. Its event loop owns it."""

    __slots__ = (
        "_call", "_callback", "_clock", "_context", "_error", "_has_ended", "_in_flight", "_is_cancelled",
        "_is_settled", "_loop", "_scope", "_send", "_sending", "_task",
    )  # fmt: skip

    # Set by a lane that takes the call.
    _call: LaneCall

    def __init__(
        self,
        scope: "Scope",
        send: "Send",
        context: CallContext,
        in_flight: InFlight,
        sending: SendingBudget,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Answer with `send` on the running `loop`. `sending` is charged for a large response."""
        self._scope = scope
        self._send = send
        self._context = context
        self._in_flight = in_flight
        self._sending = sending
        self._clock = clock
        self._loop = loop
        self._callback: Callable[[Any], object] | None = None
        # It has an outcome, or its client has gone.
        self._is_settled = False
        self._is_cancelled = False
        self._has_ended = False
        # Why there is no response, for the server.
        self._error: BaseException | None = None
        # Sends a response that takes long.
        self._task: asyncio.Task[Any] | None = None

    def begin(self, lane: Lane, body: bytes) -> bool:
        """Queue the call, or return False before any effect, for the method's handler.

        The call ends in a later turn of the loop.
        """
        try:
            deadline = self._context.deadline
            if deadline.is_finite and deadline.expired(self._clock.monotonic_s()):
                raise deadline_passed()
            call = lane.begin(body, self._context, self)
        except Exception as error:  # A front-end's edge: the client gets a status for every error.
            self._in_flight.begin_call(self)
            self._loop.call_soon(self._fail, error)
            return True
        if call is None:
            return False
        self._call = call
        self._in_flight.begin_call(self)
        if call.is_ready:
            self._loop.call_soon(self.set_result, {})
        return True

    # Waiter.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._loop

    def done(self) -> bool:
        """Return whether the call has an outcome or has been cancelled."""
        return self._is_settled

    def cancelled(self) -> bool:
        """Return whether the call has been cancelled."""
        return self._is_cancelled

    def set_result(self, outcome: Outcome, /) -> None:
        """Send the response."""
        if self._is_settled:
            return
        self._is_settled = True
        try:
            reply = self._call.end(outcome)
        except Exception as error:  # A front-end's edge, as above.
            self._fail(error)
        else:
            self._reply(reply)

    # The task of the HTTP server.

    def cancel(self, _message: object = None) -> bool:
        """Give the call up in the next turn of the loop: its client has gone, or the server ends."""
        if self._task is not None:
            return self._task.cancel()
        if self._is_settled:
            return False
        self._is_settled = self._is_cancelled = True
        self._loop.call_soon(self._give_up)
        return True

    def result(self) -> None:
        """Return None if the response is sent, or raise the error that has ended it. Only once the call has ended."""
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[[Any], object], **_options: object) -> None:
        """Call `callback` with this object when the call has ended. There is only one."""
        self._callback = callback
        if self._has_ended:
            callback(self)

    def set_name(self, name: object) -> None:
        """Ignore the name. Event loops set one."""

    def __await__(self) -> Generator[Any, None, None]:
        ended: asyncio.Future[None] = self._loop.create_future()
        self.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        try:
            yield from ended
        except asyncio.CancelledError:
            self.cancel()
            raise
        self.result()

    # The response.

    def _fail(self, error: Exception) -> None:
        if self._is_cancelled:
            return
        self._is_settled = True
        self._reply(self._failure(error))

    def _failure(self, error: Exception) -> RpcFailure:
        trailers = self._context.trailers
        assert trailers is not None, "calls that are no streams have them"
        if isinstance(error, DeadlineExceeded) and self._context.deadline.expired(self._clock.monotonic_s()):
            error = deadline_passed()
        return failure_of(error, self._scope["path"], trailers)

    def _give_up(self) -> None:
        if hasattr(self, "_call"):
            self._call.give_up(asyncio.CancelledError())
        if self._in_flight.is_cut:
            self._reply(SHUTTING_DOWN)
        else:
            self._error = asyncio.CancelledError()
            self._end()

    def _reply(self, reply: bytes | RpcFailure | Coroutine[Any, Any, bytes]) -> None:
        task = None
        if isinstance(reply, RpcFailure) or (isinstance(reply, bytes) and len(reply) <= SMALL_BYTES):
            try:
                task = run_at_once(answer(self._send, reply, self._context.trailers or ()), self._loop)
            except Exception as error:  # The server reports it, as that of a task.
                self._error = error
        else:
            task = self._loop.create_task(self._answer_slowly(reply))
        if task is None:
            self._end()
        else:
            self._task = task
            task.add_done_callback(self._end_slowly)

    async def _answer_slowly(self, coming: bytes | Coroutine[Any, Any, bytes]) -> None:
        reply: bytes | RpcFailure
        try:
            reply = coming if isinstance(coming, bytes) else await coming
            if len(reply) > SMALL_BYTES:
                self._sending.check_room(self._scope.get("client"), len(reply))
        except asyncio.CancelledError:
            if not self._in_flight.is_cut:
                raise
            reply = SHUTTING_DOWN
        except Exception as error:  # A front-end's edge, as above.
            reply = self._failure(error)
        await answer(self._send, reply, self._context.trailers or ())

    def _end_slowly(self, task: "asyncio.Task[Any]") -> None:
        self._error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._in_flight.end(self)
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


def allow_quick_calls(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop.create_task` return a QuickCall unchanged."""

    def make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:  # noqa: ANN401
        return work if type(work) is QuickCall else asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(make_task)
