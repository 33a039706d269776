"""StreamedResponse: the answer to a stream over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import Cancelled, ServingError
from tpuserve_server.core.terms.types import Body
from tpuserve_server.hosts.grpc_frames import FrameReader, frame
from tpuserve_server.hosts.grpc_status import END, START, answer, encoded, failure_of, ok, send_all, status_headers
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.protocols.interruption import Interruption
from tpuserve_server.protocols.rpc import CallContext, StreamHandler, Trailers

if TYPE_CHECKING:
    from starlette.types import Message, Send


class StreamedResponse:
    """Response of a stream. Its status goes into trailers if the response has begun, and otherwise into the headers."""

    def __init__(
        self,
        send: "Send",
        check_room: Callable[[int], None],
        path: str,
        trailers: Trailers,
        in_flight: InFlight,
        clock: Clock,
    ) -> None:
        """Answer with `send` a call of the method `path`. `check_room` raises ResourceExhausted for a large message.

        The stream ends when `in_flight` ends its streams.
        """
        self._in_flight = in_flight
        self._clock = clock
        self._send = send
        self._check_room = check_room
        self._path = path
        self._trailers = trailers
        self._begun = False

    async def answer(
        self,
        respond: StreamHandler,
        context: CallContext,
        frames: FrameReader,
        interruption: Interruption,
        task: "asyncio.Task[Any]",
    ) -> None:
        """Send what `respond` returns for the messages of `frames`, which it closes, and the status.

        `task` is the current one. `interruption` ends it.
        """
        try:
            with interruption:
                interruption.expire_at(context.deadline, self._clock)
                self._in_flight.begin_stream(task, interruption.shut_down)
                await self._send_all(respond(_messages(frames), context))
        except ServingError as reason:
            await self._fail(reason)
        finally:
            frames.close()

    async def _send_all(self, messages: AsyncIterator[bytes]) -> None:
        """Send every message, then the status. Raises only if this task is cancelled."""
        try:
            async for message in messages:
                self._check_room(len(message))
                await self._begin()
                await self._wait_for_room({"type": "http.response.body", "body": frame(message), "more_body": True})
            await self._begin()
            await self._finish(ok(encoded(self._trailers)))
        except Exception as error:  # A front-end's edge: the client gets a status for every error.
            await self._fail(error)
        finally:
            # Only generators have `aclose`.
            if (close := getattr(messages, "aclose", None)) is not None:
                await close()

    async def _fail(self, error: Exception) -> None:
        """End the response with the status of an error."""
        failure = failure_of(error, self._path, self._trailers)
        if self._begun:
            headers = [*status_headers(failure), *encoded(self._trailers)]
            await self._finish({"type": "http.response.trailers", "headers": headers})
        else:
            await answer(self._send, failure, self._trailers)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._wait_for_room(START)

    async def _finish(self, trailers: "Message") -> None:
        await send_all(self._send, END, trailers)

    async def _wait_for_room(self, message: "Message") -> None:
        """Send a message and wait until the server accepts more.

        Do not cancel a future that the server owns, because the server will set its result.
        """
        try:
            sent = self._send(message)
            await (asyncio.shield(sent) if isinstance(sent, asyncio.Future) else sent)
        except OSError:  # ASGI's signal for a disconnect.
            raise Cancelled("The client disconnected") from None


async def _messages(frames: FrameReader) -> AsyncIterator[Body]:
    while (message := await frames.next()) is not None:
        yield message
