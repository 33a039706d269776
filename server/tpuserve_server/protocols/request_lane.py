"""Lanes: the short way of requests that differ only in the numbers of their tensors, over gRPC and over REST.

They take messages whose layout is known (wire/layouts.py), and do all work that does not depend on the numbers once for
each layout and loaded version. Deadlines, the queue, cancellation, the request log, metrics, stages, traces and the
access to models work as on the long way, by the same code.

They leave to the long way, before it has any effect: other messages, unknown priorities, models that a request may not
or cannot use, ensembles, and inputs that the version must check one by one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from tpuserve_server.core.batching.task import Outcome, Waiter
from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.acquired import PreparedRequest
from tpuserve_server.core.serving.budgets import Encoding, Part, ResponseBudget
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Body, ModelSpec, PredictResult, Signature, Tensors
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogTarget
from tpuserve_server.protocols.exchange import HttpCall
from tpuserve_server.protocols.http.response import HttpResponse
from tpuserve_server.protocols.request_meter import MeasuredRequest, RequestMeter, RequestSeries
from tpuserve_server.protocols.rpc import CallContext, UnaryHandler
from tpuserve_server.wire.layouts import Layout, Layouts

# The layout of a request, and the part of its body that the layout reads: the bytes or the text of tensors.
Known: TypeAlias = tuple[Layout, Body]
# Returns the response with the request's id, or None for outputs of other names, dtypes or shapes.
Template: TypeAlias = Callable[[Tensors, bytes], bytes | None]
# The encoded body of a response over REST.
_Encoded = TypeVar("_Encoded")
_Encoded_co = TypeVar("_Encoded_co", covariant=True)

_HIGH: Final = Priority.HIGH
# Key in the scope of a request over REST that its lane has left to the long way.
_LEFT: Final = "tpuserve.left"
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

    def _encode(
        self,
        bound: _Bound,
        result: PredictResult,
        parts: Sequence[Part],
        encode: Callable[[], Any],  # the protocol's form of a response
        template: Callable[[PredictResult], object],
    ) -> Any:  # noqa: ANN401 - that of `encode`
        """Encode a response that has no template yet, and make one for those that follow.

        Return None for a large response, which `ResponseBudget.encode` must encode. A template makes only responses of
        about the same size, so none of them needs this check.
        """
        if not self._responses.is_small(*parts):
            return None
        if bound.templates_left:
            bound.templates_left -= 1
            bound.template = template(result)
        return encode()


class _LaneCall:
    """A request that a lane has taken, until it ends. One event loop's thread owns it."""

    __slots__ = ("_body", "_bound", "_inputs", "_layout", "_model", "recalled")

    def __init__(self, layout: Layout, bound: _Bound, model: AcquiredModel, body: Body, inputs: Tensors) -> None:
        """Own `model` until the request ends."""
        self._layout = layout
        self._bound = bound
        self._model = model
        self._body = body
        self._inputs = inputs
        # The result, if the response cache has it.
        self.recalled: PredictResult | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `end` may be called at once, with any outcome. The waiter then gets none."""
        return self.recalled is not None


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
        self, logs: RequestLogs, target: LogTarget, body: Body, inputs: Tensors, result: PredictResult, response: bytes
    ) -> None:
        """Log an answered request."""
        ...


class RequestLane(_Lane):
    """The lane of one method of gRPC. One event loop's thread owns it."""

    def __init__(
        self,
        protocol: LaneProtocol,
        long_way: UnaryHandler,
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
        self.long_way = long_way
        self._now = clock.monotonic_s

    async def handle(self, body: Body, context: CallContext) -> bytes:
        """Answer a request in a task, on the lane or the long way."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call = self.begin(body, context, future)
        if call is None:
            return await self.long_way(body, context)
        try:
            outcome = {} if call.is_ready else await future
        except BaseException as error:
            call.give_up(error)
            raise
        response = call.end(outcome)
        return response if isinstance(response, bytes) else await response

    def begin(self, body: Body, context: CallContext, waiter: Waiter) -> "LaneCall | None":
        """See `rpc.Lane`."""
        layout = self._layouts.find(body, None)
        if layout is None or (type(layout.bound) is _Skipped and layout.bound.skips(layout)):
            return None
        priority = _HIGH
        if context.raw_priority is not None:
            try:
                priority = context.priority
            except InvalidArgument:
                return None
        received_s = self._now()
        try:
            model = self._service.acquire(layout.spec)
        except ServingError as error:
            _refused(layout, error)
            return None
        try:
            inputs = layout.inputs(body)
            bound = layout.bound
            if type(bound) is not _Bound or not model.is_prepared(bound.prepared):
                bound = self._bind(layout, model, inputs)
            if bound is None:
                model.release()
                return None
        except BaseException:
            model.release()
            raise
        self._meter.in_flight += 1
        call = LaneCall(self, layout, bound, model, body, inputs, context, received_s)
        try:
            deadline = context.deadline
            if deadline.is_finite:
                model.check_deadline(deadline, priority)
            call.recalled = model.begin(bound.prepared, inputs, deadline, priority, waiter)
        except BaseException as error:
            call.fail(error)
            raise
        return call


class LaneCall(_LaneCall):
    """Implements rpc.LaneCall."""

    __slots__ = ("_context", "_lane", "_received_s")

    def __init__(
        self,
        lane: RequestLane,
        layout: Layout,
        bound: _Bound,
        model: AcquiredModel,
        body: Body,
        inputs: Tensors,
        context: CallContext,
        received_s: float,
    ) -> None:
        """Own `model` until the call ends. The message was complete at `received_s`."""
        super().__init__(layout, bound, model, body, inputs)
        self._lane = lane
        self._context = context
        self._received_s = received_s

    def end(self, outcome: Outcome) -> bytes | Coroutine[Any, Any, bytes]:
        """See `rpc.LaneCall`."""
        try:
            result = self.recalled or self._model.end(outcome)
            template, request_id = self._bound.template, self._layout.read_id(self._body)
            response: bytes | None = None if template is None else template(result.outputs, request_id)
            if response is None:
                protocol = self._lane._protocol
                parts = ((result.outputs, protocol.encoding),)
                encode = partial(protocol.encode, result, request_id)
                response = self._lane._encode(self._bound, result, parts, encode, protocol.template)
                if response is None:
                    return self._end_slowly(result, encode, parts)
            self._log(result, response)
        except BaseException as error:
            self.fail(error)
            raise
        self._report()
        return response

    async def _end_slowly(self, result: PredictResult, encode: Callable[[], bytes], parts: Sequence[Part]) -> bytes:
        try:
            response = await self._lane._responses.encode(encode, result.servable.name, *parts)
            self._log(result, response)
        except BaseException as error:
            self.fail(error)
            raise
        self._report()
        return response

    def give_up(self, error: BaseException) -> None:
        """See `rpc.LaneCall`."""
        self._model.abandon()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Report that the call has failed, and release the model."""
        try:
            meter = self._lane._meter
            meter.finished(meter.measured(self._bound.series, self._context, self._received_s, self._model), error)
        finally:
            self._model.release()

    def _log(self, result: PredictResult, response: bytes) -> None:
        logs = self._lane._logs
        if logs is not None and (target := logs.choose(self._layout.spec.name)):
            self._lane._protocol.log(logs, target, self._body, self._inputs, result, response)

    def _report(self) -> None:
        """Report a success, and release the model."""
        meter, series, context = self._lane._meter, self._bound.series, self._context
        try:
            # Before the release: the series of a version end with it.
            started_s = context.started_s or self._received_s
            seen = meter.answered(series, started_s, context.trace_headers, wants_timing=context.wants_timing)
            if seen is not None:
                meter.observe(meter.measured(series, context, self._received_s, self._model), seen)
        finally:
            self._model.release()


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

    def find(self, spec: ModelSpec, body: Body, json_bytes: int | None) -> Known | None:
        """Return the layout of a request, or None for the long way. `json_bytes` are followed by binary data."""
        ...

    def inputs(self, layout: Layout, contents: Body, signature: Signature) -> Tensors | None:
        """Return the inputs of a request for a signature, or None for the long way."""
        ...

    def form(self, layout: Layout) -> RestForm[_Encoded]:
        """Return the form of the responses."""
        ...

    def respond(self, encoded: _Encoded, result: PredictResult) -> HttpResponse:
        """Return the response with its headers."""
        ...

    def keep(self, recall: Recall, result: PredictResult, encoded: _Encoded) -> None:
        """Keep a response for later requests with the same bytes."""
        ...

    def logged_bytes(self, body: Body, result: PredictResult, encoded: _Encoded) -> int:
        """Return the memory of a request and its response in the request log."""
        ...


class RestLane(_Lane, Generic[_Encoded]):
    """The lane of one method of REST. Its Exchange reads and counts requests. One event loop's thread owns it."""

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
        self, spec: ModelSpec, body: Body, json_bytes: int | None, call: HttpCall, recall: Recall | None
    ) -> HttpResponse | None:
        """Answer a request in a task, or return None before any effect, for the long way. `recall` keeps the response.

        Raises:
            ServingError: as on the long way.
        """
        if _LEFT in call.scope:
            return None
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        lane_call = self.begin(spec, body, json_bytes, call, future)
        if lane_call is None:
            return None
        lane_call.recall = recall
        try:
            with call.watch_client():
                outcome = {} if lane_call.is_ready else await future
        except BaseException:
            lane_call.give_up()
            raise
        response = lane_call.end(outcome)
        return response if isinstance(response, HttpResponse) else await response

    def begin(
        self, spec: ModelSpec, body: Body, json_bytes: int | None, call: HttpCall, waiter: Waiter
    ) -> "RestLaneCall[_Encoded] | None":
        """Queue a request whose outcome `waiter` gets, or return None before any effect, for the long way.

        Raises:
            ServingError: as on the long way.
        """
        begun = self._begin(spec, body, json_bytes, call, waiter)
        if begun is None:
            # A task does not ask again.
            call.scope[_LEFT] = True
        return begun

    def _begin(
        self, spec: ModelSpec, body: Body, json_bytes: int | None, call: HttpCall, waiter: Waiter
    ) -> "RestLaneCall[_Encoded] | None":
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
                model.release()
                return None
            if type(bound) is not _Bound or not model.is_prepared(bound.prepared):
                bound = self._bind(layout, model, inputs)
            if bound is None:
                model.release()
                return None
            measured, deadline, priority = call.measured, call.deadline, call.priority
            measured.serves(model, bound.series, priority)
            model.check_deadline(deadline, priority)
            recalled = model.begin(bound.prepared, inputs, deadline, priority, waiter)
        except BaseException:
            model.release()
            raise
        begun = RestLaneCall(self, layout, bound, model, body, inputs, measured)
        begun.recalled = recalled
        return begun


class RestLaneCall(_LaneCall, Generic[_Encoded]):
    """Implements exchange.RestLaneCall."""

    __slots__ = ("_lane", "_measured", "recall")

    def __init__(
        self,
        lane: RestLane[_Encoded],
        layout: Layout,
        bound: _Bound,
        model: AcquiredModel,
        body: Body,
        inputs: Tensors,
        measured: MeasuredRequest,
    ) -> None:
        """Own `model` until the request ends."""
        super().__init__(layout, bound, model, body, inputs)
        self._lane = lane
        self._measured = measured
        # Keeps the response.
        self.recall: Recall | None = None

    def end(self, outcome: Outcome) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        """See `exchange.RestLaneCall`."""
        bound = self._bound
        try:
            result = self.recalled or self._model.end(outcome)
            encoded: _Encoded | None = None if bound.template is None else bound.template.encode(result.outputs)
            if encoded is None:
                form = self._lane._protocol.form(self._layout)
                encode, parts = partial(form.encode, result), form.parts(result)
                encoded = self._lane._encode(bound, result, parts, encode, form.template)
                if encoded is None:
                    return self._end_slowly(result, encode, parts)
        except BaseException:
            self._model.release()
            raise
        return self._respond(result, encoded)

    async def _end_slowly(
        self, result: PredictResult, encode: Callable[[], _Encoded], parts: Sequence[Part]
    ) -> HttpResponse:
        try:
            encoded = await self._lane._responses.encode(encode, result.servable.name, *parts)
        except BaseException:
            self._model.release()
            raise
        return self._respond(result, encoded)

    def give_up(self) -> None:
        """See `exchange.RestLaneCall`."""
        self._model.abandon()
        self._model.release()

    def _respond(self, result: PredictResult, encoded: _Encoded) -> HttpResponse:
        """Log and report a success, release the model, and return the response."""
        protocol, logs, measured = self._lane._protocol, self._lane._logs, self._measured
        try:
            if self.recall is not None:
                protocol.keep(self.recall, result, encoded)
            if logs is not None and (target := logs.choose(self._layout.spec.name)):
                size_bytes = protocol.logged_bytes(self._body, result, encoded)
                logs.add_predict(target, self._inputs, result, size_bytes=size_bytes)
            # Before the release: the series of a version end with it.
            measured.is_reported = True
            meter, headers, wants_timing = self._lane._meter, measured.trace_headers, measured.wants_timing
            seen = meter.answered(self._bound.series, measured.started_s, headers, wants_timing=wants_timing)
            if seen is not None:
                meter.observe(measured, seen)
        finally:
            self._model.release()
        return protocol.respond(encoded, result)
