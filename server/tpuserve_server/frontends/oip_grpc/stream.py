"""ModelStreamInfer: runs several requests of a stream at a time and sends their responses in the order of the requests.

The error of a request is a message of the stream, which stays open (Triton, stream_infer_handler.cc).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeAlias

from tpuserve_server.core.errors import ServingError
from tpuserve_server.frontends.oip_grpc.inference import InferenceMethods
from tpuserve_server.frontends.rpc import CallContext
from tpuserve_server.wire.oip.stream_proto import encode_stream_error, encode_stream_response

_log = logging.getLogger(__name__)

# Requests of a stream that run at the same time, so that they can share a batch. Responses that the client has not read
# count too: without a limit, a client that reads none would fill the memory.
MAX_PENDING: Final = 64
# Metadata with which a client requests a gRPC status instead of a message for an error.
_GRPC_ERROR: Final = "triton_grpc_error"
_METHOD: Final = "ModelStreamInfer"

_Answer: TypeAlias = asyncio.Task[bytes]


class StreamMethods:
    """The method, from messages to messages."""

    def __init__(self, inference: InferenceMethods) -> None:
        """Answer each request with `inference`."""
        self._inference = inference

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Answer ModelStreamInfer. Cancelling or closing the generator cancels the requests that run."""
        ends_with_status = context.metadata.get(_GRPC_ERROR, "").lower() == "true"

        async def answer(body: bytes) -> bytes:
            return await self._answer(body, context, ends_with_status=ends_with_status)

        pending = _Pending(requests, answer)
        try:
            while (task := await pending.next()) is not None:
                yield await task
        finally:
            await pending.close()

    async def _answer(self, body: bytes, context: CallContext, *, ends_with_status: bool) -> bytes:
        try:
            return encode_stream_response(await self._inference.model_infer(body, context, _METHOD))
        except Exception as error:  # The edge: the client gets a message for every error.
            if ends_with_status:
                raise
            if isinstance(error, ServingError):
                return encode_stream_error(body, error.message)
            # Any other error is a bug in the server: log it and hide it from the client.
            _log.exception("Unexpected error in %s", _METHOD)
            return encode_stream_error(body, "Internal error")


class _Pending:
    """The requests of a stream that were read and whose responses were not taken. One event loop's thread owns it."""

    def __init__(self, requests: AsyncIterator[bytes], answer: Callable[[bytes], Coroutine[Any, Any, bytes]]) -> None:
        """Begin to read `requests`, at most MAX_PENDING ahead of the responses, and to answer them."""
        self._requests = requests
        self._answer = answer
        # In the order of the requests. None follows the last.
        self._ordered: asyncio.Queue[_Answer | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_PENDING)
        self._tasks: set[_Answer] = set()
        self._reader = asyncio.create_task(self._read())

    async def next(self) -> _Answer | None:
        """Return the task that answers the next request, or None after the last. Raises the errors of reading."""
        task = await self._ordered.get()
        if task is None:
            await self._reader
            return None
        # The caller awaits the task, and so takes its error.
        self._tasks.discard(task)
        task.add_done_callback(lambda _: self._room.release())
        return task

    async def close(self) -> None:
        """Cancel what still runs, and wait for its end."""
        waiting = (self._reader, *self._tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _read(self) -> None:
        try:
            await self._room.acquire()
            async for body in self._requests:
                task = asyncio.create_task(self._answer(body))
                self._tasks.add(task)
                self._ordered.put_nowait(task)
                await self._room.acquire()
        finally:
            self._ordered.put_nowait(None)
