"""A real server with 1,000 models in a bucket whose every call takes 200 ms."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from moto.s3 import s3_backends

from tests.e2e.running_server import run_in_environment
from tests.support.counting_proxy import CountingProxy
from tests.support.free_ports import free_ports
from tests.support.object_stores import BUCKET, RunningStore, running_store
from tests.support.saved_models import save_half_plus_two
from tpuserve_client import Client

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(900)]

MODELS = 1000
DELAY_S = 0.2
# All models in one directory: S3 lists them in pages of 1,000 objects, and each version has three objects.
PAGES = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    with running_store("s3", tmp_path / "store") as store:
        yield store


def publish(folder: Path, *paths: str) -> None:
    """Put the files of a version below each path, without a request for each of them."""
    backend = s3_backends["123456789012"]["aws"]
    files = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert len(files) == PAGES
    for path in paths:
        for name, content in files.items():
            backend.put_object(BUCKET, f"{path}/{name}", content)


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. The test's timeout is the limit."""
    while not condition():
        threading.Event().wait(0.2)


def test_a_thousand_models_cost_three_listings_a_poll(store: RunningStore, tmp_path: Path) -> None:
    names = [f"m{index}" for index in range(MODELS)]
    version = save_half_plus_two(tmp_path / "1")
    publish(version, *(f"models/{name}/1" for name in names))
    file = tmp_path / "models.config"
    listed = " ".join(
        f'config {{ name: "{name}" base_path: "{store.uri(f"models/{name}")}" model_platform: "tensorflow" }}'
        for name in names
    )
    file.write_text(f"model_config_list {{ {listed} }}")
    ports = free_ports(2)
    flags = (
        f"--rest_api_port={ports[1]}", f"--model_config_file={file}", f"--storage_cache_dir={tmp_path / 'cache'}",
        "--file_system_poll_wait_seconds=1", "--num_load_threads=32",
    )  # fmt: skip
    with CountingProxy(store.port, DELAY_S).running() as proxy:
        environment = {**store.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        with (
            run_in_environment(tmp_path / "log", ports, environment, *flags, model="m0") as server,
            Client(server.grpc) as client,
        ):
            # The versions have no manifest, and are younger than a minute. The second look finds them complete.
            assert proxy.listings["models/"] <= 2 * PAGES
            assert [prefix for prefix in proxy.listings if prefix.endswith("/") and prefix.count("/") == 2] == []
            # The last models load while the others answer.
            for name in (names[0], names[-1]):
                wait_until(lambda name=name: client.is_ready(name))  # type: ignore[misc]
                assert client.predict(name, {"x": np.ones((1, 1), np.float32)}).version == 1
            publish(version, "models/m7/2")
            wait_until(lambda: client.status("m7")[0].version == 2 and client.is_ready("m7", version=2))
            # One look at a single model found its new version complete, and each copy ended with a check.
            others = {prefix: count for prefix, count in proxy.listings.items() if prefix != "models/"}
            copies = {prefix for prefix in others if prefix.count("/") == 3}
            assert others.keys() - copies == {"models/m7/"}
            assert {others[prefix] for prefix in copies} == {1}
            assert proxy.most_at_once <= 32 * 8 + 32
            assert server.terminate() == 0
