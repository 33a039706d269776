"""Tests for the unary methods of inference.GRPCInferenceService, called through the table like by a host."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished
from tpuserve_formats.messages.oip import (
    GRPC_INFERENCE_SERVICE,
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
)
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, InvalidArgument, NotFound, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table

DATA = np.array([1, 3], np.float32).tobytes()


class Caller:
    """The table over a fake service."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.metrics = FakeMetrics()
        self.table = rpc_table(self.service, self.metrics, FakeClock())

    async def call(self, name: str, body: bytes = b"", priority: bytes | None = None) -> bytes:
        method = self.table[f"/inference.GRPCInferenceService/{name}"]
        assert isinstance(method, UnaryMethod)
        return await method.handle(body, CallContext(Deadline(1234.5), {}, priority))

    async def infer(
        self,
        parameters: Mapping[str, InferParameter] | None = None,
        outputs: Any = (),  # noqa: ANN401 (messages)
        priority: bytes | None = None,
        **fields: str,
    ) -> ModelInferResponse:
        tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2])
        request = ModelInferRequest(
            **{"model_name": "m"} | fields,
            inputs=[tensor],
            raw_input_contents=[DATA],
            parameters=parameters,
            outputs=outputs,
        )
        return ModelInferResponse.FromString(await self.call("ModelInfer", request.SerializeToString(), priority))


@pytest.fixture
def caller() -> Caller:
    return Caller()


async def test_a_request_is_answered_with_raw_contents_and_its_id(caller: Caller) -> None:
    response = await caller.infer(id="q")
    assert (response.model_name, response.model_version, response.id) == ("m", "7", "q")
    assert response.raw_output_contents[0] == np.array([2.5, 3.5], np.float32).tobytes()
    (request,) = caller.service.requests
    assert (request.deadline, request.priority) == (Deadline(1234.5), Priority.HIGH)
    assert caller.metrics.finished == [Finished("m", "ModelInfer", "grpc", Code.OK, 0.0)]
    assert caller.service.acquired[0].released


async def test_parameters_reach_the_service(caller: Caller) -> None:
    caller.service.signatures["s"] = caller.service.signatures["serving_default"]
    await caller.infer(
        {
            "signature_name": InferParameter(string_param="s"),
            "timeout": InferParameter(int64_param=500_000),
            "priority": InferParameter(uint64_param=2),
        },
        outputs=[ModelInferRequest.InferRequestedOutputTensor(name="y")],
        model_version="7",
    )
    (request,) = caller.service.requests
    assert (request.spec.signature_name, request.spec.version) == ("s", 7)
    # The clock shows 1000 s.
    assert (request.deadline.at_s, request.priority, request.output_filter) == (1000.5, Priority.LOW, ("y",))


async def test_a_longer_timeout_and_the_default_priority_change_nothing(caller: Caller) -> None:
    parameters = {"timeout": InferParameter(int64_param=10**15), "priority": InferParameter(int64_param=0)}
    await caller.infer(parameters, priority=b"low")
    (request,) = caller.service.requests
    assert (request.deadline.at_s, request.priority) == (1234.5, Priority.LOW)
    await caller.infer({"priority": InferParameter(int64_param=1)}, priority=b"low")
    assert caller.service.requests[-1].priority is Priority.HIGH


async def test_classes_replace_the_values_and_have_labels(caller: Caller) -> None:
    caller.service.class_names = ("cat", "dog")
    output = ModelInferRequest.InferRequestedOutputTensor(name="y")
    output.parameters["classification"].int64_param = 1
    response = await caller.infer(outputs=[output])
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [1])
    assert response.raw_output_contents[0] == b"\x0e\0\0\x003.500000:1:dog"


async def test_a_refused_request_is_counted_and_releases_the_model(caller: Caller) -> None:
    with pytest.raises(InvalidArgument, match="unexpected inference output 'z' for model 'm'"):
        await caller.infer(outputs=[ModelInferRequest.InferRequestedOutputTensor(name="z")])
    with pytest.raises(NotFound, match="Request for unknown model: 'n' is not found"):
        await caller.infer(model_name="n")
    assert [(done.model, done.code) for done in caller.metrics.finished] == [
        ("m", Code.INVALID_ARGUMENT),
        ("", Code.NOT_FOUND),
    ]
    assert all(acquired.released for acquired in caller.service.acquired)


async def test_a_model_that_runs_complex_numbers_refuses_by_name(caller: Caller) -> None:
    spec = TensorSpec("x", np.dtype(np.complex64), None)
    caller.service.signatures["serving_default"] = Signature("serving_default", {"x": spec}, {})
    with pytest.raises(ServingError, match="input 'x' of model 'm': dtype complex64 has no datatype") as caught:
        await caller.infer()
    assert caught.value.code is Code.UNIMPLEMENTED


async def test_health_follows_the_service(caller: Caller) -> None:
    assert ServerLiveResponse.FromString(await caller.call("ServerLive")).live
    assert ServerReadyResponse.FromString(await caller.call("ServerReady")).ready
    caller.service.set_ready("loading")
    assert ServerLiveResponse.FromString(await caller.call("ServerLive")).live
    caller.service.not_live = "a run has taken 300 s"
    assert not ServerLiveResponse.FromString(await caller.call("ServerLive")).live
    assert not ServerReadyResponse.FromString(await caller.call("ServerReady")).ready


@pytest.mark.parametrize(
    ("name", "version", "ready"), [("m", "", True), ("m", "7", True), ("m", "9", False), ("n", "", False)]
)
async def test_an_unknown_model_is_not_ready(caller: Caller, name: str, version: str, ready: bool) -> None:
    body = ModelReadyRequest(name=name, version=version).SerializeToString()
    assert ModelReadyResponse.FromString(await caller.call("ModelReady", body)).ready is ready


async def test_metadata_describe_the_server_and_the_model(caller: Caller) -> None:
    server = ServerMetadataResponse.FromString(await caller.call("ServerMetadata"))
    assert server.name == "tpuserve"
    assert {"classification", "binary_tensor_data"} <= {*server.extensions}
    body = ModelMetadataRequest(name="m").SerializeToString()
    model = ModelMetadataResponse.FromString(await caller.call("ModelMetadata", body))
    assert (model.name, list(model.versions), model.platform) == ("m", ["7"], "tensorflow_savedmodel")
    assert (model.inputs[0].name, model.outputs[0].datatype) == ("x", "FP32")


@pytest.mark.parametrize("name", ["ModelInfer", "ModelReady", "ModelMetadata"])
async def test_malformed_messages_are_refused_by_name(caller: Caller, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Malformed {name}Request"):
        await caller.call(name, b"\xff")


def test_every_method_is_one_of_the_service(caller: Caller) -> None:
    prefix = f"/{GRPC_INFERENCE_SERVICE.full_name}/"
    names = {path.removeprefix(prefix) for path in caller.table if path.startswith(prefix)}
    assert names <= {*GRPC_INFERENCE_SERVICE.methods_by_name}
    assert {"ModelInfer", "ModelStreamInfer"} <= names
