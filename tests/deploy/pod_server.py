"""The server of a manifest's container as a process: its arguments, variables and probes, on free loopback ports."""

import contextlib
import re
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from tests.deploy.manifests import Manifest
from tests.e2e.running_server import START_TIMEOUT_S
from tests.e2e.started_command import StartedCommand, start_command
from tests.support.free_ports import free_ports

# The variables of the image.
_IMAGE = {"MODEL_NAME": "model", "MODEL_BASE_PATH": "/models"}


class PodServer:
    """The started server, and its container's probes."""

    def __init__(self, command: StartedCommand, container: Manifest, grpc_port: int, rest_port: int) -> None:
        self.command = command
        self._container = container
        self.grpc = f"127.0.0.1:{grpc_port}"
        scheme = container["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
        self.rest = f"{scheme}://127.0.0.1:{rest_port}"

    def probe(self, name: str) -> httpx.Response:
        """Send the request of a probe, which must ask the REST port. Like the kubelet, do not check certificates."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return httpx.get(self.rest + self._container[name]["httpGet"]["path"], verify=context, timeout=30)

    def wait_for_probe(self, name: str) -> None:
        """Probe until the response has the status 200."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if self.probe(name).status_code == 200:
                    return
            assert self.command.process.poll() is None, self.command.lines
            assert time.monotonic() < end, self.command.lines
            time.sleep(0.05)


@contextlib.contextmanager
def run_container(
    container: Manifest, paths: Mapping[str, Path | str], environment: Mapping[str, str] | None = None
) -> Iterator[PodServer]:
    """Start `tpuserve-serve` as the container does, with each of its paths replaced, and without the drain's delay."""
    grpc_port, rest_port = free_ports(2)

    def local(text: str) -> str:
        longest_first = sorted(paths, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), lambda path: str(paths[path[0]]), text)

    variables = _IMAGE | {each["name"]: each["value"] for each in container.get("env", [])}
    flags = (
        f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1", "--drain_delay_seconds=0",
    )  # fmt: skip
    arguments = [str(Path(sys.executable).with_name("tpuserve-serve")), *map(local, container["args"]), *flags]
    values = {name: local(value) for name, value in variables.items()}
    with start_command(arguments, {**values, **(environment or {})}) as command:
        yield PodServer(command, container, grpc_port, rest_port)
        if command.process.poll() is None:
            assert command.stop() == 0, command.lines
