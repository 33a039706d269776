"""Tests for version directories that block, mislead or exhaust a server: each fails alone, and the others serve."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.faults.fault_row import FaultRow
from tests.support.saved_models import save_function, save_mlp
from tests.support.v1_models import save_unassigned
from tpuserve_client import Client, Internal, State

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

MODELS = ("good", "blocked", "recursive", "greedy", "unassigned")
# TensorFlow waits 10 s for memory before it reports that there is none.
PATIENCE_S = 60.0
# More than any address space has.
HUGE = 10**15


def save_blocked(path: Path) -> Path:
    """Save a model whose initialisation waits for an element of an empty queue, without end."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], "x")
        element = tf.queue.FIFOQueue(1, [tf.float32]).dequeue()
        builder = tf.compat.v1.saved_model.Builder(str(path))
        signature = tf.compat.v1.saved_model.signature_def_utils.predict_signature_def({"x": x}, {"y": x + 1})
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, main_op=tf.group(element)
        )
        builder.save()
    return path


def save_recursive(path: Path) -> Path:
    """Save a model in which a function calls itself."""
    save_mlp(path)
    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    library = model.meta_graphs[0].graph_def.library
    name = library.function[0].signature.name
    node = library.function[0].node_def.add(name="again", op="StatefulPartitionedCall")
    node.attr["f"].func.name = name
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    return path


def save_greedy(path: Path) -> Path:
    """Save a model that allocates the number of elements that the request names."""
    spec = tf.TensorSpec([1], tf.int64, "count")
    return save_function(path, lambda count: {"y": tf.reduce_sum(tf.random.uniform(count))}, spec)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    save_mlp(folder / "good" / "1")
    save_mlp(folder / "good" / "2")
    (folder / "good" / "2" / "saved_model.pb").unlink()
    os.mkfifo(folder / "good" / "2" / "saved_model.pb")
    (folder / "good" / "3").symlink_to("3")
    save_mlp(folder / "good" / "4")
    with socket.socket(socket.AF_UNIX) as listener:
        short = tmp_path_factory.mktemp("s") / "s"
        listener.bind(str(short))
        short.rename(folder / "good" / "4" / "s")
    save_mlp(folder / "good" / "5")
    outside = folder / "outside.pb"
    (folder / "good" / "5" / "saved_model.pb").rename(outside)
    (folder / "good" / "5" / "saved_model.pb").symlink_to(outside)
    save_blocked(folder / "blocked" / "1")
    save_recursive(folder / "recursive" / "1")
    save_greedy(folder / "greedy" / "1")
    save_unassigned(folder / "unassigned" / "1")
    config = folder / "models.config"
    models = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}' for name in MODELS
    )
    config.write_text(f"model_config_list {{ {models} }}")
    flags = (f"--model_config_file={config}", "--max_num_load_retries=0")
    with run_configured_server(folder / "log", *flags, model="good") as server:
        yield server
        # A load that hangs does not keep the server from stopping.
        assert server.terminate() == 0


Record = Callable[[FaultRow], None]


def row(case: int, fault: str, expected: str, got: str) -> FaultRow:
    return FaultRow(case, fault, "files", expected, got)


def test_files_that_a_version_may_not_contain_fail_it_alone(server: RunningServer, record: Record) -> None:
    found = server.final_states("good")
    assert found[1] == (State.AVAILABLE, "")
    allowed = "A version may contain only regular files and directories"
    again = "(permanent: tried again when its files change)"
    assert found[2] == (State.END, f"saved_model.pb is a named pipe. {allowed} {again}")
    assert found[3] == (State.END, f"the version directory cannot be read: Too many levels of symbolic links {again}")
    assert found[4] == (State.END, f"s is a socket. {allowed} {again}")
    assert found[5][0] is State.END
    assert "link" in found[5][1], found[5]
    for case, version, fault in (
        (36, 2, "named pipe"),
        (36, 3, "looping link"),
        (36, 4, "socket"),
        (17, 5, "link out of the model"),
    ):
        record(row(case, f"{fault} in a version", "END with the reason", f"END: {found[version][1][:60]}"))
    with Client(server.rest) as client:
        assert client.predict("good", {"x": np.ones((1, 64), np.float32)}).version == 1


def test_a_graph_that_calls_itself_fails_before_tensorflow_reads_it(server: RunningServer, record: Record) -> None:
    state, error = server.final_states("recursive")[1]
    assert state is State.END
    assert "calls itself, which TensorFlow cannot run" in error
    record(row(36, "graph that calls itself", "END with the reason", "END"))


def test_a_version_that_cannot_answer_fails(server: RunningServer, record: Record) -> None:
    state, error = server.final_states("unassigned")[1]
    assert state is State.END
    assert error.startswith("signature 'serving_default' reads the variable 'bias', which neither the checkpoint")
    record(row(52, "variable without value", "END with its name", f"END: {error[:60]}"))


def test_a_load_that_hangs_stops_no_other(server: RunningServer, record: Record) -> None:
    with Client(server.grpc) as client:
        client.wait_until_ready(PATIENCE_S, "greedy")
        [blocked] = client.status("blocked")
    assert blocked.state is State.LOADING
    record(row(36, "load that never ends", "other models load", "other models load"))


def test_a_model_that_runs_out_of_memory_answers_500(server: RunningServer) -> None:
    with Client(server.grpc) as client:
        client.wait_until_ready(PATIENCE_S, "greedy")
        with pytest.raises(Internal, match="ran out of memory"):
            client.predict("greedy", {"count": np.array([HUGE])}, timeout_s=PATIENCE_S)
        assert client.predict("greedy", {"count": np.array([3])})["y"].shape == ()
    body = {"inputs": {"count": [HUGE]}}
    response = httpx.post(f"{server.rest}/v1/models/greedy:predict", json=body, timeout=PATIENCE_S)
    assert response.status_code == 500
    assert "ran out of memory" in response.json()["error"]
