"""The check that a real server returns the source's outputs, before the exporter publishes the version."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.samples.samples import take_rows
from tpuserve_exporter.serve_check.predict import can_be_json, predict_grpc, predict_rest
from tpuserve_exporter.serve_check.server_process import ServerProcess, serving
from tpuserve_exporter.signature import Tensors


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
