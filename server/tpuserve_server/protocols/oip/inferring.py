"""Runs an inference request for both protocols: from undecoded tensors to outputs."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from tpuserve_server.access.access import CONTROL_SERVER
from tpuserve_server.access.caller import find_caller
from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Unauthenticated
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Body, ModelSpec, PredictResult, Tensors
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.http.content import LARGE_BODY_BYTES
from tpuserve_server.protocols.oip.models import acquire_model
from tpuserve_server.protocols.oip.shared_memory import NO_REGIONS, SharedMemoryRegions
from tpuserve_server.protocols.request_meter import MeasuredRequest
from tpuserve_server.wire.oip.classification import classify
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.inference import InferenceRequest, InferenceResult, RequestedOutput
from tpuserve_server.wire.oip.tensor_json import TakesLong

_ALL: Final[Mapping[str, RequestedOutput]] = {}
_NO_WATCH: Final = nullcontext()
# A copy from shared memory that takes less time than the way to a thread and back.
_INLINE_BYTES: Final = 1 << 20


class Inferring:
    """Answers requests from the service, and passes answered requests to the log."""

    def __init__(
        self,
        service: InferenceService,
        logs: RequestLogs | None,
        regions: SharedMemoryRegions | None = None,
        decoded: DecodedBudget = DEFAULT_DECODED,
    ) -> None:
        """Answer from `service`; `logs` receive the answered requests, None logs nothing.

        `regions` hold tensors in shared memory; None means that there are none. `decoded` limits the strings of a
        request.
        """
        self._decoded = decoded
        self._service = service
        self._logs = logs
        self._regions = NO_REGIONS if regions is None else regions

    async def infer(
        self,
        spec: ModelSpec,
        request: InferenceRequest,
        measured: MeasuredRequest,
        deadline: Deadline,
        priority: Priority,
        watch: AbstractContextManager[object] = _NO_WATCH,
    ) -> InferenceResult:
        """Run `request` for the model of `spec`. The request's parameters may shorten the deadline.

        The caller must not keep `request`, so that its memory is free while the model runs. `watch` detects that the
        client disconnects.

        Raises:
            PermissionDenied: the request uses shared memory, and the client may not control the server.
            Unauthenticated: the same, for a client without credentials.
            ServingError: the model does not exist, the request does not match it, or the run failed.
        """
        if request.windows is not None and (caller := find_caller()) is not None:
            # The regions of all owners have one space of names, and a request can write to them.
            caller.require(CONTROL_SERVER, "A request with shared memory")
            if not caller.name:
                # Anonymous clients may control the server only from some addresses, which this part does not know.
                raise Unauthenticated("A request with shared memory needs a credential with the role control")
        parameters, requested = request.parameters, request.outputs
        output_names, request_id = request.output_names, request.id
        size_bytes, is_binary = request.size_bytes, request.is_binary
        if parameters.priority is not None:
            priority = parameters.priority
        if parameters.timeout_s is not None:
            measured.timeout_s = min(measured.timeout_s, parameters.timeout_s)
            deadline = Deadline(min(deadline.at_s, measured.received_s + parameters.timeout_s))
        await self._service.loaded(spec, deadline)
        with acquire_model(self._service, spec) as model:
            measured.runs(model, model.signature.name, priority)
            model.check_deadline(deadline, priority)
            uses_regions = request.windows is not None
            if uses_regions:
                request = await self._with_inputs(request)
                size_bytes = request.size_bytes
            # Decoding other large requests may take long.
            try:
                if size_bytes > LARGE_BODY_BYTES and not request.is_plain:
                    raise TakesLong
                inputs = decode_inputs(spec.name, model.signature, request, self._decoded, quickly=True)
            except TakesLong:
                inputs = await asyncio.to_thread(decode_inputs, spec.name, model.signature, request, self._decoded)
            del request
            with watch:
                result = await model.predict(inputs, deadline, output_names, priority)
            wanted = {output.name: output for output in requested} if requested else _ALL
            outputs = _classified(model, result.outputs, wanted) if wanted else result.outputs
        if self._logs is not None and (log := self._logs.choose(spec.name)):
            # In gRPC's messages, which the log's thread encodes.
            self._logs.add_predict(log, inputs, result, size_bytes=size_bytes + output_bytes(result))
        in_regions = await self._write_outputs(outputs, wanted) if uses_regions else ()
        return InferenceResult(
            request_id, result.servable, outputs, wanted, is_binary, in_regions, result.signature_name, result.cache
        )

    async def recall(self, spec: ModelSpec, kind: str, body: Body) -> Recall | None:
        """Look up a request by its bytes, or return None for a model with a request log, which needs the arrays.

        Keep only responses to requests with `has_lasting_bytes`.
        """
        if self._logs is not None and self._logs.has_log(spec.name):
            return None
        return await self._service.recall(spec, kind, body)

    async def _with_inputs(self, request: InferenceRequest) -> InferenceRequest:
        """Return `request` with the inputs that are in shared memory. Large ones are copied in a thread."""
        windows = request.windows or {}
        if sum(window.byte_size for window in windows.values()) > _INLINE_BYTES:
            return await asyncio.to_thread(self._regions.with_inputs, request)
        return self._regions.with_inputs(request)

    async def _write_outputs(self, outputs: Tensors, requested: Mapping[str, RequestedOutput]) -> Collection[str]:
        """Write outputs to shared memory, and return their names. Large ones are copied in a thread."""
        if sum(array.nbytes for array in outputs.values()) > LARGE_BODY_BYTES:
            return await asyncio.to_thread(self._regions.write_outputs, outputs, requested)
        return self._regions.write_outputs(outputs, requested)


def output_bytes(result: PredictResult) -> int:
    """Return the memory of the outputs."""
    return sum(array.nbytes for array in result.outputs.values())


def _classified(model: AcquiredModel, outputs: Tensors, requested: Mapping[str, RequestedOutput]) -> Tensors:
    """Return `outputs` with classes instead of the values of those that the request wants classified."""
    if not any(output.classification for output in requested.values()):
        return outputs
    specs = model.signature.outputs
    return {
        name: classify(array, specs[name], count, model.labels) if (count := requested[name].classification) else array
        for name, array in outputs.items()
    }
