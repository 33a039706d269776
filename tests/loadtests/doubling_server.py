"""A model server that doubles its input, as a target for load tests: real gRPC and HTTP on free loopback ports.

It runs in threads of the tests' process. The load generator uses gevent and always runs in another process.
"""

import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.support.certificates import ServerTls
from tpuserve_client import tensor
from tpuserve_formats.dtypes import BY_ENUM_NAME
from tpuserve_formats.messages import official

MODEL = "doubling"
# Options of loads whose requests a test counts: golden responses would add some.
UNRECORDED = ("--golden", "off")
PREDICTION = "/tensorflow.serving.PredictionService"
STALL_S = 1.0
QUEUE_FULL = "The batch scheduling queue is full"
NO_INPUT = "input tensor x is missing"
DENIED = "ci has only the role read"


@dataclass
class Doubling:
    """The model behind both protocols.

    It refuses every `fail_every`-th prediction (0: none), and each with `refused_rows` rows. Its device serves one
    prediction at a time and takes `service_s` seconds for each. It stops for a second before prediction number
    `stall_at`. With `hangs` it never sends a prediction, and `hanging` counts the pending requests. With `token` it
    rejects clients without the token, with `tls` plaintext. It denies predictions to clients with `reader`, another
    token.
    """

    fail_every: int = 0
    refused_rows: int = 0
    service_s: float = 0.0
    stall_at: int = 0
    garbled: bool = False
    hangs: bool = False
    token: str = ""
    reader: str = ""
    tls: ServerTls | None = None
    grpc_address: str = ""
    rest_url: str = ""
    rows: list[int] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)
    hanging: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    closing: threading.Event = field(default_factory=threading.Event)
    _free_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def knows(self, authorization: str | bytes | None) -> bool:
        """Return whether these credentials are valid."""
        return not self.token or authorization in (f"Bearer {self.token}", f"Bearer {self.reader}")

    def denies(self, authorization: str | bytes | None) -> bool:
        """Return whether predictions are denied to a client with these valid credentials."""
        return bool(self.token) and authorization != f"Bearer {self.token}"

    def run(self, x: np.ndarray) -> np.ndarray | None:
        """Return the prediction, or None if the model refuses the request."""
        assert x.dtype == np.float32
        assert x.shape[1:] == (4,)
        with self._lock:
            self.rows.append(len(x))
            refused = self.fail_every and len(self.rows) % self.fail_every == 0
            refused = refused or len(x) == self.refused_rows
            stall_s = STALL_S if len(self.rows) == self.stall_at else 0.0
            finish_s = self._free_s = max(self._free_s, time.monotonic()) + self.service_s + stall_s
        self.reached.set()
        if self.hangs:
            self.hanging.release()
            self.closing.wait()
        if self.service_s or self.stall_at:
            time.sleep(max(finish_s - time.monotonic(), 0))
        return None if refused else x * 2


class GrpcFace(grpc.GenericRpcHandler):
    """The gRPC methods Predict and GetModelMetadata."""

    def __init__(self, model: Doubling) -> None:
        self._model = model

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        if not self._model.knows(dict(handler_call_details.invocation_metadata).get("authorization")):
            return grpc.unary_unary_rpc_method_handler(refuse_stranger)
        handlers = {f"{PREDICTION}/Predict": self._predict, f"{PREDICTION}/GetModelMetadata": self._metadata}
        handler = handlers.get(handler_call_details.method)
        return None if handler is None else grpc.unary_unary_rpc_method_handler(handler)

    def _predict(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        request = official.PredictRequest.FromString(body)
        if self._model.denies(dict(context.invocation_metadata()).get("authorization")):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, DENIED)
        if "x" not in request.inputs:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_INPUT)
        y = self._model.run(tensor.from_proto(request.inputs["x"]))
        if y is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, QUEUE_FULL)
        if self._model.garbled:
            return b"\xff not a message"
        response = official.PredictResponse(model_spec=request.model_spec)
        response.outputs["y"].CopyFrom(tensor.to_proto(y))
        return bytes(response.SerializeToString())

    def _metadata(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        request = official.GetModelMetadataRequest.FromString(body)
        if request.model_spec.name != MODEL:
            context.abort(
                grpc.StatusCode.NOT_FOUND, f"Servable not found for request: Latest({request.model_spec.name})"
            )
        signatures = official.SignatureDefMap()
        for name, infos in (("x", "inputs"), ("y", "outputs")):
            info = getattr(signatures.signature_def["serving_default"], infos)[name]
            info.dtype = BY_ENUM_NAME["DT_FLOAT"].number
            for size in (-1, 4):
                info.tensor_shape.dim.add().size = size
        response = official.GetModelMetadataResponse(model_spec=request.model_spec)
        response.model_spec.version.value = 1
        response.metadata["signature_def"].Pack(signatures)
        return bytes(response.SerializeToString())


def refuse_stranger(_: bytes, context: grpc.ServicerContext) -> bytes:
    """Reject an unauthenticated call, like a gateway."""
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")


def rest_face(model: Doubling) -> FastAPI:
    """Return the HTTP application for predictions and metadata."""
    app = FastAPI()

    if model.token:

        @app.middleware("http")
        async def ask_who(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
            if not model.knows(request.headers.get("authorization")):
                return JSONResponse({"error": "who are you?"}, 401)
            return await answer(request)

    info = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "4"}], "unknown_rank": False}}
    signature = {"inputs": {"x": info}, "outputs": {"y": info}, "method_name": ""}

    @app.get(f"/v1/models/{MODEL}/metadata")
    async def metadata() -> dict[str, object]:
        signatures = {"signature_def": {"serving_default": signature}}
        return {"model_spec": {"name": MODEL, "version": "1"}, "metadata": {"signature_def": signatures}}

    @app.post(f"/v1/models/{MODEL}:predict")
    async def predict(request: Request) -> Response:
        inputs = json.loads(await request.body())["inputs"]
        if model.denies(request.headers.get("authorization")):
            return JSONResponse({"error": DENIED}, 403)
        if "x" not in inputs:
            return JSONResponse({"error": NO_INPUT}, 400)
        y = model.run(np.asarray(inputs["x"], np.float32))
        if y is None:
            return JSONResponse({"error": QUEUE_FULL}, 429)
        return JSONResponse({"outputs": y.tolist()})

    return app


@contextmanager
def serving(model: Doubling) -> Iterator[Doubling]:
    """Serve the model on both protocols and set its addresses for the block."""
    grpc_server = grpc.server(ThreadPoolExecutor(8), handlers=[GrpcFace(model)])
    place, tls = "127.0.0.1:0", model.tls
    port = grpc_server.add_secure_port(place, tls.credentials()) if tls else grpc_server.add_insecure_port(place)
    model.grpc_address = f"{'grpcs://' if tls else ''}127.0.0.1:{port}"
    grpc_server.start()
    try:
        with serving_http(rest_face(model), tls) as port:
            model.rest_url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
            try:
                yield model
            finally:
                model.closing.set()
    finally:
        grpc_server.stop(None).wait()


@contextmanager
def serving_http(app: FastAPI, tls: ServerTls | None = None) -> Iterator[int]:
    """Serve an application on a free loopback port and yield the port."""
    options = tls.options() if tls else {}
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", access_log=False, **options)
    listening = config.bind_socket()
    listening.listen()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="http")
    thread.start()
    try:
        # A connection made before the loop runs waits in the backlog.
        yield int(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
