"""Tests for --serve-check: a real server must match the source, or the export fails with the server's message."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.exporter.conftest import Finished
from tests.exporter.test_fingerprint import save
from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.serve_check import (
    ServedRequest,
    ServerProcess,
    can_be_json,
    check_serving,
    predict_grpc,
    predict_rest,
    send_all,
    serving,
)
from tpuserve_exporter.errors import ParityFailed, SessionLoadFailed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]
TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "2,4")
INPUTS = {"x": np.array([[1.0, -2.0], [0.5, 3.0]], np.float32), "word": np.array([b"a", b"b"], object)}


def test_what_a_server_answered_is_in_the_report(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    document = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--serve-check", "--json").document
    assert document["version"] == 1
    served = document["serve_check"]
    assert (served["grpc_answers"], served["rest_answers"]) == (3, 3)  # two rows, three rows padded to four, four rows
    assert served["max_abs_difference"] < 1e-6
    assert served["start_seconds"] > 0
    steps = [step["title"] for step in document["steps"]]
    assert steps.index("Serve the version and compare its answers") == steps.index("Publish") - 1
    assert list(tmp_path.glob("tiny/.*")) == []


def test_without_a_server_it_says_what_to_install_before_any_work(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    done = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--serve-check", "--json")
    assert (done.code, done.document["kind"]) == (10, "MissingExtra")
    assert "pip install 'tpuserve-server[tensorflow]'" in done.document["error"]
    assert not (tmp_path / "tiny").exists()


@pytest.fixture(scope="module")
def server(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve a model with a string input and outputs of two dtypes."""
    with serving(save(tmp_path_factory.mktemp("saved") / "m"), "m") as server:
        yield server


def test_strings_and_integers_come_back_by_both_protocols(server: ServerProcess) -> None:
    by_grpc = predict_grpc(server, "serving_default", INPUTS)
    by_rest = predict_rest(server, "serving_default", INPUTS, by_grpc)
    np.testing.assert_array_equal(by_grpc["id"], [0, 1])
    np.testing.assert_allclose(by_grpc["y"], [[5.0, 0.0], [4.0, 16.0]])
    assert by_rest["id"].dtype == by_grpc["id"].dtype
    for name, value in by_grpc.items():
        np.testing.assert_array_equal(by_rest[name], value)


def test_what_a_server_refuses_is_said_in_its_words(server: ServerProcess) -> None:
    with pytest.raises(ParityFailed, match=r"the server returns FAILED_PRECONDITION: .*no_such"):
        predict_grpc(server, "no_such", INPUTS)
    with pytest.raises(ParityFailed, match=r"the server returns 400: .*no_such"):
        predict_rest(server, "no_such", INPUTS, {"y": INPUTS["x"]})


def test_another_answer_than_the_source_s_fails(server: ServerProcess) -> None:
    expected = {"y": np.array([[5.0, 0.0], [4.0, 16.5]], np.float32), "id": np.array([0, 1])}
    request = ServedRequest("serving_default", 2, INPUTS, expected)
    with pytest.raises(
        ParityFailed, match=r"served by gRPC, serving_default, 2 row\(s\): output 'y' differs by up to 0.5"
    ):
        send_all(server, [request], Tolerance(1e-5, 1e-4))


def test_a_version_that_no_server_loads_fails_with_the_server_s_reason(tensorflow: None, tmp_path: Path) -> None:
    version = save(tmp_path / "m")
    (version / "variables/variables.index").unlink()
    with pytest.raises(SessionLoadFailed, match=r"the server cannot load the version: .* no variables/"):
        check_serving(version, "m", [], Tolerance(1e-5, 1e-4))


def test_what_json_cannot_carry_is_asked_by_grpc_alone() -> None:
    text, noise = np.array([b"a"], object), np.array([b"\xff"], object)
    assert can_be_json({"x": noise}, {"y": text, "png_bytes": noise})
    assert not can_be_json({"x": text}, {"y": noise})
    assert not can_be_json({"x": np.zeros(2, np.complex64)}, {"y": text})
