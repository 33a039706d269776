import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.batching.padding import ALIGNMENT_BYTES, choose_bucket, empty_batch, fill_batch, split_rows
from tpuserve_server.core.terms.errors import FailedPrecondition


@pytest.mark.parametrize(
    ("rows", "allowed", "bucket"),
    [(1, (1, 4, 8), 1), (2, (1, 4, 8), 4), (8, (1, 4, 8), 8), (3, (), 3), (9, (1, 4, 8), 9)],
)
def test_smallest_allowed_size_that_holds_the_rows(rows: int, allowed: tuple[int, ...], bucket: int) -> None:
    assert choose_bucket(rows, allowed) == bucket


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), padding=st.integers(0, 7), seed=st.integers(0, 99))
def test_joined_and_split_rows_come_back_to_their_owners(sizes: list[int], padding: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [{"a": random.random((size, 3)), "b": random.integers(0, 9, (size,))} for size in sizes]
    rows = sum(sizes)
    batch = empty_batch(parts[0], {"a": (3,), "b": ()}, rows + padding)
    fill_batch(batch, parts, rows)
    for part, back in zip(parts, split_rows(batch, sizes, rows + padding), strict=True):
        np.testing.assert_array_equal(part["a"], back["a"])
        np.testing.assert_array_equal(part["b"], back["b"])
    for row in batch["a"][rows:]:
        np.testing.assert_array_equal(row, parts[-1]["a"][-1])


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex128, ml_dtypes.bfloat16])
def test_batches_begin_where_runtimes_read_in_place(dtype: type) -> None:
    for rows in (0, 1, 300):
        batch = empty_batch({"a": np.zeros((1, 7), dtype)}, {"a": (7,)}, rows)["a"]
        assert batch.shape == (rows, 7)
        assert batch.dtype == dtype
        assert batch.ctypes.data % ALIGNMENT_BYTES == 0


def test_strings_are_joined_too() -> None:
    parts = [{"s": np.array([b"a", b"bc"], object)}, {"s": np.array([b""], object)}]
    batch = empty_batch(parts[0], {"s": ()}, 4)
    fill_batch(batch, parts, 3)
    assert batch["s"].tolist() == [b"a", b"bc", b"", b""]


@pytest.mark.parametrize("output", [np.zeros(()), np.zeros((3, 2))])
def test_an_output_without_the_batchs_rows_is_refused(output: np.ndarray) -> None:
    with pytest.raises(FailedPrecondition, match="0th dimension does not equal"):
        split_rows({"y": output}, [1, 1], 2)
