"""Fixtures: a server with the models and the configuration of the contract tests.

The environment of `make ray` runs these tests on Ray Serve (tests/e2e/test_ray_environment.py).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import grpc
import pytest

from tests.contract.oip_client import Channel
from tests.contract.serving_client import ServingClient
from tests.contract.serving_models import save_half_plus_two, save_kinds
from tests.e2e.running_server import START_TIMEOUT_S, run_configured_server
from tests.support.measured_children import measuring_children
from tpuserve_client import Client

# TensorFlow Serving numbers its own test models like this. The second adds 3 where the first adds 2.
FIRST, SECOND = 123, 124


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run tests that share the server in one process."""
    if isinstance(item, pytest.Function) and "serving" in item.fixturenames:
        item.add_marker(pytest.mark.xdist_group("contract"))


@dataclass
class Models:
    """The base paths of the models."""

    half: Path
    kinds: Path

    def config(self) -> str:
        """Return a configuration of `half` (both versions, two labels) and `kinds` (latest version)."""
        return f"""
            model_config_list {{
              config {{
                name: "half" base_path: "{self.half}" model_platform: "tensorflow"
                model_version_policy {{ all {{}} }}
                version_labels {{ key: "stable" value: {FIRST} }}
                version_labels {{ key: "canary" value: {SECOND} }}
              }}
              config {{ name: "kinds" base_path: "{self.kinds}" model_platform: "tensorflow" }}
            }}"""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("contract")
    save_half_plus_two(folder / "half" / f"{FIRST:08}")
    save_half_plus_two(folder / "half" / f"{SECOND:08}", plus=3.0)
    save_kinds(folder / "kinds" / "1")
    return Models(folder / "half", folder / "kinds")


def wait_for_half(address: str) -> None:
    """Wait until both versions of `half` are ready. Readiness of `kinds`, or of a single version, does not imply it."""
    with Client(address) as client:
        for version in (FIRST, SECOND):
            client.wait_until_ready(START_TIMEOUT_S, "half", version=version)


@pytest.fixture(scope="session")
def serving(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingClient]:
    """Yield a client of a server that has the flags a TensorFlow Serving user would set."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "models.config"
    config.write_text(models.config())
    monitoring = folder / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    flags = (
        f"--model_config_file={config}",
        f"--monitoring_config_file={monitoring}",
        "--rest_api_enable_cors_support=true",
        "--max_request_bytes=8000000",
    )
    with (
        measuring_children(),
        _run_server(folder / "log", flags) as (grpc_address, rest_url),
        ServingClient(grpc_address, rest_url) as client,
    ):
        wait_for_half(grpc_address)
        yield client


@contextlib.contextmanager
def _run_server(log: Path, flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Run a server with these flags, and yield its addresses for gRPC and REST."""
    if find_spec("ray"):
        from tests.support.ray_cluster import GRPC, REST, deploy, two_nodes

        with two_nodes():
            deploy(dict(flag.removeprefix("--").partition("=")[::2] for flag in flags))
            yield GRPC, REST
    else:
        with run_configured_server(log, *flags, model="kinds") as server:
            yield server.grpc, server.rest


@pytest.fixture
def oip(serving: ServingClient) -> Iterator[Channel]:
    with grpc.insecure_channel(serving.grpc_address) as channel:
        yield Channel(channel)
