"""TensorFlow Serving's own servicer functions in the proxies, instead of tpuserve's: requests arrive parsed.

Ray reads the functions only at its start. This module is the last, so it starts the proxies again but once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc import StatusCode
from ray import serve
from tensorflow_serving.apis import get_model_status_pb2

from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.support.ray_cluster import GRPC, REST, TwoNodes, deploy, start_proxies

_APIS = "tensorflow_serving.apis"


@pytest.fixture
def client(cluster: TwoNodes, root: Path) -> Iterator[ServingClient]:
    serve.shutdown()
    start_proxies(
        f"{_APIS}.prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server",
        f"{_APIS}.model_service_pb2_grpc.add_ModelServiceServicer_to_server",
        # Each proxy imports TensorFlow.
        location="HeadOnly",
    )
    deploy({"model_name": "half", "model_base_path": str(root / "half")})
    with ServingClient(GRPC, REST) as client:
        yield client


def test_they_answer_as_tpuserves(client: ServingClient) -> None:
    response = client.predict(predict_request(x=[[2.0]]))
    assert list(response.outputs["y"].float_val) == [4.0]
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "half"
    assert [each.version for each in client.status(request).model_version_status] == [2]
    with refused(StatusCode.NOT_FOUND, "Servable not found for request: Latest(unknown)"):
        client.predict(predict_request("unknown", x=[[2.0]]))
