"""Tests of the rules for shapes, and that the fast check of inputs agrees with the checks that explain faults.

Most of the others are in test_service.py.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors, TensorSpec
from tpuserve_server.core.terms.validation import ShapeRules, check_row_splits, count_plain_rows

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
        ([TensorSpec("x", FLOAT, (None, None))], {"x": np.zeros((4, 0), FLOAT)}, 0),
        ([TensorSpec("x", FLOAT, None)], {"x": np.zeros((1,) * 9, FLOAT)}, 0),
    ],
)
def test_rows_are_counted_only_where_nothing_is_left_to_say(
    specs: list[TensorSpec], inputs: Tensors, rows: int
) -> None:
    assert count_plain_rows(signature(*specs), inputs) == rows


ID = ServableId("m", 3)
FREE, IMAGE = TensorSpec("x", FLOAT, (None, None)), TensorSpec("x", FLOAT, (None, 2048, 2048, 3))
ANY = TensorSpec("x", FLOAT, None)


@pytest.mark.parametrize(
    ("spec", "shape", "wrong"),
    [
        (X, (4, 3), ""),
        (X, (0, 3), ""),
        (X, (3,), "signature 's' of model m version 3: input 'x' has shape [3], expected [-1, 3]"),
        (X, (), "input 'x' has shape [], expected [-1, 3]"),
        (X, (1, 4, 3), "input 'x' has shape [1, 4, 3], expected [-1, 3]"),
        (X, (4, 2), "input 'x' has shape [4, 2], expected [-1, 3]"),
        (X, (1,) * 60, "input 'x' has shape of 60 dimensions, expected [-1, 3]"),
        # Tensors without elements.
        (FREE, (0, 0), ""),
        (FREE, (0, 2048), ""),
        (FREE, (2048, 0), ""),
        (
            FREE,
            (2049, 0),
            "has shape [2049, 0], but may have no elements only if its other free dimensions are at most",
        ),
        (FREE, (0, 2**45), "at most 2048, and their product at most 65536"),
        (FREE, (2**31, 0), "at most 2048"),
        (TensorSpec("x", FLOAT, (None, None, None)), (256, 0, 256), ""),
        (TensorSpec("x", FLOAT, (None, None, None)), (256, 0, 257), "their product at most 65536"),
        (IMAGE, (0, 2048, 2048, 3), ""),
        (TensorSpec("x", FLOAT, (None, None, 0)), (2**31, 1, 0), "at most 2048"),
        # Tensors with elements are as large as what the request has sent.
        (FREE, (2**20, 2**20), ""),
        # Unknown ranks.
        (ANY, (), ""),
        (ANY, (1,) * 8, ""),
        (ANY, (1,) * 9, "has shape [1, 1, 1, 1, 1, 1, 1, 1, 1], but may have at most 8 dimensions"),
        (ANY, (0, 2**45), "at most 2048"),
        (TensorSpec("x", FLOAT, (1,) * 9), (1,) * 9, ""),
    ],
)
def test_inputs_have_the_shape_of_the_signature(spec: TensorSpec, shape: tuple[int, ...], wrong: str) -> None:
    signature_of_x = Signature("s", {"x": spec}, {})
    if not wrong:
        ShapeRules().check(ID, signature_of_x, "x", shape)
        return
    with pytest.raises(InvalidArgument, match=re.escape(wrong)):
        ShapeRules().check(ID, signature_of_x, "x", shape)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (1, 4, 3)])
def test_lenient_rules_leave_ranks_and_sizes_to_the_model(shape: tuple[int, ...]) -> None:
    ShapeRules(is_lenient=True).check(ID, Signature("s", {"x": X}, {}), "x", shape)


@pytest.mark.parametrize("shape", [(0, 2**45), (2**31, 3, 0), (1,) * 9])
def test_lenient_rules_bound_what_a_shape_promises(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument):
        ShapeRules(is_lenient=True).check(ID, Signature("s", {"x": X}, {}), "x", shape)


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
