"""TensorFlow Serving's REST API: all paths under /v1/."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import orjson

from tpuserve_server.core.batching.task import Waiter
from tpuserve_server.core.serving.budgets import JSON_ROWS, Budgets
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, NotFound
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    ModelSpec,
    PredictResult,
    State,
    VersionStatus,
)
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.exchange import UNKNOWN_ROUTE, HttpCall, RouteFacts, raw_path
from tpuserve_server.protocols.http.content import LARGE_BODY_BYTES
from tpuserve_server.protocols.http.cross_origin import has_page_origin
from tpuserve_server.protocols.http.response import CACHE_HEADERS, HttpResponse, error_body
from tpuserve_server.protocols.oip_rest.v2 import VertexInference
from tpuserve_server.protocols.request_lane import RestLane, RestLaneCall
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.tf_grpc.examples import LOG_KINDS, run_examples
from tpuserve_server.protocols.tf_rest.predict_lane import PredictLane
from tpuserve_server.protocols.tf_rest.route import Action, Route, parse_route
from tpuserve_server.wire.example_methods import CLASSIFY, REGRESS, InferenceMethod, encode_response, find_run
from tpuserve_server.wire.example_request import encode_example_request
from tpuserve_server.wire.json.body import is_large
from tpuserve_server.wire.json.examples import decode_json_examples
from tpuserve_server.wire.json.predict import (
    VERTEX_SCOPE,
    decode_predict_inputs,
    decode_quickly,
    may_have_parameters,
    parse_predict_body,
    read_quickly,
    with_parameters,
)
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.model_messages import metadata_to_json, status_to_json

if TYPE_CHECKING:
    from starlette.types import Scope


_METHODS: Final[dict[Action, InferenceMethod]] = {Action.CLASSIFY: CLASSIFY, Action.REGRESS: REGRESS}


class RestExamples:
    """Classify and Regress. Raises ServingErrors in upstream's order: errors of the body before those of the model."""

    def __init__(
        self,
        service: InferenceService,
        logs: RequestLogs | None,
        max_repeated_bytes: int,
        budgets: Budgets,
        *,
        check_method_names: bool,
    ) -> None:
        """Answer from `service` and pass answered requests to `logs`. See ExampleMethods for the other arguments."""
        self._service = service
        self._logs = logs
        self._check_method_names = check_method_names
        self._max_repeated_bytes = max_repeated_bytes
        self._decoded = budgets.decoded
        self._responses = budgets.response

    async def infer(self, action: Action, target: ModelSpec, call: HttpCall) -> HttpResponse:
        """Read a body and answer it for the model that the path names."""
        method, measured = _METHODS[action], call.measured
        body = await call.read_body()
        if len(body) > LARGE_BODY_BYTES or is_large(body):
            request = await asyncio.to_thread(decode_json_examples, body, self._max_repeated_bytes, self._decoded)
        else:
            request = decode_json_examples(body, self._max_repeated_bytes)
        measured.examples = len(request.examples)
        await self._service.loaded(target, call.deadline)
        with self._service.acquire_version(target) as version:
            run = find_run(
                version.signatures, method, request.signature_name, check_method_name=self._check_method_names
            )
            measured.runs(version, run.signature.name, call.priority)
            with call.watch_client():
                result = await run_examples(version, run, request.examples, call.deadline, call.priority)
        encode = partial(method.encode_json, result.outputs, len(request.examples))
        encoded = await self._responses.encode(encode, target.name, (result.outputs, JSON_ROWS))
        if self._logs is not None and (log := self._logs.choose(target.name)):
            # The log's thread encodes these, in the form of gRPC requests.
            encode_request = partial(encode_example_request, result.servable, result.signature_name, request.examples)
            encode_result = partial(_encode_logged, method, result, len(request.examples))
            kind, size_bytes = LOG_KINDS[method.name], sum(map(len, request.examples)) + len(encoded)
            self._logs.add(
                log, kind, result.servable, result.signature_name, encode_request, encode_result, size_bytes=size_bytes
            )
        return HttpResponse(200, encoded, result.servable.version, CACHE_HEADERS[result.cache])


def _encode_logged(method: InferenceMethod, result: PredictResult, examples: int) -> bytes:
    return encode_response(method.encode(result.outputs, examples), result.servable, result.signature_name)


def _check_preflight(scope: "Scope") -> None:
    """Raise FailedPrecondition when an OPTIONS request names no web page as its origin.

    The server answers it even without CORS, as TensorFlow Serving does (http_server.cc, ProcessRequest).
    """
    if not has_page_origin(scope):
        raise FailedPrecondition("Origin header is missing in CORS preflight")


# Python 3.11 takes 0.2 us to find a member of an enumeration or its value.
_PREDICT = Action.PREDICT
_PREDICT_METHOD = Action.PREDICT.value
# The parsing of a smaller body costs less than the check of its deadline before it.
_MIN_CHECKED_BYTES = 2048
# Kind of the request's bytes in the response cache, without and with Vertex AI's parameters.
_KINDS = ("REST predict", "Vertex AI predict")


class V1:
    """The protocol of an Exchange. Its errors become `{"error": …}` with upstream's messages."""

    def __init__(
        self,
        service: InferenceService,
        logs: RequestLogs | None,
        meter: RequestMeter,
        *,
        check_method_names: bool,
        reports_readiness: bool,
        max_repeated_bytes: int,
        budgets: Budgets,
        inference: VertexInference,
    ) -> None:
        """Answer from `service` and pass answered requests to `logs`; `meter` is the exchange's.

        See RestOptions and RestExamples for the rest.
        `inference` answers its requests on Vertex AI's route.
        """
        self._service = service
        self._inference = inference
        self._logs = logs
        self._lane = RestLane(PredictLane(), service, meter, budgets.response, logs)
        self._reports_readiness = reports_readiness
        self._examples = RestExamples(service, logs, max_repeated_bytes, budgets, check_method_names=check_method_names)
        self._decoded = budgets.decoded
        self._responses = budgets.response

    def error_body(self, message: str) -> bytes:
        """See `exchange.RestProtocol`."""
        return error_body(message)

    def answer(self, call: HttpCall) -> Awaitable[HttpResponse]:
        """Return the coroutine that answers the request. A plain function saves the frame of an outer coroutine."""
        route = parse_route(call.scope["method"], raw_path(call.scope))
        measured = call.measured
        measured.model = route.spec.name
        if route.action is _PREDICT:
            measured.method = _PREDICT_METHOD
            return self._predict(route.spec, call)
        measured.method = route.action.value
        if route.action in _METHODS:
            return self._examples.infer(route.action, route.spec, call)
        return self._look_up(route, call)

    def begin(self, call: HttpCall, body: bytes, waiter: Waiter) -> RestLaneCall[bytes] | None:
        """See `exchange.RestProtocol`."""
        route = parse_route(call.scope["method"], raw_path(call.scope))
        target, measured = route.spec, call.measured
        if route.action is not _PREDICT or VERTEX_SCOPE in call.scope or self._may_recall(target.name):
            return None
        measured.model, measured.method = target.name, _PREDICT_METHOD
        self._check_deadline(target, body, call)
        return self._lane.begin(target, body, None, call, waiter)

    def facts_of(self, method: str, path: bytes) -> RouteFacts:
        """Return the facts about a request. The list, a preflight and an invalid path have no model."""
        try:
            route = parse_route(method, path)
        except InvalidArgument:
            return UNKNOWN_ROUTE
        return RouteFacts(route.access, route.action.value, route.spec.name or None)

    async def _look_up(self, route: Route, call: HttpCall) -> HttpResponse:
        if route.action is Action.PREFLIGHT:
            _check_preflight(call.scope)
            return HttpResponse(200, b"")
        if route.action is Action.METADATA:
            await self._service.loaded(route.spec, call.deadline)
        return HttpResponse(200, orjson.dumps(self._describe(route, call.scope)))

    async def _predict(self, target: ModelSpec, call: HttpCall) -> HttpResponse:
        body = await call.read_body()
        is_vertex = VERTEX_SCOPE in call.scope
        if is_vertex and await self._inference.accepts(call.scope, body):
            inferring = self._inference.infer(target, call, body)
            # Free the body's memory while the model runs.
            del body
            return await inferring
        may_recall = self._may_recall(target.name)
        recall = await self._service.recall(target, _KINDS[is_vertex], body) if may_recall else None
        if recall is not None and recall.found is not None:
            signature_name, encoded, _ = recall.found
            call.measured.recalls(recall, signature_name)
            return HttpResponse(200, encoded, recall.servable_id.version, CACHE_HEADERS["hit"])
        body_bytes = len(body)
        self._check_deadline(target, body, call)
        if not is_vertex or not may_have_parameters(body):
            answered = await self._lane.answer(target, body, None, call, recall)
            if answered is not None:
                return answered
        parsed = read_quickly(body) if body_bytes <= LARGE_BODY_BYTES else None
        if parsed is None:
            parsed = await asyncio.to_thread(parse_predict_body, body, self._decoded)
        if is_vertex:
            with_parameters(parsed)
        await self._service.loaded(target, call.deadline)
        with self._acquire(target.with_signature(parsed.signature_name)) as model:
            call.measured.runs(model, model.signature.name, call.priority)
            model.check_deadline(call.deadline, call.priority)
            decoded = decode_quickly(parsed, model.signature) if body_bytes <= LARGE_BODY_BYTES else None
            if decoded is None:
                decoded = await asyncio.to_thread(decode_predict_inputs, parsed, model.signature, self._decoded)
            # Free the body's memory while the model runs.
            del body, parsed
            with call.watch_client():
                result = await model.predict(decoded.inputs, call.deadline, (), call.priority)
        nested = model.signature.ragged_outputs if decoded.is_row or decoded.has_nested_rows else {}
        encode = partial(encode_predictions, result.outputs, is_row=decoded.is_row, ragged=nested)
        encoded = await self._responses.encode(encode, target.name, (result.outputs, JSON_ROWS))
        if recall is not None:
            recall.keep(result, encoded)
        if self._logs is not None and (log := self._logs.choose(target.name)):
            self._logs.add_predict(log, decoded.inputs, result, size_bytes=body_bytes + len(encoded))
        return HttpResponse(200, encoded, result.servable.version, CACHE_HEADERS[result.cache])

    def _may_recall(self, model: str) -> bool:
        """Return whether the response cache may have a response, and the request log does not need its arrays."""
        return model in self._service.cached_models and (self._logs is None or not self._logs.has_log(model))

    def _check_deadline(self, target: ModelSpec, body: bytes, call: HttpCall) -> None:
        if len(body) > _MIN_CHECKED_BYTES:
            # Under overload most requests end here, so that parsing takes no time from the others.
            self._service.check_deadline(target, call.deadline, call.priority)

    def _acquire(self, spec: ModelSpec) -> AcquiredModel:
        try:
            return self._service.acquire(spec)
        except FailedPrecondition:
            # The only FailedPrecondition here is an unknown signature. REST has a different code and message for it
            # than gRPC (http_rest_api_handler.cc, GetInfoMap).
            name = spec.signature_name or DEFAULT_SIGNATURE_NAME
            raise InvalidArgument(f'Serving signature name: "{name}" not found in signature def') from None

    def _describe(self, route: Route, scope: "Scope") -> object:
        if route.action is Action.STATUS:
            return self._describe_status(route.spec)
        if route.action is Action.METADATA:
            return metadata_to_json(self._service.metadata(route.spec), _metadata_fields(scope))
        return {"models": [self._describe_model(name) for name in self._service.models()]}

    def _describe_status(self, spec: ModelSpec) -> dict[str, object]:
        """Return TensorFlow Serving's document, with KServe's fields if the operator has added them."""
        statuses = self._service.status_once_read(spec)
        document = status_to_json(statuses)
        if not self._reports_readiness:
            return document
        return {"name": spec.name, "ready": any(one.state is State.AVAILABLE for one in statuses), **document}

    def _describe_model(self, name: str) -> dict[str, object]:
        try:
            statuses = self._service.status(ModelSpec(name))
        except NotFound:
            statuses = []
        return {
            "name": name,
            "labels": {label: str(number) for label, number in sorted(self._service.labels(name).items())},
            "versions": [_describe_version(status) for status in statuses],
        }


def _metadata_fields(scope: "Scope") -> list[str]:
    """Read `?metadata_field=`, which may be repeated. Upstream has no such query; the server ignores unknown fields."""
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("metadata_field", [])


def _describe_version(status: VersionStatus) -> dict[str, object]:
    return {
        "version": str(status.servable.version),
        "state": status.state.name,
        "error": status.error,
        "notes": list(status.notes),
    }
