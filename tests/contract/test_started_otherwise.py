"""TensorFlow Serving's contract: flags and files that the servers of the other tests do not set.

Three subjects are in tests/e2e instead. `test_batching_parameters` and `test_config_files` cover batching parameters of
a version, splits of large requests and TLS. `test_request_log` covers the request log.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from tensorflow_serving.apis import prediction_log_pb2, prediction_service_pb2_grpc

from tests.contract.conftest import Models
from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.contract.serving_models import save_half_plus_two
from tests.e2e.running_server import run_configured_server
from tests.support.saved_models import write_logs
from tests.support.v1_models import save_unassigned
from tpuserve_client import Client

pytestmark = pytest.mark.xdist_group(__name__)

RECORDS = ("predict_log", "classify_log", "regress_log", "multi_inference_log")


@dataclass
class Otherwise:
    """A server with a UNIX socket, `half` and models named by the kind of their warm-up records."""

    client: ServingClient
    socket: Path


@pytest.fixture(scope="module")
def otherwise(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otherwise]:
    folder = tmp_path_factory.mktemp("otherwise")
    save_unassigned(folder / "unassigned" / "1")
    unassigned = {"unassigned": folder / "unassigned"}
    base_paths = {"half": models.half} | unassigned | {kind: _with_record(folder / kind, kind) for kind in RECORDS}
    configs = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in base_paths.items()
    )
    config, batching, socket = folder / "models.config", folder / "batching", folder / "serving.sock"
    config.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    batching.write_text("max_batch_size { value: 4 } batch_timeout_micros { value: 0 } num_batch_threads { value: 1 }")
    flags = (
        f"--model_config_file={config}",
        "--enable_batching",
        f"--batching_parameters_file={batching}",
        "--enable_serialization_as_tensor_content",
        "--lenient_shapes",
        "--lenient_loads",
        f"--grpc_socket_path={socket}",
    )
    with (
        run_configured_server(folder / "log", *flags, model="half") as server,
        ServingClient(server.grpc, server.rest) as client,
    ):
        yield Otherwise(client, socket)


def test_outputs_as_tensor_content_if_asked(otherwise: Otherwise) -> None:
    output = otherwise.client.predict(predict_request(x=[[2.0]])).outputs["y"]
    assert np.frombuffer(output.tensor_content, np.float32).tolist() == [4.0]
    assert not output.float_val


def test_a_unix_socket(otherwise: Otherwise) -> None:
    with grpc.insecure_channel(f"unix:{otherwise.socket}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert tf.make_ndarray(stub.Predict(predict_request(x=[[2.0]]), timeout=60).outputs["y"]).tolist() == [[4.0]]


def test_lenient_shapes_are_the_models_to_judge(otherwise: Otherwise) -> None:
    """Send the shapes of TensorFlow Serving's first example: `[1.0, 2.0]` for (None, 1)."""
    response = otherwise.client.predict(predict_request(x=[1.0, 2.0]))
    assert tf.make_ndarray(response.outputs["y"]).tolist() == [3.5, 4.0]
    reply = otherwise.client.post("/v1/models/half:predict", {"instances": [1.0, 2.0]})
    assert (reply.status, reply.json) == (200, {"predictions": [3.5, 4.0]})


def test_lenient_loads_serve_a_version_that_cannot_answer(otherwise: Otherwise) -> None:
    with Client(otherwise.client.grpc_address) as client:
        client.wait_until_ready(60, "unassigned")
    with refused(StatusCode.FAILED_PRECONDITION, "bias"):
        otherwise.client.predict(predict_request("unassigned", x=[[2.0]]))


def test_no_cors_headers_unless_asked(otherwise: Otherwise) -> None:
    reply = otherwise.client.post("/v1/models/half:predict", {"instances": [[2.0]]}, origin="http://example.com")
    assert "access-control-allow-origin" not in reply.headers


def test_batching_parameters(otherwise: Otherwise) -> None:
    answer = otherwise.client.predict(predict_request(x=[[2.0]] * 4)).outputs["y"]
    assert tf.make_ndarray(answer).tolist() == [[4.0]] * 4
    message = "Task size 5 is larger than maximum input batch size 4"
    with refused(StatusCode.INVALID_ARGUMENT, message):
        otherwise.client.predict(predict_request(x=[[2.0]] * 5))


def test_a_batched_input_without_rows_of_its_own(otherwise: Otherwise) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, ""):
        otherwise.client.predict(predict_request(x=2.0, signature=""))


@pytest.mark.parametrize("kind", RECORDS)
def test_warm_up_records_of_every_kind(otherwise: Otherwise, kind: str) -> None:
    with Client(otherwise.client.grpc_address) as client:
        client.wait_until_ready(60, kind)
    answer = otherwise.client.predict(predict_request(kind, x=[[2.0]])).outputs["y"]
    assert tf.make_ndarray(answer).tolist() == [[3.0]]


def _with_record(base_path: Path, kind: str) -> Path:
    """Save half_plus_two as version 1 with one warm-up record, and return the base path."""
    write_logs(save_half_plus_two(base_path / "1"), _record(kind))
    return base_path


def _record(kind: str) -> prediction_log_pb2.PredictionLog:
    log = prediction_log_pb2.PredictionLog()
    if kind == "predict_log":
        log.predict_log.request.CopyFrom(predict_request(kind, x=[[1.0]]))
        return log
    request = getattr(log, kind).request
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    request.input.example_list.examples.add().features.feature["x"].CopyFrom(feature)
    if kind == "multi_inference_log":
        task = request.tasks.add(method_name="tensorflow/serving/regress")
        task.model_spec.name, task.model_spec.signature_name = kind, "regress_x_to_y"
    else:
        request.model_spec.name = kind
        request.model_spec.signature_name = "classify_x_to_y" if kind == "classify_log" else "regress_x_to_y"
    return log
