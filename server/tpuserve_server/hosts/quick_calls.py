"""QuickCall: a request without a task, whose response goes out when its batch ends.

The HTTP server makes a task of what an application returns, by the event loop's factory. A QuickCall needs none: it has
the few methods of a task that the server uses, and those of a task's waiter in the batcher. A task takes several turns
of the event loop, and each of them may wake the server's thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from tpuserve_server.core.batching.task import Outcome, settle
from tpuserve_server.core.system.at_once import run_at_once
from tpuserve_server.hosts.in_flight import InFlight


class QuickCall:
    """Implements core's Waiter, and the part of asyncio.Task that the HTTP server uses. Its event loop owns it.

    Each protocol of HTTP has a subclass.
    """

    __slots__ = (
        "_callback", "_error", "_has_ended", "_in_flight", "_is_cancelled", "_is_settled", "_loop", "_response",
        "_task",
    )  # fmt: skip

    def __init__(self, in_flight: InFlight, loop: asyncio.AbstractEventLoop) -> None:
        """Answer on the running `loop`, and count in `in_flight` from `_begin` on."""
        self._in_flight = in_flight
        self._loop = loop
        self._callback: Callable[[Any], object] | None = None
        # It has an outcome, or its client has gone.
        self._is_settled = False
        self._is_cancelled = False
        self._has_ended = False
        # Sends the response, from the outcome until it begins.
        self._response: Coroutine[Any, Any, None] | None = None
        # Why there is no response, for the server.
        self._error: BaseException | None = None
        # Sends a response that takes long.
        self._task: asyncio.Task[Any] | None = None

    # Of each protocol.

    def _respond(self, outcome: Outcome) -> Coroutine[Any, Any, None]:
        """Encode the response to an outcome, and return the coroutine that sends it. Must not raise."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """End a call that is cancelled before its outcome, by `_finish` or `_end`. Must not raise."""
        raise NotImplementedError

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

    def set_result(self, outcome: Outcome, /) -> Callable[[], None] | None:
        """Encode the response, and return the function that sends it.

        The server's thread wakes less often if the responses of a batch follow each other closely.
        """
        if self._is_settled:
            return None
        self._is_settled = True
        self._response = self._respond(outcome)
        return self._send_response

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

    def _begin(self, *, is_ready: bool) -> None:
        """Count the call. It ends in a later turn of the loop, with the next one if it `is_ready`."""
        self._in_flight.begin_call(self)
        if is_ready:
            self._loop.call_soon(settle, self, {})

    def _send_response(self) -> None:
        response, self._response = self._response, None
        assert response is not None, "set_result sets it"
        self._finish(response)

    def _finish(self, sending: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine that sends the response, and end the call with it. It needs a task if it waits."""
        try:
            task = run_at_once(sending, self._loop)
        except Exception as error:  # The server reports it, as that of a task.
            self._error = error
            task = None
        if task is None:
            self._end()
        else:
            self._task = task
            task.add_done_callback(self._end_slowly)

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
        return work if isinstance(work, QuickCall) else asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(make_task)
