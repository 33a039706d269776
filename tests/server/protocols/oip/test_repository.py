"""Tests for the repository extension over REST and gRPC, on a core that loads."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.configured_house import CLOCK
from tests.support.ensembles import ensemble_config, make_ensemble
from tests.support.fake_device import DOUBLE
from tests.support.measured import page_of
from tpuserve_formats.messages.oip import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ServingError,
    Unavailable,
    Unimplemented,
)
from tpuserve_server.core.terms.types import ServableId, Signature, State

INDEX = "/v2/repository/index"
IMAGE = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
A_READY = {"name": "a", "version": "1", "state": "READY"}
B_READY = {"name": "b", "version": "2", "state": "READY"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path) as server:
        yield server


async def load(server: AdministeredServer, name: str, deadline: Deadline | None = None, **parameters: Any) -> None:  # noqa: ANN401 (parameters of a message)
    request = RepositoryModelLoadRequest(model_name=name)
    for key, value in parameters.items():
        request.parameters[key].CopyFrom(value)
    await server.call("RepositoryModelLoad", request, RepositoryModelLoadResponse, deadline)


async def infer_once(server: AdministeredServer) -> object:
    document = (await server.post("/v2/models/chain/infer", IMAGE)).json()
    return document["outputs"][0]["data"] if "outputs" in document else document["error"]


async def test_index_lists_each_version_over_both_protocols(server: AdministeredServer) -> None:
    answer = await server.post(INDEX)
    assert (answer.status_code, answer.json()) == (200, [A_READY, B_READY])
    response = await server.call("RepositoryIndex", RepositoryIndexRequest(), RepositoryIndexResponse)
    assert [(each.name, each.version, each.state, each.reason) for each in response.models] == [
        ("a", "1", "READY", ""),
        ("b", "2", "READY", ""),
    ]


async def test_unload_and_load_over_rest(server: AdministeredServer) -> None:
    answer = await server.post("/v2/repository/models/a/unload", {"parameters": {"unload_dependents": False}})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await server.get("/v2/models/a/ready")).status_code == 400
    refused = await server.get("/v2/models/a")
    assert refused.json() == {"error": "Request for unknown model: 'a' has no available versions"}
    server.house.wait_for("a", 1, State.END)
    unloaded = {"name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    assert (await server.post(INDEX)).json() == [unloaded, B_READY]
    assert (await server.post(INDEX, {"ready": True})).json() == [B_READY]
    answer = await server.post("/v2/repository/models/a/load", {})
    assert (answer.status_code, answer.content) == (200, b"")
    assert (await server.post(INDEX)).json() == [A_READY, B_READY]


async def test_unload_and_load_over_grpc(server: AdministeredServer) -> None:
    await server.call(
        "RepositoryModelUnload", RepositoryModelUnloadRequest(model_name="a"), RepositoryModelUnloadResponse
    )
    index = await server.call("RepositoryIndex", RepositoryIndexRequest(ready=True), RepositoryIndexResponse)
    assert [each.name for each in index.models] == ["b"]
    await load(server, "a")
    assert server.house.number("a") == 1


async def test_a_new_version_serves_when_its_load_returns(server: AdministeredServer) -> None:
    server.house.save("a", 3)
    await load(server, "a")
    assert server.house.number("a") == 3


async def test_a_failed_load_has_tritons_message(server: AdministeredServer) -> None:
    server.house.save_bad("a", 2)
    answer = await server.post("/v2/repository/models/a/load")
    assert (answer.status_code, answer.json()) == (
        400,
        {
            "error": "load failed for model 'a': version 2 is at UNAVAILABLE state: Internal: broken "
            "(tried again when its files change);"
        },
    )
    reason = "Internal: broken (tried again when its files change)"
    assert {"name": "a", "version": "2", "state": "UNAVAILABLE", "reason": reason} in (await server.post(INDEX)).json()
    answer = await server.post("/v2/repository/models/wrong/load")
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("failed to load 'wrong', failed to poll from model repository")


async def test_a_load_answers_before_the_clients_deadline(server: AdministeredServer) -> None:
    server.loader.held.add(ServableId("a", 2))
    server.house.save("a", 2)
    with pytest.raises(DeadlineExceeded, match="failed to load 'a' before the deadline"):
        await load(server, "a", Deadline.after(0.3, CLOCK))
    server.loader.gate.set()
    await load(server, "a")
    assert server.house.number("a") == 2


async def test_a_drain_ends_the_wait_for_a_load(server: AdministeredServer) -> None:
    server.loader.held.add(ServableId("a", 2))
    server.house.save("a", 2)
    server.house.service.drain()
    with pytest.raises(Unavailable):
        await load(server, "a")


async def test_a_load_overrides_the_batch_size_until_the_next_load(server: AdministeredServer) -> None:
    async def largest() -> int:
        request = ModelConfigRequest(name="a")
        return int((await server.call("ModelConfig", request, ModelConfigResponse)).config.max_batch_size)

    answer = await server.post(
        "/v2/repository/models/a/load", {"parameters": {"config": '{"name": "a", "max_batch_size": "16"}'}}
    )
    assert (answer.status_code, await largest()) == (200, 16)
    await load(server, "a")
    assert await largest() == 4


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"config": {"string_param": '"parameters": {'}}, InvalidArgument, "failed to load 'a', failed to poll"),
        ({"config": {"string_param": "[" * 1000}}, InvalidArgument, "is not a ModelConfig in JSON"),
        ({"config": {"string_param": '{"colour": 1}'}}, InvalidArgument, "is not a ModelConfig in JSON"),
        ({"config": {"string_param": '{"max_batch_size": -1}'}}, InvalidArgument, "expected a positive number"),
        ({"config": {"string_param": '{"name": "b"}'}}, InvalidArgument, "got 'name'"),
        ({"config": {"string_param": '{"dynamic_batching": {}}'}}, InvalidArgument, "got 'dynamic_batching'"),
        ({"config": {"bytes_param": b"{}"}}, InvalidArgument, "'config', expected string_param."),
        ({"file:1/m": {"string_param": "x"}}, InvalidArgument, "'file:1/m', expected bytes_param."),
        ({"file:" + "A" * 256: {"bytes_param": b"x"}}, Internal, "failed to poll from model repository"),
        ({"colour": {"string_param": "x"}}, InvalidArgument, "unrecognized load parameter 'colour'."),
    ],
)
async def test_wrong_load_parameters_are_refused_by_name(
    server: AdministeredServer, parameters: dict[str, Any], error: type[ServingError], message: str
) -> None:
    request = RepositoryModelLoadRequest(model_name="a", parameters=parameters)
    with pytest.raises(error) as caught:
        await server.call("RepositoryModelLoad", request, RepositoryModelLoadResponse)
    assert message in caught.value.message
    assert len(caught.value.message) < 600
    assert server.house.number("a") == 1


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        (INDEX, b'{"ready": [[]]}', 400, "Invalid value for 'ready': expected a boolean"),
        (INDEX, b"[" * 250_000, 400, "failed to parse the request JSON buffer"),
        (INDEX, b"[]", 400, "expected an object"),
        ("/v2/repository/models/a/load", b'{"parameters": []}', 400, "Unable to parse 'parameters'"),
        ("/v2/repository/models/a/load", b'{"parameters": {"config": 1}}', 400, "Unable to parse 'config'"),
        ("/v2/repository/r/models/a/load", b"", 501, "'repository_name' specification is not supported"),
        ("/v2/repository/r/models/a/unload", b"", 501, "'repository_name' specification is not supported"),
        ("/v2/repository/models/a/unload", b'{"parameters": {"unload_dependents": 1}}', 400, "'unload_dependents'"),
        ("/v2/repository/models/..%2Fa/load", b"", 400, "must not contain path traversal characters"),
    ],
)
async def test_wrong_requests_over_rest_are_refused(
    server: AdministeredServer, path: str, content: bytes, status: int, message: str
) -> None:
    answer = await server.post(path, content=content)
    assert answer.status_code == status
    assert message in answer.json()["error"]


async def test_repository_names_and_wrong_types_are_refused_over_grpc(server: AdministeredServer) -> None:
    with pytest.raises(Unimplemented):
        await server.call("RepositoryIndex", RepositoryIndexRequest(repository_name="r"), RepositoryIndexResponse)
    request = RepositoryModelUnloadRequest(model_name="a")
    request.parameters["unload_dependents"].int64_param = 1
    with pytest.raises(InvalidArgument, match="expected bool_param"):
        await server.call("RepositoryModelUnload", request, RepositoryModelUnloadResponse)


async def test_an_ensemble_is_unavailable_without_a_model_of_its_steps(server: AdministeredServer) -> None:
    server.add_chain()
    ready = {"name": "chain", "version": "1", "state": "READY"}
    assert (await server.post(INDEX)).json() == [A_READY, B_READY, ready]
    await server.post("/v2/repository/models/b/unload")
    server.house.wait_for("b", 2, State.END)
    index = {each["name"]: each for each in (await server.post(INDEX)).json()}
    assert index["b"]["reason"] == "unloaded"
    assert index["chain"]["state"] == "UNAVAILABLE"
    assert index["chain"]["reason"].startswith("Ensemble chain: step 2 (b) cannot run")
    assert (await server.post(INDEX, {"ready": True})).json() == [A_READY]
    not_ready = await server.get("/v2/models/chain/ready")
    assert (not_ready.status_code, not_ready.json()["error"]) == (400, index["chain"]["reason"])
    await load(server, "chain")
    assert (await server.post(INDEX)).json() == [A_READY, B_READY, ready]


async def test_an_ensemble_that_does_not_fit_its_models_is_not_ready(server: AdministeredServer) -> None:
    server.add_chain()
    server.loader.by_name = {DOUBLE.name: Signature(DOUBLE.name, {"z": DOUBLE.inputs["x"]}, DOUBLE.outputs)}
    server.house.save("b", 3)
    await load(server, "b")
    response = await server.call("ModelReady", ModelReadyRequest(name="chain"), ModelReadyResponse)
    assert not response.ready
    assert "step 2 (b version 3) has no input x" in (await server.get("/v2/models/chain/ready")).json()["error"]


async def test_changes_of_an_ensemble_while_requests_run_give_each_a_whole_answer(server: AdministeredServer) -> None:
    server.add_chain()
    house = server.house
    models = (house.config("a"), house.config("b"))
    longer = make_ensemble("a x=image -> y=1", "b x=1 -> y=2", "a x=2 -> y=fourfold")

    def lengthen() -> None:
        house.apply(*models, ensemble_config("chain", longer))
        # Like TensorFlow Serving's, a reload waits for new models and not for new versions of the others.
        house.wait_for("chain", 2, State.AVAILABLE)

    changes: list[Callable[[], object]] = [
        lengthen,
        server.add_chain,
        lambda: house.apply(*models),
        server.add_chain,
        lambda: house.models.unload("b"),
        lambda: house.settle(house.models.load("chain")),
        lambda: house.models.unload("chain", with_dependents=True),
        lambda: house.settle(house.models.load("chain")),
    ]
    seen: set[str] = set()
    is_over = asyncio.Event()

    async def infer() -> None:
        while not is_over.is_set():
            # A refused request does not wait for anything.
            await asyncio.sleep(0)
            response = await server.post("/v2/models/chain/infer", IMAGE)
            document = response.json()
            seen.add(f"{document['outputs'][0]['data']}" if response.status_code == 200 else document["error"])

    clients = [asyncio.create_task(infer()) for _ in range(4)]
    for change in changes:
        await asyncio.to_thread(change)
        # The clients may be too slow to see every change.
        seen.add(f"{await infer_once(server)}")
    is_over.set()
    await asyncio.gather(*clients)
    answers = {"[4.0, 8.0]", "[8.0, 16.0]"}
    refusals = (
        "Request for unknown model: 'chain' is not found",
        "Request for unknown model: 'chain' has no available versions",
        "Model chain has no version ready yet",
        "Ensemble chain: step 2 (b) cannot run",
    )
    assert answers <= seen
    assert not [text for text in seen - answers if not text.startswith(refusals)]
    assert await infer_once(server) == [4, 8]


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
@pytest.mark.parametrize("dependents", [True, False])
async def test_an_unload_of_an_ensemble_with_the_models_that_came_with_it(
    server: AdministeredServer, protocol: str, dependents: bool
) -> None:
    server.add_chain()
    for name in ("chain", "b"):
        await server.post(f"/v2/repository/models/{name}/unload")
    await load(server, "chain")
    if protocol == "rest":
        await server.post("/v2/repository/models/chain/unload", {"parameters": {"unload_dependents": dependents}})
    else:
        request = RepositoryModelUnloadRequest(model_name="chain")
        request.parameters["unload_dependents"].bool_param = dependents
        await server.call("RepositoryModelUnload", request, RepositoryModelUnloadResponse)
    assert server.house.service.models() == (["a"] if dependents else ["a", "b"])


async def test_a_failed_load_of_an_ensemble_names_the_model(server: AdministeredServer) -> None:
    server.add_chain()
    await server.post("/v2/repository/models/b/unload")
    (server.house.root / "b" / "2" / "bad").touch()
    answer = await server.post("/v2/repository/models/chain/load")
    assert (answer.status_code, answer.json()) == (
        400,
        {
            "error": "load failed for model 'chain': ensemble 'chain' depends on 'b' which has no loaded version. "
            "Model 'b' loading failed with error: version 2 is at UNAVAILABLE state: Internal: broken "
            "(tried again when its files change);"
        },
    )


async def test_an_unload_of_an_unknown_model_succeeds_and_makes_no_label(server: AdministeredServer) -> None:
    assert (await server.post("/v2/repository/models/nobody/unload")).status_code == 200
    request = RepositoryModelUnloadRequest(model_name="nobody")
    await server.call("RepositoryModelUnload", request, RepositoryModelUnloadResponse)
    assert "nobody" not in page_of(server.metrics)


async def test_readiness_of_an_unknown_model_makes_no_label(server: AdministeredServer) -> None:
    assert (await server.get("/v2/models/nobody/ready")).status_code == 400
    response = await server.call("ModelReady", ModelReadyRequest(name="nobody"), ModelReadyResponse)
    assert not response.ready
    assert "nobody" not in page_of(server.metrics)


async def test_a_server_without_changes_lists_its_models_and_refuses_the_rest(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path, changes=False) as server:
        assert (await server.post(INDEX)).json() == [A_READY, B_READY]
        for action in ("load", "unload"):
            answer = await server.post(f"/v2/repository/models/a/{action}")
            assert (answer.status_code, answer.json()["error"]) == (
                503,
                "explicit model load / unload is not allowed if polling is enabled",
            )
