"""Tests that the fast check of inputs agrees with the checks that explain faults (most are in test_service.py)."""

from dataclasses import replace

import numpy as np
import pytest

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Signature, Tensors, TensorSpec
from tpuserve_server.core.validation import check_row_splits, count_plain_rows

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
X, TWO = TensorSpec("x", FLOAT, (None, 3)), TensorSpec("n", INT, (None,))


def signature(*specs: TensorSpec) -> Signature:
    return Signature("serving_default", {spec.name: spec for spec in specs}, {})


@pytest.mark.parametrize(
    ("specs", "inputs", "rows"),
    [
        ([X], {"x": np.zeros((4, 3), FLOAT)}, 4),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(4, INT)}, 4),
        ([TensorSpec("x", FLOAT, None)], {"x": np.zeros((2, 9), FLOAT)}, 2),
        # Inputs with a fault, or that must run alone.
        ([X], {"x": np.zeros((4, 3), np.float64)}, 0),
        ([X], {"x": np.zeros((4, 2), FLOAT)}, 0),
        ([X], {"x": np.zeros((4, 3, 1), FLOAT)}, 0),
        ([X], {"y": np.zeros((4, 3), FLOAT)}, 0),
        ([X], {}, 0),
        ([X], {"x": np.zeros((0, 3), FLOAT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(5, INT)}, 0),
        ([X, TWO], {"x": np.zeros((0, 3), FLOAT), "n": np.zeros(5, INT)}, 0),
        ([X, TWO], {"x": np.zeros((4, 3), FLOAT), "n": np.zeros(0, INT)}, 0),
        ([TensorSpec("x", FLOAT, None)], {"x": np.zeros((), FLOAT)}, 0),
    ],
)
def test_rows_are_counted_only_where_nothing_is_left_to_say(
    specs: list[TensorSpec], inputs: Tensors, rows: int
) -> None:
    assert count_plain_rows(signature(*specs), inputs) == rows


RAGGED = Signature(
    "s",
    {
        "x": TensorSpec("x", np.dtype(np.float32), (None,)),
        "x_1": TensorSpec("x_1", np.dtype(np.int64), (None,)),
        "x_2": TensorSpec("x_2", np.dtype(np.int64), (None,)),
    },
    {"y": TensorSpec("y", np.dtype(np.float32), (None,))},
    ragged_inputs={"x": ("x_1", "x_2")},
)


def test_rows_of_a_ragged_signature_are_never_batched() -> None:
    assert not RAGGED.is_batchable
    assert replace(RAGGED, ragged_inputs={}).is_batchable
    assert not replace(RAGGED, ragged_inputs={}, ragged_outputs={"y": ("y_1",)}).is_batchable


@pytest.mark.parametrize(
    ("outer", "inner", "wrong"),
    [
        ([0, 1, 2], [0, 1, 3], ""),
        ([0, 0, 0, 2], [0, 3, 3], ""),
        ([0, 1, 3], [0, 1, 3], "'x_1' contains row splits of the ragged 'x': expected numbers from 0 to 2"),
        ([0, 2], [0, 1, 4], "'x_2' contains row splits of the ragged 'x': expected numbers from 0 to 3"),
        ([0, 2], [1, 1, 3], r"'x_2' .* got \[1 1 3\]"),
        ([0, 3, 2, 2], [0, 1, 3], r"'x_1' .* do not decrease, got \[0 3 2 2\]"),
        # Each difference of two neighbours fits or wraps around to a non-negative number.
        ([0, 2], [0, 2**63 - 1, -(2**63), -1, 3], "'x_2' contains row splits"),
        ([], [0, 1, 3], r"'x_1' .* got \[\]"),
        ([[0, 2]], [0, 1, 3], "'x_1' contains row splits"),
    ],
)
def test_row_splits_must_fit_what_they_split(outer: list[int], inner: list[int], wrong: str) -> None:
    inputs: Tensors = {
        "x": np.zeros(3, np.float32), "x_1": np.array(outer, np.int64), "x_2": np.array(inner, np.int64),
    }  # fmt: skip
    if not wrong:
        check_row_splits(RAGGED, inputs)
        return
    with pytest.raises(InvalidArgument, match=wrong):
        check_row_splits(RAGGED, inputs)
