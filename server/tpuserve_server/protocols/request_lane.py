"""RequestLane: the short way of gRPC requests that differ only in the numbers of their tensors.

It takes messages whose layout is known (wire/layouts.py), for a signature whose requests share batches. It does all
work that does not depend on the numbers once for each layout and loaded version (lane_bindings.py). Deadlines, the
queue, cancellation, the request log, metrics, stages, traces and the access to models work as on the long way, by the
same code.

It leaves to the long way, before it has any effect: other messages, unknown priorities, models that a request may not
or cannot use, ensembles, and inputs that the batcher does not share.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from tpuserve_server.core.serving.response import Encoding, ResponseBudget
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import PredictResult, Tensors
from tpuserve_server.protocols.lane_bindings import Bound, LaneBindings
from tpuserve_server.protocols.request_meter import RequestMeter, RequestSeries
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.layouts import Layout, Layouts

LongWay: TypeAlias = Callable[[bytes, CallContext], Coroutine[Any, Any, bytes]]
_Bound: TypeAlias = "Bound[RequestSeries, Template]"

_HIGH: Final = Priority.HIGH


class Template(Protocol):
    """The responses of one version that differ only in the bytes of their arrays."""

    def encode(self, outputs: Tensors, request_id: bytes) -> bytes | None:
        """Return the response, or None for outputs of other names, dtypes or shapes."""
        ...


class LaneProtocol(Protocol):
    """A method of a protocol, as the lane needs it."""

    method: str
    layouts: Layouts[None]
    encoding: Encoding

    def template(self, result: PredictResult) -> Template | None:
        """Return the template of a response, or None if other values take another number of bytes."""
        ...

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response. May take long for large results. Raises ServingError."""
        ...

    def log(self, layout: Layout, body: bytes, inputs: Tensors, result: PredictResult, response: bytes) -> None:
        """Log an answered request, if its model is logged."""
        ...


class RequestLane:
    """The lane of one method. One event loop's thread owns it."""

    def __init__(
        self,
        protocol: LaneProtocol,
        long_way: LongWay,
        service: InferenceService,
        meter: RequestMeter,
        clock: Clock,
        responses: ResponseBudget,
    ) -> None:
        """Answer with `service`, or leave a request to `long_way`. `responses` limits the size of a response."""
        self._protocol = protocol
        self._layouts = protocol.layouts
        self._long_way = long_way
        self._meter = meter
        self._bindings: LaneBindings[RequestSeries, Template] = LaneBindings(
            service, lambda layout, model: meter.series(protocol.method, layout.spec.name, model)
        )
        self._now = clock.monotonic_s
        self._responses = responses

    def handle(self, body: bytes, context: CallContext) -> Coroutine[Any, Any, bytes]:
        """Return the coroutine that answers a request."""
        layout = self._layouts.find(body, None)
        if layout is None or self._bindings.skips(layout):
            return self._long_way(body, context)
        priority = _HIGH
        if context.raw_priority is not None:
            try:
                priority = context.priority
            except InvalidArgument:
                return self._long_way(body, context)
        return self._answer(layout, body, context, priority)

    async def _answer(self, layout: Layout, body: bytes, context: CallContext, priority: Priority) -> bytes:
        received_s = self._now()
        model = self._bindings.acquire(layout)
        if model is None:
            return await self._long_way(body, context)
        try:
            inputs = layout.inputs(body)
            bound = self._bindings.bind(layout, model, inputs)
            if bound is not None:
                meter, series = self._meter, bound.facts
                meter.begin()
                try:
                    deadline = context.deadline
                    if deadline.is_finite:
                        model.check_deadline(deadline, priority)
                    result = await model.predict_prepared(bound.prepared, inputs, deadline, priority)
                    template, request_id = bound.template, layout.read_id(body)
                    response = None if template is None else template.encode(result.outputs, request_id)
                    if response is None:
                        response = await self._encode(bound, result, request_id)
                    self._protocol.log(layout, body, inputs, result, response)
                except BaseException as error:
                    meter.failed(series, context, received_s, model, error)
                    raise
                # Before the release: the series of a version end with it.
                meter.answered(series, context, received_s, model)
                return response
        finally:
            model.release()
        return await self._long_way(body, context)

    async def _encode(self, bound: _Bound, result: PredictResult, request_id: bytes) -> bytes:
        """Encode a response that has no template yet, and make one for those that follow."""
        protocol, responses = self._protocol, self._responses
        part = result.outputs, protocol.encoding
        # A template makes only responses of the same size, so no later one needs this check.
        if responses.is_small(part):
            bound.renew_template(lambda: protocol.template(result))
            return protocol.encode(result, request_id)
        return await responses.encode(partial(protocol.encode, result, request_id), result.servable.name, part)
