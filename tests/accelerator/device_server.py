"""A real server on a TPU or GPU, its models and its figures of the device."""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.running_server import RunningServer, run_in_environment
from tests.support.free_ports import free_ports

WAIT_S = 300.0
# The configuration file is polled, so that a test can unload models.
POLLS = ("--model_config_file_poll_wait_seconds=0.1", "--file_system_poll_wait_seconds=0.1")


@dataclass(frozen=True, slots=True)
class DeviceServer:
    """A running server and the file with its models."""

    server: RunningServer
    config: Path

    def configure(self, models: Mapping[str, Path]) -> None:
        """Replace the models. All versions of a base path are served, side by side."""
        write_config(self.config, models)

    def status(self) -> dict[str, Any]:
        """Return the document of `/debug/status`."""
        with urllib.request.urlopen(f"{self.server.rest}/debug/status") as response:
            found: dict[str, Any] = json.load(response)
        return found

    def metrics(self) -> str:
        """Return the page of metrics."""
        with urllib.request.urlopen(f"{self.server.rest}/metrics") as response:
            return str(response.read().decode())

    def versions(self, model: str) -> dict[int, dict[str, Any]]:
        """Return the versions of a model by number. Empty for an unknown model."""
        found = [one for one in self.status()["models"] if one["name"] == model]
        return {version["version"]: version for one in found for version in one["versions"]}

    def memory(self, kind: str = "in_use") -> int:
        """Return the first device's memory of a kind, in bytes."""
        return int(self.status()["devices"][0]["memory_bytes"][kind])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Block until the condition holds. Raises AssertionError with the status if it never does."""
        until_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until_s, json.dumps(self.status()["models"])
            time.sleep(0.05)

    def wait_until_only(self, model: str, version: int) -> None:
        """Block until this version is available, and all others have ended."""
        self.wait_for(lambda: _available(self.versions(model)) == [version] == _live(self.versions(model)))


def _available(versions: Mapping[int, Mapping[str, Any]]) -> list[int]:
    return [number for number, version in versions.items() if version["state"] == "AVAILABLE"]


def _live(versions: Mapping[int, Mapping[str, Any]]) -> list[int]:
    return [number for number, version in versions.items() if version["state"] != "END"]


def write_config(path: Path, models: Mapping[str, Path]) -> None:
    """Write a ModelServerConfig in one step, because the server polls the file."""
    policy = "model_version_policy { all {} }"
    entries = [
        f'config {{ name: "{name}" base_path: "{base}" model_platform: "tensorflow" {policy} }}'
        for name, base in models.items()
    ]
    new = path.with_suffix(".new")
    new.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    new.replace(path)


@contextmanager
def device_server(
    device: str, folder: Path, models: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterator[DeviceServer]:
    """Start a server on the device, and wait until the first model is ready."""
    config = folder / "models.config"
    write_config(config, models)
    grpc_port, rest_port = free_ports(2)
    flags = (f"--rest_api_port={rest_port}", f"--device={device}", f"--model_config_file={config}", *POLLS)
    cache = f"--compilation_cache_dir={folder / 'compiled'}"
    first = next(iter(models))
    variables = {"JAX_PLATFORMS": os.environ["JAX_PLATFORMS"], **environment}
    with run_in_environment(
        folder / "log",
        (grpc_port, rest_port),
        variables,
        *flags,
        cache,
        "--max_num_load_retries=0",
        model=first,
    ) as server:
        yield DeviceServer(server, config)
