"""Tests for golden responses of a version directory: their recorded requests, and a load that is compared with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.recorded_logs import numbered, predict_entry, write_log
from tests.support import forked_command
from tpuserve_client.model import Signature, TensorSpec
from tpuserve_loadtests.golden.answers import GoldenAnswers
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.requests.arrays import BadInput
from tpuserve_loadtests.requests.recording import (
    WARMUP_FILE,
    BadRecording,
    Recording,
    read_golden_version,
    recorded_requests,
)
from tpuserve_server.observe.request_log.writer import LogEntry

FLOATS = np.dtype(np.float32)
SIGNATURE = Signature(
    "serving_default", {"x": TensorSpec("x", FLOATS, (None, 4))}, {"y": TensorSpec("y", FLOATS, (None, 4))}
)


def answered(value: float, *, factor: float = 2.0, rows: int = 1, output: str = "y", model: str = MODEL) -> LogEntry:
    """Return the log entry of a request to the doubling model with its response."""
    answer = {output: np.full((rows, 4), factor * value, FLOATS)}
    return predict_entry(numbered(value, rows), outputs=answer, model=model)


def version_with(folder: Path, *entries: LogEntry) -> Path:
    path = folder / "8" / WARMUP_FILE
    path.parent.mkdir(parents=True)
    write_log(path, entries)
    return folder / "8"


def test_requests_have_the_answers_that_were_recorded_beside_them(tmp_path: Path) -> None:
    version = version_with(tmp_path, answered(1), predict_entry(numbered(2)), answered(3, rows=2, model="its old name"))
    recording = read_golden_version(version).of_model("its new name")
    requests = list(recorded_requests(recording, SIGNATURE))
    answers = GoldenAnswers([request.golden for request in requests], Tolerance())
    assert [answers.outputs(number)["y"].tolist() for number in range(2)] == [[[2.0] * 4], [[6.0] * 4] * 2]
    assert [request.rows for request in requests] == [1, 2]
    assert recording.notes == (f"{version}: skipped 1 recorded request without a response",)


def test_a_recording_that_is_played_again_is_held_against_nothing(tmp_path: Path) -> None:
    recording = Recording.read([version_with(tmp_path, answered(1)) / WARMUP_FILE])
    assert [request.golden for request in recorded_requests(recording, SIGNATURE)] == [b""]


def test_answers_of_other_outputs_are_refused_before_the_load(tmp_path: Path) -> None:
    recording = read_golden_version(version_with(tmp_path, answered(1, output="z")))
    with pytest.raises(
        BadInput, match=r"request 1: the model's outputs are \['y'\]; the recorded response has \['z'\]"
    ):
        list(recorded_requests(recording, SIGNATURE))


def test_requests_alone_are_told_with_what_to_do(tmp_path: Path) -> None:
    version = version_with(tmp_path, predict_entry(numbered(1)))
    with pytest.raises(BadRecording, match="The 1 recorded requests have no responses") as refused:
        read_golden_version(version)
    assert f"--golden record --recorded {version / WARMUP_FILE} --users 32" in str(refused.value)


def test_a_folder_of_versions_is_told_from_a_version(tmp_path: Path) -> None:
    shutil.copytree(version_with(tmp_path, answered(1)), tmp_path / "10")
    with pytest.raises(BadRecording, match=f"Set one of its versions, such as {tmp_path / '10'}"):
        read_golden_version(tmp_path)
    with pytest.raises(BadRecording, match="Set a version directory with recorded requests"):
        read_golden_version(tmp_path / "8" / "assets.extra")


def loadtest(*arguments: str) -> forked_command.Ended:
    load = ("--duration", "0.5", "--warm-up", "0", "--users", "2", "--generator-limit", "note")
    return forked_command.run("tpuserve-loadtest", "run", MODEL, *load, *arguments)


def test_a_server_that_answers_otherwise_than_the_version_is_wrong(tmp_path: Path) -> None:
    version = version_with(tmp_path, answered(1), answered(3), answered(5, factor=4))
    with serving(Doubling()) as server:
        run = loadtest(
            "--grpc",
            server.grpc_address,
            "--golden",
            str(version),
            "--check-share",
            "1",
            "--fail-if",
            "wrong>0",
            "--json",
        )
    assert run.returncode == 99, run.stderr
    report = json.loads(run.stdout)
    assert {error["message"] for error in report["errors"]} == {
        "wrong response: output 'y' differs by 10 at [0, 0]: 10.0 instead of 20.0; allowed 0.00201 "
        "(float32, without a manifest; change with --atol/--rtol)"
    }
    assert report["total"]["wrong"] < report["total"]["checked"]


@pytest.mark.parametrize(
    ("golden", "options", "complaint"),
    [
        ("gs://models/digits/8", (), "Copy the version directory"),
        ("{version}", ("--rows", "4"), "contains complete requests. Omit --rows."),
        ("{version}/..", (), "Set one of its versions"),
    ],
)
def test_what_is_no_golden_version_is_exit_code_2(
    tmp_path: Path, golden: str, options: tuple[str, ...], complaint: str
) -> None:
    version = version_with(tmp_path, answered(1))
    with serving(Doubling()) as server:
        run = loadtest("--grpc", server.grpc_address, "--golden", golden.format(version=version), *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert complaint in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
