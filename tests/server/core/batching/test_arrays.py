"""Tests for the inputs of a lone request: whether the runtime reads them where they are."""

import asyncio

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.batching.arrays import (
    BatchBuffers,
    choose_bucket,
    empty_aligned,
    empty_batch,
    fill_batch,
    join_batch,
    split_rows,
)
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.system.alignment import ALIGNMENT_BYTES
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.types import Array, Tensors

SHAPE = (2, 1 << 14)


@pytest.fixture
def buffers() -> BatchBuffers:
    return BatchBuffers(1 << 24)


def misaligned(shape: tuple[int, ...] = SHAPE) -> Array:
    """Return a view of bytes as of a message: not even at a multiple of four."""
    values = np.arange(np.prod(shape), dtype=np.float32)
    memory = empty_aligned((values.nbytes + 1,), np.dtype(np.uint8))
    memory[1:] = values.view(np.uint8)
    return np.ndarray(shape, np.float32, memory, 1)


def joined(array: Array, buffers: BatchBuffers, *, shareable: bool = True) -> tuple[Tensors, bool]:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    task = Task("serving_default", ("y",), {"x": array}, len(array), Deadline.never(), future, shareable)
    loop.close()
    return join_batch([task], task.rows, task.rows, None, buffers)


def test_aligned_inputs_are_read_where_they_are(buffers: BatchBuffers) -> None:
    array = empty_aligned(SHAPE, np.dtype(np.float32))
    batch, is_buffer = joined(array, buffers)
    assert batch["x"] is array
    assert not is_buffer


def test_views_of_messages_are_copied_once_into_a_buffer(buffers: BatchBuffers) -> None:
    array = misaligned()
    batch, is_buffer = joined(array, buffers)
    np.testing.assert_array_equal(batch["x"], array)
    assert is_buffer
    assert batch["x"].ctypes.data % ALIGNMENT_BYTES == 0


def test_inputs_without_rows_are_copied_to_memory_of_their_own(buffers: BatchBuffers) -> None:
    array = misaligned()
    batch, is_buffer = joined(array, buffers, shareable=False)
    np.testing.assert_array_equal(batch["x"], array)
    assert not is_buffer
    assert batch["x"].ctypes.data % ALIGNMENT_BYTES == 0


def test_small_inputs_are_left_to_the_runtime(buffers: BatchBuffers) -> None:
    array = misaligned((2, 3))
    assert joined(array, buffers)[0]["x"] is array


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


LIKE = {"x": np.zeros((1, 1), np.float32)}


def buffer(buffers: BatchBuffers, columns: int) -> Array:
    return buffers.get("serving_default", LIKE, {"x": (columns,)}, bucket=4)["x"]


def is_kept(buffers: BatchBuffers, columns: int) -> bool:
    """Return whether a buffer has the numbers of its last use, and use it."""
    array = buffer(buffers, columns)
    was_used = bool((array == columns).all())
    array[...] = columns
    return was_used


def test_a_shape_that_comes_again_finds_its_buffer() -> None:
    buffers = BatchBuffers(2**20)
    is_kept(buffers, 1)
    is_kept(buffers, 2)
    assert is_kept(buffers, 1)


def test_shapes_that_clients_make_up_are_not_all_kept() -> None:
    buffers = BatchBuffers(2**30)
    for columns in range(1, 1000):
        is_kept(buffers, columns)
    # A shape that has left gets a buffer without the numbers of its last use, whatever memory it has.
    buffers.get("serving_default", LIKE, {"x": (1000,)}, bucket=4)["x"][...] = 0
    first = buffer(buffers, 1)
    assert not np.shares_memory(first, buffer(buffers, 999))
    assert is_kept(buffers, 999)


def test_what_would_be_too_large_beside_the_others_makes_them_leave() -> None:
    buffers = BatchBuffers(100)
    small = buffer(buffers, 1)
    small[...] = 7
    view = buffer(buffers, 6)
    view[...] = 6
    del view
    assert is_kept(buffers, 6)
    assert not np.shares_memory(small, buffer(buffers, 1))


def test_a_buffer_that_is_still_in_use_is_left_to_its_user() -> None:
    buffers = BatchBuffers(2**20)
    row = buffer(buffers, 3)[1:2]
    row[...] = 5
    buffer(buffers, 3)[...] = 6
    assert (row == 5).all()
