"""Models of replicas: versions and labels in user_config, multiplexed models, and refused requests."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from tensorflow_serving.apis import model_management_pb2, predict_pb2

from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.support.ray_cluster import GRPC, REST, TwoNodes, deploy, metrics_pages, running_replicas, wait_until

_ID = "multiplexed_model_id"


@pytest.fixture
def client(cluster: TwoNodes) -> Iterator[ServingClient]:
    with ServingClient(GRPC, REST) as client:
        yield client


def _user_config(root: Path, versions: list[int], **labels: int) -> dict[str, Any]:
    policy = {"specific": {"versions": versions}}
    half = {
        "name": "half", "base_path": str(root / "half"), "model_platform": "tensorflow",
        "model_version_policy": policy, "version_labels": labels,
    }  # fmt: skip
    return {"model_config_list": {"config": [half]}}


def _predict(client: ServingClient, label: str) -> list[float]:
    request = predict_request(x=[[2.0]])
    request.model_spec.version_label = label
    return list(client.predict(request).outputs["y"].float_val)


def _predict_multiplexed(client: ServingClient, model: str) -> list[float]:
    response: predict_pb2.PredictResponse = client.prediction.Predict(
        predict_request(model, x=[[2.0]]), timeout=60, metadata=((_ID, model),)
    )
    return list(response.outputs["y"].float_val)


def test_user_config_moves_labels_without_new_replicas(cluster: TwoNodes, root: Path, client: ServingClient) -> None:
    deploy({}, user_config=_user_config(root, [1], stable=1))
    started = client.get("/metrics").body.partition(b"process_start_time_seconds ")[2].splitlines()[0]
    assert _predict(client, "stable") == [3.0]
    with refused(StatusCode.INVALID_ARGUMENT, "Unrecognized servable version label: canary"):
        _predict(client, "canary")
    deploy({}, user_config=_user_config(root, [1, 2], stable=1, canary=2))
    assert (_predict(client, "stable"), _predict(client, "canary")) == ([3.0], [4.0])
    assert started in client.get("/metrics").body
    assert running_replicas() == 1


def test_multiplexed_models_load_by_id(cluster: TwoNodes, root: Path, client: ServingClient) -> None:
    args = {"multiplexed_models_root": str(root), "multiplexed_models_per_replica": 2}
    deploy(args, health_check_period_s=0.5)
    with refused(StatusCode.NOT_FOUND, "one"):
        client.predict(predict_request("one", x=[[2.0]]))
    assert _predict_multiplexed(client, "one") == [4.0]
    reply = client.http(
        "POST", "/v1/models/two:predict", b'{"instances": [[2.0]]}', **{"serve_multiplexed_model_id": "two"}
    )
    assert (reply.status, reply.json) == (200, {"predictions": [[4.0]]})
    assert _predict_multiplexed(client, "three") == [4.0]
    with refused(StatusCode.NOT_FOUND, "one"):
        client.predict(predict_request("one", x=[[2.0]]))


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("unknown", StatusCode.NOT_FOUND, "There is no multiplexed model unknown"),
        ("empty", StatusCode.NOT_FOUND, "There is no multiplexed model empty"),
        ("../half", StatusCode.INVALID_ARGUMENT, "must be the name of a directory; was '../half'"),
        (".", StatusCode.INVALID_ARGUMENT, "must be the name of a directory"),
    ],
)
def test_a_wrong_model_id_is_refused(client: ServingClient, model: str, code: StatusCode, message: str) -> None:
    with refused(code, message):
        _predict_multiplexed(client, model)


def test_a_reload_of_one_replica_is_refused(client: ServingClient) -> None:
    with refused(StatusCode.UNIMPLEMENTED, "would change one replica of Ray Serve alone. Change user_config"):
        client.reload(model_management_pb2.ReloadConfigRequest())
    reply = client.post("/v2/repository/models/half/load", {})
    assert reply.status == 501
    assert "would change one replica" in reply.error
    assert client.post("/v2/repository/index", {}).status == 200


def test_rays_metrics_page_has_the_metrics_of_replicas(client: ServingClient) -> None:
    assert _predict_multiplexed(client, "three") == [4.0]
    succeeded = 'ray_tpuserve_requests_total{.*code="OK",.*deployment="tpuserve",.*model_name="three"'
    wait_until(lambda: any(re.search(succeeded, page) for page in metrics_pages()), "published")
    histogram = 'ray_tpuserve_queue_wait_seconds_bucket{.*le="0.001"'
    assert any(re.search(histogram, page) for page in metrics_pages())
