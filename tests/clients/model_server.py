"""A small model server for the client's tests: real gRPC and HTTP on free ports, with scripted failures."""

import asyncio
import base64
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import grpc
import numpy as np
import uvicorn
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import StringValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.certificates import ServerTls
from tpuserve_client import tensor
from tpuserve_client.errors import Code
from tpuserve_client.json_tensor import from_json, to_json
from tpuserve_client.model import TensorSpec
from tpuserve_formats.dtypes import BY_ENUM_NAME
from tpuserve_formats.messages import official

# One of the request messages. Each method checks the type first.
AnyRequest: TypeAlias = Any
HTTP_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
FLOAT, UINT8, STRING, INT64, BOOL = (
    BY_ENUM_NAME[f"DT_{name}"].number for name in ("FLOAT", "UINT8", "STRING", "INT64", "BOOL")
)

# Inputs and outputs of each model, as (DataType, shape with -1 for an unknown dimension).
Specs = dict[str, tuple[Any, list[int]]]
Arrays = dict[str, np.ndarray[Any, Any]]
Features = dict[str, list[int] | list[float] | list[bytes]]
SIGNATURES: dict[str, tuple[Specs, Specs]] = {
    "affine": ({"x": (FLOAT, [-1, 4])}, {"y": (FLOAT, [-1, 4]), "best": (INT64, [-1])}),
    "single": ({"image": (FLOAT, [-1, 2, 2])}, {"sum": (FLOAT, [-1])}),
    "pair": (
        {"a": (INT64, []), "b": (STRING, [-1])},
        {"b": (STRING, [-1])},
    ),
    "empty": ({"x": (FLOAT, [-1, 4])}, {"y": (FLOAT, [-1, 3, 4])}),
}


def run_model(name: str, inputs: Arrays) -> Arrays:
    """Compute the output of a model in SIGNATURES. `mirror`, which has every signature, returns its inputs."""
    if name == "affine":
        return {"y": inputs["x"] * np.float32(2) + np.float32(1), "best": inputs["x"].argmax(axis=1)}
    if name == "single":
        return {"sum": inputs["image"].sum(axis=(1, 2))}
    if name == "empty":
        return {"y": np.zeros((0, 3, 4), np.float32)}
    return {"b": inputs["b"]} if name == "pair" else inputs


def score_example(features: Features) -> list[tuple[str, float]]:
    """Return a class for each feature: its name, and the sum of its numbers or the length of its strings."""
    return [
        (name, float(sum(v if isinstance(v, int | float) else len(v) for v in features[name]))) for name in features
    ]


@dataclass
class Failure:
    """An error response that replaces the real response."""

    code: Code
    message: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Served:
    """A request that reached the server."""

    method: str
    model: str = ""
    version: int | None = None
    label: str | None = None
    signature: str = ""
    output_filter: tuple[str, ...] = ()
    time_left_s: float | None = None
    priority: str | None = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict)


class ModelServer:
    """A server with models, scripted failures and a record of its requests.

    `version` is the latest version. With `version_header`, the server reports versions: REST responses have tpuserve's
    version header, and metadata of the Open Inference Protocol list versions.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restore the initial state. See `wait_until_idle` for requests that are still on their way."""
        self.served: list[Served] = []
        self.failures: deque[Failure] = deque()
        self.ready = True
        self.version = 7
        self.version_header = True
        self.signatures = dict(SIGNATURES)
        self.labels: list[str] = []
        self.run: Callable[[str, Arrays], Arrays] = run_model
        self.score: Callable[[Features], list[tuple[str, float]]] = score_example
        self.gate = threading.Event()  # predictions and health checks wait while the gate is cleared
        self.gate.set()

    def methods(self) -> list[str]:
        return [served.method for served in self.served]

    def begin(self, served: Served) -> Failure | None:
        self.served.append(served)
        return self.failures.popleft() if self.failures else None

    def metadata(self, model: str) -> official.SignatureDefMap:
        signatures = official.SignatureDefMap()
        inputs, outputs = self.signatures[model]
        definition = signatures.signature_def["serving_default"]
        for specs, infos in ((inputs, definition.inputs), (outputs, definition.outputs)):
            for name, (dtype, shape) in specs.items():
                infos[name].dtype = dtype
                infos[name].tensor_shape.SetInParent()
                for size in shape:
                    infos[name].tensor_shape.dim.add().size = size
        return signatures

    def specs(self, model: str) -> tuple[dict[str, TensorSpec], dict[str, TensorSpec]]:
        from tpuserve_client.grpc_wire import _tensor_spec

        definition = self.metadata(model).signature_def["serving_default"]
        inputs = {name: _tensor_spec(name, info) for name, info in definition.inputs.items()}
        return inputs, {name: _tensor_spec(name, info) for name, info in definition.outputs.items()}


class GrpcFace(grpc.GenericRpcHandler):
    """The server's gRPC methods, with the client's own messages (tests/contract uses the official ones)."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._methods: dict[str, tuple[type[Message], Callable[[Any], Message]]] = {
            "Predict": (official.PredictRequest, self._predict),
            "Classify": (official.ClassificationRequest, self._classify),
            "Regress": (official.RegressionRequest, self._regress),
            "GetModelMetadata": (official.GetModelMetadataRequest, self._metadata),
            "GetModelStatus": (official.GetModelStatusRequest, self._status),
            "Check": (official.HealthCheckRequest, self._check),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        method = handler_call_details.method.rpartition("/")[2]
        request_type, answer = self._methods[method]

        def handle(request: AnyRequest, context: grpc.ServicerContext) -> Message:
            failure = self._server.begin(self._seen(method, request, context))
            if failure is not None:
                context.set_trailing_metadata(tuple(failure.headers.items()))
                context.abort(next(c for c in grpc.StatusCode if c.value[0] == failure.code), failure.message)
            if method in ("Predict", "Check"):
                self._server.gate.wait(10)
            return answer(request)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=request_type.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    def _seen(self, method: str, request: AnyRequest, context: grpc.ServicerContext) -> Served:
        asked = [str(value) for key, value in context.invocation_metadata() if key == "x-tpuserve-priority"]
        served = Served(method, time_left_s=context.time_remaining(), priority=",".join(asked) or None)
        served.headers = dict(context.invocation_metadata())
        if hasattr(request, "model_spec"):
            spec = request.model_spec
            served.model, served.signature = spec.name, spec.signature_name
            served.version = spec.version.value if spec.HasField("version") else None
            served.label = spec.version_label if spec.HasField("version_label") else None
        served.output_filter = tuple(getattr(request, "output_filter", ()))
        return served

    def _spec(self, request: AnyRequest) -> official.ModelSpec:
        spec = official.ModelSpec(name=request.model_spec.name)
        spec.version.value = request.model_spec.version.value or self._server.version
        return spec

    def _predict(self, request: official.PredictRequest) -> official.PredictResponse:
        inputs = {name: tensor.from_proto(proto) for name, proto in request.inputs.items()}
        response = official.PredictResponse(model_spec=self._spec(request))
        response.model_spec.signature_name = request.model_spec.signature_name or "serving_default"
        for name, array in self._server.run(request.model_spec.name, inputs).items():
            if not request.output_filter or name in request.output_filter:
                response.outputs[name].CopyFrom(tensor.to_proto(array))
        return response

    def _classify(self, request: official.ClassificationRequest) -> official.ClassificationResponse:
        response = official.ClassificationResponse(model_spec=self._spec(request))
        response.result.SetInParent()
        for features in decoded(request):
            row = response.result.classifications.add()
            for label, score in self._server.score(features):
                row.classes.add(label=label, score=score)
        return response

    def _regress(self, request: official.RegressionRequest) -> official.RegressionResponse:
        response = official.RegressionResponse(model_spec=self._spec(request))
        response.result.SetInParent()
        for features in decoded(request):
            response.result.regressions.add(value=sum(score for _, score in self._server.score(features)))
        return response

    def _metadata(self, request: official.GetModelMetadataRequest) -> official.GetModelMetadataResponse:
        response = official.GetModelMetadataResponse(model_spec=self._spec(request))
        response.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
        response.metadata["signature_def"].value = self._server.metadata(request.model_spec.name).SerializeToString()
        if "tpuserve_labels" in request.metadata_field and self._server.labels:
            response.metadata["tpuserve_labels"].Pack(StringValue(value="\n".join(self._server.labels)))
        return response

    def _status(self, request: official.GetModelStatusRequest) -> official.GetModelStatusResponse:
        response = official.GetModelStatusResponse()
        for status in statuses(self._server):
            added = response.model_version_status.add(version=status["version"], state=status["state"])
            added.status.MergeFrom(official.StatusProto(error_code=status["code"], error_message=status["error"]))
        return response

    def _check(self, request: official.HealthCheckRequest) -> official.HealthCheckResponse:
        serving = official.HealthCheckResponse
        return serving(status=serving.SERVING if self._server.ready else serving.NOT_SERVING)


def decoded(request: AnyRequest) -> list[Features]:
    listed = getattr(request.input, request.input.WhichOneof("kind"))
    merged = [official.Example() for _ in listed.examples]
    for example, sent in zip(merged, listed.examples, strict=True):
        if hasattr(listed, "context"):
            example.MergeFrom(listed.context)
        example.MergeFrom(sent)
    return [
        {
            name: list(getattr(feature, kind).value) if (kind := feature.WhichOneof("kind")) else []
            for name, feature in sorted(example.features.feature.items())
        }
        for example in merged
    ]


def decoded_json(body: Any) -> list[Features]:  # noqa: ANN401  a JSON document
    context = body.get("context", {})
    merged = [{**context, **example} for example in body["examples"]]
    return [{name: [_leaf(value) for value in example[name]] for name in sorted(example)} for example in merged]


def _leaf(value: Any) -> Any:  # noqa: ANN401  as above
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else value


def statuses(server: ModelServer) -> list[dict[str, Any]]:
    """Return the newest version, in the server's state, and an old version that failed."""
    state = "AVAILABLE" if server.ready else "LOADING"
    return [
        {"version": server.version, "state": state, "code": "OK", "error": ""},
        {"version": 3, "state": "END", "code": "INTERNAL", "error": "weights are corrupt"},
    ]


class RestFace:
    """The server's REST routes."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        model = "/v1/models/{model:path}"
        self.app = Starlette(
            routes=[
                Route("/readyz", self._readyz),
                Route(model + ":predict", self._predict, methods=["POST"]),
                Route(model + ":classify", self._classify, methods=["POST"]),
                Route(model + ":regress", self._regress, methods=["POST"]),
                Route(model + "/metadata", self._metadata),
                Route(model, self._status),
            ]
        )

    def _seen(self, method: str, request: Request) -> Served:
        parts = request.path_params["model"].split("/")
        served = Served(method, model=parts[0], priority=request.headers.get("x-tpuserve-priority"))
        served.headers = dict(request.headers)
        if timeout_ms := request.headers.get("x-tpuserve-timeout-ms"):
            served.time_left_s = float(timeout_ms) / 1000
        if parts[1:2] == ["versions"]:
            served.version = int(parts[2])
        if parts[1:2] == ["labels"]:
            served.label = parts[2]
        return served

    def _refused(self, served: Served) -> Response | None:
        failure = self._server.begin(served)
        if failure is None:
            return None
        status = HTTP_STATUS[failure.code]
        return JSONResponse({"error": failure.message}, status, headers=dict(failure.headers))

    async def _readyz(self, request: Request) -> Response:
        refused = self._refused(Served("Check"))
        await asyncio.to_thread(self._server.gate.wait, 10)
        return refused or Response(status_code=200 if self._server.ready else 503)

    async def _predict(self, request: Request) -> Response:
        body = json.loads(await request.body())
        served = self._seen("Predict", request)
        served.signature = body.get("signature_name", "")
        if refused := self._refused(served):
            return refused
        await asyncio.to_thread(self._server.gate.wait, 10)
        inputs, outputs = self._server.specs(served.model)
        arrays = {name: from_json(value, inputs[name]) for name, value in body["inputs"].items()}
        result = {name: to_json(array) for name, array in self._server.run(served.model, arrays).items()}
        answer = next(iter(result.values())) if len(outputs) == 1 else result
        headers = {"x-tpuserve-model-version": str(self._server.version)} if self._server.version_header else {}
        return Response(json.dumps({"outputs": answer}), media_type="application/json", headers=headers)

    async def _classify(self, request: Request) -> Response:
        return await self._answer_examples("Classify", request, lambda scores: [list(pair) for pair in scores])

    async def _regress(self, request: Request) -> Response:
        return await self._answer_examples("Regress", request, lambda scores: sum(score for _, score in scores))

    async def _answer_examples(
        self, method: str, request: Request, result: Callable[[list[tuple[str, float]]], object]
    ) -> Response:
        body = json.loads(await request.body())
        served = self._seen(method, request)
        served.signature = body.get("signature_name", "")
        if refused := self._refused(served):
            return refused
        results = [result(self._server.score(features)) for features in decoded_json(body)]
        return Response(json.dumps({"results": results}), media_type="application/json")

    async def _metadata(self, request: Request) -> Response:
        served = self._seen("GetModelMetadata", request)
        if refused := self._refused(served):
            return refused
        inputs, outputs = self._server.signatures[served.model]
        definition = {"inputs": _infos(inputs), "outputs": _infos(outputs), "method_name": "", "defaults": {}}
        is_asked = "tpuserve_labels" in request.query_params.getlist("metadata_field")
        labels = {"tpuserve_labels": self._server.labels} if is_asked and self._server.labels else {}
        return JSONResponse(
            {
                "model_spec": {"name": served.model, "signature_name": "", "version": str(self._server.version)},
                "metadata": {"signature_def": {"signature_def": {"serving_default": definition}}, **labels},
            }
        )

    async def _status(self, request: Request) -> Response:
        if refused := self._refused(self._seen("GetModelStatus", request)):
            return refused
        items = [
            {
                "version": str(status["version"]),
                "state": status["state"],
                "status": {"error_code": status["code"], "error_message": status["error"]},
            }
            for status in statuses(self._server)
        ]
        return JSONResponse({"model_version_status": items})


def _infos(specs: Specs) -> dict[str, Any]:
    return {
        name: {
            "dtype": official.DATA_TYPE.values_by_number[dtype].name,
            "tensor_shape": {"dim": [{"size": str(size), "name": ""} for size in shape], "unknown_rank": False},
            "name": f"{name}:0",
        }
        for name, (dtype, shape) in specs.items()
    }


class CountedApp:
    """An ASGI application that also answers `GET /idle`, as soon as no other request is in progress."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._in_progress = 0
        self._ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("http://"):
            # The absolute form, which clients send to proxies. h11 leaves it as it is.
            scope = {**scope, "path": urlsplit(scope["path"]).path}
        if scope["path"] == "/idle":
            while self._in_progress:
                self._ended.clear()
                await self._ended.wait()
            await Response()(scope, receive, send)
            return
        self._in_progress += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_progress -= 1
            self._ended.set()


@contextmanager
def grpc_address(
    handler: grpc.GenericRpcHandler, place: str = "127.0.0.1:0", tls: ServerTls | None = None
) -> Iterator[str]:
    """Start a gRPC server and yield its address. Stop the server at exit."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=[handler], options=[("grpc.max_receive_message_length", -1)])
        port = server.add_secure_port(place, tls.credentials()) if tls else server.add_insecure_port(place)
        server.start()
        try:
            yield place if place.startswith("unix:") else f"{'grpcs://' if tls else ''}127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@contextmanager
def http_address(app: Starlette, tls: ServerTls | None = None) -> Iterator[str]:
    """Start an HTTP server and yield its address. Stop the server at exit.

    The socket listens from the start, so a client can connect at once.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = tls.options() if tls else {}
        counted = CountedApp(app)
        config = uvicorn.Config(counted, log_level="error", lifespan="off", timeout_graceful_shutdown=1, **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="test-http")
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def wait_until_idle(address: str) -> None:
    """Wait until the REST server at `address` has ended every request that a client sent before this call.

    A cancelled or late request reaches the server after its client's test has ended, and would count in the next test.
    The server accepts connections in order, so it has read those requests when it reads this one.
    """
    with closing(HTTPConnection(address.rpartition("/")[2], timeout=60)) as connection:
        connection.request("GET", "/idle")
        assert connection.getresponse().status == 200


@contextmanager
def serving(server: ModelServer, protocol: str, tls: ServerTls | None = None) -> Iterator[str]:
    """Serve `server` over "grpc" or "rest" and yield the address."""
    with ExitStack() as stack:
        if protocol == "grpc":
            yield stack.enter_context(grpc_address(GrpcFace(server), tls=tls))
        else:
            yield stack.enter_context(http_address(RestFace(server).app, tls))
