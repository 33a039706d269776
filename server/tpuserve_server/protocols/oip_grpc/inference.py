"""ModelInfer, and the requests of ModelStreamInfer, of inference.GRPCInferenceService."""

import asyncio
from functools import partial

from tpuserve_server.core.serving.budgets import RAW, Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.types import PredictResult, Tensors
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogTarget
from tpuserve_server.protocols.oip.inferring import Inferring, output_bytes
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.request_lane import RequestLane, Template
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.layouts import Layouts
from tpuserve_server.wire.oip.infer_layout import learn_infer_request
from tpuserve_server.wire.oip.infer_proto import InferTemplate, encode_infer_response, parse_infer_request
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
        self, logs: RequestLogs, target: LogTarget, body: bytes, inputs: Tensors, result: PredictResult, response: bytes
    ) -> None:
        """Log an answered request in gRPC's messages, which the log's thread creates."""
        logs.add_predict(target, inputs, result, size_bytes=len(body) + output_bytes(result))


# Kind of the request's bytes in the response cache.
_KIND = "ModelInferRequest"


class InferenceMethods:
    """From bytes to bytes. They raise ServingErrors."""

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
        self.model_infer = RequestLane(InferLane(), self.infer, service, meter, clock, budgets.response, logs).handle

    async def infer(self, body: bytes, context: CallContext, method: str = "ModelInfer") -> bytes:
        """Answer one request of a `method`, which metrics name."""
        with self._meter.call(method, context) as measured:
            if is_quick(body, INFER_REQUEST):
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
