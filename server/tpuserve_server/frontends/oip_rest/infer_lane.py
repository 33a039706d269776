"""InferBodyLane: the short way of REST requests with binary data that differ only in the numbers of their tensors.

It is RequestLane for HTTP: the Exchange has read and measures the request. It leaves the same requests to the long way,
before it has any effect.
"""

import asyncio
from typing import Final

from tpuserve_server.core.priority import Priority
from tpuserve_server.core.service import AcquiredModel, InferenceService
from tpuserve_server.core.types import ModelSpec, PredictResult
from tpuserve_server.frontends.exchange import HttpCall
from tpuserve_server.frontends.http.response import HttpResponse
from tpuserve_server.frontends.lane_bindings import Bound, LaneBindings
from tpuserve_server.frontends.large_result import is_large_result
from tpuserve_server.frontends.oip.inferring import log_inference
from tpuserve_server.frontends.oip_rest.inferred import inferred
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.layouts import Layout, Layouts
from tpuserve_server.wire.oip.infer_json_response import EncodedResponse, InferJsonTemplate, ResponseForm
from tpuserve_server.wire.oip.infer_layout import BodySubject, learn_infer_body

# Longer names would be kept in memory with the subjects that were seen.
_MOST_NAME: Final = 512
_HIGH: Final = Priority.HIGH


class InferBodyLane:
    """The lane of POST /v2/models/…/infer. One event loop's thread owns it."""

    def __init__(self, service: InferenceService, logs: RequestLogs | None) -> None:
        """Answer with `service`, and log to `logs`."""
        self._layouts: Layouts[BodySubject] = Layouts(learn_infer_body)
        self._bindings: LaneBindings[ResponseForm, InferJsonTemplate] = LaneBindings(service, _form_of)
        self._logs = logs

    def find(self, spec: ModelSpec, body: bytes, json_bytes: int | None, priority: Priority) -> Layout | None:
        """Return the layout of a request that `answer` may take, or None for the long way."""
        if not json_bytes or json_bytes == len(body) or len(spec.name) > _MOST_NAME:
            return None
        layout = self._layouts.find(body, BodySubject(spec, json_bytes))
        if layout is None or priority is not _HIGH or self._bindings.skips(layout):
            return None
        return layout

    async def answer(self, layout: Layout, body: bytes, call: HttpCall) -> HttpResponse | None:
        """Answer a request, or return None before any effect, for the long way.

        Raises:
            ServingError: as on the long way.
        """
        model = self._bindings.acquire(layout)
        if model is None:
            return None
        try:
            inputs = layout.inputs(body)
            bound = self._bindings.bind(layout, model, inputs)
            if bound is None:
                return None
            deadline = call.deadline
            call.measured.runs(model, model.signature.name)
            model.check_deadline(deadline, _HIGH)
            with call.watch_client():
                result = await model.predict_prepared(bound.prepared, inputs, deadline)
            template = bound.template
            encoded = None if template is None else template.encode(result.outputs)
            if encoded is None:
                encoded = await _encode(bound, result)
        finally:
            model.release()
        log_inference(self._logs, layout.spec.name, inputs, result, len(body))
        return inferred(encoded, result.servable.version, result.cache)


def _form_of(layout: Layout, _model: AcquiredModel) -> ResponseForm:
    form = layout.form
    assert isinstance(form, ResponseForm)  # learn_infer_body sets it
    return form


async def _encode(bound: Bound[ResponseForm, InferJsonTemplate], result: PredictResult) -> EncodedResponse:
    """Encode a response that has no template yet, and make one for those that follow."""
    form = bound.facts
    if is_large_result(result.outputs):
        return await asyncio.to_thread(form.encode, result)
    bound.renew_template(lambda: form.template(result))
    return form.encode(result)
