"""Tests for the division of inputs into parts of rows and the join of outputs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Prediction, Signature, TensorSpec
from tpuserve_client.row_parts import (
    check_max_batch_size,
    check_outputs_have_rows,
    check_rows,
    count_rows,
    join_rows,
    split_rows,
)
from tpuserve_formats.dtypes import BY_DTYPE

SPEC = ModelSpec("m")


def prediction(**outputs: Array) -> Prediction:
    return Prediction(outputs, "m", 7, "serving_default")


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Array]:
    """Draw inputs of every dtype with equally many rows."""
    rows = draw(st.integers(0, 20))
    names = draw(st.sets(st.sampled_from("abc"), min_size=1))
    drawn = {}
    for name in sorted(names):
        kind = draw(st.sampled_from(list(BY_DTYPE)))
        shape = (rows, *draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)))
        numbers = np.arange(np.prod(shape)).reshape(shape) % 100
        drawn[name] = numbers.astype(str).astype("S").astype(object) if kind.kind == "O" else numbers.astype(kind)
    return drawn


@given(tables(), st.integers(1, 30))
def test_joined_parts_are_the_whole(arrays: dict[str, Array], max_batch_size: int) -> None:
    parts = split_rows(arrays, count_rows(SPEC, arrays), max_batch_size)
    joined = join_rows([prediction(**part) for part in parts])
    assert set(joined) == set(arrays)
    for name, array in arrays.items():
        assert (joined[name].dtype, joined[name].shape) == (array.dtype, array.shape)
        assert joined[name].tobytes() == array.tobytes() or joined[name].tolist() == array.tolist()


@given(tables(), st.integers(1, 30))
def test_parts_are_full_but_the_last_and_copy_nothing(arrays: dict[str, Array], max_batch_size: int) -> None:
    rows = count_rows(SPEC, arrays)
    parts = split_rows(arrays, rows, max_batch_size)
    sizes = [{len(array) for array in part.values()} for part in parts]
    assert all(len(each) == 1 for each in sizes)
    counts = [each.pop() for each in sizes]
    assert sum(counts) == rows
    assert all(count == max_batch_size for count in counts[:-1])
    assert counts[-1] > 0 or rows == 0
    assert all(np.shares_memory(part[name], arrays[name]) for part in parts for name in part if part[name].size)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None, [1], -(2**64)])
def test_size_of_a_part_is_a_positive_integer(value: Any) -> None:  # noqa: ANN401 - wrong types
    with pytest.raises(InvalidArgument, match="max_batch_size must be a positive integer"):
        check_max_batch_size(value)


def test_size_of_a_part_is_any_integer_type() -> None:
    assert check_max_batch_size(np.int32(3)) == 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3), "scale": np.ones(())}, "input scale has no rows"),
        ({"x": np.ones(3), "y": np.ones(4)}, r"equally many rows to divide, not \{'x': 3, 'y': 4\}"),
        ({}, "equally many rows"),
    ],
)
def test_inputs_without_common_rows_are_refused(arrays: dict[str, Array], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        count_rows(SPEC, arrays)


@pytest.mark.parametrize("shape", [(), (3,), (1, None)])
def test_output_without_rows_is_refused_unless_the_caller_omits_it(shape: tuple[int | None, ...]) -> None:
    outputs = {"y": TensorSpec("y", np.dtype("f4"), (None, 2)), "total": TensorSpec("total", np.dtype("f4"), shape)}
    signature = Signature("s", {}, outputs)
    with pytest.raises(InvalidArgument, match=r"output total: float32\[.*\] has no dimension for rows"):
        check_outputs_have_rows(SPEC, signature, ())
    check_outputs_have_rows(SPEC, signature, ("y",))


def test_output_of_unknown_rank_is_left_to_the_response() -> None:
    check_outputs_have_rows(SPEC, Signature("s", {}, {"y": TensorSpec("y", None, None)}), ())


@pytest.mark.parametrize("shape", [(), (2,), (6, 1)])
def test_output_with_other_rows_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"output y has shape \[.*\] for 3 rows"):
        check_rows(prediction(y=np.ones(shape)), 3)


@pytest.mark.parametrize("other", [np.ones((2, 4), np.float32), np.ones((2, 3), np.float64)])
def test_parts_with_other_rows_are_refused(other: Array) -> None:
    with pytest.raises(InvalidArgument, match="output y has rows of different shapes"):
        join_rows([prediction(y=np.ones((2, 3), np.float32)), prediction(y=other)])


def test_one_part_is_not_copied() -> None:
    only = prediction(y=np.ones(3))
    assert join_rows([only]) is only
