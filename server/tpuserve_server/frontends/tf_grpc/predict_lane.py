"""Predict in the request lane: its layouts, its response and its entry in the request log."""

from tpuserve_server.core.budgets.response import RAW, TYPED
from tpuserve_server.core.types import PredictResult, Tensors
from tpuserve_server.request_log.entry import LogKind
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.layouts import Layout, Layouts
from tpuserve_server.wire.predict_layout import learn_predict_request
from tpuserve_server.wire.predict_proto import ResponseTemplate, encode_predict_response


class PredictLane:
    """Implements request_lane.LaneProtocol for tensorflow.serving.PredictionService/Predict."""

    method = "Predict"

    def __init__(self, logs: RequestLogs | None, *, as_content: bool) -> None:
        """Log to `logs`. With `as_content`, outputs are encoded in tensor_content instead of the typed fields."""
        self.layouts: Layouts[None] = Layouts(learn_predict_request)
        self._logs = logs
        self._as_content = as_content
        self.encoding = RAW if as_content else TYPED

    def template(self, result: PredictResult) -> ResponseTemplate | None:
        """Return the template of a response."""
        return ResponseTemplate.of(result, as_content=self._as_content)

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response. The protocol has no ids."""
        return encode_predict_response(result, as_content=self._as_content)

    def log(self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, response: bytes) -> None:
        """Log an answered request as its bytes."""
        if self._logs is not None and (log := self._logs.choose(layout.spec.name)):
            self._logs.add(log, LogKind.PREDICT, result.servable, result.signature_name, body, response)
