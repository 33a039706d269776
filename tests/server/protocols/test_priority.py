"""Tests for priorities, from gRPC's metadata and REST's header to the service."""

from collections.abc import Mapping

import httpx
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import Message
from tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, predict_pb2, regression_pb2

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Signature, Tensors, TensorSpec
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

SPEC = {"name": "m"}
INPUT = input_pb2.Input(example_list=input_pb2.ExampleList(examples=[tf.train.Example()]))
TASK = inference_pb2.InferenceTask(model_spec=SPEC, method_name="tensorflow/serving/regress")
INPUTS = {"inputs": TensorSpec("inputs", np.dtype(object), (None,), "inputs:0")}
OUTPUTS = {
    "outputs": TensorSpec("outputs", np.dtype(np.float32), (None,), "outputs:0"),
    "scores": TensorSpec("scores", np.dtype(np.float32), (None, 1), "scores:0"),
}
SIGNATURES = {
    name: Signature(name, INPUTS, {output: OUTPUTS[output]})
    for name, output in {"serving_default": "outputs", "classify": "scores"}.items()
}
METHODS: dict[str, Message] = {
    "Predict": predict_pb2.PredictRequest(
        model_spec=SPEC, inputs={"inputs": tf.make_tensor_proto([b""])}, output_filter=["outputs"]
    ),
    "Classify": classification_pb2.ClassificationRequest(
        model_spec={**SPEC, "signature_name": "classify"}, input=INPUT
    ),
    "Regress": regression_pb2.RegressionRequest(model_spec=SPEC, input=INPUT),
    "MultiInference": inference_pb2.MultiInferenceRequest(tasks=[TASK], input=INPUT),
}
BODIES = {
    "predict": {"instances": [""]},
    "classify": {"signature_name": "classify", "examples": [{}]},
    "regress": {"examples": [{}]},
}
GIVEN = [(None, Priority.HIGH), (b"high", Priority.HIGH), (b"low", Priority.LOW), (b" LOW ", Priority.LOW)]


def outputs_of(inputs: Tensors) -> Tensors:
    rows = len(inputs["inputs"])
    return {"outputs": np.zeros(rows, np.float32), "scores": np.zeros((rows, 1), np.float32)}


@pytest.fixture
def service() -> FakeService:
    return FakeService(outputs_of, SIGNATURES)


async def call(service: FakeService, metrics: FakeMetrics, name: str, asked: bytes | None) -> bytes:
    method = rpc_table(service, metrics, FakeClock())[f"/tensorflow.serving.PredictionService/{name}"]
    assert isinstance(method, UnaryMethod)
    return await method.handle(METHODS[name].SerializeToString(), CallContext(Deadline.never(), {}, asked))


async def post(service: FakeService, action: str, headers: Mapping[str, str]) -> httpx.Response:
    app = rest_app(service, FakeMetrics(), FakeClock(), lambda: ([b""], ""), RestOptions())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        return await client.post(f"/v1/models/m:{action}", json=BODIES[action], headers=headers)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("asked", "priority"), GIVEN)
async def test_every_grpc_method_that_runs_a_model_passes_it_on(
    service: FakeService, name: str, asked: bytes | None, priority: Priority
) -> None:
    assert await call(service, FakeMetrics(), name, asked)
    assert [request.priority for request in service.requests] == [priority]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("asked", [b"", b"urgent", b"1", b"high,low", b"\xff"])
async def test_grpc_refuses_any_other(service: FakeService, name: str, asked: bytes) -> None:
    metrics = FakeMetrics()
    with pytest.raises(InvalidArgument, match="x-tpuserve-priority must be high or low; was '"):
        await call(service, metrics, name, asked)
    assert service.requests == []
    assert [(done.model, done.code) for done in metrics.finished] == [("m", Code.INVALID_ARGUMENT)]


@pytest.mark.parametrize("action", BODIES)
@pytest.mark.parametrize(("asked", "priority"), GIVEN)
async def test_every_rest_action_that_runs_a_model_passes_it_on(
    service: FakeService, action: str, asked: bytes | None, priority: Priority
) -> None:
    response = await post(service, action, {} if asked is None else {"X-Tpuserve-Priority": asked.decode()})
    assert response.status_code == 200
    assert [request.priority for request in service.requests] == [priority]


@pytest.mark.parametrize("action", BODIES)
async def test_rest_refuses_any_other(service: FakeService, action: str) -> None:
    response = await post(service, action, {"x-tpuserve-priority": "urgent" * 100})
    assert response.status_code == 400
    assert response.json()["error"].startswith("x-tpuserve-priority must be high or low; was 'urgent")
    assert len(response.json()["error"]) < 100
    assert service.requests == []
