"""Tests for the record of the source's answers."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tpuserve_exporter.checks.case_runs import RecordedAnswers
from tpuserve_exporter.terms.signature import Array, Signature, Tensors

SIGNATURE = Signature("serving_default", {}, {})


class Outputs:
    """A model that returns the same outputs for every request."""

    def __init__(self, outputs: Tensors) -> None:
        self._outputs = outputs

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        return self._outputs


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array([1.5, np.nan], ml_dtypes.bfloat16),
        np.array([b"a", b"\xff"], object),
        np.array(7),
        np.empty((0, 3), np.int64),
        np.array([1 + 2j], np.complex64),
    ],
    ids=["float32", "bfloat16", "strings", "scalar", "empty", "complex"],
)
def test_recorded_answers_come_back_from_their_file(tmp_path: Path, value: Array) -> None:
    answers, first, second = RecordedAnswers(tmp_path), {"x": np.array([1])}, {"x": np.array([2])}
    answers.record(Outputs({"y": value, "z": np.arange(3)}), SIGNATURE, [first])
    answers.record(Outputs({"y": value[::-1] if value.ndim else value + 1}), SIGNATURE, [first, second])
    found = answers.run(SIGNATURE, first)
    assert found["y"].dtype == value.dtype
    assert repr(found["y"].tolist()) == repr(value.tolist())
    np.testing.assert_array_equal(found["z"], np.arange(3))
    assert answers.run(SIGNATURE, second)["y"].shape == value.shape
    with pytest.raises(KeyError):
        answers.run(SIGNATURE, {"x": np.array([3])})
