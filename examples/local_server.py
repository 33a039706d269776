"""A tpuserve server on this machine with several models, for as long as a `with` lasts."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuserve_client import Client, TpuserveError

BIN = Path(sys.executable).parent
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


class ServerFailed(Exception):
    """The server ended, or a model was not ready in time."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Where it listens, on this machine alone."""

    grpc: str
    rest: str
    process: subprocess.Popen[bytes]

    def wait_for(self, model: str) -> None:
        """Block until the model is served. Raises ServerFailed."""
        with Client(self.grpc) as client:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            reason = ""
            while time.monotonic() < deadline_s:
                if self.process.poll() is not None:
                    raise ServerFailed(f"the server ended with status {self.process.returncode}")
                try:
                    client.wait_until_ready(1.0, model)
                except TpuserveError as error:
                    reason = str(error)
                else:
                    return
        raise ServerFailed(f"{model} was not ready after {START_TIMEOUT_S:.0f} s: {reason}")


@contextlib.contextmanager
def serving(base_paths: Mapping[str, Path], work: Path, log: Path) -> Iterator[LocalServer]:
    """A server of the models by name, started and not yet ready; stopped at the end, whatever happens."""
    config = work / "models.config"
    models = (
        f'  config {{ name: "{name}" base_path: {json.dumps(str(path.resolve()))} model_platform: "tensorflow" }}\n'
        for name, path in base_paths.items()
    )
    config.write_text(f"model_config_list {{\n{''.join(models)}}}\n")
    grpc_port, rest_port = free_ports()
    command = [
        str(BIN / "tpuserve-serve"), f"--model_config_file={config}", f"--port={grpc_port}",
        f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1",
    ]  # fmt: skip
    # In a session of its own: Ctrl-C is ours to pass on, once. A second signal would end the server without a drain.
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield LocalServer(f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{rest_port}", process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports() -> tuple[int, int]:
    """Two ports that are free now, so that a server on the usual ones is left alone."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
