"""Tests for versions that load, fail and unload, reloads, signals and shutdown, under load (cases 28 to 30, 35, 39)."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.e2e.running_server import STOP_TIMEOUT_S, RunningServer, run_server
from tests.faults.fault_row import FaultRow
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, Retry, State, TpuserveError, Unavailable

pytestmark = [pytest.mark.slow]

RELOADS = 100
# Pools grow to their size with the first uses.
MORE_THREADS = 16
MORE_MB = 128.0


class Load:
    """Threads that predict over both protocols, each one request at a time, until stopped."""

    def __init__(self, server: RunningServer) -> None:
        self.versions: list[int | None] = []
        self.errors: list[TpuserveError] = []
        self._progress = threading.Condition()
        self._stop = threading.Event()
        addresses = [server.grpc, server.rest] * 4
        self._threads = [threading.Thread(target=self._ask, args=(address, server.model)) for address in addresses]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int, version: int | None = None) -> None:
        """Wait for `count` more responses (from `version`, if given)."""
        with self._progress:
            start = len(self.versions)
            enough = self._progress.wait_for(
                lambda: sum(version is None or seen == version for seen in self.versions[start:]) >= count, 120
            )
            assert enough, (self.versions[-1:], self.errors[-1:])

    def _ask(self, address: str, model: str) -> None:
        x = np.ones((1, 64), np.float32)
        # Without retries, the test sees each failed request.
        with Client(address, retry=Retry(max_attempts=1)) as client:
            while not self._stop.is_set():
                try:
                    version = client.predict(model, {"x": x}).version
                except TpuserveError as error:
                    self.errors.append(error)
                    if isinstance(error, Unavailable):
                        return
                else:
                    with self._progress:
                        self.versions.append(version)
                        self._progress.notify_all()


@pytest.fixture
def mlp_base(tmp_path: Path) -> Path:
    """Return a base path with version 1 of the MLP."""
    path = save_mlp(tmp_path / "mlp" / "1", seed=1)
    write_manifest(path)
    return path.parent


@pytest.fixture
def mlp_server(mlp_base: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with run_server(mlp_base, tmp_path / "log", "--max_num_load_retries=0") as server:
        yield server


def family(server: RunningServer) -> list[psutil.Process]:
    parent = psutil.Process(server.process.pid)
    return [parent, *parent.children(recursive=True)]


def memory_mb(server: RunningServer) -> float:
    return sum(process.memory_info().rss for process in family(server)) / 1e6


def threads(server: RunningServer) -> int:
    return sum(process.num_threads() for process in family(server))


def test_a_life_with_new_versions_a_corrupt_one_reloads_and_signals_under_load(
    mlp_server: RunningServer, mlp_base: Path, record: Callable[[FaultRow], None]
) -> None:
    def write(case: int, fault: str, protocol: str, expected: str, got: str) -> None:
        record(FaultRow(case, fault, protocol, expected, got, before_mb, after_mb))

    with Load(mlp_server) as load:
        load.wait_for(50)
        before_mb = memory_mb(mlp_server)
        publish(mlp_base, 2)
        load.wait_for(50, version=2)
        publish(mlp_base, 3, corrupt=True)
        with Client(mlp_server.grpc) as client:
            error = wait_for_end(client, 3, load)
        assert "is corrupt: its sha256 is" in error
        load.wait_for(50, version=2)
        assert load.errors == []
        after_mb = memory_mb(mlp_server)
        write(28, "corrupt new version under load", "TF gRPC, REST", "old version serves", "0 errors")

        before_mb, before = after_mb, threads(mlp_server)
        reload_often(mlp_server, mlp_base)
        load.wait_for(50)
        assert load.errors == []
        after_mb = memory_mb(mlp_server)
        assert threads(mlp_server) <= before + MORE_THREADS
        assert after_mb < before_mb + MORE_MB
        detail = f"0 errors, {len(load.versions)} answers, {threads(mlp_server) - before:+d} threads"
        write(29, "100 reloads, 10 new versions, under load", "TF gRPC, REST", "0 errors", detail)

        for process in family(mlp_server):
            process.send_signal(signal.SIGUSR1)
        mlp_server.process.send_signal(signal.SIGHUP)
        load.wait_for(50)
        assert load.errors == []
        write(39, "SIGUSR1 to every process, SIGHUP", "signal", "0 errors", "0 errors")

        for process in reversed(family(mlp_server)):
            process.send_signal(signal.SIGTERM)
        assert mlp_server.process.wait(STOP_TIMEOUT_S) == 0
    # The server answered each accepted request. It refused later requests before processing: the client got no
    # connection, or UNAVAILABLE on an existing connection (grpcio's server cannot ask its clients to disconnect).
    assert all(isinstance(error, Unavailable) for error in load.errors), load.errors
    refusals = {"refused", "shutting down", "failed to connect"}
    lost = [error for error in load.errors if not any(words in str(error) for words in refusals)]
    assert lost == []
    write(30, "SIGTERM under load", "TF gRPC, REST", "exit 0, 0 lost", "exit 0, 0 lost")
    write(35, "SIGTERM to every process under load", "TF gRPC, REST", "exit 0, 0 lost", "exit 0, 0 lost")


def reload_often(server: RunningServer, base_path: Path) -> None:
    """Send 100 reloads. Every tenth one changes the version that is served."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        for index in range(RELOADS):
            request = model_management_pb2.ReloadConfigRequest()
            config = request.config.model_config_list.config.add(
                name="m", base_path=str(base_path), model_platform="tensorflow"
            )
            config.model_version_policy.specific.versions.append(1 + index // 10 % 2)
            response = stub.HandleReloadConfigRequest(request, timeout=STOP_TIMEOUT_S)
            assert response.status.error_code == 0, response


def publish(base_path: Path, version: int, *, corrupt: bool = False) -> None:
    """Publish atomically, like the exporter: write a complete hidden directory, then rename it."""
    hidden = base_path / f".{version}"
    save_mlp(hidden, seed=version)
    write_manifest(hidden)
    if corrupt:
        data = next((hidden / "variables").glob("*.data*"))
        content = bytearray(data.read_bytes())
        content[0] ^= 1
        data.write_bytes(content)
    os.rename(hidden, base_path / str(version))


def wait_for_end(client: Client, version: int, load: Load) -> str:
    """Wait until the version ends, and return its error."""
    while True:
        for status in client.status("m"):
            if status.version == version and status.state is State.END:
                return status.error
        load.wait_for(1)
