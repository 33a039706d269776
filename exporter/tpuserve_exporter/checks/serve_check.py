"""Starts a server of the version as clients will use it, and compares its answers over gRPC and REST.

The server is a separate distribution. The exporter does not import it, and finds its program as the `tpuserve` command
does.
"""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import MissingExtra, ParityFailed, SessionLoadFailed
from tpuserve_exporter.terms.samples import take_rows
from tpuserve_exporter.terms.signature import Array, Tensors

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


_TIMEOUT_S = 300.0


def predict_grpc(server: ServerProcess, signature: str, inputs: Tensors) -> dict[str, Array]:
    """Send a Predict request and return the outputs by name. Raises ParityFailed with the server's error."""
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis.predict_pb2 import PredictRequest
    from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

    request = PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = server.model, signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    try:
        outputs = PredictionServiceStub(server.channel).Predict(request, timeout=_TIMEOUT_S).outputs
    except grpc.RpcError as error:
        raise ParityFailed(f"the server returns {error.code().name}: {error.details()}") from error
    return {name: tf.make_ndarray(tensor) for name, tensor in outputs.items()}


def predict_rest(server: ServerProcess, signature: str, inputs: Tensors, like: Tensors) -> dict[str, Array]:
    """Send a :predict request and return the outputs by name. Raises ParityFailed.

    JSON has only numbers and text, so the outputs take their dtypes from `like`.
    """
    columns = {name: _to_json(value) for name, value in inputs.items()}
    request = urllib.request.Request(
        f"{server.rest}/v1/models/{server.model}:predict",
        data=json.dumps({"signature_name": signature, "inputs": columns}).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as reply:
            outputs = json.load(reply)["outputs"]
    except urllib.error.HTTPError as error:
        raise ParityFailed(f"the server returns {error.code}: {error.read().decode(errors='replace')}") from error
    except (OSError, ValueError, KeyError) as error:
        raise ParityFailed(f"the server does not respond: {error}") from error
    if len(like) == 1:  # REST omits the name of a single output
        outputs = {next(iter(like)): outputs}
    if outputs.keys() != like.keys():
        raise ParityFailed(f"the outputs are {sorted(outputs)} instead of {sorted(like)}")
    return {name: _from_json(outputs[name], np.asarray(value)) for name, value in like.items()}


def can_be_json(inputs: Tensors, outputs: Tensors) -> bool:
    """Return whether REST can carry the tensors.

    It carries no complex numbers, and binary strings only in outputs named `*_bytes`.
    """
    if any(np.asarray(value).dtype.kind == "c" for value in (*inputs.values(), *outputs.values())):
        return False
    strings = (value for name, value in outputs.items() if not name.endswith("_bytes"))
    return all(_is_text(one) for value in strings if value.dtype == object for one in value.reshape(-1))


def _is_text(value: Any) -> bool:  # noqa: ANN401 - what numpy holds as object: bytes or str
    try:
        return isinstance(value, str) or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def _to_json(value: Array) -> Any:  # noqa: ANN401 - nested lists
    value = np.asarray(value)
    if value.dtype == object:
        coded = [{"b64": base64.b64encode(_as_bytes(one)).decode()} for one in value.reshape(-1)]
        return _nest(coded, value.shape)
    if value.dtype.kind == "V" or value.dtype.name == "bfloat16":
        value = value.astype(np.float32)
    return value.tolist()


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - nested lists
    """Return `flat` as lists nested to an array's shape, or its one element for a scalar."""
    holder = np.empty(len(flat), dtype=object)
    holder[:] = flat
    return holder.reshape(shape).tolist()


def _from_json(value: Any, like: Array) -> Array:  # noqa: ANN401 - nested lists
    if like.dtype != object:
        return np.asarray(value, dtype=np.float64 if like.dtype.kind in "fV" else None).astype(like.dtype)
    flat = np.empty(like.shape, dtype=object) if like.size == 0 else np.asarray(value, dtype=object)
    return np.vectorize(_decode, otypes=[object])(flat) if flat.size else flat


def _decode(value: Any) -> bytes:  # noqa: ANN401 - text, or {"b64": text}
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


def _as_bytes(value: Any) -> bytes:  # noqa: ANN401 - bytes or str
    return value.encode() if isinstance(value, str) else bytes(value)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request: inputs for one signature, and the source's outputs for them."""

    signature: str
    rows: int | None
    inputs: Tensors
    expected: Tensors

    def __str__(self) -> str:
        return self.signature if self.rows is None else f"{self.signature}, {self.rows} row(s)"


@dataclass(frozen=True, slots=True)
class ServeCheck:
    """The result of the check. `rest_answers` is less than `grpc_answers` if JSON cannot carry some tensors."""

    grpc_answers: int
    rest_answers: int
    max_abs_difference: float
    start_seconds: float
    ask_seconds: float

    def __str__(self) -> str:
        answers = f"{self.grpc_answers} answer(s) over gRPC and {self.rest_answers} over REST match the source"
        difference = f"largest difference {self.max_abs_difference:.3g}"
        return f"{answers}, {difference}, ready after {self.start_seconds:.1f} s"


def make_requests(checked: CheckedVersion, batch_sizes: Sequence[int]) -> list[ServedRequest]:
    """Make requests for each deterministic signature: the smallest batch, the largest, and one that needs padding."""
    requests = []
    for one in (one for one in checked.signatures.values() if one.deterministic):
        for rows in _choose_rows(one, batch_sizes):
            inputs = one.samples if rows is None else take_rows(one.samples, slice(0, rows))
            expected = checked.reference.run(one.signature, inputs)
            requests.append(ServedRequest(one.signature.name, rows, inputs, expected))
    return requests


def check_serving(
    version: Path,
    model: str,
    requests: Sequence[ServedRequest],
    tolerance: Tolerance,
    allowed_ops: Sequence[str] = (),
) -> ServeCheck:
    """Serve `version` and compare its predictions. Blocks. The server gets `allowed_ops`.

    Raises MissingExtra, SessionLoadFailed, and ParityFailed as `send_all` does.
    """
    started_s = time.monotonic()
    with serving(version, model, allowed_ops) as server:
        ready_s = time.monotonic()
        by_grpc, by_rest = send_all(server, requests, tolerance)
        done_s = time.monotonic()
    largest = max([*by_grpc, *by_rest], default=0.0)
    return ServeCheck(len(by_grpc), len(by_rest), largest, ready_s - started_s, done_s - ready_s)


def send_all(
    server: ServerProcess, requests: Sequence[ServedRequest], tolerance: Tolerance
) -> tuple[list[float], list[float]]:
    """Return the differences by gRPC and by REST. Raises ParityFailed for the first one beyond the tolerance."""
    for_rest = [request for request in requests if can_be_json(request.inputs, request.expected)]
    return (
        [_send("gRPC", server, request, tolerance) for request in requests],
        [_send("REST", server, request, tolerance) for request in for_rest],
    )


def _choose_rows(one: CheckedSignature, batch_sizes: Sequence[int]) -> Sequence[int | None]:
    """Return numbers of rows that the checks used. A released source has only its recorded outputs."""
    if not one.signature.is_batchable:
        return [None]
    largest = max(batch_sizes)
    padded = {largest - 1} if one.rows_independent and largest > 1 else set()
    return sorted({min(batch_sizes), largest} | padded)


def _send(protocol: str, server: ServerProcess, request: ServedRequest, tolerance: Tolerance) -> float:
    where = f"served by {protocol}, {request}"
    try:
        if protocol == "gRPC":
            received = predict_grpc(server, request.signature, request.inputs)
        else:
            received = predict_rest(server, request.signature, request.inputs, request.expected)
    except ParityFailed as error:
        raise ParityFailed(f"{where}: {error}") from error
    difference = compare(request.expected, received, tolerance)
    if difference.beyond:
        raise ParityFailed(
            f"{where}: {difference.beyond}. The tolerance is {tolerance} (--atol, --rtol)",
            max_abs_difference=difference.max_abs if difference.max_abs < float("inf") else None,
            atol=tolerance.atol,
            rtol=tolerance.rtol,
        )
    return difference.max_abs
