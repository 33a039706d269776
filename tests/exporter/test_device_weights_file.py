"""Tests for `weights.safetensors`: the library can read and map it, and the writer holds one value at a time."""

import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs.weights_file import Weight, map_weights, write_weights

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint16", "bool", "complex64", "float8_e4m3fn"]


def weight(name: str, value: Any) -> Weight:  # noqa: ANN401 - an array of any dtype
    return Weight(name, value.dtype.name, value.shape, lambda: value)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=5))
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, specs: list[tuple[str, list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    random = np.random.default_rng(0)
    values = {
        f"layer {index}/ü": (random.random(shape) * 5).astype(np.dtype(name))
        for index, (name, shape) in enumerate(specs)
    }
    size = write_weights(path, [weight(name, value) for name, value in values.items()])
    assert path.stat().st_size == size
    library = {name: one["data"] for name, one in deserialize(path.read_bytes())}  # type: ignore[no-untyped-call]  # untyped
    assert library == {name: one.tobytes() for name, one in values.items()}
    assert {name: (one.dtype, one.shape, one.tobytes()) for name, one in map_weights(path).items()} == {
        name: (one.dtype, one.shape, one.tobytes()) for name, one in values.items()
    }


def test_most_can_be_used_where_they_are_mapped(tmp_path: Path) -> None:
    odd, even = np.ones(3, np.float32), np.ones((8, 16), ml_dtypes.bfloat16)
    write_weights(tmp_path / "w", [weight("a bias", odd), weight("kernel", even), weight("table", even)])
    mapped = map_weights(tmp_path / "w")
    assert [mapped[name].ctypes.data % 64 for name in ("kernel", "table")] == [0, 0]


def test_one_value_is_in_memory_at_a_time(tmp_path: Path) -> None:
    before: list[weakref.ref[Any]] = []

    def read() -> Any:  # noqa: ANN401 - an array
        assert all(one() is None for one in before)
        value = np.ones(1000, np.float32)
        before.append(weakref.ref(value))
        return value

    write_weights(tmp_path / "w", [Weight(f"w{index}", "float32", (1000,), read) for index in range(4)])
    assert len(before) == 4


def test_a_dtype_that_the_format_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotLower, match="weight table is of int4, but"):
        write_weights(tmp_path / "w", [Weight("table", "int4", (2,), lambda: np.zeros(2, ml_dtypes.int4))])
