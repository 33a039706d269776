"""The Open Inference Protocol's REST API: all paths under /v2."""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from tpuserve_server.access.caller import find_caller, shown_reason
from tpuserve_server.core.batching.task import Waiter
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.types import Body, ModelSpec
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.exchange import UNKNOWN_ROUTE, HttpCall, RouteFacts, raw_path
from tpuserve_server.protocols.http.content import LARGE_BODY_BYTES
from tpuserve_server.protocols.http.headers import JSON_LENGTH_NAME
from tpuserve_server.protocols.http.response import HttpResponse, error_body
from tpuserve_server.protocols.oip.administration import Administration
from tpuserve_server.protocols.oip.inferring import Inferring
from tpuserve_server.protocols.oip.models import describe_model, describe_server, why_model_not_ready
from tpuserve_server.protocols.oip_rest.administration import AdministrationHandlers, Handler
from tpuserve_server.protocols.oip_rest.infer_lane import JSON_LENGTH_HEADER, InferLane, inferred
from tpuserve_server.protocols.oip_rest.route import Action, Route, parse_route
from tpuserve_server.protocols.request_lane import RestLane, RestLaneCall
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.status import PathNotFound
from tpuserve_server.wire.oip.infer_json import is_infer_json, parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import (
    EncodedResponse,
    encode_infer_json,
    response_parts,
)
from tpuserve_server.wire.oip.inference import InferenceRequest
from tpuserve_server.wire.oip.metadata import model_to_json, server_to_json
from tpuserve_server.wire.oip.tensor_json import TakesLong

if TYPE_CHECKING:
    from starlette.types import Scope


# Python 3.11 takes 0.2 us to find a member of an enumeration or its value.
_INFER = Action.INFER
_INFER_METHOD = Action.INFER.value


class V2:
    """The protocol of an Exchange. Its errors become `{"error": …}` with Triton's messages."""

    def __init__(
        self,
        service: InferenceService,
        logs: RequestLogs | None,
        meter: RequestMeter,
        budgets: Budgets,
        control: Control,
        administration: Administration | None = None,
    ) -> None:
        """Answer from `service`; `logs` receive the answered requests, None logs nothing.

        `meter` is the exchange's. Without `administration` the paths of its extensions are unknown. `budgets` limit the
        memory of a request's decoded objects and the size of a response. `control` decides which clients may change the
        server.
        """
        self._control = control
        self.decoded = budgets.decoded
        self._service = service
        self._responses = budgets.response
        self._lane = RestLane(InferLane(), service, meter, budgets.response, logs)
        self._inferring = Inferring(service, logs, administration.regions if administration else None, self.decoded)
        self._server = administration.server if administration else describe_server()
        self._handlers: Mapping[Action, Handler] = {
            Action.SERVER_LIVE: self._server_live,
            Action.SERVER_READY: self._server_ready,
            Action.SERVER_METADATA: self._server_metadata,
            Action.MODEL_READY: self._model_ready,
            Action.MODEL_METADATA: self._model_metadata,
            **(AdministrationHandlers(administration).by_action if administration else {}),
        }

    def error_body(self, message: str) -> bytes:
        """See `exchange.RestProtocol`."""
        return error_body(message)

    def answer(self, call: HttpCall) -> Awaitable[HttpResponse]:
        """Return the coroutine that answers the request."""
        route = parse_route(call.scope["method"], raw_path(call.scope))
        measured = call.measured
        measured.model = route.spec.name
        if route.action is _INFER:
            measured.method = _INFER_METHOD
            return self.infer(route.spec, call)
        measured.method = route.action.value
        if route.access.is_control:
            self._control.check_rest(call.scope)
        handler = self._handlers.get(route.action)
        if handler is None:
            raise PathNotFound
        return handler(route, call)

    def begin(self, call: HttpCall, body: bytes, waiter: Waiter) -> RestLaneCall[EncodedResponse] | None:
        """See `exchange.RestProtocol`."""
        route = parse_route(call.scope["method"], raw_path(call.scope))
        spec, measured = route.spec, call.measured
        if route.action is not _INFER or spec.name in self._service.cached_models:
            return None
        measured.model, measured.method = spec.name, _INFER_METHOD
        return self._lane.begin(spec, body, read_json_length(call.scope, len(body)), call, waiter)

    def facts_of(self, method: str, path: bytes) -> RouteFacts:
        """Return the facts about a request. An action on the server and an invalid path have no model."""
        try:
            route: Route = parse_route(method, path)
        except ServingError:
            return UNKNOWN_ROUTE
        return RouteFacts(route.access, route.action.value, route.spec.name or None)

    async def infer(
        self, spec: ModelSpec, call: HttpCall, body: Body | None = None, json_bytes: int | None = None
    ) -> HttpResponse:
        """Answer an inference request. A caller that has read the body passes it and the length of its JSON.

        Raises:
            ServingError: as Inferring.infer, or the body is malformed.
        """
        if body is None:
            body = await call.read_aligned(_find_binary_data)
            json_bytes = read_json_length(call.scope, len(body))
        may_recall = spec.name in self._service.cached_models
        recall = await self._inferring.recall(spec, _kind(json_bytes), body) if may_recall else None
        if recall is not None and recall.found is not None:
            signature_name, encoded, json_bytes = recall.found
            call.measured.recalls(recall, signature_name)
            return inferred(EncodedResponse(encoded, json_bytes), recall.servable_id.version, "hit")
        answered = await self._lane.answer(spec, body, json_bytes, call, recall)
        if answered is not None:
            return answered
        request = _parse_quickly(spec.name, body, json_bytes)
        if request is None:
            request = await asyncio.to_thread(parse_infer_json, spec.name, body, json_bytes, self.decoded)
        if request.windows is not None and find_caller() is not None:
            # A page of another site could send the stored password of its reader.
            self._control.check_rest(call.scope)
        spec = spec.with_signature(request.parameters.signature_name)
        inferring = self._inferring.infer(
            spec, request, call.measured, call.deadline, call.priority, call.watch_client()
        )
        if not request.has_lasting_bytes:
            recall = None
        # Free the body's memory while the model runs. mypyc does not delete arguments.
        body = None
        del request
        result = await inferring
        encode = partial(encode_infer_json, result)
        response_body = await self._responses.encode(encode, spec.name, *response_parts(result))
        if recall is not None:
            recall.keep(result, *response_body)
        return inferred(response_body, result.servable.version, result.cache)

    async def _server_live(self, route: Route, call: HttpCall) -> HttpResponse:
        reason = shown_reason(self._service.why_not_live())
        # Triton's status of a server that is not live.
        return _json({"live": False, "error": reason}, 400) if reason else _json({"live": True})

    async def _server_ready(self, route: Route, call: HttpCall) -> HttpResponse:
        return _readiness({}, shown_reason(self._service.why_not_ready()))

    async def _server_metadata(self, route: Route, call: HttpCall) -> HttpResponse:
        return _json(server_to_json(self._server))

    async def _model_ready(self, route: Route, call: HttpCall) -> HttpResponse:
        name = route.spec.name
        if name not in self._service.models():
            # An unknown model is no error here, and must not become a label of the metrics.
            call.measured.model = ""
        return _readiness({"name": name}, why_model_not_ready(self._service, route.spec))

    async def _model_metadata(self, route: Route, call: HttpCall) -> HttpResponse:
        await self._service.loaded(route.spec, call.deadline)
        return _json(model_to_json(describe_model(self._service, route.spec)))


def _parse_quickly(model: str, body: Body, json_bytes: int | None) -> InferenceRequest | None:
    """Parse a request, or return None if that takes long. The JSON part decides: binary data need no parser."""
    if (len(body) if json_bytes is None else json_bytes) > LARGE_BODY_BYTES:
        return None
    try:
        return parse_infer_json(model, body, json_bytes, quickly=True)
    except TakesLong:
        return None


def _finds_tensors_quickly(body: bytes) -> bool | None:
    """Return whether the body has tensors of the protocol, or None if the search takes long."""
    if len(body) > LARGE_BODY_BYTES:
        return None
    try:
        return is_infer_json(body, quickly=True)
    except TakesLong:
        return None


def _kind(json_bytes: int | None) -> str:
    """Return the kind of a request's bytes in the response cache. The length decides how they are read."""
    return "REST infer" if json_bytes is None else f"REST infer {json_bytes}"


def _json(document: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, orjson.dumps(document), compressible=False)


def _readiness(subject: Mapping[str, object], reason: str) -> HttpResponse:
    """Return Triton's status, 200 or 400, with the protocol's body, which Triton omits and KServe's client reads."""
    if reason:
        return _json({**subject, "ready": False, "error": reason}, 400)
    return _json({**subject, "ready": True})


class VertexInference:
    """Answers inference requests on Vertex AI's predict route, by the length of their JSON or by their tensors.

    Triton's route answers them too (server, vertex_ai_server.cc), so clients of both servers send the same raw
    predictions.
    """

    def __init__(self, protocol: V2) -> None:
        """Answer with `protocol`."""
        self._protocol = protocol

    async def accepts(self, scope: "Scope", body: bytes) -> bool:
        """Return whether a header names the length of the JSON, or the body has tensors of the protocol.

        Raises:
            InvalidArgument: the length is not a number from 0 to the length of the body.
        """
        if _json_bytes(scope, body) is not None:
            return True
        found = _finds_tensors_quickly(body)
        return await asyncio.to_thread(is_infer_json, body, self._protocol.decoded) if found is None else found

    def infer(self, target: ModelSpec, call: HttpCall, body: bytes) -> Awaitable[HttpResponse]:
        """Answer the request in the protocol's form."""
        call.measured.method = Action.INFER.value
        return self._protocol.infer(target, call, body, _json_bytes(call.scope, body))


def _json_bytes(scope: "Scope", body: bytes) -> int | None:
    length = read_media_type_length(scope, len(body))
    return read_json_length(scope, len(body)) if length is None else length


# Source: Triton's binary tensor data extension, and GetInferenceHeaderLength of http_server.cc and vertex_ai_server.cc.

# Clients of Vertex AI use it, because the platform passes the content type through.
_MEDIA_TYPE: Final = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="

_INTEGER = re.compile(rb"[+-]?[0-9]+")
_MIN_INT32, _MAX_INT32 = -(1 << 31), (1 << 31) - 1
_MOST_DIGITS = 11
_MOST_SHOWN = 32


def read_json_length(scope: "Scope", body_bytes: int) -> int | None:
    """Return the length of the JSON in a body of `body_bytes`, decompressed. None means that all of it is JSON.

    Raises:
        InvalidArgument: the header is not a number from 0 to `body_bytes`.
    """
    value = _json_length_header(scope)
    return None if value is None else _read_length(JSON_LENGTH_NAME, value, body_bytes)


def _find_binary_data(scope: "Scope") -> int | None:
    """Return where the headers say that binary data begin in the body. `read_json_length` checks them later."""
    value = _json_length_header(scope)
    return int(value) if value is not None and value.isdigit() and len(value) <= _MOST_DIGITS else None


def _json_length_header(scope: "Scope") -> bytes | None:
    # A loop: a dict of the few headers of a request costs more.
    value: bytes | None = None
    for name, each in scope["headers"]:
        if name == JSON_LENGTH_HEADER:
            value = each
    return None if value is None else value.strip()


def read_media_type_length(scope: "Scope", body_bytes: int) -> int | None:
    """Return the length that the content type names, or None for another content type.

    Raises:
        InvalidArgument: the length is not a number from 0 to `body_bytes`.
    """
    for name, value in scope["headers"]:
        if name == b"content-type" and value.lower().startswith(_MEDIA_TYPE):
            return _read_length("json-header-size", value[len(_MEDIA_TYPE) :].strip(), body_bytes)
    return None


def _read_length(name: str, value: bytes, body_bytes: int) -> int:
    if not _INTEGER.fullmatch(value):
        raise InvalidArgument(f"Unable to parse {name}, got: {_shown(value)}")
    if len(value) > _MOST_DIGITS or not _MIN_INT32 <= int(value) <= _MAX_INT32:
        raise InvalidArgument(
            f"Unable to parse {name}, value is out of range [ {_MIN_INT32}, {_MAX_INT32} ], got: {_shown(value)}"
        )
    length = int(value)
    if not 0 <= length <= body_bytes:
        raise InvalidArgument(f"inference header size should be in range (0, {body_bytes}), got: {length}")
    return length


def _shown(value: bytes) -> str:
    return value[:_MOST_SHOWN].decode("latin-1")
