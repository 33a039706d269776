"""Tests for server start as scripts see it: open ports, log lines, and the exit status for a missing file."""

import re
import shutil
import socket
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.e2e.running_server import STOP_TIMEOUT_S
from tests.e2e.started_command import StartedCommand, start_command
from tests.support.client_commands import client_commands
from tests.support.free_ports import free_ports
from tests.support.saved_models import predict_request, save_mlp, write_manifest

pytestmark = [pytest.mark.slow]

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a version without a manifest, like TensorFlow does."""
    return save_mlp(tmp_path_factory.mktemp("saved") / "1", seed=1)


def started(command: str, port: int, *flags: str) -> AbstractContextManager[StartedCommand]:
    arguments = [
        *(str(BIN / command), f"--port={port}", "--bind_address=127.0.0.1"),
        *("--file_system_poll_wait_seconds=0.1", "--model_name=m", *flags),
    ]
    return start_command(arguments)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_open_port_of_tensorflow_model_server_means_loaded_models(version: Path, tmp_path: Path) -> None:
    port, rest_port = free_ports(2)
    base_path, path = tmp_path / "m", tmp_path / "grpc.sock"
    flags = (f"--rest_api_port={rest_port}", f"--model_base_path={base_path}", f"--grpc_socket_path={path}")
    with started("tensorflow_model_server", port, *flags) as server:
        server.wait_for("Ports open once every model has loaded or failed")
        server.wait_for("does not exist")
        assert not is_open(port)
        assert not is_open(rest_port)
        assert not path.exists()
        shutil.copytree(version, base_path / "1")
        server.wait_for(f"Running gRPC ModelServer at 127.0.0.1:{port} ...")
        server.wait_for(f"Running gRPC ModelServer at UNIX socket {path} ...")
        server.wait_for(f"Exporting HTTP/REST API at:127.0.0.1:{rest_port} ...")
        for address in (f"127.0.0.1:{port}", f"unix:{path}"):
            with grpc.insecure_channel(address) as channel:
                stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
                request = predict_request(x=np.ones((1, 64), np.float32))
                request.model_spec.name = "m"
                stub.Predict(request, timeout=30)  # the first call, without a retry
        assert server.stop() == 0
        assert not path.exists()


def test_sigterm_while_it_waits_for_its_model_ends_it_in_order(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with started("tensorflow_model_server", port, f"--model_base_path={tmp_path}/absent") as server:
        server.wait_for("does not exist")
        assert server.stop() == 0
        assert [line for line in server.lines if re.search("ERROR|CRITICAL|Traceback", line)] == []


def test_a_model_that_fails_opens_no_port_and_ends_the_server(tmp_path: Path) -> None:
    [port] = free_ports(1)
    broken = tmp_path / "m" / "1"
    broken.mkdir(parents=True)
    (broken / "saved_model.pb").write_bytes(b"model")
    write_manifest(broken)
    (broken / "saved_model.pb").write_bytes(
        b"other"
    )  # the hash mismatch refuses the version before TensorFlow is imported
    flags = (f"--model_base_path={tmp_path}/m", "--max_num_load_retries=0")
    with started("tensorflow_model_server", port, *flags) as server:
        server.wait_for("tpuserve: 1 servable(s) did not become available")
        assert server.process.wait(STOP_TIMEOUT_S) == 1
        assert [line for line in server.lines if "CRITICAL" in line or "Running gRPC" in line] == []


def test_a_damaged_model_does_not_delay_the_others(version: Path, tmp_path: Path) -> None:
    # With the default retries: a minute's pause before each.
    port, rest_port = free_ports(2)
    shutil.copytree(version, tmp_path / "good" / "1")
    damaged = shutil.copytree(version, tmp_path / "damaged" / "1") / "saved_model.pb"
    damaged.write_bytes(damaged.read_bytes()[:100])
    models = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" }} '
        for name in ("good", "damaged")
    )
    config = tmp_path / "models.config"
    config.write_text(f"model_config_list {{ {models} }}")
    arguments = [
        *(str(BIN / "tensorflow_model_server"), f"--port={port}", "--bind_address=127.0.0.1"),
        *(f"--rest_api_port={rest_port}", f"--model_config_file={config}"),
    ]
    with start_command(arguments) as server:
        server.wait_for("damaged version: 1} has failed; permanent: tried again when its files change")
        server.wait_for("Running gRPC ModelServer")
        (status,) = httpx.get(f"http://127.0.0.1:{rest_port}/v1/models/damaged").json()["model_version_status"]
        assert status["state"] == "END"
        assert status["status"]["error_message"].endswith(" (permanent: tried again when its files change)")
        shutil.copy(version / "saved_model.pb", damaged)
        server.wait_for("Serving {name: damaged version: 1}")
        assert server.stop() == 0


def test_caches_that_cannot_be_written_are_named_at_the_start(tmp_path: Path) -> None:
    [port] = free_ports(1)
    file = tmp_path / "file"
    file.touch()
    flags = ("--rest_api_port=0", f"--storage_cache_dir={file}", f"--compilation_cache_dir={file}/compiled")
    with started("tpuserve-serve", port, f"--model_base_path={tmp_path}/absent", *flags) as server:
        server.wait_for("tpuserve is listening")
        warnings = [line for line in server.lines if "WARNING tpuserve_server.startup.file_checks" in line]
        assert [line.partition(": ")[2] for line in warnings] == [
            f"--storage_cache_dir: '{file}' is not a directory. Choose another path.",
            f"--compilation_cache_dir: '{file}' is not a directory. Choose another path.",
        ]
        assert server.stop() == 0


def test_a_version_that_is_itself_the_base_path_is_refused_with_its_parent(version: Path) -> None:
    [port] = free_ports(1)
    with started("tpuserve-serve", port, "--rest_api_port=0", f"--model_base_path={version}") as server:
        line = server.wait_for("is itself version 1")
        assert line.startswith("tpuserve: ")
        assert f"--model_base_path={version.parent}, or" in line
        assert server.process.wait(STOP_TIMEOUT_S) == 1
        assert [line for line in server.lines if "CRITICAL" in line] == []


def test_ports_of_tpuserve_serve_open_at_once_and_its_status_says_what_a_folder_lacks(
    version: Path, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    base_path = tmp_path / "m"
    (base_path / "1").mkdir(parents=True)

    def status(*flags: str) -> str:
        return CliRunner().invoke(client_commands, ["status", "m", f"--address=127.0.0.1:{port}", *flags]).output

    with started("tpuserve-serve", port, "--rest_api_port=0", f"--model_base_path={base_path}") as server:
        server.wait_for("is not complete yet")
        server.wait_for("tpuserve is listening")
        assert status() == "1\tSTART\tnot complete yet: its directory is empty\n"
        shutil.copytree(version / "variables", base_path / "1" / "variables")
        shutil.copy(version / "saved_model.pb", base_path / "1")
        assert status("--wait", "--timeout=90") == "1\tAVAILABLE\t\n"
        assert server.stop() == 0
