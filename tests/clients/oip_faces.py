"""The Open Inference Protocol's gRPC methods and HTTP routes of the tests' model server."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.clients import oip_bodies
from tests.clients.model_server import HTTP_STATUS, Arrays, Failure, ModelServer, Served, Specs, grpc_address
from tests.clients.model_server import http_address as http
from tests.support.certificates import ServerTls
from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_formats.messages import oip

OIP: tuple[str, str] = ("oip-grpc", "oip-rest")
# One of the request messages.
AnyRequest: TypeAlias = Any


def tensors(specs: Specs) -> list[dict[str, Any]]:
    """Return the metadata of tensors."""
    names = {dtype: name for name, dtype in oip_bodies.DTYPES.items()}
    return [
        {"name": name, "datatype": names[BY_NUMBER[dtype].dtype], "shape": shape}
        for name, (dtype, shape) in specs.items()
    ]


def chosen(outputs: Arrays, names: list[str]) -> Arrays:
    return {name: outputs[name] for name in names} if names else outputs


def versions(server: ModelServer, named: int | None) -> list[str]:
    """Return the versions in a model's metadata: the named one or all, or none if the server reports no versions."""
    if not server.version_header:
        return []
    return ["3", str(server.version)] if named is None else [str(named)]


def number(version: str) -> int | None:
    return int(version) if version else None


class OipGrpcFace(grpc.GenericRpcHandler):
    """The server's methods, with raw contents."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._methods: dict[str, tuple[type[Message], Callable[[Any], Message]]] = {
            "ModelInfer": (oip.ModelInferRequest, self._infer),
            "ModelMetadata": (oip.ModelMetadataRequest, self._metadata),
            "ModelReady": (oip.ModelReadyRequest, lambda _: oip.ModelReadyResponse(ready=server.ready)),
            "ServerReady": (oip.ServerReadyRequest, lambda _: oip.ServerReadyResponse(ready=server.ready)),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        service, _, method = handler_call_details.method.rpartition("/")
        assert service == "/inference.GRPCInferenceService"
        request_type, answer = self._methods[method]

        def handle(request: AnyRequest, context: grpc.ServicerContext) -> Message:
            failure = self._server.begin(self._seen(method, request, context))
            if failure is not None:
                context.set_trailing_metadata(tuple(failure.headers.items()))
                context.abort(next(c for c in grpc.StatusCode if c.value[0] == failure.code), failure.message)
            self._server.gate.wait(10)
            return answer(request)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=request_type.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    def _seen(self, method: str, request: AnyRequest, context: grpc.ServicerContext) -> Served:
        served = Served(method, time_left_s=context.time_remaining(), headers=dict(context.invocation_metadata()))
        if method == "ModelInfer":
            served.model, served.version = request.model_name, number(request.model_version)
            served.output_filter = tuple(output.name for output in request.outputs)
            if "signature_name" in request.parameters:
                served.signature = request.parameters["signature_name"].string_param
            if "priority" in request.parameters:
                served.priority = str(request.parameters["priority"].int64_param)
        elif method != "ServerReady":
            served.model, served.version = request.name, number(request.version)
        return served

    def _infer(self, request: oip.ModelInferRequest) -> oip.ModelInferResponse:
        inputs = {
            tensor.name: oip_bodies.from_raw(tensor.datatype, list(tensor.shape), raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        names = [output.name for output in request.outputs]
        version = request.model_version or str(self._server.version)
        response = oip.ModelInferResponse(model_name=request.model_name, model_version=version)
        for name, array in chosen(self._server.run(request.model_name, inputs), names).items():
            response.outputs.add(**oip_bodies.described(name, array))
            response.raw_output_contents.append(oip_bodies.to_raw(array))
        return response

    def _metadata(self, request: oip.ModelMetadataRequest) -> oip.ModelMetadataResponse:
        inputs, outputs = self._server.signatures[request.name]
        response = oip.ModelMetadataResponse(name=request.name, platform="test")
        response.versions.extend(versions(self._server, number(request.version)))
        for item in tensors(inputs):
            response.inputs.add(**item)
        for item in tensors(outputs):
            response.outputs.add(**item)
        return response


class OipRestFace:
    """The server's routes, with binary tensors."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        routes = [Route("/v2/health/ready", self._ready)]
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                Route(f"{model}/infer", self._infer, methods=["POST"]),
                Route(f"{model}/ready", self._ready),
                Route(model, self._metadata),
            ]
        self.app = Starlette(routes=routes)

    def _refused(self, served: Served) -> Response | None:
        failure: Failure | None = self._server.begin(served)
        if failure is None:
            return None
        return JSONResponse({"error": failure.message}, HTTP_STATUS[failure.code], headers=dict(failure.headers))

    def _seen(self, method: str, request: Request) -> Served:
        model, version = (request.path_params.get(key, "") for key in ("model", "version"))
        return Served(method, model, number(version), headers=dict(request.headers))

    async def _ready(self, request: Request) -> Response:
        method = "ModelReady" if request.path_params else "ServerReady"
        refused = self._refused(self._seen(method, request))
        return refused or Response(status_code=200 if self._server.ready else 400)  # Triton's statuses

    async def _metadata(self, request: Request) -> Response:
        served = self._seen("ModelMetadata", request)
        if refused := self._refused(served):
            return refused
        inputs, outputs = self._server.signatures[served.model]
        return JSONResponse(
            {
                "name": served.model,
                "versions": versions(self._server, served.version),
                "platform": "test",
                "inputs": tensors(inputs),
                "outputs": tensors(outputs),
            }
        )

    async def _infer(self, request: Request) -> Response:
        document, inputs = oip_bodies.read_request(await request.body(), request.headers)
        parameters, requested = document.get("parameters", {}), document.get("outputs", [])
        assert parameters.get("binary_data_output") or all(one["parameters"]["binary_data"] for one in requested)
        served = self._seen("ModelInfer", request)
        served.signature = parameters.get("signature_name", "")
        served.priority = str(parameters["priority"]) if "priority" in parameters else None
        served.output_filter = tuple(one["name"] for one in requested)
        if timeout_ms := request.headers.get("x-tpuserve-timeout-ms"):
            served.time_left_s = float(timeout_ms) / 1000
        if refused := self._refused(served):
            return refused
        await asyncio.to_thread(self._server.gate.wait, 10)
        outputs = chosen(self._server.run(served.model, inputs), list(served.output_filter))
        version = str(served.version or self._server.version)
        body, headers = oip_bodies.write_response(outputs, model_version=version)
        return Response(body, headers=headers, media_type="application/octet-stream")


@contextmanager
def serving_oip(server: ModelServer, protocol: str, tls: ServerTls | None = None) -> Iterator[str]:
    """Serve `server` over "oip-grpc" or "oip-rest" and yield the address."""
    with ExitStack() as stack:
        if protocol == "oip-rest":
            yield f"oip+{stack.enter_context(http(OipRestFace(server).app, tls))}"
        else:
            place = stack.enter_context(grpc_address(OipGrpcFace(server), tls=tls))
            yield f"oip+{place}" if tls else f"oip+grpc://{place}"
