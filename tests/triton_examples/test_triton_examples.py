"""Triton's own examples, if there is a clone of them, and the table of their outcomes."""

import os
from pathlib import Path

import pytest

from tests.support.optional import find_oip_clients
from tests.triton_examples.__main__ import main, run_examples
from tests.triton_examples.catalogue import EXAMPLES, Example
from tests.triton_examples.outcomes import Outcome, failed, judge, run_example, table

WORKS = Example("works.py", "http", "PASS: infer", arguments=("-C", "gzip"))
UNSERVED = Example("sequence.py", "grpc", reason="needs sequences", failure="sequence_id")
LEFT_OUT = Example("cuda.py", "grpc", reason="needs CUDA")


@pytest.mark.parametrize(
    ("example", "status", "output", "result"),
    [
        (WORKS, 0, "1 + 1 = 2\nPASS: infer\n", "passed"),
        (WORKS, 0, "context creation failed: refused\n", "FAILED"),
        (WORKS, 1, "PASS: infer\n", "FAILED"),
        (UNSERVED, 1, "sequence_id is not supported", "expected failure"),
        (UNSERVED, 1, "connection refused", "FAILED"),
        (UNSERVED, 0, "PASS: Sequence, sequence_id", "FAILED"),
    ],
)
def test_status_and_output_decide(example: Example, status: int, output: str, result: str) -> None:
    outcome = judge(example, status, output)
    assert outcome.result == result
    assert bool(outcome.output) == (result == "FAILED")


def test_example_without_a_failure_does_not_run(tmp_path: Path) -> None:
    assert run_example(LEFT_OUT, tmp_path / "python", tmp_path, {}, tmp_path) == Outcome(LEFT_OUT, "not run")


def test_outcomes_become_a_table() -> None:
    outcomes = [
        Outcome(WORKS, "passed"), Outcome(WORKS, "FAILED", "no sum"), Outcome(UNSERVED, "expected failure"),
        Outcome(LEFT_OUT, "not run"),
    ]  # fmt: skip
    assert table(outcomes).splitlines() == [
        "| example | outcome | reason |",
        "| --- | --- | --- |",
        "| works.py -C gzip | passed |  |",
        "| works.py -C gzip | FAILED |  |",
        "| sequence.py | expected failure | needs sequences |",
        "| cuda.py | not run | needs CUDA |",
        "| **passed** | **1 of 2** |  |",
    ]
    assert [outcome.output for outcome in failed(outcomes)] == ["no sum"]


def test_every_example_differs() -> None:
    titles = [(example.title, example.protocol) for example in EXAMPLES]
    assert len(set(titles)) == len(titles)


def test_a_folder_that_is_no_clone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--checkout", str(tmp_path)])
    assert ended.value.code == 2
    assert "does not contain src/python/examples. Clone github.com/triton-inference-server/client." in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tritons_own_examples_pass() -> None:
    checkout = os.environ.get("TPUSERVE_TRITON_CLIENT_CHECKOUT")
    if not checkout:
        pytest.skip("TPUSERVE_TRITON_CLIENT_CHECKOUT names no clone of github.com/triton-inference-server/client")
    if find_oip_clients() is None:
        pytest.skip("the examples need tritonclient: make oip-clients")
    assert failed(run_examples(Path(checkout))) == []
