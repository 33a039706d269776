"""A BatchingParameters file as a TensorFlow Serving user has it, on real servers."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.e2e.conftest import HOSTS
from tests.e2e.running_server import EXECUTABLE, RunningServer, run_server
from tests.saved_models import predict_request, save_mlp
from tpuserve_client import Client

pytestmark = pytest.mark.timeout(120)

PARAMETERS = """
max_batch_size { value: 8 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 2 }
allowed_batch_sizes: 2
allowed_batch_sizes: 8
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 2 }
"""


@pytest.fixture(params=HOSTS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    """The MLP, in batches of two rows; its second version says itself that they are of four, and nothing is split."""
    file = tmp_path / "batching.config"
    file.write_text(PARAMETERS)
    base = tmp_path / "mlp"
    save_mlp(base / "1")
    own = save_mlp(base / "2") / "batching_params.pbtxt"
    own.write_text("max_batch_size { value: 4 } enable_large_batch_splitting { value: false }")
    flags = ("--enable_batching", f"--batching_parameters_file={file}")
    with run_server(request.param, base, tmp_path / "log", *flags, "--enable_per_model_batching_parameters") as server:
        yield server


def test_a_request_beyond_the_versions_own_largest_batch_is_refused_as_by_tensorflow_serving(
    server: RunningServer,
) -> None:
    message = "Task size 5 is larger than maximum input batch size 4"
    request = predict_request(x=np.zeros((5, 64), np.float32))
    request.model_spec.name = "m"
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=30)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, message)
    body = json.dumps({"instances": np.zeros((5, 64)).tolist()}).encode()
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{server.rest}/v1/models/m:predict", body, timeout=30)
    with raised.value as answer:
        assert (answer.code, json.load(answer)) == (400, {"error": message})
    with Client(server.grpc) as client:
        assert len(client.predict("m", {"x": np.zeros((4, 64), np.float32)}).outputs["y"]) == 4


@pytest.mark.parametrize("host", HOSTS)
def test_large_requests_are_answered_whole(host: str, tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text(PARAMETERS)
    save_mlp(tmp_path / "mlp" / "1")
    x = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32)
    flags = ("--enable_batching", f"--batching_parameters_file={file}")
    with run_server(host, tmp_path / "mlp", tmp_path / "log", *flags) as server, Client(server.grpc) as client:
        whole = client.predict("m", {"x": x}).outputs["y"]
        rows = [client.predict("m", {"x": x[index : index + 1]}).outputs["y"][0] for index in range(7)]
        with urllib.request.urlopen(f"{server.rest}/metrics", timeout=30) as answer:
            sizes = [line for line in answer.read().decode().splitlines() if "tpuserve_batch_rows_bucket" in line]
    np.testing.assert_allclose(whole, rows, rtol=1e-5)
    # No batch had more than two rows.
    at_most_two = next(line for line in sizes if 'le="2.0"' in line)
    every = next(line for line in sizes if 'le="+Inf"' in line)
    assert at_most_two.split()[-1] == every.split()[-1]


@pytest.mark.parametrize(
    ("flags", "text", "code", "line"),
    [
        (
            (),
            "max_batch_size { value: 8 }",
            2,
            "batching_parameters_file is set without setting enable_batching to true",
        ),
        (
            ("--enable_batching",),
            "max_batch_size {\n  valu: 8\n}",
            1,
            "Error parsing text-format tensorflow.serving.BatchingParameters: 2:3: Message type",
        ),
        (
            ("--enable_batching",),
            "max_batch_size { value: 8 } allowed_batch_sizes: 4",
            1,
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        ),
    ],
)
def test_a_wrong_file_ends_the_start_with_one_line(
    tmp_path: Path, flags: tuple[str, ...], text: str, code: int, line: str
) -> None:
    file = tmp_path / "batching.config"
    file.write_text(text)
    ended = subprocess.run(
        [str(EXECUTABLE), "--model_base_path=/nowhere", f"--batching_parameters_file={file}", *flags],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == code
    assert line in ended.stderr
    assert "Traceback" not in ended.stderr
