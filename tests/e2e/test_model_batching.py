"""Tests for per-model batching parameters in the model configuration file and in a reload request."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc
from tensorflow_serving.config import model_server_config_pb2

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_configured_server
from tests.support.saved_models import predict_request, save_mlp, write_warmup
from tpuserve_client import Client, InvalidArgument
from tpuserve_formats.messages.model_server_config import ModelServerConfig

pytestmark = pytest.mark.xdist_group(__name__)


def configured(base: Path, **batching: str) -> str:
    """Return a configuration whose models all serve the MLP in `base`."""
    models = " ".join(
        f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" {text} }}'
        for name, text in batching.items()
    )
    return f"model_config_list {{ {models} }}"


SKIPPED = "warm-up skipped 1 recorded request with more rows than max_batch_size"
OWN = "batching_parameters { max_batch_size { value: 4 } batching_mode: OBJECTIVE latency_objective_ms: 500 }"


@dataclass
class Served:
    server: RunningServer
    base: Path

    def note(self, model: str, text: str = "batches of") -> str:
        """Return the note with this text in the model's status."""
        with urllib.request.urlopen(f"{self.server.rest}/v1/models", timeout=30) as answer:
            [described] = [each for each in json.load(answer)["models"] if each["name"] == model]
        [version] = described["versions"]
        [note] = [note for note in version["notes"] if text in note]
        return str(note)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("model_batching")
    base = folder / "mlp"
    save_mlp(base / "1")
    # As the exporter records it, for larger batches than those of a model's configuration.
    write_warmup(base / "1", predict_request(x=np.zeros((8, 64), np.float32)))
    config = folder / "models.config"
    config.write_text(configured(base, m=OWN, n=""))
    flags = ("--enable_batching", "--max_batch_size=8", "--batch_timeout_micros=1000", f"--model_config_file={config}")
    with run_configured_server(folder / "log", *flags, model="m") as server:
        yield Served(server, base)


def test_a_model_is_batched_as_its_configuration_says(served: Served) -> None:
    assert "batches of 1, 2, 4 rows" in served.note("m")
    assert served.note("m", "warm-up skipped") == SKIPPED
    assert "99 % of requests within 500 ms" in served.note("m")
    with Client(served.server.grpc) as client:
        client.wait_until_ready(60, "n")
        with pytest.raises(InvalidArgument, match="larger than maximum input batch size 4"):
            client.predict("m", {"x": np.zeros((5, 64), np.float32)})
        assert len(client.predict("n", {"x": np.zeros((8, 64), np.float32)}).outputs["y"]) == 8
    assert "batches of up to 8 rows, full or after 1 ms" in served.note("n")


def test_a_reload_request_carries_it_too(served: Served) -> None:
    ours = text_format.Parse(configured(served.base, m=OWN, n="", late=OWN), ModelServerConfig())
    config = model_server_config_pb2.ModelServerConfig.FromString(ours.SerializeToString())
    with grpc.insecure_channel(served.server.grpc) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        stub.HandleReloadConfigRequest(model_management_pb2.ReloadConfigRequest(config=config), timeout=60)
    assert "99 % of requests within 500 ms" in served.note("late")
    assert served.note("late", "warm-up skipped") == SKIPPED


def test_a_batching_that_is_wrong_ends_the_start_with_one_line(tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text(configured(tmp_path, m="batching_parameters { latency_objective_ms: 0 }"))
    ended = subprocess.run(
        [str(EXECUTABLE), f"--model_config_file={config}"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "Model m: latency_objective_ms must be positive; was 0" in ended.stderr
    assert "Traceback" not in ended.stderr
