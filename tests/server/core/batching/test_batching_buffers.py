import numpy as np

from tpuserve_server.core.batching.buffers import BatchBuffers
from tpuserve_server.core.terms.types import Array

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
