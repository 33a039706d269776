"""A real server in a separate process that serves one version on the loopback interface.

The server is a separate distribution. The exporter does not import it, and finds its program as the `tpuserve` command
does.
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
from collections.abc import Iterator, Sequence
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
# Matches the last log line of a server, or of TensorFlow Serving, that ends because its model fails to load.
_LOAD_ERROR = re.compile(r"due to error: (.*?)\}, \}$")
# Samples may have any size.
_LARGEST_MESSAGE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that serves `model`. `channel` is its gRPC channel, and `rest` the address of its REST API."""

    model: str
    channel: "grpc.Channel"
    rest: str


def find_server() -> str:
    """Find the server's program, first next to this Python and then on PATH. Raises MissingExtra."""
    sibling = Path(sys.executable).parent / PROGRAM
    found = str(sibling) if os.access(sibling, os.X_OK) else shutil.which(PROGRAM)
    if found is None:
        raise MissingExtra(
            "--serve-check needs the server, which is not installed. Run pip install 'tpuserve-server[tensorflow]', or "
            "omit --serve-check"
        )
    return found


@contextlib.contextmanager
def serving(version: Path, model: str, allowed_ops: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """Run a server with the loaded and warmed `version` until the body ends. Blocks until the server is ready.

    `allowed_ops` are operations that the server would refuse.

    Raises MissingExtra, or SessionLoadFailed with the server's reason.
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
            "--max_num_load_retries=0", f"--allowed_ops={','.join(allowed_ops)}",
        ]  # fmt: skip
        # In a separate session, Ctrl-C reaches only the exporter, which then stops the server.
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        open_things.callback(_stop, process)
        sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        # A proxy from the environment cannot reach loopback ports.
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}", options=[*sizes, ("grpc.enable_http_proxy", 0)])
        open_things.enter_context(contextlib.closing(channel))
        _wait(process, channel, model, log)
        yield ServerProcess(model, channel, f"http://127.0.0.1:{rest_port}")


def _wait(process: "subprocess.Popen[bytes]", channel: "grpc.Channel", model: str, log: Path) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            last_line = _last_line(log)
            if reason := _LOAD_ERROR.search(last_line):
                raise SessionLoadFailed(f"the server cannot load the version: {reason[1]}")
            raise SessionLoadFailed(f"the server exited with status {process.returncode}: {last_line}")
        status = _find_status(channel, model)
        if status is not None and status.state == status.AVAILABLE:
            return
        if status is not None and status.state == status.END:
            raise SessionLoadFailed(f"the server cannot load the version: {status.status.error_message}")
        time.sleep(_LOOK_AGAIN_S)
    raise SessionLoadFailed(f"the server was not ready after {_START_TIMEOUT_S:.0f} s: {_last_line(log)}")


def _find_status(channel: "grpc.Channel", model: str) -> Any:  # noqa: ANN401 - protobuf without types
    """Return the version's ModelVersionStatus, or None if the server does not respond or does not know the model."""
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
    return lines[-1].strip() if lines else "it logged nothing"


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
