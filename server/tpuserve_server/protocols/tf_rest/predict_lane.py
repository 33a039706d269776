"""PredictLane: the requests of POST /v1/models/…:predict that a lane takes, and their responses."""

from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.terms.types import Body, ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.protocols.http.response import CACHE_HEADERS, HttpResponse
from tpuserve_server.protocols.request_lane import Known
from tpuserve_server.protocols.tf_rest.route import Action
from tpuserve_server.wire.json.numbers import read_numbers
from tpuserve_server.wire.json.predict import PredictForm, learn_predict_list
from tpuserve_server.wire.layouts import Layout, NumberLists


class PredictLane:
    """Implements request_lane.RestLaneProtocol for POST /v1/models/…:predict. One event loop's thread owns it."""

    def __init__(self) -> None:
        """Start without layouts."""
        self.method = Action.PREDICT.value
        self._lists = NumberLists(learn_predict_list)

    def find(self, spec: ModelSpec, body: Body, json_bytes: int | None = None) -> Known | None:
        """Return the layout of a request, or None for the long way."""
        return self._lists.find(spec, bytes(body), body.find(b"["), body.rfind(b"]") + 1)

    def inputs(self, layout: Layout, contents: Body, signature: Signature) -> Tensors | None:
        """Return the input of a request, or None if the signature has others, or ragged tensors."""
        if len(signature.inputs) != 1 or signature.ragged_outputs:
            return None
        ((name, spec),) = signature.inputs.items()
        form = layout.form
        assert type(form) is PredictForm  # learn_predict_list sets it
        if form.name is not None and form.name != name:
            return None
        array = read_numbers(bytes(contents), spec.dtype, form.shape)
        return None if array is None else {name: array}

    def form(self, layout: Layout) -> PredictForm:
        """Return the form of the responses."""
        assert type(layout.form) is PredictForm  # learn_predict_list sets it
        return layout.form

    def respond(self, encoded: bytes, result: PredictResult) -> HttpResponse:
        """Return the response with its headers."""
        return HttpResponse(200, encoded, result.servable.version, CACHE_HEADERS[result.cache])

    def keep(self, recall: Recall, result: PredictResult, encoded: bytes) -> None:
        """Keep a response for later requests with the same bytes."""
        recall.keep(result, encoded)

    def logged_bytes(self, body: Body, result: PredictResult, encoded: bytes) -> int:
        """Return the memory of a request and its response in the request log."""
        return len(body) + len(encoded)
