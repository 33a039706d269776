"""Tests for the client against KServe's own model server, over HTTP and gRPC."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.clients.oip_bodies import Array, strings
from tests.support.optional import cannot_run, find_oip_clients
from tpuserve_client import Client, FailedPrecondition, NotFound, Unimplemented

pytestmark = pytest.mark.xdist_group(__name__)

ROOT = Path(__file__).parents[2]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Start the server and yield its ports. Stop it at exit."""
    python = find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")
    # Let the program write bytecode. Compiling kserve at each start takes seconds.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [str(python), "-m", "tests.clients.kserve_server"]
    log = tmp_path_factory.mktemp("kserve") / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors) as server,
    ):
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line)
        finally:
            server.terminate()
            server.wait(60)


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, ports: dict[str, int]) -> Iterator[Client]:
    with Client(f"oip+{request.param}://127.0.0.1:{ports[request.param]}") as made:
        made.wait_until_ready(60, "mirror")
        yield made


def test_tensors_make_the_round_trip(client: Client) -> None:
    sent: dict[str, Array] = {
        "x": X,
        "half": np.array([-1.5, 2], np.float16),
        "unsigned": np.array([0, 2**64 - 1], np.uint64),
        "bool": np.array([[True, False]]),
        "texts": strings(b"plain", "größe".encode()),
        "zero rows": np.zeros((0, 4), np.float32),
    }
    received = client.predict("mirror", sent)
    assert (received.model, received.version) == ("mirror", None)
    for name, array in sent.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(received[name], array)


def test_lists_take_their_dtype_from_the_metadata(client: Client) -> None:
    assert str(client.metadata("mirror").signature().inputs["x"]) == "x: float32[?, 4]"
    assert client.predict("mirror", [[1, 2, 3, 4]], output_filter="x", priority="low")["x"].dtype == np.float32


def test_readiness_is_the_servers_and_the_models(client: Client) -> None:
    assert client.is_ready()
    assert client.is_ready("mirror")
    assert not client.is_ready("nowhere")
    assert client.status("mirror") == ()  # it has no versions
    with pytest.raises(NotFound, match="nowhere"):
        client.predict("nowhere", {"x": X})


def test_a_server_without_versions_refuses_what_needs_one(client: Client, request: pytest.FixtureRequest) -> None:
    with pytest.raises(FailedPrecondition, match="does not report the version"):
        client.predict("mirror", X, max_batch_size=1)
    if "http" in request.node.name:
        with pytest.raises(Unimplemented, match="versioning"):
            client.predict("mirror", {"x": X}, version=1)
