"""Tests for the inputs of a lone request: whether the runtime reads them where they are."""

import asyncio

import numpy as np
import pytest

from tpuserve_server.core.batching.arrays import join_batch
from tpuserve_server.core.batching.buffers import BatchBuffers
from tpuserve_server.core.batching.padding import ALIGNMENT_BYTES, empty_aligned
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
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
