"""Tests of a client that may use some models: every method that names a model, and every list of models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.support.administered_server import AdministeredServer
from tpuserve_formats.messages.official import (
    ClassificationRequest,
    GetModelMetadataRequest,
    GetModelStatusRequest,
    MultiInferenceRequest,
    PredictRequest,
    RegressionRequest,
)
from tpuserve_formats.messages.oip import (
    ModelConfigRequest,
    ModelInferRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
    TraceSettingRequest,
)
from tpuserve_server.access.access import Identity, ModelNames, Role
from tpuserve_server.access.caller import CallerModels, set_caller, shown_reason
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import PermissionDenied, ServingError
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.rpc import CallContext, StreamMethod, UnaryMethod

SHOP = Identity("shop", frozenset(Role), ModelNames(["a", "chain*"]))
PREDICTION, MODEL, OIP = (
    "/tensorflow.serving.PredictionService/",
    "/tensorflow.serving.ModelService/",
    "/inference.GRPCInferenceService/",
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path, access=CallerModels(), cache_bytes=1 << 20) as server:
        yield server


def official(request: Message, name: str) -> Message:
    request.model_spec.name = name  # type: ignore[attr-defined]  # every such message has a spec
    return request


def requests(name: str) -> dict[str, Message]:
    """Return a message of each method that names a model."""
    tasks = MultiInferenceRequest()
    tasks.tasks.add().model_spec.name = name
    metadata = GetModelMetadataRequest(metadata_field=["signature_def"])
    return {
        f"{PREDICTION}Predict": official(PredictRequest(), name),
        f"{PREDICTION}Classify": official(ClassificationRequest(), name),
        f"{PREDICTION}Regress": official(RegressionRequest(), name),
        f"{PREDICTION}MultiInference": tasks,
        f"{PREDICTION}GetModelMetadata": official(metadata, name),
        f"{MODEL}GetModelStatus": official(GetModelStatusRequest(), name),
        f"{OIP}ModelInfer": ModelInferRequest(model_name=name),
        f"{OIP}ModelReady": ModelReadyRequest(name=name),
        f"{OIP}ModelMetadata": ModelMetadataRequest(name=name),
        f"{OIP}ModelConfig": ModelConfigRequest(name=name),
        f"{OIP}ModelStatistics": ModelStatisticsRequest(name=name),
        f"{OIP}RepositoryModelLoad": RepositoryModelLoadRequest(model_name=name),
        f"{OIP}RepositoryModelUnload": RepositoryModelUnloadRequest(model_name=name),
        f"{OIP}TraceSetting": TraceSettingRequest(model_name=name),
    }


async def outcome(server: AdministeredServer, path: str, body: bytes) -> str:
    """Return "denied", or "passed" for any other result."""
    method = server.rpc[path]
    assert isinstance(method, UnaryMethod)
    try:
        await method.handle(body, CallContext(Deadline.never(), {}))
    except PermissionDenied as error:
        return "denied" if "'shop'" in error.message else error.message
    except ServingError:
        return "passed"
    return "passed"


async def test_every_method_that_names_a_model_checks_it(server: AdministeredServer) -> None:
    set_caller(SHOP)
    for name, expected in (("b", "denied"), ("unknown", "denied"), ("a", "passed")):
        found = {path: await outcome(server, path, each.SerializeToString()) for path, each in requests(name).items()}
        assert found == dict.fromkeys(found, expected), name


async def test_the_last_name_of_a_message_counts(server: AdministeredServer) -> None:
    set_caller(SHOP)
    for first, last, expected in (("a", "b", "denied"), ("b", "a", "passed")):
        for path, request in requests(first).items():
            if path.endswith("MultiInference"):
                continue
            body = request.SerializeToString() + requests(last)[path].SerializeToString()
            assert await outcome(server, path, body) == expected, path


async def test_a_stream_checks_each_of_its_requests(server: AdministeredServer) -> None:
    set_caller(SHOP)
    method = server.rpc[f"{OIP}ModelStreamInfer"]
    assert isinstance(method, StreamMethod)

    async def two() -> object:
        yield ModelInferRequest(model_name="a").SerializeToString()
        yield ModelInferRequest(model_name="b").SerializeToString()

    answers = [each async for each in method.handle(two(), CallContext(Deadline.never(), {}))]  # type: ignore[arg-type]  # a generator
    assert [b"may not use the model 'b'" in each for each in answers] == [False, True]


async def test_lists_have_only_the_models_of_the_client(server: AdministeredServer) -> None:
    await server.call("RepositoryModelUnload", RepositoryModelUnloadRequest(model_name="b"), RepositoryIndexResponse)
    set_caller(SHOP)
    index = await server.call("RepositoryIndex", RepositoryIndexRequest(), RepositoryIndexResponse)
    assert {model.name for model in index.models} == {"a"}
    statistics = await server.call("ModelStatistics", ModelStatisticsRequest(), ModelStatisticsResponse)
    assert {model.name for model in statistics.model_stats} == {"a"}
    assert [model["name"] for model in (await server.get("/v1/models")).json()["models"]] == ["a"]


async def test_rest_checks_the_model_of_the_path(server: AdministeredServer) -> None:
    set_caller(SHOP)
    for path in ("/v1/models/b", "/v1/models/b/metadata", "/v2/models/b", "/v2/models/%62/ready", "/v2/models/b/stats"):
        assert (await server.get(path)).status_code == 403, path
    assert (await server.get("/v1/models/a")).status_code == 200


async def test_an_ensemble_needs_no_permission_for_its_steps(server: AdministeredServer) -> None:
    server.add_chain()
    set_caller(SHOP)
    with server.house.service.acquire(ModelSpec("chain")) as chain:
        assert chain.servable_id.name == "chain"
    with pytest.raises(PermissionDenied):
        server.house.service.acquire(ModelSpec("b"))


async def test_a_cached_response_is_not_for_others(server: AdministeredServer) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    for _ in range(2):
        response = await server.post("/v2/models/b/infer", body)
        assert response.status_code == 200
    assert response.headers["x-tpuserve-cache"] == "hit"
    set_caller(SHOP)
    assert (await server.post("/v2/models/b/infer", body)).status_code == 403


@pytest.mark.parametrize(
    ("name", "roles", "status"),
    [("local", (Role.PREDICT, Role.READ), 403), ("local", tuple(Role), 404), ("", tuple(Role), 401)],
)
async def test_shared_memory_of_others_needs_a_credential_with_the_role_control(
    server: AdministeredServer, name: str, roles: tuple[Role, ...], status: int
) -> None:
    set_caller(Identity(name, frozenset(roles)))
    region = {"shared_memory_region": "other", "shared_memory_byte_size": 8}
    whole = {"name": "x", "shape": [1, 2], "datatype": "FP32"}
    for body in (
        {"inputs": [{**whole, "parameters": region}]},
        {"inputs": [{**whole, "data": [1, 2]}], "outputs": [{"name": "y", "parameters": region}]},
    ):
        assert (await server.post("/v2/models/a/infer", body)).status_code == status


async def test_work_without_a_request_may_use_every_model(server: AdministeredServer) -> None:
    assert server.house.service.models() == ["a", "b"]


def test_the_reason_of_a_probe_needs_the_role_read() -> None:
    assert shown_reason("model m is loading") == "model m is loading"
    for identity, is_shown in (
        (Identity("", frozenset()), False),
        (Identity("p", frozenset((Role.PREDICT,))), False),
        (Identity("r", frozenset((Role.READ,)), ModelNames(["a"])), False),
        (Identity("r", frozenset((Role.READ,))), True),
    ):
        set_caller(identity)
        assert ("model m" in shown_reason("model m is loading")) is is_shown
        assert shown_reason("") == ""
