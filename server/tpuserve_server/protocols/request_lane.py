"""Lanes: the short way of requests that differ only in the numbers of their tensors, over gRPC and over REST.

They take messages whose layout is known (wire/layouts.py), and do all work that does not depend on the numbers once for
each layout and loaded version. Deadlines, the queue, cancellation, the request log, metrics, stages, traces and the
access to models work as on the long way, by the same code.

They leave to the long way, before it has any effect: other messages, unknown priorities, models that a request may not
or cannot use, ensembles, and inputs that the version must check one by one.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.acquired import PreparedRequest
from tpuserve_server.core.serving.budgets import Encoding, Part, ResponseBudget
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogTarget
from tpuserve_server.protocols.exchange import HttpCall
from tpuserve_server.protocols.request_meter import RequestMeter, RequestSeries
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.wire.layouts import Layout, Layouts

_LongWay: TypeAlias = Callable[[bytes, CallContext], Coroutine[Any, Any, bytes]]
# The layout of a request, and the part of its body that the layout reads: the bytes or the text of tensors.
Known: TypeAlias = tuple[Layout, bytes]
# Returns the response with the request's id, or None for outputs of other names, dtypes or shapes.
Template: TypeAlias = Callable[[Tensors, bytes], bytes | None]
# The encoded body of a response over REST.
_Encoded = TypeVar("_Encoded")
_Encoded_co = TypeVar("_Encoded_co", covariant=True)

_HIGH: Final = Priority.HIGH
# Requests of a layout that go the long way after one that the lane could not take, before it tries again.
_SKIPPED: Final = 64
# Outputs of ever new shapes need no templates.
_MOST_TEMPLATES: Final = 16


class _Bound:
    """Facts that all requests of one layout share on one loaded version. They do not keep the version in memory.

    `template` encodes a response from its outputs, if one is known.
    """

    __slots__ = ("prepared", "series", "template", "templates_left")

    def __init__(self, prepared: PreparedRequest, series: RequestSeries) -> None:
        self.prepared = prepared
        self.series = series
        self.template: Any = None  # of the lane that binds it
        self.templates_left = _MOST_TEMPLATES


class _Skipped:
    """Binding of a layout that the lane leaves to the long way for a while."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SKIPPED

    def skips(self, layout: Layout) -> bool:
        """Return True, and forget the binding after the last request."""
        self.left -= 1
        if not self.left:
            layout.bound = None
        return True


def _refused(layout: Layout, error: ServingError) -> None:
    """Note that the long way reports `error`, which the model of a layout has raised."""
    if isinstance(error, FailedPrecondition):
        # The default signature is missing. Some protocols then look for another one, on the long way.
        layout.bound = _Skipped()


class _Lane:
    """The parts of a lane that all protocols share."""

    def __init__(
        self,
        method: str,
        service: InferenceService,
        meter: RequestMeter,
        responses: ResponseBudget,
        logs: RequestLogs | None,
    ) -> None:
        self._method = method
        self._service = service
        self._meter = meter
        self._responses = responses
        self._logs = logs

    def _bind(self, layout: Layout, model: AcquiredModel, inputs: Tensors) -> _Bound | None:
        """Bind a layout to the version that answers now. Return None if the lane does not take its requests."""
        try:
            prepared = model.prepare(inputs, layout.output_filter)
        except ServingError:
            prepared = None
        if prepared is None:
            layout.bound = _Skipped()
            return None
        bound = _Bound(prepared, self._meter.series(self._method, layout.spec.name, model))
        layout.bound = bound
        return bound

    async def _encode(
        self,
        bound: _Bound,
        result: PredictResult,
        parts: Sequence[Part],
        encode: Callable[[], Any],  # the protocol's form of a response
        template: Callable[[PredictResult], object],
    ) -> Any:  # noqa: ANN401 - that of `encode`
        """Encode a response that has no template yet, and make one for those that follow."""
        # A template makes only responses of about the same size, so no later one needs this check.
        if not self._responses.is_small(*parts):
            return await self._responses.encode(encode, result.servable.name, *parts)
        if bound.templates_left:
            bound.templates_left -= 1
            bound.template = template(result)
        return encode()


class LaneProtocol(Protocol):
    """A method of gRPC, as its lane needs it."""

    method: str
    layouts: Layouts[None]
    encoding: Encoding

    def template(self, result: PredictResult) -> Template | None:
        """Return the template of a response, or None if other values take another number of bytes."""
        ...

    def encode(self, result: PredictResult, request_id: bytes) -> bytes:
        """Return the response. May take long for large results. Raises ServingError."""
        ...

    def log(
        self, logs: RequestLogs, target: LogTarget, body: bytes, inputs: Tensors, result: PredictResult, response: bytes
    ) -> None:
        """Log an answered request."""
        ...


class RequestLane(_Lane):
    """The lane of one method of gRPC. One event loop's thread owns it."""

    def __init__(
        self,
        protocol: LaneProtocol,
        long_way: _LongWay,
        service: InferenceService,
        meter: RequestMeter,
        clock: Clock,
        responses: ResponseBudget,
        logs: RequestLogs | None,
    ) -> None:
        """Answer with `service`, or leave a request to `long_way`. `responses` limits the size of a response."""
        super().__init__(protocol.method, service, meter, responses, logs)
        self._protocol = protocol
        self._layouts = protocol.layouts
        self._long_way = long_way
        self._now = clock.monotonic_s

    def handle(self, body: bytes, context: CallContext) -> Coroutine[Any, Any, bytes]:
        """Return the coroutine that answers a request."""
        layout = self._layouts.find(body, None)
        if layout is None or (type(layout.bound) is _Skipped and layout.bound.skips(layout)):
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
        try:
            model = self._service.acquire(layout.spec)
        except ServingError as error:
            _refused(layout, error)
            return await self._long_way(body, context)
        try:
            inputs = layout.inputs(body)
            bound = layout.bound
            if type(bound) is not _Bound or not model.is_prepared(bound.prepared):
                bound = self._bind(layout, model, inputs)
            if bound is not None:
                meter, series = self._meter, bound.series
                meter.in_flight += 1
                try:
                    deadline = context.deadline
                    if deadline.is_finite:
                        model.check_deadline(deadline, priority)
                    result = await model.predict_prepared(bound.prepared, inputs, deadline, priority)
                    template, request_id = bound.template, layout.read_id(body)
                    response: bytes | None = None if template is None else template(result.outputs, request_id)
                    if response is None:
                        protocol = self._protocol
                        parts = ((result.outputs, protocol.encoding),)
                        encode = partial(protocol.encode, result, request_id)
                        response = await self._encode(bound, result, parts, encode, protocol.template)
                    logs = self._logs
                    if logs is not None and (target := logs.choose(layout.spec.name)):
                        self._protocol.log(logs, target, body, inputs, result, response)
                except BaseException as error:
                    meter.finished(meter.measured(series, context, received_s, model), error)
                    raise
                # Before the release: the series of a version end with it.
                started_s = context.started_s or received_s
                seen = meter.answered(series, started_s, context.trace_headers, wants_timing=context.wants_timing)
                if seen is not None:
                    meter.observe(meter.measured(series, context, received_s, model), seen)
                return response
        finally:
            model.release()
        return await self._long_way(body, context)


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
    """A method of REST, as its lane needs it."""

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

    def keep(self, recall: Recall, result: PredictResult, encoded: _Encoded) -> None:
        """Keep a response for later requests with the same bytes."""
        ...

    def logged_bytes(self, body: bytes, result: PredictResult, encoded: _Encoded) -> int:
        """Return the memory of a request and its response in the request log."""
        ...


class RestLane(_Lane, Generic[_Encoded]):
    """The lane of one method of REST, whose Exchange reads and measures requests. One event loop's thread owns it."""

    def __init__(
        self,
        protocol: RestLaneProtocol[_Encoded],
        service: InferenceService,
        meter: RequestMeter,
        responses: ResponseBudget,
        logs: RequestLogs | None,
    ) -> None:
        """Answer with `service`, and report to `meter`. `responses` limits the size of a response."""
        super().__init__(protocol.method, service, meter, responses, logs)
        self._protocol = protocol

    async def answer(
        self, spec: ModelSpec, body: bytes, json_bytes: int | None, call: HttpCall, recall: Recall | None
    ) -> tuple[_Encoded, PredictResult] | None:
        """Answer a request, or return None before any effect, for the long way. `recall` keeps the response.

        Raises:
            ServingError: as on the long way.
        """
        protocol = self._protocol
        known = protocol.find(spec, body, json_bytes)
        if known is None:
            return None
        layout, contents = known
        bound = layout.bound
        if type(bound) is _Skipped and bound.skips(layout):
            return None
        try:
            model = self._service.acquire(layout.spec)
        except ServingError as error:
            _refused(layout, error)
            return None
        try:
            inputs = protocol.inputs(layout, contents, model.signature)
            if inputs is None:
                return None
            if type(bound) is not _Bound or not model.is_prepared(bound.prepared):
                bound = self._bind(layout, model, inputs)
                if bound is None:
                    return None
            series, measured, deadline, priority = bound.series, call.measured, call.deadline, call.priority
            measured.serves(model, series, priority)
            model.check_deadline(deadline, priority)
            with call.watch_client():
                result = await model.predict_prepared(bound.prepared, inputs, deadline, priority)
            encoded: _Encoded | None = None if bound.template is None else bound.template.encode(result.outputs)
            if encoded is None:
                form = protocol.form(layout)
                encode = partial(form.encode, result)
                encoded = await self._encode(bound, result, form.parts(result), encode, form.template)
            if recall is not None:
                protocol.keep(recall, result, encoded)
            logs = self._logs
            if logs is not None and (target := logs.choose(layout.spec.name)):
                logs.add_predict(target, inputs, result, size_bytes=protocol.logged_bytes(body, result, encoded))
            # Before the release: the series of a version end with it.
            measured.is_reported = True
            headers, wants_timing = measured.trace_headers, measured.wants_timing
            seen = self._meter.answered(series, measured.started_s, headers, wants_timing=wants_timing)
            if seen is not None:
                self._meter.observe(measured, seen)
            return encoded, result
        finally:
            model.release()
