"""Tests for models in an object store: versions appear, fail and disappear, and the store fails."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_in_environment, run_server
from tests.support.access import KeyFile
from tests.support.free_ports import free_ports
from tests.support.object_stores import RunningStore, running_store
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client
from tpuserve_formats.manifest import MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.signing.keys import write_key_pair

pytestmark = [pytest.mark.slow]
X = np.ones((1, 64), np.float32)


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningStore]:
    with running_store(request.param, tmp_path / "store") as store:
        yield store


def publish(store: RunningStore, folder: Path, version: int, *, corrupt: bool = False) -> None:
    path = save_mlp(folder / str(version), seed=version)
    write_manifest(path)
    if corrupt:
        graph = path / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    store.put_folder(path, f"models/mlp/{version}")


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. The test's timeout is the limit."""
    while not condition():
        threading.Event().wait(0.1)


def answers(client: Client, version: int) -> Callable[[], bool]:
    return lambda: client.predict("m", {"x": X}).version == version


def test_versions_in_a_store_are_served_as_they_come_and_go(store: RunningStore, tmp_path: Path) -> None:
    flags = ("--max_num_load_retries=0", f"--storage_cache_dir={tmp_path / 'cache'}")
    publish(store, tmp_path, 1)

    def start(log: str) -> contextlib.AbstractContextManager[RunningServer]:
        return run_server(store.uri("models/mlp"), tmp_path / log, *flags)

    with start("log") as server, Client(server.grpc) as client:
        assert answers(client, 1)()
        publish(store, tmp_path, 2)
        wait_until(answers(client, 2))
        publish(store, tmp_path, 3, corrupt=True)
        wait_until(lambda: "saved_model.pb is corrupt" in client.status("m")[0].error)
        assert answers(client, 2)()
        store.delete("models/mlp/3")
        store.delete("models/mlp/2")
        wait_until(answers(client, 1))
        before = len(server.log.read_text())
        store.stop()
        wait_until(lambda: "cannot be polled" in server.log.read_text()[before:])
        assert answers(client, 1)()
        store.start()
        wait_until(lambda: "responds again" in server.log.read_text()[before:])
        publish(store, tmp_path / "again", 4)
        wait_until(answers(client, 4))
        assert server.terminate() == 0
        # The server logs each reason once, such as a missing response and then an error, not a line per poll.
        stopped = server.log.read_text()[before:].partition("responds again")[0]
        reasons = re.findall("cannot be polled: (.*)", stopped)
        assert len(set(reasons)) == len(reasons) > 0
    with start("second-log") as server, Client(server.grpc) as client:
        assert answers(client, 4)()
        assert "Copying" not in server.log.read_text()
        assert server.terminate() == 0


def run(name: str, *arguments: object) -> None:
    """Run a program of the exporter, which must succeed."""
    command = [str(Path(sys.executable).with_name(f"tpuserve-{name}")), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


def test_a_store_serves_only_versions_with_a_valid_signature(store: RunningStore, tmp_path: Path) -> None:
    keys = {name: tmp_path / name for name in ("key", "other")}
    for key in keys.values():
        write_key_pair(key)
    base = tmp_path / "m"
    run("export", save_mlp(tmp_path / "source"), base, "--sign", keys["key"])
    store.put_folder(base / "1", "signed/m/1")

    def publish(version: int, signer: str | None, change: Callable[[Path], object] = str) -> None:
        """Copy version 1, sign the copy for its own number, change it, and upload it. The graph comes last."""
        path = base / str(version)
        shutil.copytree(base / "1", path)
        (path / SIGNATURE_FILE).unlink()
        if signer is not None:
            run("sign", path, "--key", keys[signer])
        change(path)
        store.put_folder(path, f"signed/m/{version}")

    def change_manifest(path: Path) -> None:
        with (path / MANIFEST_FILE).open("a") as manifest:
            manifest.write("\n")

    def damage(path: Path) -> None:
        graph = path / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[:-1] + b"?")

    flags = (
        "--max_num_load_retries=0", f"--storage_cache_dir={tmp_path / 'cache'}", f"--require_signed={keys['key']}.pub",
    )  # fmt: skip
    with run_server(store.uri("signed/m"), tmp_path / "log", *flags) as server, Client(server.grpc) as client:

        def reports(version: int, reason: str) -> Callable[[], bool]:
            return lambda: any(one.version == version and reason in one.error for one in client.status("m"))

        assert answers(client, 1)()
        publish(2, "other")
        wait_until(reports(2, "which this server does not trust"))
        publish(3, "key", change_manifest)
        wait_until(reports(3, "does not match its manifest, which has changed"))
        publish(4, None)
        wait_until(reports(4, f"it is not signed: {SIGNATURE_FILE.name} is missing"))
        publish(5, "key", damage)
        wait_until(reports(5, "saved_model.pb is corrupt"))
        assert answers(client, 1)()
        publish(6, "key")
        wait_until(answers(client, 6))
        assert server.terminate() == 0


def configuration(store: RunningStore, *models: str) -> bytes:
    listed = (
        f'config {{ name: "{m}" base_path: "{store.uri("configured/mlp")}" model_platform: "tensorflow" }}'
        for m in models
    )
    return f"model_config_list {{ {' '.join(listed)} }}".encode()


def test_configuration_in_a_store_is_served_and_polled(store: RunningStore, tmp_path: Path) -> None:
    # A path of its own: the content of moto outlives the store of another test.
    store.put_folder(save_mlp(tmp_path / "1"), "configured/mlp/1")
    keys = KeyFile(tmp_path / "credentials.json")
    keys.add("client", roles="predict,read")
    store.put("config/models.config", configuration(store, "m"))
    store.put("config/batching.config", b"max_batch_size { value: 8 }")
    store.put("config/monitoring.config", b'prometheus_config { enable: true path: "/measured" }')
    store.put("config/session.config", b"intra_op_parallelism_threads: 1")
    store.put("config/credentials.json", keys.path.read_bytes())
    environment = {}
    if store.scheme == "s3":
        # TensorFlow's variables alone: a request to AWS would fail.
        environment = {"AWS_ENDPOINT_URL": "", "S3_ENDPOINT": f"127.0.0.1:{store.port}", "S3_USE_HTTPS": "0"}
    ports = free_ports(2)
    flags = (
        f"--rest_api_port={ports[1]}", f"--model_config_file={store.uri('config/models.config')}",
        "--model_config_file_poll_wait_seconds=0.2", "--enable_batching",
        f"--batching_parameters_file={store.uri('config/batching.config')}",
        f"--monitoring_config_file={store.uri('config/monitoring.config')}",
        f"--tensorflow_session_config_file={store.uri('config/session.config')}",
        f"--credentials_file={store.uri('config/credentials.json')}", f"--storage_cache_dir={tmp_path / 'cache'}",
    )  # fmt: skip
    headers = keys.bearer("client")
    with (
        run_in_environment(tmp_path / "log", ports, environment, *flags, model="m", headers=headers) as server,
        Client(server.grpc, headers=headers) as client,
    ):
        assert answers(client, 1)()
        page = urllib.request.Request(f"{server.rest}/measured", headers=headers)
        with urllib.request.urlopen(page) as response:
            assert b"tpuserve_" in response.read()
        store.put("config/models.config", configuration(store, "m", "n"))
        client.wait_until_ready(60, "n")
        store.delete("config/models.config")
        wait_until(lambda: "No such file or directory" in server.log.read_text())
        assert client.predict("n", {"x": X}).version == 1
        assert server.terminate() == 0
    command = [str(EXECUTABLE), "--port=0", f"--rest_api_port={ports[1]}", flags[1]]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Cannot read '{store.uri('config/models.config')}': No such file or directory" in done.stderr
