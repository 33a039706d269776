"""Tests for supervision on real servers: new processes, refused input shapes, quarantine, hung runs, SIGHUP.

These are the cases 26, 27, 37 and 39.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import numpy as np
import psutil
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.e2e.running_server import START_TIMEOUT_S, RunningServer, run_configured_server
from tests.faults.fault_row import FaultRow
from tests.support.saved_models import save_function, save_half_plus_two
from tpuserve_client import Client, DeadlineExceeded, InvalidArgument, NotFound, Retry, State, Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ONE = {"x": np.ones((1, 1), np.float32)}
ZERO = {"x": np.zeros((1, 1), np.float32)}
TWO = {"x": np.zeros((2, 1), np.float32)}


def save_endless(path: Path) -> Path:
    """Save a model that never answers a positive number: it waits for an element of an empty queue."""

    def wait() -> tf.Tensor:
        queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shapes=[[]])
        return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])[0]

    def answer(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.cond(tf.reduce_all(x > 0), lambda: x + wait(), lambda: x)}

    return save_function(path, answer, tf.TensorSpec([None, 1], tf.float32, "x"))


def save_abort(path: Path) -> Path:
    """Save a model of one channel that aborts the process for a scalar: `CHECK` of FakeQuant (TensorFlow 2.21).

    Its signature has an unknown rank, so only a run shows which shapes are bad.
    """

    def quantize(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "y": tf.quantization.fake_quant_with_min_max_vars_per_channel(x, tf.constant([0.0]), tf.constant([1.0]))
        }

    return save_function(path, quantize, tf.TensorSpec(None, tf.float32, "x"))


def configuration(folder: Path, *names: str) -> str:
    models = "".join(
        f'config {{ name: "{name}" base_path: "{folder}/{name}" model_platform: "tensorflow" }}' for name in names
    )
    return f"model_config_list {{ {models} }}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """Yield a server with a good model, one that never answers, and one that aborts for scalars."""
    save_half_plus_two(tmp_path / "good" / "1")
    save_abort(tmp_path / "abort" / "1")
    save_half_plus_two(tmp_path / "late" / "1")
    save_endless(tmp_path / "endless" / "1")
    (tmp_path / "models.config").write_text(configuration(tmp_path, "good", "endless", "abort"))
    flags = (f"--model_config_file={tmp_path / 'models.config'}", "--drain_timeout_seconds=1")
    with run_configured_server(tmp_path / "log", *flags, model="good") as server:
        with Client(server.grpc) as client:
            client.wait_until_ready(START_TIMEOUT_S, "endless")
            client.wait_until_ready(START_TIMEOUT_S, "abort")
        yield server


def worker(server: RunningServer) -> psutil.Process:
    """Return the process that runs the models."""
    [process] = psutil.Process(server.process.pid).children()
    return process


def end_while_running(server: RunningServer, client: Client) -> None:
    """End the process with a fault while it runs the endless model, and wait until the good model serves again.

    A request of the same shapes has been answered before, so the model is blamed.
    """
    assert client.predict("endless", ZERO).outputs["y"].tolist() == [[0.0]]
    # The second request reaches its deadline in the queue, so the first one is running.
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(client.predict, "endless", ONE, timeout_s=START_TIMEOUT_S)
        with pytest.raises(DeadlineExceeded):
            client.predict("endless", ONE, timeout_s=2.0)
        process = worker(server)
        process.send_signal(signal.SIGSEGV)
        with pytest.raises(Unavailable):
            stuck.result()
    process.wait(START_TIMEOUT_S)
    client.wait_until_ready(START_TIMEOUT_S, "good")
    assert client.predict("good", ONE).outputs["y"].tolist() == [[2.5]]


def test_input_shapes_that_end_the_process_are_refused_and_all_others_answered(
    server: RunningServer, record: Callable[[FaultRow], None]
) -> None:
    with Client(server.grpc, retry=Retry(max_attempts=1)) as client:
        process = worker(server)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{server.rest}/v1/models/abort:predict", content=b'{"inputs":1.0}', timeout=START_TIMEOUT_S)
        process.wait(START_TIMEOUT_S)
        client.wait_until_ready(START_TIMEOUT_S, "good")
        client.wait_until_ready(START_TIMEOUT_S, "abort")
        process = worker(server)
        why = r"refuses signature 'serving_default' with x \[\]: a run with .* server's process \(signal SIGABRT\)"
        with pytest.raises(InvalidArgument, match=why):
            client.predict("abort", {"x": np.float32(1)})
        response = httpx.post(f"{server.rest}/v1/models/abort:predict", content=b'{"inputs":1.0}')
        assert (response.status_code, "refuses signature" in response.json()["error"]) == (400, True)
        for shape in ((1,), (1, 1), (3, 2, 1)):
            assert client.predict("abort", {"x": np.ones(shape, np.float32)}).outputs["y"].shape == shape
        assert client.predict("good", ONE).outputs["y"].tolist() == [[2.5]]
        [status] = client.status("abort")
        assert status.state is State.AVAILABLE
        assert "refuses signature 'serving_default' with x []: a run ended the server's process" in status.error
        assert 'tpuserve_refused_runs_total{model_name="abort"' in httpx.get(f"{server.rest}/metrics").text
        assert process.is_running()
    record(FaultRow(37, "a scalar that aborts the worker", "REST", "then refused", "then refused"))


def test_model_that_ends_the_process_twice_is_quarantined_and_the_others_serve(
    server: RunningServer, tmp_path: Path, record: Callable[[FaultRow], None]
) -> None:
    once = Retry(max_attempts=1)
    with Client(server.grpc, retry=once) as client:
        end_while_running(server, client)
        record(FaultRow(27, "SIGSEGV of the worker", "TF gRPC", "respawned", "respawned"))
        client.wait_until_ready(START_TIMEOUT_S, "endless")
        end_while_running(server, client)
        wait_for_log(server, "quarantined")
        [status] = client.status("endless")
        assert status.state is State.END
        assert "ended 2 times while this version was loading or running" in status.error
        assert "last while running (signal SIGSEGV). The server tries it again at" in status.error
        assert httpx.get(f"{server.rest}/readyz").status_code == 200

        record(FaultRow(37, "model that ends the worker twice", "TF gRPC", "quarantined", "quarantined"))

        save_half_plus_two(tmp_path / "hidden")
        os.rename(tmp_path / "hidden", tmp_path / "endless" / "2")
        client.wait_until_ready(START_TIMEOUT_S, "endless")
        assert client.predict("endless", ONE).version == 2

        config = tmp_path / "models.config"
        config.write_text(configuration(tmp_path))
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "--allow_reload_without_models")
        config.write_text(configuration(tmp_path, "good", "endless", "late"))
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "Applied the changed model configuration file")
        client.wait_until_ready(START_TIMEOUT_S, "late")
        assert client.predict("late", ONE).version == 1
        record(FaultRow(39, "SIGHUP with a changed configuration", "signal", "reloaded", "reloaded"))
    for process in (worker(server), psutil.Process(server.process.pid)):
        process.send_signal(signal.SIGTERM)
    assert server.process.wait(START_TIMEOUT_S) == 0


def test_a_new_process_keeps_the_changes_of_clients(
    server: RunningServer, tmp_path: Path, record: Callable[[FaultRow], None]
) -> None:
    text = configuration(tmp_path, "good", "endless", "late")
    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(text, request.config)
    with grpc.insecure_channel(server.grpc) as channel:
        model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request, timeout=START_TIMEOUT_S)
    with Client(server.grpc, retry=Retry(max_attempts=1)) as client:
        httpx.post(f"{server.rest}/v2/repository/models/endless/unload").raise_for_status()
        process = worker(server)
        process.kill()
        process.wait(START_TIMEOUT_S)
        client.wait_until_ready(START_TIMEOUT_S, "late")
        assert client.predict("late", ONE).version == 1
        with pytest.raises(NotFound):
            client.predict("endless", ONE)
        record(FaultRow(27, "SIGKILL of the worker after a reload", "TF gRPC", "reload kept", "reload kept"))

        # The operator's next configuration replaces the changes.
        (tmp_path / "models.config").write_text(configuration(tmp_path, "good"))
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "Applied the changed model configuration file")
        process = worker(server)
        process.kill()
        process.wait(START_TIMEOUT_S)
        client.wait_until_ready(START_TIMEOUT_S, "good")
        with pytest.raises(NotFound):
            client.predict("late", ONE)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[RunningServer]:
    """Yield a server with a good model and one that never answers, whose runs have a short limit."""
    save_half_plus_two(tmp_path / "good" / "1")
    save_endless(tmp_path / "endless" / "1")
    (tmp_path / "models.config").write_text(configuration(tmp_path, "good", "endless"))
    flags = (
        f"--model_config_file={tmp_path / 'models.config'}",
        "--run_timeout_seconds=2",
        "--replace_hung_after_seconds=8",
    )
    with run_configured_server(tmp_path / "log", *flags, model="good") as server:
        yield server


def check_hung(server: RunningServer, client: Client) -> None:
    """Let a run hang, which has a limit of 2 s, and check its effects.

    The caller gets an error, probes and status report the hung run, and the other model serves.
    """
    with pytest.raises(DeadlineExceeded, match="has taken more than 2 s"):
        client.predict("endless", ONE, timeout_s=START_TIMEOUT_S)
    probes = {"/healthz": 503, "/readyz": 503, "/v2/health/live": 400, "/v2/models/endless/ready": 400}
    for path, status in probes.items():
        response = httpx.get(f"{server.rest}{path}")
        assert (response.status_code, "a run" in response.text) == (status, True)
    with pytest.raises(Unavailable, match="does not respond: a run has taken 2 s"):
        client.predict("endless", ONE)
    [endless] = client.status("endless")
    assert endless.state is State.AVAILABLE
    assert "hangs (--run_timeout_seconds)" in endless.error
    assert client.predict("good", ONE).outputs["y"].tolist() == [[2.5]]


HUNG, HUNG_RESULT = "a run that never ends", "caller released, not live, not ready; others serve"


def test_process_whose_run_hangs_is_replaced_and_refuses_the_input_shapes(
    watched: RunningServer, record: Callable[[FaultRow], None]
) -> None:
    with Client(watched.grpc, retry=Retry(max_attempts=1)) as client:
        client.wait_until_ready(START_TIMEOUT_S, "endless")
        process = worker(watched)
        check_hung(watched, client)
        process.wait(START_TIMEOUT_S)
        client.wait_until_ready(START_TIMEOUT_S, "good")
        client.wait_until_ready(START_TIMEOUT_S, "endless")
        with pytest.raises(InvalidArgument, match=r"with x \[1, 1\]: a run with these input shapes hung\. Send other"):
            client.predict("endless", ONE)
        assert client.predict("endless", TWO).outputs["y"].tolist() == [[0.0], [0.0]]
        assert client.predict("good", ONE).outputs["y"].tolist() == [[2.5]]
        for path in ("/healthz", "/readyz"):
            assert httpx.get(f"{watched.rest}{path}").status_code == 200
    record(FaultRow(26, HUNG, "TF gRPC", HUNG_RESULT, HUNG_RESULT))
    refused = "a new process, which refuses these input shapes"
    record(FaultRow(37, "input shapes whose run hangs", "TF gRPC", refused, refused))


def wait_for_log(server: RunningServer, text: str) -> None:
    """Wait until the log contains `text`."""
    waiting = threading.Event()
    while text not in server.log.read_text():
        assert server.process.poll() is None
        waiting.wait(0.05)
