"""ModelInfer in the request lane: its layouts, its response and its entry in the request log."""

from tpuserve_server.core.budgets.response import RAW
from tpuserve_server.core.types import PredictResult, Tensors
from tpuserve_server.frontends.oip.inferring import log_inference
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.layouts import Layout, Layouts
from tpuserve_server.wire.oip.infer_layout import learn_infer_request
from tpuserve_server.wire.oip.infer_proto import InferTemplate, encode_infer_response
from tpuserve_server.wire.oip.inference import InferenceResult


class InferLane:
    """Implements request_lane.LaneProtocol for inference.GRPCInferenceService/ModelInfer."""

    method = "ModelInfer"
    encoding = RAW

    def __init__(self, logs: RequestLogs | None) -> None:
        """Log to `logs`."""
        self.layouts: Layouts[None] = Layouts(learn_infer_request)
        self._logs = logs

    def template(self, result: PredictResult) -> InferTemplate | None:
        """Return the template of a response. Raises Unimplemented as `encode`."""
        return InferTemplate.of(result)

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response.

        Raises:
            Unimplemented: the protocol has no datatype for the dtype of an output.
        """
        return encode_infer_response(InferenceResult(request_id.decode(), result.servable, result.outputs, {}, True))

    def log(self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, response: bytes) -> None:
        """Log an answered request in gRPC's messages, which the log's thread creates."""
        log_inference(self._logs, layout.spec.name, inputs, result, len(body))
