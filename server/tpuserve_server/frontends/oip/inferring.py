"""Runs an inference request for both protocols: from undecoded tensors to outputs."""

import asyncio
from collections.abc import Mapping
from typing import Final

from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.service import AcquiredModel, InferenceService
from tpuserve_server.core.types import ModelSpec, PredictResult, Tensors
from tpuserve_server.frontends.http.body import LARGE_BODY_BYTES
from tpuserve_server.frontends.http.client_watch import ClientWatch
from tpuserve_server.frontends.oip.models import acquire_model
from tpuserve_server.frontends.request_meter import MeasuredRequest
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.oip.classification import classify
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.inference import InferenceRequest, InferenceResult, RequestedOutput

_ALL: Final[Mapping[str, RequestedOutput]] = {}


class Inferring:
    """Answers requests from the service, and passes answered requests to the log."""

    def __init__(self, service: InferenceService, logs: RequestLogs | None) -> None:
        """Answer from `service`; `logs` receive the answered requests, None logs nothing."""
        self._service = service
        self._logs = logs

    async def infer(
        self,
        spec: ModelSpec,
        request: InferenceRequest,
        measured: MeasuredRequest,
        deadline: Deadline,
        priority: Priority,
        watch: ClientWatch | None = None,
    ) -> InferenceResult:
        """Run `request` for the model of `spec`. The request's parameters may shorten the deadline.

        The caller must not keep `request`, so that its memory is free while the model runs. `watch` detects that the
        client disconnects.

        Raises:
            ServingError: the model does not exist, the request does not match it, or the run failed.
        """
        parameters, requested = request.parameters, request.outputs
        output_names, request_id = request.output_names, request.id
        size_bytes, is_binary = request.size_bytes, request.is_binary
        if parameters.priority is not None:
            priority = parameters.priority
        if parameters.timeout_s is not None:
            deadline = Deadline(min(deadline.at_s, measured.received_s + parameters.timeout_s))
        with acquire_model(self._service, spec) as model:
            measured.runs(model, model.signature.name, priority)
            # Raw contents are views. Decoding other large requests may take long.
            if size_bytes > LARGE_BODY_BYTES:
                inputs = await asyncio.to_thread(decode_inputs, spec.name, model.signature, request)
            else:
                inputs = decode_inputs(spec.name, model.signature, request)
            del request
            if watch is None:
                result = await model.predict(inputs, deadline, output_names, priority)
            else:
                with watch:
                    result = await model.predict(inputs, deadline, output_names, priority)
            wanted = {output.name: output for output in requested} if requested else _ALL
            outputs = _classified(model, result.outputs, wanted) if wanted else result.outputs
        self._log(spec.name, inputs, result, size_bytes)
        return InferenceResult(request_id, result.servable, outputs, wanted, is_binary)

    def _log(self, model: str, inputs: Tensors, result: PredictResult, size_bytes: int) -> None:
        if self._logs is not None and (log := self._logs.choose(model)):
            response_bytes = sum(array.nbytes for array in result.outputs.values())
            self._logs.add_predict(log, inputs, result, size_bytes=size_bytes + response_bytes)


def _classified(model: AcquiredModel, outputs: Tensors, requested: Mapping[str, RequestedOutput]) -> Tensors:
    """Return `outputs` with classes instead of the values of those that the request wants classified."""
    if not any(output.classification for output in requested.values()):
        return outputs
    specs = model.signature.outputs
    return {
        name: classify(array, specs[name], count, model.labels) if (count := requested[name].classification) else array
        for name, array in outputs.items()
    }
