"""Tests for versions that load, fail and unload, and for shutdown, under load."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import HOSTS
from tests.e2e.running_server import RunningServer, run_server
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, Retry, State, TpuserveError, Unavailable

pytestmark = [pytest.mark.slow]


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


@pytest.fixture(params=[pytest.param(host, marks=pytest.mark.xdist_group(host)) for host in HOSTS])
def mlp_server(request: pytest.FixtureRequest, mlp_base: Path, tmp_path: Path) -> Iterator[RunningServer]:
    with run_server(request.param, mlp_base, tmp_path / "log", "--max_num_load_retries=0") as server:
        yield server


def test_a_life_with_new_versions_a_corrupt_one_and_a_sigterm_under_load(
    mlp_server: RunningServer, mlp_base: Path
) -> None:
    with Load(mlp_server) as load:
        load.wait_for(50)
        publish(mlp_base, 2)
        load.wait_for(50, version=2)
        publish(mlp_base, 3, corrupt=True)
        with Client(mlp_server.grpc) as client:
            error = wait_for_end(client, 3, load)
        assert "is corrupt: its sha256 is" in error
        load.wait_for(50, version=2)
        assert load.errors == []
        assert mlp_server.terminate() == 0
    # The server answered each accepted request. It refused later requests before processing: the client got no
    # connection, or UNAVAILABLE on an existing connection (grpcio's server cannot ask its clients to disconnect).
    assert all(isinstance(error, Unavailable) for error in load.errors), load.errors
    refusals = {"refused", "shutting down", "failed to connect"}
    lost = [error for error in load.errors if not any(words in str(error) for words in refusals)]
    assert lost == []


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
