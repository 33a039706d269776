"""Tests for server start as scripts see it: open ports, log lines, and the exit status for a missing file."""

import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.e2e.conftest import HOSTS
from tests.e2e.running_server import START_TIMEOUT_S, STOP_TIMEOUT_S
from tests.support.free_ports import free_ports
from tests.support.saved_models import predict_request, save_mlp, write_manifest
from tpuserve_client.cli import main as client_command

pytestmark = [pytest.mark.slow]

BIN = Path(sys.executable).parent


@pytest.fixture(params=[pytest.param(host, marks=pytest.mark.xdist_group(host)) for host in HOSTS])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a version without a manifest, like TensorFlow does."""
    return save_mlp(tmp_path_factory.mktemp("saved") / "1", seed=1)


class Command:
    """A started command whose output lines tests can wait for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """Wait for the first line that contains `text`, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.lines), START_TIMEOUT_S), self.lines
            return next(line for line in self.lines if text in line)

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.lines.append(line.rstrip())
                    self._changed.notify_all()


@contextmanager
def started(command: str, host: str, port: int, *flags: str) -> Iterator[Command]:
    arguments = [
        *(str(BIN / command), f"--host_backend={host}", f"--port={port}", "--bind_address=127.0.0.1"),
        *("--file_system_poll_wait_seconds=0.1", "--model_name=m", *flags),
    ]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running = Command(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_an_open_port_of_tensorflow_model_server_means_loaded_models(host: str, version: Path, tmp_path: Path) -> None:
    port, rest_port = free_ports(2)
    base_path, path = tmp_path / "m", tmp_path / "grpc.sock"
    flags = (f"--rest_api_port={rest_port}", f"--model_base_path={base_path}", f"--grpc_socket_path={path}")
    with started("tensorflow_model_server", host, port, *flags) as server:
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


def test_sigterm_while_it_waits_for_its_model_ends_it_in_order(host: str, tmp_path: Path) -> None:
    [port] = free_ports(1)
    with started("tensorflow_model_server", host, port, f"--model_base_path={tmp_path}/absent") as server:
        server.wait_for("does not exist")
        assert server.stop() == 0
        assert [line for line in server.lines if re.search(r"ERROR|\[critical\]|Traceback", line)] == []


def test_a_model_that_fails_opens_no_port_and_ends_the_server(host: str, tmp_path: Path) -> None:
    [port] = free_ports(1)
    broken = tmp_path / "m" / "1"
    broken.mkdir(parents=True)
    (broken / "saved_model.pb").write_bytes(b"model")
    write_manifest(broken)
    (broken / "saved_model.pb").write_bytes(
        b"other"
    )  # the hash mismatch refuses the version before TensorFlow is imported
    flags = (f"--model_base_path={tmp_path}/m", "--max_num_load_retries=0")
    with started("tensorflow_model_server", host, port, *flags) as server:
        server.wait_for("tpuserve: 1 servable(s) did not become available")
        assert server.process.wait(STOP_TIMEOUT_S) == 1
        assert [line for line in server.lines if "[critical]" in line or "Running gRPC" in line] == []


def test_a_version_that_is_itself_the_base_path_is_refused_with_its_parent(host: str, version: Path) -> None:
    [port] = free_ports(1)
    with started("tpuserve-serve", host, port, "--rest_api_port=0", f"--model_base_path={version}") as server:
        line = server.wait_for("is itself version 1")
        assert line.startswith("tpuserve: ")
        assert f"--model_base_path={version.parent}, or" in line
        assert server.process.wait(STOP_TIMEOUT_S) == 1
        assert [line for line in server.lines if "[critical]" in line] == []


def test_ports_of_tpuserve_serve_open_at_once_and_its_status_says_what_a_folder_lacks(
    host: str, version: Path, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    base_path = tmp_path / "m"
    (base_path / "1").mkdir(parents=True)

    def status(*flags: str) -> str:
        return CliRunner().invoke(client_command, ["status", "m", f"--address=127.0.0.1:{port}", *flags]).output

    with started("tpuserve-serve", host, port, "--rest_api_port=0", f"--model_base_path={base_path}") as server:
        server.wait_for("is not complete yet")
        server.wait_for("tpuserve is listening")
        assert status() == "1\tSTART\tnot complete yet: its directory is empty\n"
        shutil.copytree(version / "variables", base_path / "1" / "variables")
        shutil.copy(version / "saved_model.pb", base_path / "1")
        assert status("--wait", "--timeout=90") == "1\tAVAILABLE\t\n"
        assert server.stop() == 0
