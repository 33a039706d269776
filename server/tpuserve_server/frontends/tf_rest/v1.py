"""Everything under /v1/: TensorFlow Serving's REST API as a plain ASGI application, without routing or middleware.

A FastAPI endpoint costs more than twice what all of a prediction does here (python -m benchmarks codecs).
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

import orjson

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError
from tpuserve_server.core.rare_timers import RareTimersByLoop
from tpuserve_server.core.service import HeldModel, InferenceService
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, ModelSpec, VersionStatus
from tpuserve_server.frontends.edge import Edge, MeasuredRequest
from tpuserve_server.frontends.http.body import LARGE_BODY_BYTES, ClientWatch, read_body
from tpuserve_server.frontends.http.errors import ClientGone
from tpuserve_server.frontends.http.gzip import MIN_GZIP_BYTES
from tpuserve_server.frontends.http.headers import RequestHeaders, read_headers
from tpuserve_server.frontends.http.response import (
    JsonResponse,
    compressed,
    error_body,
    error_response,
    send_response,
)
from tpuserve_server.frontends.tf_rest.cors import CORS_HEADERS, check_preflight
from tpuserve_server.frontends.tf_rest.examples import METHODS, RestExamples
from tpuserve_server.frontends.tf_rest.route import Action, Route, parse_route
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.json.tensor import decode_predict_inputs, parse_predict_body
from tpuserve_server.wire.metadata import metadata_to_json
from tpuserve_server.wire.model_status import status_to_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class RestOptions:
    """Bounds and checks of one request."""

    # Before and after decompression.
    max_body_bytes: int = 64 * _MEBIBYTE
    # rest_api_timeout_in_ms; counts from when the body is complete. inf for none.
    timeout_s: float = 30.0
    # How long an answer may take before the server begins to notice that the client has gone.
    disconnect_watch_delay_s: float = 0.05
    # rest_api_enable_cors_support
    allow_cors: bool = False
    # enable_signature_method_name_check
    check_method_names: bool = False
    # Of a MonitoringConfig, beside /metrics; outside /v1/.
    metrics_path: str | None = None


class V1:
    """The ASGI application. Errors become `{"error": …}` with upstream's texts; nothing is raised."""

    def __init__(
        self, service: InferenceService, edge: Edge, clock: Clock, options: RestOptions, logs: RequestLogs | None
    ) -> None:
        """Answer from `service`, and tell `logs` of what was answered."""
        self._service = service
        self._edge = edge
        self._clock = clock
        self._options = options
        self._logs = logs
        self._more_headers = CORS_HEADERS if options.allow_cors else ()
        self._timers = RareTimersByLoop()
        self._examples = RestExamples(
            service,
            logs,
            check_method_names=options.check_method_names,
            max_repeated_bytes=options.max_body_bytes,
            watch_delay_s=options.disconnect_watch_delay_s,
            timers=self._timers,
        )

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One HTTP request, from path to response."""
        try:
            with self._edge.request("Unknown") as measured:
                response = await self._answer(scope, receive, measured)
        except ClientGone:
            return
        except ServingError as error:
            response = error_response(error)
        except Exception:
            # The edge: whatever it is, the client gets an answer and the log the traceback.
            _log.exception("Unexpected error in %s %s", scope["method"], scope["path"])
            response = error_body(500, "Internal error")
        if len(response.body) >= MIN_GZIP_BYTES:
            response = await compressed(response, scope)
        await send_response(send, response, self._more_headers)

    def _answer(self, scope: "Scope", receive: "Receive", measured: MeasuredRequest) -> Awaitable[JsonResponse]:
        """The coroutine that answers: found by a function, for one that awaits another costs a frame more."""
        route = parse_route(scope["method"], _raw_path(scope))
        measured.method = route.action.value
        measured.model = route.spec.name
        if route.action is Action.PREDICT:
            headers = read_headers(scope, self._options.max_body_bytes)
            return self._predict(route.spec, headers, receive, measured)
        if route.action in METHODS:
            return self._infer(route, read_headers(scope, self._options.max_body_bytes), receive, measured)
        return self._tell(route, scope)

    async def _tell(self, route: Route, scope: "Scope") -> JsonResponse:
        if route.action is Action.PREFLIGHT:
            check_preflight(scope)
            return JsonResponse(200, b"")
        return JsonResponse(200, orjson.dumps(self._describe(route, scope)))

    async def _infer(
        self, route: Route, headers: RequestHeaders, receive: "Receive", measured: MeasuredRequest
    ) -> JsonResponse:
        body = await read_body(headers, receive, self._options.max_body_bytes)
        deadline = self._deadline(headers, measured)
        return await self._examples.infer(route.action, route.spec, body, receive, deadline, headers.priority, measured)

    def _deadline(self, headers: RequestHeaders, measured: MeasuredRequest) -> Deadline:
        """The sooner of the server's, which counts from now, and the client's, who has waited since it was read."""
        measured.came_s = now_s = self._clock.monotonic_s()
        return Deadline(min(now_s + self._options.timeout_s, measured.started_s + headers.timeout_s))

    async def _predict(
        self, target: ModelSpec, headers: RequestHeaders, receive: "Receive", measured: MeasuredRequest
    ) -> JsonResponse:
        body = await read_body(headers, receive, self._options.max_body_bytes)
        deadline = self._deadline(headers, measured)
        body_bytes = len(body)
        is_large = body_bytes > LARGE_BODY_BYTES
        parsed = await asyncio.to_thread(parse_predict_body, body) if is_large else parse_predict_body(body)
        with self._hold(_with_signature(target, parsed.signature_name)) as model:
            measured.runs(model, model.signature.name, headers.priority)
            if is_large:
                decoded = await asyncio.to_thread(decode_predict_inputs, parsed, model.signature)
            else:
                decoded = decode_predict_inputs(parsed, model.signature)
            # Nobody holds the body while the model runs.
            del body, parsed
            timers = self._timers.of(asyncio.get_running_loop())
            with ClientWatch(receive, self._options.disconnect_watch_delay_s, timers):
                result = await model.predict(decoded.inputs, deadline, (), headers.priority)
        nested = model.signature.ragged_outputs if decoded.is_row or decoded.has_nested_rows else {}
        encoded = encode_predictions(result.outputs, is_row=decoded.is_row, ragged=nested)
        if self._logs is not None and (log := self._logs.choose(target.name)):
            self._logs.add_predict(log, decoded.inputs, result, size_bytes=body_bytes + len(encoded))
        return JsonResponse(200, encoded, result.servable.version)

    def _hold(self, spec: ModelSpec) -> HeldModel:
        try:
            return self._service.hold(spec)
        except FailedPrecondition:
            # The one precondition that is looked up here. REST has another code and text for it than gRPC
            # (http_rest_api_handler.cc, GetInfoMap).
            name = spec.signature_name or DEFAULT_SIGNATURE_NAME
            raise InvalidArgument(f'Serving signature name: "{name}" not found in signature def') from None

    def _describe(self, route: Route, scope: "Scope") -> object:
        if route.action is Action.STATUS:
            return status_to_json(self._service.status(route.spec))
        if route.action is Action.METADATA:
            return metadata_to_json(self._service.metadata(route.spec), _metadata_fields(scope))
        return {"models": [self._describe_model(name) for name in self._service.models()]}

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


def _with_signature(target: ModelSpec, signature_name: str) -> ModelSpec:
    # Paths name none, and most bodies do not either: a target is made once for each path.
    if not signature_name:
        return target
    return ModelSpec(target.name, target.version, target.version_label, signature_name)


def _raw_path(scope: "Scope") -> bytes:
    """The path as it was sent. Not every ASGI server tells; a name with a slash in it then reads as two."""
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"], safe="/:").encode() if raw is None else raw.partition(b"?")[0]
