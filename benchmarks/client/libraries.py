"""One prediction with each library: tpuserve_client, the library below it, and the official gRPC stub."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import grpc
import httpx
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from benchmarks.harness import measurement, mlp_model
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, Protocol
from tpuserve_client import AsyncClient, Client

OWN, STUB = "tpuserve_client", "official stub"
# Library below tpuserve_client, which the ratios refer to.
RAW: Final[Mapping[Protocol, str]] = {"grpc": "grpcio", "rest": "httpx"}

Call: TypeAlias = Callable[[], object]
AsyncCall: TypeAlias = Callable[[], Awaitable[object]]
Blocking: TypeAlias = Callable[[int], AbstractContextManager[Call]]
Asyncio: TypeAlias = Callable[[int], AbstractAsyncContextManager[AsyncCall]]

X = mlp_model.example()
INPUTS = {mlp_model.INPUT: X}
# Plain httpx sends the same document, without a conversion from numpy.
DOCUMENT = {"inputs": {mlp_model.INPUT: X.tolist()}}
HEADERS = {"content-type": "application/json"}
# As many connections as the client keeps. By default httpx closes all but 20, and may close a connection in use.
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=100)


@contextmanager
def own_grpc(port: int) -> Iterator[Call]:
    """Yield a call of `Client` over gRPC."""
    with Client(f"127.0.0.1:{port}") as client:
        yield lambda: client.predict(MODEL_NAME, INPUTS)


@contextmanager
def own_rest(port: int) -> Iterator[Call]:
    """Yield a call of `Client` over REST."""
    with Client(f"http://127.0.0.1:{port}") as client:
        yield lambda: client.predict(MODEL_NAME, INPUTS)


@asynccontextmanager
async def own_grpc_asyncio(port: int) -> AsyncIterator[AsyncCall]:
    """Yield a call of `AsyncClient` over gRPC."""
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        yield lambda: client.predict(MODEL_NAME, INPUTS)


@asynccontextmanager
async def own_rest_asyncio(port: int) -> AsyncIterator[AsyncCall]:
    """Yield a call of `AsyncClient` over REST."""
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        yield lambda: client.predict(MODEL_NAME, INPUTS)


@contextmanager
def grpcio(port: int) -> Iterator[Call]:
    """Yield a call of grpcio with prepared bytes, which returns bytes."""
    body = measurement.grpc_request(X)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GRPC_PATH)
        yield lambda: send(body)


@asynccontextmanager
async def grpcio_asyncio(port: int) -> AsyncIterator[AsyncCall]:
    """Yield a call of grpc.aio with prepared bytes, which returns bytes."""
    body = measurement.grpc_request(X)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GRPC_PATH)
        yield lambda: send(body)


@contextmanager
def stub(port: int) -> Iterator[Call]:
    """Yield a call of the official stub: numpy in, numpy out."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        yield lambda: stub_outputs(service.Predict(stub_request()))


@asynccontextmanager
async def stub_asyncio(port: int) -> AsyncIterator[AsyncCall]:
    """Yield a call of the official stub on grpc.aio: numpy in, numpy out."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)

        async def call() -> object:
            return stub_outputs(await service.Predict(stub_request()))

        yield call


@contextmanager
def plain_httpx(port: int) -> Iterator[Call]:
    """Yield a call of httpx: lists in, lists out."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", limits=LIMITS) as client:
        yield lambda: http_outputs(client.post(REST_PATH, content=json.dumps(DOCUMENT), headers=HEADERS))


@asynccontextmanager
async def plain_httpx_asyncio(port: int) -> AsyncIterator[AsyncCall]:
    """Yield a call of httpx on asyncio: lists in, lists out. It has no deadline, so that a burst can wait."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=LIMITS) as client:

        async def call() -> object:
            return http_outputs(await client.post(REST_PATH, content=json.dumps(DOCUMENT), headers=HEADERS))

        yield call


BLOCKING: Final[Mapping[Protocol, Mapping[str, Blocking]]] = {
    "grpc": {OWN: own_grpc, RAW["grpc"]: grpcio, STUB: stub},
    "rest": {OWN: own_rest, RAW["rest"]: plain_httpx},
}
ASYNCIO: Final[Mapping[Protocol, Mapping[str, Asyncio]]] = {
    "grpc": {OWN: own_grpc_asyncio, RAW["grpc"]: grpcio_asyncio, STUB: stub_asyncio},
    "rest": {OWN: own_rest_asyncio, RAW["rest"]: plain_httpx_asyncio},
}


def stub_request() -> predict_pb2.PredictRequest:
    """Return a request as TensorFlow Serving's documentation fills it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL_NAME
    request.inputs[mlp_model.INPUT].CopyFrom(tf.make_tensor_proto(X))
    return request


def stub_outputs(response: predict_pb2.PredictResponse) -> object:
    """Return the outputs as arrays."""
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def http_outputs(response: httpx.Response) -> object:
    """Return the outputs as lists."""
    return json.loads(response.raise_for_status().content)["outputs"]
