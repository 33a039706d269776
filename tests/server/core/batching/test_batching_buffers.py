import numpy as np

from tpuserve_server.core.batching.buffers import BatchBuffers
from tpuserve_server.core.types import Array

LIKE = {"x": np.zeros((1, 1), np.float32)}


def buffer(buffers: BatchBuffers, columns: int) -> Array:
    return buffers.get("serving_default", LIKE, {"x": (columns,)}, bucket=4)["x"]


def test_a_shape_that_comes_again_finds_its_buffer() -> None:
    buffers = BatchBuffers(2**20)
    first = buffer(buffers, 1)
    buffer(buffers, 2)
    assert np.shares_memory(first, buffer(buffers, 1))


def test_shapes_that_clients_make_up_are_not_all_kept() -> None:
    buffers = BatchBuffers(2**30)
    first = buffer(buffers, 1)
    kept = [buffer(buffers, columns) for columns in range(2, 1000)]
    assert not np.shares_memory(first, buffer(buffers, 1))
    assert np.shares_memory(kept[-1], buffer(buffers, 999))


def test_what_would_be_too_large_beside_the_others_makes_them_leave() -> None:
    buffers = BatchBuffers(100)
    first = buffer(buffers, 1)
    large = buffer(buffers, 6)
    assert np.shares_memory(large, buffer(buffers, 6))
    assert not np.shares_memory(first, buffer(buffers, 1))
