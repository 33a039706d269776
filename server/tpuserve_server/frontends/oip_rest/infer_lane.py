"""Inference requests in the lane: those with binary data, and those whose only input is a JSON list of numbers."""

from typing import Final

from tpuserve_server.core.types import ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.frontends.http.response import HttpResponse
from tpuserve_server.frontends.oip.inferring import log_inference
from tpuserve_server.frontends.oip_rest.inferred import inferred
from tpuserve_server.frontends.oip_rest.route import Action
from tpuserve_server.frontends.rest_lane import Known
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.json.number_list import NumberLists, NumberReader
from tpuserve_server.wire.layouts import Layout, Layouts
from tpuserve_server.wire.oip.infer_json_response import EncodedResponse, ResponseForm
from tpuserve_server.wire.oip.infer_layout import BodySubject, learn_infer_body
from tpuserve_server.wire.oip.infer_list import InferListForm, find_data, learn_infer_list

# Longer names would be kept in memory with the subjects that were seen.
_MOST_NAME: Final = 512


class InferLane:
    """Implements rest_lane.RestLaneProtocol for POST /v2/models/…/infer. One event loop's thread owns it."""

    method = Action.INFER.value

    def __init__(self, logs: RequestLogs | None) -> None:
        """Log to `logs`."""
        self._binary: Layouts[BodySubject] = Layouts(learn_infer_body)
        self._lists = NumberLists(learn_infer_list)
        self._read = NumberReader().read
        self._logs = logs

    def find(self, spec: ModelSpec, body: bytes, json_bytes: int | None) -> Known | None:
        """Return the layout of a request, or None for the long way."""
        if json_bytes is None or json_bytes == len(body):
            return self._lists.find(spec, body, *find_data(body))
        if not json_bytes or len(spec.name) > _MOST_NAME:
            return None
        layout = self._binary.find(body, BodySubject(spec, json_bytes))
        return None if layout is None else (layout, body)

    def inputs(self, layout: Layout, contents: bytes, signature: Signature) -> Tensors | None:
        """Return the inputs of a request."""
        form = layout.form
        if type(form) is not InferListForm:
            return layout.inputs(contents)
        name, dtype, shape, _ = form
        array = self._read(contents, dtype, shape)
        return None if array is None else {name: array}

    def form(self, layout: Layout) -> ResponseForm:
        """Return the form of the responses."""
        form = layout.form
        if isinstance(form, InferListForm):
            return form.response
        assert isinstance(form, ResponseForm)  # learn_infer_body sets it
        return form

    def respond(self, encoded: EncodedResponse, result: PredictResult) -> HttpResponse:
        """Return the HTTP response."""
        return inferred(encoded, result.servable.version, result.cache)

    def log(
        self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, encoded: EncodedResponse
    ) -> None:
        """Log an answered request in gRPC's messages, which the log's thread creates."""
        log_inference(self._logs, layout.spec.name, inputs, result, len(body))
