"""QuickRpc: a gRPC call without a task."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.batching.task import Outcome
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DeadlineExceeded
from tpuserve_server.hosts.grpc_status import SHUTTING_DOWN, RpcFailure, answer, failure_of
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import SMALL_BYTES
from tpuserve_server.hosts.quick_calls import QuickCall
from tpuserve_server.protocols.interruption import deadline_passed
from tpuserve_server.protocols.rpc import CallContext, Lane, LaneCall

if TYPE_CHECKING:
    from starlette.types import Scope, Send


class QuickRpc(QuickCall):
    """A unary call. The HTTP server cancels it when its client leaves."""

    __slots__ = ("_call", "_clock", "_context", "_scope", "_send", "_sending")

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
        super().__init__(in_flight, loop)
        self._scope = scope
        self._send = send
        self._context = context
        self._sending = sending
        self._clock = clock

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
            self._begin(is_ready=False)
            self._loop.call_soon(self._fail, error)
            return True
        if call is None:
            return False
        self._call = call
        self._begin(is_ready=call.is_ready)
        return True

    def _respond(self, outcome: Outcome) -> Coroutine[Any, Any, None]:
        reply: bytes | RpcFailure | Coroutine[Any, Any, bytes]
        try:
            reply = self._call.end(outcome)
        except Exception as error:  # A front-end's edge, as above.
            reply = self._failure(error)
        if isinstance(reply, RpcFailure) or (isinstance(reply, bytes) and len(reply) <= SMALL_BYTES):
            return self._answer(reply)
        return self._answer_slowly(reply)

    def _give_up(self) -> None:
        if hasattr(self, "_call"):
            self._call.give_up(asyncio.CancelledError())
        if self._in_flight.is_cut:
            self._finish(self._answer(SHUTTING_DOWN))
        else:
            self._error = asyncio.CancelledError()
            self._end()

    def _fail(self, error: Exception) -> None:
        if not self._is_cancelled:
            self._is_settled = True
            self._finish(self._answer(self._failure(error)))

    def _failure(self, error: Exception) -> RpcFailure:
        trailers = self._context.trailers
        assert trailers is not None, "calls that are no streams have them"
        if isinstance(error, DeadlineExceeded) and self._context.deadline.expired(self._clock.monotonic_s()):
            error = deadline_passed()
        return failure_of(error, self._scope["path"], trailers)

    def _answer(self, reply: bytes | RpcFailure) -> Coroutine[Any, Any, None]:
        return answer(self._send, reply, self._context.trailers or ())

    async def _answer_slowly(self, coming: bytes | Coroutine[Any, Any, bytes]) -> None:
        await self._answer(await self._await_reply(coming))

    async def _await_reply(self, coming: bytes | Coroutine[Any, Any, bytes]) -> bytes | RpcFailure:
        try:
            reply = coming if isinstance(coming, bytes) else await coming
            if len(reply) > SMALL_BYTES:
                self._sending.check_room(self._scope.get("client"), len(reply))
        except asyncio.CancelledError:
            if not self._in_flight.is_cut:
                raise
            return SHUTTING_DOWN
        except Exception as error:  # A front-end's edge, as above.
            return self._failure(error)
        return reply
