"""Tests for the comparison of outputs."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from tpuserve_exporter.checks.difference import Tolerance, compare

NEAR = Tolerance(atol=1e-3, rtol=0.0)


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0009], True),
        ([1.0, 2.0], [1.0, 2.002], False),
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([np.nan, 1.0], [1.0, np.nan], False),
        ([np.inf], [-np.inf], False),
    ],
)
def test_floats_are_compared_within_the_tolerance(expected: list[float], actual: list[float], same: bool) -> None:
    difference = compare({"y": np.array(expected)}, {"y": np.array(actual)}, NEAR)
    assert (difference.beyond == "") is same


def test_relative_tolerance_scales_with_the_expected_value() -> None:
    one_percent = Tolerance(atol=0.0, rtol=0.01)
    assert compare({"y": np.array([1000.0])}, {"y": np.array([1009.0])}, one_percent).beyond == ""
    assert compare({"y": np.array([0.1])}, {"y": np.array([0.2])}, one_percent).beyond != ""


def test_the_largest_difference_over_all_outputs_is_told() -> None:
    expected = {"a": np.array([1.0]), "b": np.array([1.0])}
    actual = {"a": np.array([1.0001]), "b": np.array([1.0005])}
    assert compare(expected, actual, NEAR).max_abs == pytest.approx(5e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_float_dtype_has_a_difference(dtype: type) -> None:
    difference = compare({"y": np.array([1.0], dtype)}, {"y": np.array([1.5], dtype)}, NEAR)
    assert (difference.max_abs, bool(difference.beyond)) == (0.5, True)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True]), np.array([False])),
        (np.array([b"a"], object), np.array([b"b"], object)),
    ],
    ids=["integers", "booleans", "strings"],
)
def test_what_is_no_float_must_be_equal(expected: np.ndarray, actual: np.ndarray) -> None:
    anything = Tolerance(atol=100.0, rtol=100.0)
    assert compare({"y": expected}, {"y": expected}, anything).beyond == ""
    assert "differs in 1 element" in compare({"y": expected}, {"y": actual}, anything).beyond


def test_other_outputs_or_shapes_are_a_difference() -> None:
    assert "the outputs are ['z'] instead of ['y']" in compare({"y": np.ones(1)}, {"z": np.ones(1)}, NEAR).beyond
    assert "shape [2] instead of [1]" in compare({"y": np.ones(1)}, {"y": np.ones(2)}, NEAR).beyond


def test_defaults_follow_the_compute_dtype_and_give_way_to_what_is_asked() -> None:
    assert Tolerance.choose("float32", False, None, None) == Tolerance(1e-5, 1e-4)
    assert Tolerance.choose("bfloat16", False, None, None) == Tolerance(2e-2, 2e-2)
    assert Tolerance.choose("float16", False, None, None) == Tolerance(2.5e-3, 2.5e-3)
    assert Tolerance.choose("float32", True, None, None) == Tolerance(5e-2, 5e-2)
    assert Tolerance.choose("bfloat16", True, 0.5, 0.0) == Tolerance(0.5, 0.0)


def test_the_mean_counts_every_element() -> None:
    difference = compare({"y": np.array([1.0, 2.0, 3.0, 4.0])}, {"y": np.array([1.0, 2.0, 3.0, 4.4])}, NEAR)
    assert difference.outputs["y"].mean_abs == pytest.approx(0.1)
    unequal = compare({"y": np.array([1, 2])}, {"y": np.array([1, 3])}, NEAR)
    assert unequal.outputs["y"].mean_abs == 0.5


@pytest.mark.parametrize(
    ("expected", "actual", "agreement"),
    [
        ([[0.1, 0.9], [0.8, 0.2]], [[0.2, 0.8], [0.8, 0.2]], 1.0),
        ([[0.1, 0.9], [0.8, 0.2]], [[0.6, 0.4], [0.8, 0.2]], 0.5),
        ([[0.5, 0.5]], [[0.4, 0.6]], 1.0),
        ([0.1, 0.9], [0.9, 0.1], None),
        ([[0.1], [0.2]], [[0.2], [0.1]], None),
    ],
    ids=["same", "another", "two equals", "one row", "one column"],
)
def test_top_1_is_for_scores_of_classes(
    expected: list[list[float]], actual: list[list[float]], agreement: float | None
) -> None:
    difference = compare({"y": np.array(expected)}, {"y": np.array(actual)}, NEAR)
    assert difference.outputs["y"].top1_agreement == agreement


def test_large_outputs_are_compared_with_little_memory() -> None:
    expected = np.zeros((64, 100_000), np.float32)
    actual = expected.copy()
    actual[40, 7], expected[:, 9], actual[:, 9] = 0.25, 1.0, 1.0
    actual[63, 3] = 2.0
    tracemalloc.start()
    try:
        found = compare({"y": expected}, {"y": actual}, NEAR).outputs["y"]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < expected.nbytes / 2
    assert (found.max_abs, found.elements, found.ranked, found.agreeing) == (2.0, expected.size, 64, 63)
    assert found.mean_abs == pytest.approx(2.25 / expected.size)
    assert found.beyond == "output 'y' differs by up to 2"
