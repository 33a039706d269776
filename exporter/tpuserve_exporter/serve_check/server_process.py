"""A real server in a process of its own, with one version to serve, on ports of this machine alone.

The server is another distribution: nothing of it is imported, its program is found as the `tpuserve` command finds it.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import MissingExtra, SessionLoadFailed

if TYPE_CHECKING:
    import grpc

PROGRAM = "tpuserve-serve"
_START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.1
# How a server whose first model fails to load says so before it ends, as TensorFlow Serving does.
_LOAD_ERROR = re.compile(r"due to error: (.*?)\}, \}$")
# Samples may be of any size.
_LARGEST_MESSAGE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that serves `model`. `channel` is gRPC's, `rest` an address."""

    model: str
    channel: "grpc.Channel"
    rest: str


def find_server() -> str:
    """The server's program: beside this Python first, then on PATH. Raises MissingExtra."""
    beside = Path(sys.executable).parent / PROGRAM
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(PROGRAM)
    if found is None:
        raise MissingExtra(
            "--serve-check takes the server, which is not installed here: pip install tpuserve-server, or leave it out"
        )
    return found


@contextlib.contextmanager
def serving(version: Path, model: str) -> Iterator[ServerProcess]:
    """A server that has loaded and warmed `version`, until the body ends. Blocks until it is ready.

    Raises MissingExtra, or SessionLoadFailed with the server's own reason.
    """
    import grpc

    program = find_server()
    with tempfile.TemporaryDirectory(prefix="tpuserve-serve-check-") as folder, contextlib.ExitStack() as open_things:
        base, log = Path(folder, model), Path(folder, "log")
        base.mkdir()
        (base / "1").symlink_to(version.resolve(), target_is_directory=True)
        grpc_port, rest_port = _free_ports()
        command = [
            program, f"--model_name={model}", f"--model_base_path={base}", "--bind_address=127.0.0.1",
            f"--port={grpc_port}", f"--rest_api_port={rest_port}", f"--max_request_bytes={_LARGEST_MESSAGE}",
            "--max_num_load_retries=0",
        ]  # fmt: skip
        # In a session of its own: Ctrl-C is ours, and the server is stopped on the way out.
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        open_things.callback(_stop, process)
        sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        # No proxy that the environment may name knows a port of this machine.
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options=[*sizes, ("grpc.enable_http_proxy", 0)])
        open_things.enter_context(contextlib.closing(channel))
        _wait(process, channel, model, log)
        yield ServerProcess(model, channel, f"http://127.0.0.1:{rest_port}")


def _wait(process: "subprocess.Popen[bytes]", channel: "grpc.Channel", model: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            said = _last_line(log)
            if reason := _LOAD_ERROR.search(said):
                raise SessionLoadFailed(f"the server does not load the version: {reason[1]}")
            raise SessionLoadFailed(f"the server ended with status {process.returncode}: {said}")
        status = _find_status(channel, model)
        if status is not None and status.state == status.AVAILABLE:
            return
        if status is not None and status.state == status.END:
            raise SessionLoadFailed(f"the server does not load the version: {status.status.error_message}")
        time.sleep(_LOOK_AGAIN_S)
    raise SessionLoadFailed(f"the server was not ready after {_START_TIMEOUT_S:.0f} s: {_last_line(log)}")


def _find_status(channel: "grpc.Channel", model: str) -> Any:  # noqa: ANN401 - protobuf without types
    """The version's ModelVersionStatus; None while nobody answers or nothing is known of it."""
    import grpc
    from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest
    from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub

    request = GetModelStatusRequest()
    request.model_spec.name = model
    try:
        statuses = ModelServiceStub(channel).GetModelStatus(request, timeout=5.0).model_version_status
    except grpc.RpcError:
        return None
    return statuses[0] if statuses else None


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
