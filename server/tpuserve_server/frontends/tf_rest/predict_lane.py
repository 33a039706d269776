"""Predict in the lane: requests whose only input is a JSON list of numbers."""

from tpuserve_server.core.types import ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.frontends.http.response import CACHE_HEADERS, HttpResponse
from tpuserve_server.frontends.rest_lane import Known
from tpuserve_server.frontends.tf_rest.route import Action
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.json.number_list import NumberLists, NumberReader
from tpuserve_server.wire.json.predict_layout import PredictForm, learn_predict_list
from tpuserve_server.wire.layouts import Layout


class PredictLane:
    """Implements rest_lane.RestLaneProtocol for POST /v1/models/…:predict. One event loop's thread owns it."""

    method = Action.PREDICT.value

    def __init__(self, logs: RequestLogs | None) -> None:
        """Log to `logs`."""
        self._lists = NumberLists(learn_predict_list)
        self._read = NumberReader().read
        self._logs = logs

    def find(self, spec: ModelSpec, body: bytes, json_bytes: int | None = None) -> Known | None:
        """Return the layout of a request, or None for the long way."""
        return self._lists.find(spec, body, body.find(b"["), body.rfind(b"]") + 1)

    def inputs(self, layout: Layout, contents: bytes, signature: Signature) -> Tensors | None:
        """Return the input of a request, or None if the signature has others, or ragged tensors."""
        if len(signature.inputs) != 1 or signature.ragged_outputs:
            return None
        ((name, spec),) = signature.inputs.items()
        form = layout.form
        assert type(form) is PredictForm  # learn_predict_list sets it
        if form.name is not None and form.name != name:
            return None
        array = self._read(contents, spec.dtype, form.shape)
        return None if array is None else {name: array}

    def form(self, layout: Layout) -> PredictForm:
        """Return the form of the responses."""
        assert type(layout.form) is PredictForm  # learn_predict_list sets it
        return layout.form

    def respond(self, encoded: bytes, result: PredictResult) -> HttpResponse:
        """Return the HTTP response."""
        return HttpResponse(200, encoded, result.servable.version, CACHE_HEADERS[result.cache])

    def log(self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, encoded: bytes) -> None:
        """Log an answered request in gRPC's messages, which the log's thread creates."""
        if self._logs is not None and (log := self._logs.choose(layout.spec.name)):
            self._logs.add_predict(log, inputs, result, size_bytes=len(body) + len(encoded))
