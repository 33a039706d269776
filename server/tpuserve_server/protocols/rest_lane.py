"""RestLane: the short way of REST requests that differ only in the numbers of their tensors.

It is RequestLane for HTTP: the Exchange has read the request, and measures it. It leaves the same requests to the long
way, before it has any effect.
"""

from collections.abc import Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.response import Part, ResponseBudget
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.types import ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.protocols.exchange import HttpCall
from tpuserve_server.protocols.http.response import HttpResponse
from tpuserve_server.protocols.lane_bindings import Bound, LaneBindings
from tpuserve_server.protocols.request_meter import RequestMeter, RequestSeries
from tpuserve_server.wire.layouts import Layout

# The layout of a request, and the part of its body that the layout reads: the bytes or the text of tensors.
Known: TypeAlias = tuple[Layout, bytes]
# The encoded body of a response.
_Encoded = TypeVar("_Encoded")
_Encoded_co = TypeVar("_Encoded_co", covariant=True)


class RestTemplate(Protocol[_Encoded_co]):
    """The responses of one version that differ only in the numbers of their arrays."""

    def encode(self, outputs: Tensors) -> _Encoded_co | None:
        """Return the response, or None for outputs that need another one."""
        ...


class RestForm(Protocol[_Encoded_co]):
    """The responses to the requests of one layout."""

    def encode(self, result: PredictResult) -> _Encoded_co:
        """Return the response. May take long for large results. Raises ServingError."""
        ...

    def parts(self, result: PredictResult) -> Sequence[Part]:
        """Return the outputs with their encodings."""
        ...

    def template(self, result: PredictResult) -> RestTemplate[_Encoded_co] | None:
        """Return the template of a response, or None if other values need another one."""
        ...


class RestLaneProtocol(Protocol[_Encoded]):
    """A method of a protocol, as the lane needs it."""

    method: str

    def find(self, spec: ModelSpec, body: bytes, json_bytes: int | None) -> Known | None:
        """Return the layout of a request, or None for the long way. `json_bytes` are followed by binary data."""
        ...

    def inputs(self, layout: Layout, contents: bytes, signature: Signature) -> Tensors | None:
        """Return the inputs of a request for a signature, or None for the long way."""
        ...

    def form(self, layout: Layout) -> RestForm[_Encoded]:
        """Return the form of the responses."""
        ...

    def respond(self, encoded: _Encoded, result: PredictResult) -> HttpResponse:
        """Return the HTTP response."""
        ...

    def keep(self, recall: Recall, result: PredictResult, encoded: _Encoded) -> None:
        """Keep a response for later requests with the same bytes."""
        ...

    def log(self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, encoded: _Encoded) -> None:
        """Log an answered request, if its model is logged."""
        ...


class _Facts(NamedTuple, Generic[_Encoded]):
    form: RestForm[_Encoded]
    series: RequestSeries


class RestLane(Generic[_Encoded]):
    """The lane of one form of requests. One event loop's thread owns it."""

    def __init__(
        self,
        protocol: RestLaneProtocol[_Encoded],
        service: InferenceService,
        meter: RequestMeter,
        responses: ResponseBudget,
    ) -> None:
        """Answer with `service`, and report to `meter`. `responses` limits the size of a response."""
        self._responses = responses
        self._protocol = protocol
        self._meter = meter
        self._bindings: LaneBindings[_Facts[_Encoded], RestTemplate[_Encoded]] = LaneBindings(service, self._facts)

    def find(self, spec: ModelSpec, body: bytes, json_bytes: int | None) -> Known | None:
        """Return the layout of a request that `answer` may take, or None for the long way."""
        known = self._protocol.find(spec, body, json_bytes)
        return None if known is None or self._bindings.skips(known[0]) else known

    async def answer(self, known: Known, body: bytes, call: HttpCall, recall: Recall | None) -> HttpResponse | None:
        """Answer a request, or return None before any effect, for the long way. `recall` keeps the response.

        Raises:
            ServingError: as on the long way.
        """
        (layout, contents), protocol = known, self._protocol
        model = self._bindings.acquire(layout)
        if model is None:
            return None
        try:
            inputs = protocol.inputs(layout, contents, model.signature)
            bound = None if inputs is None else self._bindings.bind(layout, model, inputs)
            if bound is None or inputs is None:
                return None
            series, deadline, priority = bound.facts.series, call.deadline, call.priority
            call.measured.serves(model, series, priority)
            model.check_deadline(deadline, priority)
            with call.watch_client():
                result = await model.predict_prepared(bound.prepared, inputs, deadline, priority)
            template = bound.template
            encoded = None if template is None else template.encode(result.outputs)
            if encoded is None:
                encoded = await self._encode(bound, result)
            if recall is not None:
                protocol.keep(recall, result, encoded)
            protocol.log(layout, body, inputs, result, encoded)
            # Before the release: the series of a version end with it.
            self._meter.answered_exchange(call.measured, series)
            return protocol.respond(encoded, result)
        finally:
            model.release()

    def _facts(self, layout: Layout, model: AcquiredModel) -> _Facts[_Encoded]:
        protocol = self._protocol
        return _Facts(protocol.form(layout), self._meter.series(protocol.method, layout.spec.name, model))

    async def _encode(self, bound: Bound[_Facts[_Encoded], RestTemplate[_Encoded]], result: PredictResult) -> _Encoded:
        """Encode a response that has no template yet, and make one for those that follow."""
        form, responses = bound.facts.form, self._responses
        parts = form.parts(result)
        # A template makes only responses of about the same size, so no later one needs this check.
        if responses.is_small(*parts):
            bound.renew_template(lambda: form.template(result))
            return form.encode(result)
        return await responses.encode(partial(form.encode, result), result.servable.name, *parts)
