"""Cost of one request in the wire codecs and in the REST application, without transport, batcher and model.

A section of `python -m benchmarks codecs`: microseconds, the best of several rounds, next to the obvious
implementation.
"""

import asyncio
import timeit
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI
from tensorflow_serving.apis import predict_pb2

from benchmarks.codecs.report import CodecCost, CodecTable
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    Array,
    ModelSpec,
    PredictResult,
    ServableId,
    Signature,
    Tensors,
    TensorSpec,
)
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.wire.json.predict import decode_predict_inputs as decode_json_inputs
from tpuserve_server.wire.json.predict import parse_predict_body
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.predict_proto import (
    decode_predict_inputs,
    decode_predict_spec,
    encode_predict_response,
    parse_predict_request,
)

ROUNDS, CALLS = 5, 4000
FLOAT = np.dtype(np.float32)
SIGNATURE = Signature(
    DEFAULT_SIGNATURE_NAME,
    {"x": TensorSpec("x", FLOAT, (None, 64))},
    {"y": TensorSpec("y", FLOAT, (None, 10))},
)
X = np.random.default_rng(0).random((1, 64), np.float32)
RESULT = PredictResult(
    ServableId("m", 7), DEFAULT_SIGNATURE_NAME, {"y": np.random.default_rng(1).random((1, 10), np.float32)}
)
ROWS = orjson.dumps({"instances": X}, option=orjson.OPT_SERIALIZE_NUMPY)
Body = dict[str, Any]  # JSON
JSON: Mapping[str, str] = {"content-type": "application/json"}


class ConstantModel(AcquiredModel):
    """A model that answers at once, so that only the front-end costs time."""

    def __init__(self, signature: Signature, result: PredictResult) -> None:
        """Set the signature, and the result of every request."""
        self.signature = signature
        self.is_recalled = False
        self._times = ()
        self._result = result

    def __exit__(self, *exception: object) -> None:
        """Release nothing, because the model holds nothing."""

    @property
    def servable_id(self) -> ServableId:
        """The version of the result."""
        return self._result.servable

    def prepare(self, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> None:
        """Return None: there is no batcher."""

    def has_objective(self, signature_name: str) -> bool:
        """Return False: without a batcher, there is no latency objective."""
        return False

    def check_deadline(self, deadline: Deadline, priority: Priority) -> None:
        """Accept every deadline."""

    async def predict(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Return the same result for every request."""
        return self._result


class ConstantService(InferenceService):
    """A service that returns the same model for every name."""

    def __init__(self, signature: Signature = SIGNATURE, result: PredictResult = RESULT) -> None:
        """Create the service with an empty registry."""
        super().__init__(ModelRegistry((), PrometheusMetrics()), SystemClock())
        self._model = signature, result

    def check_deadline(self, spec: ModelSpec, deadline: Deadline, priority: Priority) -> None:
        """Accept every deadline."""

    def acquire(self, spec: ModelSpec) -> AcquiredModel:
        """Return the only model."""
        return ConstantModel(*self._model)


def measure() -> CodecTable:
    """Time one row of 64 floats in and ten out. Takes half a minute."""
    content, typed = request_bytes(as_content=True), request_bytes(as_content=False)
    app = rest_app(ConstantService(), PrometheusMetrics(), SystemClock(), lambda: ([b""], ""), RestOptions())
    rows: list[tuple[str, float, float]] = [
        ("decode PredictRequest, tensor_content", cost(lambda: decode(content)), cost(lambda: plain_decode(content))),
        ("decode PredictRequest, float_val", cost(lambda: decode(typed)), cost(lambda: plain_decode(typed))),
        ("encode PredictResponse", cost(lambda: encode_predict_response(RESULT)), cost(plain_encode)),
        ("decode JSON rows", cost(decode_rows), cost(lambda: np.array(orjson.loads(ROWS)["instances"], np.float32))),
        (
            "encode JSON predictions",
            cost(lambda: encode_predictions(RESULT.outputs, is_row=True)),
            cost(lambda: orjson.dumps({"predictions": RESULT.outputs["y"].tolist()})),
        ),
        (
            "REST predict (baseline: FastAPI route)",
            drive(app, "/v1/models/m:predict"),
            drive(plain_app(), "/predict"),
        ),
    ]
    return CodecTable("One small request", "us", [CodecCost(*row) for row in rows])


def cost(act: Callable[[], object]) -> float:
    """Return the microseconds per call."""
    return min(timeit.repeat(act, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def request_bytes(*, as_content: bool) -> bytes:
    """Return a serialized PredictRequest of one row."""
    request = predict_pb2.PredictRequest(model_spec={"name": "m"})
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for size in X.shape:
        tensor.tensor_shape.dim.add(size=size)
    if as_content:
        tensor.tensor_content = X.tobytes()
    else:
        tensor.float_val.extend(X.reshape(-1))
    return bytes(request.SerializeToString())


def decode(body: bytes) -> Tensors:
    """Decode like the gRPC front-end."""
    proto = parse_predict_request(body)
    decode_predict_spec(proto)
    return decode_predict_inputs(proto, len(body))


def decode_rows() -> object:
    """Decode like the REST front-end."""
    return decode_json_inputs(parse_predict_body(ROWS), SIGNATURE)


def plain_decode(body: bytes) -> Array:
    """Convert a message to an array with as few checks as possible."""
    tensor = predict_pb2.PredictRequest.FromString(body).inputs["x"]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, np.float32).reshape(shape)
    return np.array(list(tensor.float_val), np.float32).reshape(shape)


def plain_encode() -> bytes:
    """Encode the response through messages."""
    response = predict_pb2.PredictResponse(
        model_spec={"name": "m", "version": {"value": 7}, "signature_name": DEFAULT_SIGNATURE_NAME}
    )
    tensor = response.outputs["y"]
    tensor.dtype = 1
    for size in RESULT.outputs["y"].shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(RESULT.outputs["y"].reshape(-1).tolist())
    return bytes(response.SerializeToString())


def plain_app() -> FastAPI:
    """Return an endpoint in the style of FastAPI's documentation, without checks."""
    app = FastAPI()

    @app.post("/predict")
    async def predict(body: Body) -> Body:
        np.array(body["instances"], np.float32)
        return {"predictions": RESULT.outputs["y"].tolist()}

    return app


def drive(app: Any, path: str) -> float:  # noqa: ANN401 (an ASGI application)
    """Return the microseconds per request through ASGI."""
    ask = asker(app, path, ROWS)

    async def round_s() -> float:
        clock = asyncio.get_running_loop().time
        started_s = clock()
        for _ in range(CALLS):
            await ask()
        return clock() - started_s

    async def best_s() -> float:
        return min([await round_s() for _ in range(ROUNDS)])

    return asyncio.run(best_s()) / CALLS * 1e6


def asker(
    app: Any,  # noqa: ANN401 (an ASGI application)
    path: str,
    body: bytes,
    headers: Mapping[str, str] = JSON,
) -> Callable[[], Awaitable[None]]:
    """Return a function that sends a request through ASGI, and raises RuntimeError for a status other than 200."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [*pairs, (b"content-length", b"%d" % len(body))],
    }

    async def receive() -> Body:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Body) -> None:
        if message.get("status", 200) != 200:
            raise RuntimeError(f"{path} returned {message}")

    async def ask() -> None:
        await app(dict(scope), receive, send)

    return ask
