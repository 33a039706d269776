"""ModelInfer and ModelStreamInfer of inference.GRPCInferenceService.

A stream runs several requests at a time, and sends their responses in the order of the requests. The error of a request
is a message of the stream, which stays open (Triton, stream_infer_handler.cc).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

from tpuserve_server.core.serving.budgets import RAW, Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.types import Body, PredictResult, Tensors
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogTarget
from tpuserve_server.observe.requests.trace_context import read_request_id
from tpuserve_server.protocols.oip.inferring import Inferring, output_bytes
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.request_lane import RequestLane, Template
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.layouts import Layouts
from tpuserve_server.wire.oip.infer_layout import learn_infer_request
from tpuserve_server.wire.oip.infer_proto import (
    InferTemplate,
    encode_infer_response,
    encode_stream_error,
    encode_stream_response,
    is_split_quickly,
    parse_infer_request,
)
from tpuserve_server.wire.oip.inference import InferenceResult
from tpuserve_server.wire.proto_scan import INFER_REQUEST, check_structure, is_quick


class InferLane:
    """Implements request_lane.LaneProtocol for inference.GRPCInferenceService/ModelInfer."""

    method = "ModelInfer"
    encoding = RAW

    def __init__(self) -> None:
        """Start without layouts."""
        self.layouts: Layouts[None] = Layouts(learn_infer_request)

    def template(self, result: PredictResult) -> Template | None:
        """Return the template of a response. Raises Unimplemented as `encode`."""
        template = InferTemplate.of(result)
        return None if template is None else template.encode

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response.

        Raises:
            Unimplemented: the protocol has no datatype for the dtype of an output.
        """
        return encode_infer_response(InferenceResult(request_id.decode(), result.servable, result.outputs, {}, True))

    def log(
        self, logs: RequestLogs, target: LogTarget, body: Body, inputs: Tensors, result: PredictResult, response: bytes
    ) -> None:
        """Log an answered request in gRPC's messages, which the log's thread creates."""
        logs.add_predict(target, inputs, result, size_bytes=len(body) + output_bytes(result))


# Kind of the request's bytes in the response cache.
_KIND = "ModelInferRequest"


class InferenceMethods:
    """ModelInfer and the single requests of a stream, from bytes to bytes. They raise ServingErrors."""

    def __init__(
        self,
        service: InferenceService,
        meter: RequestMeter,
        logs: RequestLogs | None,
        clock: Clock,
        regions: SharedMemoryRegions | None,
        budgets: Budgets,
    ) -> None:
        """Answer from `service`; `logs` receive the answered requests, None logs nothing.

        `regions` hold tensors in shared memory; None means that there are none.
        `budgets` limit the memory of a request's decoded objects and the size of a response.
        """
        self._decoded = budgets.decoded
        self._service = service
        self._meter = meter
        self._inferring = Inferring(service, logs, regions, budgets.decoded)
        self._responses = budgets.response
        # Answers ModelInfer.
        self.model_infer = RequestLane(InferLane(), self.infer, service, meter, clock, budgets.response, logs)

    async def infer(self, body: Body, context: CallContext, method: str = "ModelInfer") -> bytes:
        """Answer one request of a `method`, which metrics name."""
        with self._meter.call(method, context) as measured:
            if is_quick(body, INFER_REQUEST) or is_split_quickly(body):
                spec, request = parse_infer_request(body)
            else:
                await asyncio.to_thread(check_structure, body, INFER_REQUEST, self._decoded)
                spec, request = await asyncio.to_thread(parse_infer_request, body)
            measured.model = spec.name
            may_recall = spec.name in self._service.cached_models and request.has_lasting_bytes
            recall = await self._inferring.recall(spec, _KIND, body) if may_recall else None
            if recall is not None and recall.found is not None:
                measured.recalls(recall, recall.found.signature_name)
                return recall.found.body
            inferring = self._inferring.infer(spec, request, measured, context.deadline, context.priority)
            del request
            result = await inferring
            sent = {name: array for name, array in result.outputs.items() if name not in result.in_regions}
            encode = partial(encode_infer_response, result)
            response = await self._responses.encode(encode, spec.name, (sent, RAW))
            if recall is not None:
                recall.keep(result, response)
            return response


_log = logging.getLogger(__name__)

# Requests of a stream that run at the same time, so that they can share a batch. Responses that the client has not read
# count too: without a limit, a client that reads none would fill the memory. Their bytes have a separate limit.
MAX_PENDING: Final = 64
# Metadata with which a client requests a gRPC status instead of a message for an error.
_GRPC_ERROR: Final = "triton_grpc_error"
_METHOD: Final = "ModelStreamInfer"

_Answer: TypeAlias = asyncio.Task[bytes]


class StreamMethods:
    """ModelStreamInfer, from messages to messages."""

    def __init__(self, inference: InferenceMethods, max_pending_bytes: int) -> None:
        """Answer each request with `inference`.

        A stream is not read while its requests and unread responses have `max_pending_bytes` or more.
        """
        self._inference = inference
        self._max_pending_bytes = max_pending_bytes

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """Answer ModelStreamInfer. Cancelling or closing the generator cancels the requests that run."""
        ends_with_status = context.metadata.get(_GRPC_ERROR, "").lower() == "true"

        async def answer(body: Body) -> bytes:
            return await self._answer(body, context, ends_with_status=ends_with_status)

        pending = _Pending(requests, answer, self._max_pending_bytes)
        try:
            while (task := await pending.next()) is not None:
                yield await task
        finally:
            await pending.close()

    async def _answer(self, body: Body, context: CallContext, *, ends_with_status: bool) -> bytes:
        try:
            return encode_stream_response(await self._inference.infer(body, context, _METHOD))
        except Exception as error:  # The edge: the client gets a message for every error.
            if ends_with_status:
                raise
            if isinstance(error, ServingError):
                return encode_stream_error(body, error.message)
            # Any other error is a bug in the server: log it and hide it from the client.
            fields = {"request_id": read_request_id(context.request_id) or None}
            _log.exception("Unexpected error in %s", _METHOD, extra={"fields": fields})
            return encode_stream_error(body, "Internal error")


class _Room:
    """Room for the pending requests of a stream. One event loop's thread owns it, and one task at a time waits."""

    def __init__(self, max_bytes: int) -> None:
        """Have room for MAX_PENDING requests, and for another while the pending ones have less than `max_bytes`."""
        self._max_bytes = max_bytes
        self._requests = 0
        self._bytes = 0
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Return when there is room for another request."""
        while self._requests >= MAX_PENDING or self._bytes >= self._max_bytes:
            self._changed.clear()
            await self._changed.wait()

    def change(self, *, requests: int = 0, size_bytes: int) -> None:
        """Add to the pending requests and to the bytes of requests and responses, or subtract from them."""
        self._requests += requests
        self._bytes += size_bytes
        self._changed.set()


class _Pending:
    """The requests of a stream that were read and whose responses were not taken. One event loop's thread owns it."""

    def __init__(
        self, requests: AsyncIterator[Body], answer: Callable[[Body], Coroutine[Any, Any, bytes]], max_bytes: int
    ) -> None:
        """Begin to read `requests` as long as there is room, and to answer them."""
        self._requests = requests
        self._answer = answer
        # In the order of the requests. None follows the last.
        self._ordered: asyncio.Queue[_Answer | None] = asyncio.Queue()
        self._room = _Room(max_bytes)
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
        task.add_done_callback(self._taken)
        return task

    async def close(self) -> None:
        """Cancel what still runs, and wait for its end."""
        waiting = (self._reader, *self._tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for body in self._requests:
                self._room.change(requests=1, size_bytes=len(body))
                task = asyncio.create_task(self._answer_in_room(body))
                # The task owns the body.
                del body
                self._tasks.add(task)
                self._ordered.put_nowait(task)
                await self._room.wait()
        finally:
            self._ordered.put_nowait(None)

    async def _answer_in_room(self, body: Body) -> bytes:
        """Answer a request. Its response then takes the place of its bytes."""
        response = b""
        try:
            response = await self._answer(body)
        finally:
            self._room.change(size_bytes=len(response) - len(body))
        return response

    def _taken(self, task: _Answer) -> None:
        """Free the room of a response that the caller has taken."""
        has_response = not task.cancelled() and task.exception() is None
        self._room.change(requests=-1, size_bytes=-len(task.result()) if has_response else 0)
