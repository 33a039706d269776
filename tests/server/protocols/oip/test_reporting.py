"""Tests for model configuration and statistics over REST and gRPC."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.ensembles import StepModels, ensemble_config, make_ensemble
from tests.support.fake_device import DOUBLE
from tpuserve_formats.messages.oip import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
)
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, TensorSpec
from tpuserve_server.protocols.oip.models import describe_config

INFER = "/v2/models/a/infer"
ROWS: dict[str, Any] = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}]}
NOTHING = {"count": 0, "ns": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path) as server:
        yield server


async def statistics(server: AdministeredServer, path: str = "/v2/models/a/stats") -> dict[str, Any]:
    (found,) = (await server.get(path)).json()["model_stats"]
    assert isinstance(found, dict)
    return found


async def test_statistics_of_a_version_without_requests_are_zero_numbers(server: AdministeredServer) -> None:
    assert await statistics(server) == {
        "name": "a",
        "version": "1",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(
            (
                "success",
                "fail",
                "queue",
                "compute_input",
                "compute_infer",
                "compute_output",
                "cache_hit",
                "cache_miss",
            ),
            NOTHING,
        ),
        "batch_stats": [],
        "memory_usage": [],
        "response_stats": {},
    }


async def test_statistics_count_requests_rows_and_batches(server: AdministeredServer) -> None:
    before_ms = time.time() * 1000
    for _ in range(2):
        assert (await server.post(INFER, ROWS)).status_code == 200
    bad = {"inputs": [{**ROWS["inputs"][0], "data": [-1, 2, 3, 4, 5, 6]}]}
    assert (await server.post(INFER, bad)).status_code == 400
    found = await statistics(server)
    assert (found["inference_count"], found["execution_count"]) == (6, 2)
    assert before_ms - 1 <= found["last_inference"] <= time.time() * 1000
    stats = found["inference_stats"]
    counts = {name: total["count"] for name, total in stats.items()}
    assert counts == {
        "success": 2,
        "fail": 1,
        "queue": 2,
        "compute_input": 2,
        "compute_infer": 2,
        "compute_output": 2,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    assert stats["success"]["ns"] >= stats["compute_infer"]["ns"] > 0
    (batch,) = found["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (4, 2)
    assert batch["compute_infer"]["ns"] == stats["compute_infer"]["ns"]


async def test_statistics_over_grpc_equal_those_over_rest(server: AdministeredServer) -> None:
    await server.post(INFER, ROWS)
    response = await server.call("ModelStatistics", ModelStatisticsRequest(name="a"), ModelStatisticsResponse)
    (found,) = response.model_stats
    rest = await statistics(server)
    assert (found.version, found.inference_count) == ("1", 3)
    assert found.inference_stats.queue.ns == rest["inference_stats"]["queue"]["ns"]


async def test_statistics_of_all_models_list_each_ready_version(server: AdministeredServer) -> None:
    found = (await server.get("/v2/models/stats")).json()["model_stats"]
    assert [(each["name"], each["version"]) for each in found] == [("a", "1"), ("b", "2")]
    response = await server.call("ModelStatistics", ModelStatisticsRequest(), ModelStatisticsResponse)
    assert len(response.model_stats) == 2
    assert (await statistics(server, "/v2/models/b/versions/2/stats"))["version"] == "2"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v2/models/c/stats", "requested model 'c' is not available"),
        ("/v2/models/b/versions/1/stats", "requested model version is not available for model 'b'"),
    ],
)
async def test_statistics_of_an_unknown_version_are_refused(
    server: AdministeredServer, path: str, message: str
) -> None:
    answer = await server.get(path)
    assert (answer.status_code, answer.json()) == (400, {"error": message})


async def test_statistics_of_an_ended_version_are_removed(server: AdministeredServer) -> None:
    await server.post(INFER, ROWS)
    assert (await server.post("/v2/repository/models/a/unload")).status_code == 200
    server.house.wait_for("a", 1, State.END)
    assert (await server.post("/v2/repository/models/a/load")).status_code == 200
    assert (await statistics(server))["inference_count"] == 0


async def test_configuration_has_tritons_form_and_agrees_with_the_metadata(server: AdministeredServer) -> None:
    config = (await server.get("/v2/models/a/config")).json()
    metadata = (await server.get("/v2/models/a")).json()
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    output = {
        "data_type": "TYPE_FP32",
        "dims": [2],
        "label_filename": "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }
    assert config == {
        "name": "a",
        "platform": "tensorflow_savedmodel",
        "backend": "tensorflow",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 4,
        "input": [
            {
                "name": "x",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [2],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [{"name": "y", **output}, {"name": "x", **output}],
        "batch_input": [],
        "batch_output": [],
        "dynamic_batching": {
            "preferred_batch_size": [1, 2, 4],
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
            "priority_levels": 2,
            "default_priority_level": 1,
            "priority_queue_policy": {},
        },
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
    }


async def test_statistics_count_the_rows_of_requests_without_batching(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path) as server:
        server.loader.sizes = ()
        await server.post("/v2/repository/models/a/unload")
        await server.post("/v2/repository/models/a/load")
        for rows in (1, 2, 3):
            body = {"inputs": [{**ROWS["inputs"][0], "shape": [rows, 2], "data": [1] * rows * 2}]}
            assert (await server.post(INFER, body)).status_code == 200
        found = await statistics(server)
    assert (found["inference_count"], found["execution_count"]) == (6, 3)
    # 3 rows count under the next power of two.
    assert [each["batch_size"] for each in found["batch_stats"]] == [1, 2, 4]


async def test_statistics_count_the_responses_of_the_cache(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path, cache_bytes=1 << 20) as server:
        other = {"inputs": [{**ROWS["inputs"][0], "data": [1] * 6}]}
        # By bytes, then by the arrays of a body with an id.
        for body in (ROWS, other, ROWS, {"id": "1", **ROWS}):
            assert (await server.post(INFER, body)).status_code == 200
        found = await statistics(server)
        counts = server.metrics.caches()[ServableId("a", 1)]
        response = await server.call("ModelStatistics", ModelStatisticsRequest(name="a"), ModelStatisticsResponse)
    stats = found["inference_stats"]
    assert {name: total["count"] for name, total in stats.items()} == {
        "success": 4,
        "fail": 0,
        "queue": 4,
        "compute_input": 2,
        "compute_infer": 2,
        "compute_output": 2,
        "cache_hit": 2,
        "cache_miss": 2,
    }
    assert (found["inference_count"], found["execution_count"]) == (6, 2)
    assert stats["cache_hit"]["ns"] == round(counts.hit_s * 1e9) > 0
    assert stats["cache_miss"]["ns"] == round(counts.miss_s * 1e9) > 0
    assert stats["cache_hit"]["ns"] + stats["cache_miss"]["ns"] < stats["success"]["ns"]
    hits = response.model_stats[0].inference_stats.cache_hit
    assert (hits.count, hits.ns) == (2, stats["cache_hit"]["ns"])


async def test_responses_of_the_cache_leave_the_time_of_the_last_inference(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path, cache_bytes=1 << 20) as server:
        await server.post(INFER, ROWS)
        before = (await statistics(server))["last_inference"]
        # The clock of the statistics counts milliseconds.
        while time.time() * 1000 <= before + 1:
            await server.post(INFER, ROWS)
        assert (await statistics(server))["last_inference"] == before


async def test_configuration_states_the_response_cache(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path, cache_bytes=1 << 20) as server:
        config = (await server.get("/v2/models/a/config")).json()
        assert config["response_cache"] == {"enable": True}
        message = (await server.call("ModelConfig", ModelConfigRequest(name="a"), ModelConfigResponse)).config
        assert message.response_cache.enable


def test_configuration_of_an_ensemble_has_the_rows_that_every_step_accepts() -> None:
    models = StepModels()
    models.add("a")
    models.add_ensemble("chain", make_ensemble("a x=image -> y=twice", inputs="image", outputs="twice"))
    facts = describe_config(models.service, None, ModelSpec("chain"))
    assert (facts.batching, facts.default_rows, facts.caches_responses) == (None, 4, False)
    assert list(facts.signature.inputs) == ["image"]
    models.stop()


async def test_configuration_over_grpc_names_an_older_version(server: AdministeredServer) -> None:
    request = ModelConfigRequest(name="b", version="2")
    config = (await server.call("ModelConfig", request, ModelConfigResponse)).config
    assert (config.name, config.max_batch_size, config.input[0].dims) == ("b", 4, [2])
    with pytest.raises(NotFound, match="Request for unknown model: 'b' version 9 is not found"):
        await server.call("ModelConfig", ModelConfigRequest(name="b", version="9"), ModelConfigResponse)
    with pytest.raises(InvalidArgument, match="failed to get model version"):
        await server.call("ModelConfig", ModelConfigRequest(name="b", version="x"), ModelConfigResponse)


async def test_configuration_of_a_signature_without_checked_sizes(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path) as server:
        server.loader.sizes = ()
        server.loader.labels = ("cat", "dog")
        await server.post("/v2/repository/models/a/unload")
        await server.post("/v2/repository/models/a/load")
        config = (await server.get("/v2/models/a/config")).json()
        assert config["max_batch_size"] == 1000
        assert "dynamic_batching" not in config
        assert config["output"][0]["label_filename"] == "labels.txt"


async def test_configuration_without_a_batch_dimension_has_whole_shapes(tmp_path: Path) -> None:
    image = TensorSpec("x", np.dtype(object), (28, None, 3))
    score = TensorSpec("y", np.dtype(np.complex64), None)
    with AdministeredServer(tmp_path) as server:
        server.loader.sizes = ()
        server.loader.by_name = {"other": Signature("other", {"x": image}, {"y": score})}
        await server.post("/v2/repository/models/a/unload")
        await server.post("/v2/repository/models/a/load")
        config = (await server.get("/v2/models/a/config")).json()
    assert config["max_batch_size"] == 0
    (tensor,) = config["input"]
    assert (tensor["data_type"], tensor["dims"], tensor["format"]) == ("TYPE_STRING", [28, -1, 3], "FORMAT_NHWC")
    assert (config["output"][0]["data_type"], config["output"][0]["dims"]) == ("TYPE_INVALID", [-1])
    assert not Signature("other", {"x": image}, {"y": score}).is_batchable
    assert DOUBLE.is_batchable


async def test_configuration_of_an_ensemble_has_tritons_steps(server: AdministeredServer) -> None:
    server.add_chain()
    config = (await server.get("/v2/models/chain/config")).json()
    fields = ("platform", "backend", "max_batch_size", "ensemble_scheduling")
    assert {name: config[name] for name in fields} == {
        "platform": "ensemble",
        "backend": "",
        # That of its steps.
        "max_batch_size": 4,
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "a",
                    "model_version": -1,
                    "input_map": {"x": "image"},
                    "output_map": {"y": "twice"},
                    "model_namespace": "",
                },
                {
                    "model_name": "b",
                    "model_version": -1,
                    "input_map": {"x": "twice"},
                    "output_map": {"y": "fourfold"},
                    "model_namespace": "",
                },
            ],
            "max_inflight_requests": 0,
        },
    }
    assert "dynamic_batching" not in config
    assert [(tensor["name"], tensor["dims"]) for tensor in config["input"]] == [("image", [2])]
    assert [(tensor["name"], tensor["dims"]) for tensor in config["output"]] == [("fourfold", [2])]
    metadata = (await server.get("/v2/models/chain")).json()
    assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
    message = (await server.call("ModelConfig", ModelConfigRequest(name="chain"), ModelConfigResponse)).config
    assert [step.model_name for step in message.ensemble_scheduling.step] == ["a", "b"]


async def test_configuration_of_an_ensemble_has_the_versions_and_the_smallest_batch_of_its_steps(
    server: AdministeredServer,
) -> None:
    inner = ensemble_config("inner", make_ensemble("b:2 x=1 -> y=2"))
    outer = ensemble_config("outer", make_ensemble("inner 1=1 -> 2=2", "a:stable x=2 -> y=3"))
    house = server.house
    server.loader.sizes = (1, 2)
    house.apply(house.config("b"), house.config("a", {"stable": 1}), inner, outer)
    await server.post("/v2/repository/models/b/unload")
    house.wait_for("b", 2, State.END)
    await server.post("/v2/repository/models/outer/load")
    config = (await server.get("/v2/models/outer/config")).json()
    assert [step["model_version"] for step in config["ensemble_scheduling"]["step"]] == [-1, 1]
    assert config["max_batch_size"] == 2
    (step,) = (await server.get("/v2/models/inner/config")).json()["ensemble_scheduling"]["step"]
    assert step["model_version"] == 2


async def test_statistics_count_a_request_for_the_ensemble_and_for_each_step(server: AdministeredServer) -> None:
    server.add_chain()
    rows = {"inputs": [{**ROWS["inputs"][0], "name": "image"}]}
    assert (await server.post("/v2/models/chain/infer", rows)).json()["outputs"][0]["data"] == [4, 8, 12, 16, 20, 24]
    chain = await statistics(server, "/v2/models/chain/stats")
    assert chain["inference_stats"]["success"]["count"] == 1
    for name in ("a", "b"):
        step = await statistics(server, f"/v2/models/{name}/stats")
        assert (step["inference_count"], step["execution_count"]) == (3, 1)


@pytest.mark.parametrize("name", ["tpuserve", "triton"])
async def test_the_server_has_its_name_over_both_protocols(tmp_path: Path, name: str) -> None:
    with AdministeredServer(tmp_path, server_name=name) as server:
        assert (await server.get("/v2")).json()["name"] == name
        response = await server.call("ServerMetadata", ServerMetadataRequest(), ServerMetadataResponse)
        assert response.name == name
