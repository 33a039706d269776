"""Tests for the differences between served and expected outputs."""

import numpy as np
import pytest

from examples.difference import Differs, largest_difference

EXACT = (0.0, 0.0)


def test_the_largest_difference_of_all_outputs_is_returned() -> None:
    expected = {"a": np.array([1.0, 2.0]), "b": np.array([3])}
    served = {"a": np.array([1.0, 2.25]), "b": np.array([4])}
    assert largest_difference(expected, served, 1.0, 1e-4) == 1.0


def test_nan_and_infinity_equal_themselves_alone() -> None:
    odd = np.array([np.nan, np.inf, -np.inf])
    assert largest_difference({"a": odd}, {"a": odd.copy()}, *EXACT) == 0
    with pytest.raises(Differs, match="a differs by up to"):
        largest_difference({"a": odd}, {"a": np.array([np.nan, np.inf, 1.0])}, 1.0, 1.0)
    with pytest.raises(Differs, match="a differs by up to"):
        largest_difference({"a": np.array([1.0])}, {"a": np.array([np.nan])}, 1.0, 1.0)


@pytest.mark.parametrize(
    ("served", "message"),
    [
        ({"b": np.zeros(2)}, r"the outputs are \['b'\], expected \['a'\]"),
        ({"a": np.zeros(3)}, r"a has shape \[3\], expected \[2\]"),
        ({"a": np.zeros(2, np.float32)}, "a has dtype float32, expected float64"),
    ],
)
def test_names_shapes_and_dtypes_are_held_to(served: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(Differs, match=message):
        largest_difference({"a": np.zeros(2)}, served, *EXACT)


def test_json_is_not_held_to_dtypes() -> None:
    assert largest_difference({"a": np.zeros(2)}, {"a": np.zeros(2, np.int64)}, *EXACT, dtypes=False) == 0


def test_text_must_be_equal() -> None:
    expected = {"a": np.array([b"x", "grüße".encode()], object)}
    assert largest_difference(expected, {"a": np.array(["x", "grüße"], object)}, *EXACT) == 0
    with pytest.raises(Differs, match="expected"):
        largest_difference(expected, {"a": np.array([b"x", b"y"], object)}, *EXACT)


def test_complex_numbers_and_scalars_are_compared() -> None:
    assert largest_difference({"a": np.array(1 + 1j)}, {"a": np.array(1 - 1j)}, 2.0, 1e-4) == 2.0
    assert largest_difference({"a": np.zeros((2, 0))}, {"a": np.zeros((2, 0))}, *EXACT) == 0
