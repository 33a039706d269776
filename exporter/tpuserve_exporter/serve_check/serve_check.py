"""The check that a real server returns the source's outputs, before the exporter publishes the version."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.checks.version_checks import CheckedSignature, CheckedVersion
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.samples.samples import take_rows
from tpuserve_exporter.serve_check.asking import ask_grpc, ask_rest, can_be_json
from tpuserve_exporter.serve_check.server_process import ServerProcess, serving
from tpuserve_exporter.signature import Tensors


@dataclass(frozen=True, slots=True)
class Question:
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


def make_questions(checked: CheckedVersion, batch_sizes: Sequence[int]) -> list[Question]:
    """Make requests for each deterministic signature: the smallest batch, the largest, and one that needs padding."""
    questions = []
    for one in (one for one in checked.signatures.values() if one.deterministic):
        for rows in _choose_rows(one, batch_sizes):
            inputs = one.samples if rows is None else take_rows(one.samples, slice(0, rows))
            expected = checked.reference.run(one.signature, inputs)
            questions.append(Question(one.signature.name, rows, inputs, expected))
    return questions


def check_serving(version: Path, model: str, questions: Sequence[Question], tolerance: Tolerance) -> ServeCheck:
    """Serve `version` and compare its predictions. Blocks.

    Raises MissingExtra, SessionLoadFailed, and ParityFailed as `ask_all` does.
    """
    started_s = time.monotonic()
    with serving(version, model) as server:
        ready_s = time.monotonic()
        by_grpc, by_rest = ask_all(server, questions, tolerance)
        asked_s = time.monotonic()
    largest = max([*by_grpc, *by_rest], default=0.0)
    return ServeCheck(len(by_grpc), len(by_rest), largest, ready_s - started_s, asked_s - ready_s)


def ask_all(
    server: ServerProcess, questions: Sequence[Question], tolerance: Tolerance
) -> tuple[list[float], list[float]]:
    """Return the differences by gRPC and by REST. Raises ParityFailed for the first one beyond the tolerance."""
    for_rest = [question for question in questions if can_be_json(question.inputs, question.expected)]
    return (
        [_ask("gRPC", server, question, tolerance) for question in questions],
        [_ask("REST", server, question, tolerance) for question in for_rest],
    )


def _choose_rows(one: CheckedSignature, batch_sizes: Sequence[int]) -> Sequence[int | None]:
    """Return numbers of rows that the checks used. A released source has only its recorded outputs."""
    if not one.signature.is_batchable:
        return [None]
    largest = max(batch_sizes)
    padded = {largest - 1} if one.rows_independent and largest > 1 else set()
    return sorted({min(batch_sizes), largest} | padded)


def _ask(protocol: str, server: ServerProcess, question: Question, tolerance: Tolerance) -> float:
    """Send one request and return the largest difference."""
    where = f"served by {protocol}, {question}"
    try:
        if protocol == "gRPC":
            answered = ask_grpc(server, question.signature, question.inputs)
        else:
            answered = ask_rest(server, question.signature, question.inputs, question.expected)
    except ParityFailed as error:
        raise ParityFailed(f"{where}: {error}") from error
    difference = compare(question.expected, answered, tolerance)
    if difference.beyond:
        raise ParityFailed(
            f"{where}: {difference.beyond}. The tolerance is {tolerance} (--atol, --rtol)",
            max_abs_difference=difference.max_abs if difference.max_abs < float("inf") else None,
            atol=tolerance.atol,
            rtol=tolerance.rtol,
        )
    return difference.max_abs
