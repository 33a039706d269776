"""The check that a real server returns the source's outputs, before the exporter publishes the version."""

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.server_process import ServerProcess, serving
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.terms.samples import take_rows
from tpuserve_exporter.terms.signature import Array, Tensors

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
    """Send one request and return the largest difference."""
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
