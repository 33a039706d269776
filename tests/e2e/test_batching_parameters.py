"""Tests for a TensorFlow Serving user's BatchingParameters file on real servers."""

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

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_configured_server
from tests.support.saved_models import predict_request, save_mlp
from tpuserve_client import Client

pytestmark = pytest.mark.xdist_group(__name__)

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serve two MLPs with batches of two rows. A file of `m` raises them to four rows and disables splitting.

    The file of `split` changes nothing, but without one the version would not be batched.
    """
    folder = tmp_path_factory.mktemp("batching")
    file = folder / "batching.config"
    file.write_text(PARAMETERS)
    (save_mlp(folder / "split" / "1") / "batching_params.pbtxt").touch()
    own = save_mlp(folder / "m" / "1") / "batching_params.pbtxt"
    own.write_text("max_batch_size { value: 4 } enable_large_batch_splitting { value: false }")
    config = folder / "models.config"
    configs = (
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}'
        for name in ("split", "m")
    )
    config.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    flags = (
        f"--model_config_file={config}",
        "--enable_batching",
        f"--batching_parameters_file={file}",
        "--enable_per_model_batching_parameters",
    )
    with run_configured_server(folder / "log", *flags, model="m") as server:
        with Client(server.grpc) as client:
            client.wait_until_ready(60, "split")
        yield server


def test_a_request_beyond_the_versions_own_largest_batch_is_refused_as_by_tensorflow_serving(
    server: RunningServer,
) -> None:
    message = (
        "Task size 5 is larger than maximum input batch size 4. Send at most 4 rows in a request; "
        "enable_large_batch_splitting in the server's batching parameters allows larger requests"
    )
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


def test_large_requests_are_answered_whole(server: RunningServer) -> None:
    x = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32)
    with Client(server.grpc) as client:
        full = client.predict("split", {"x": x}).outputs["y"]
        rows = [client.predict("split", {"x": x[index : index + 1]}).outputs["y"][0] for index in range(7)]
    with urllib.request.urlopen(f"{server.rest}/metrics", timeout=30) as answer:
        page = answer.read().decode().splitlines()
    sizes = [line for line in page if "tpuserve_batch_rows_bucket" in line and 'model_name="split"' in line]
    np.testing.assert_allclose(full, rows, rtol=1e-5)
    # No batch had more than two rows: four parts of the large request, and the seven small requests.
    at_most_two = next(line for line in sizes if 'le="2.0"' in line)
    every = next(line for line in sizes if 'le="+Inf"' in line)
    assert float(at_most_two.split()[-1]) == float(every.split()[-1]) == 11


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
