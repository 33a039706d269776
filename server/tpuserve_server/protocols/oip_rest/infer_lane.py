"""InferLane: the requests of POST /v2/models/…/infer that a lane takes, and their responses."""

from typing import Final

from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.terms.types import Body, CacheOutcome, ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.protocols.http.headers import JSON_LENGTH_NAME
from tpuserve_server.protocols.http.response import CACHE_HEADERS, HttpResponse
from tpuserve_server.protocols.oip.inferring import output_bytes
from tpuserve_server.protocols.oip_rest.route import Action
from tpuserve_server.protocols.request_lane import Known
from tpuserve_server.wire.json.numbers import read_numbers
from tpuserve_server.wire.layouts import Layout, Layouts, NumberLists
from tpuserve_server.wire.oip.infer_json_response import EncodedResponse, ResponseForm
from tpuserve_server.wire.oip.infer_layout import (
    BodySubject,
    InferListForm,
    find_data,
    learn_infer_body,
    learn_infer_list,
)

JSON_LENGTH_HEADER: Final = JSON_LENGTH_NAME.lower().encode()


def inferred(encoded: EncodedResponse, version: int, cache: CacheOutcome) -> HttpResponse:
    """Return the response with the body, and with the length of its JSON if binary data follow it."""
    body, json_bytes = encoded
    headers = CACHE_HEADERS[cache]
    if json_bytes is None:
        return HttpResponse(200, body, version, headers)
    headers = (*headers, (JSON_LENGTH_HEADER, b"%d" % json_bytes))
    return HttpResponse(200, body, version, headers, content_type=b"application/octet-stream")


# Longer names would be kept in memory with the subjects that were seen.
_MOST_NAME: Final = 512


class InferLane:
    """Implements request_lane.RestLaneProtocol for POST /v2/models/…/infer. One event loop's thread owns it."""

    def __init__(self) -> None:
        """Start without layouts."""
        self.method = Action.INFER.value
        self._binary: Layouts[BodySubject] = Layouts(learn_infer_body)
        self._lists = NumberLists(learn_infer_list)

    def find(self, spec: ModelSpec, body: Body, json_bytes: int | None) -> Known | None:
        """Return the layout of a request, or None for the long way."""
        if json_bytes is None or json_bytes == len(body):
            return self._lists.find(spec, bytes(body), *find_data(body))
        if not json_bytes or len(spec.name) > _MOST_NAME:
            return None
        layout = self._binary.find(body, BodySubject(spec, json_bytes))
        return None if layout is None else (layout, body)

    def inputs(self, layout: Layout, contents: Body, signature: Signature) -> Tensors | None:
        """Return the inputs of a request."""
        form = layout.form
        if type(form) is not InferListForm:
            return layout.inputs(contents)
        name, dtype, shape, _ = form
        array = read_numbers(bytes(contents), dtype, shape)
        return None if array is None else {name: array}

    def form(self, layout: Layout) -> ResponseForm:
        """Return the form of the responses."""
        form = layout.form
        if isinstance(form, InferListForm):
            return form.response
        assert isinstance(form, ResponseForm)  # learn_infer_body sets it
        return form

    def respond(self, encoded: EncodedResponse, result: PredictResult) -> HttpResponse:
        """Return the response with its headers."""
        return inferred(encoded, result.servable.version, result.cache)

    def keep(self, recall: Recall, result: PredictResult, encoded: EncodedResponse) -> None:
        """Keep a response for later requests with the same bytes."""
        recall.keep(result, *encoded)

    def logged_bytes(self, body: Body, result: PredictResult, encoded: EncodedResponse) -> int:
        """Return the memory of a request and its response in the request log, which has gRPC's messages."""
        return len(body) + output_bytes(result)
