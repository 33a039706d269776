"""Tests for bytes that arrive in chunks: they come out whole, and the contents of a large tensor are aligned."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuserve_server.core.system.alignment import ALIGNMENT_BYTES, LEAST_BYTES, aligned_bytes
from tpuserve_server.core.system.byte_parts import LARGE_CONTENTS_BYTES, PART_BYTES, ByteParts

MEBIBYTE = 1 << 20
BYTES = np.random.default_rng(0).bytes(3 * MEBIBYTE)


def address(data: bytes | bytearray) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def filled(parts: ByteParts, data: bytes, chunk_bytes: int) -> ByteParts:
    for start in range(0, len(data), chunk_bytes):
        parts.add(data[start : start + chunk_bytes])
    return parts


@given(size=st.integers(LEAST_BYTES, 3000), start=st.integers(0, 3000))
def test_contents_at_any_place_are_aligned(size: int, start: int) -> None:
    memory = aligned_bytes(size + start, start)
    assert len(memory) == size + start
    assert (address(memory) + start) % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("size", range(LEAST_BYTES))
def test_fewer_bytes_have_their_size(size: int) -> None:
    assert len(aligned_bytes(size)) == size


@settings(max_examples=40)
@given(
    size=st.sampled_from([LARGE_CONTENTS_BYTES, 602_117, 3 * MEBIBYTE]),
    chunk_bytes=st.sampled_from([1000, 4096, 8192, 16384, 65536, PART_BYTES + 1]),
    start=st.one_of(st.none(), st.integers(0, 3 * MEBIBYTE)),
    error_bytes=st.sampled_from([0, 0, -5, 5]),
)
async def test_bytes_come_out_whole_whatever_was_declared(
    size: int, chunk_bytes: int, start: int | None, error_bytes: int
) -> None:
    parts = filled(ByteParts(size + error_bytes, lambda _head: start), BYTES[:size], chunk_bytes)
    assert parts.size_bytes == size
    assert await parts.join() == BYTES[:size]


@pytest.mark.parametrize("start", [0, 1, 117, 4000])
@pytest.mark.parametrize("chunk_bytes", [1000, 8192, 3 * MEBIBYTE])
async def test_the_contents_of_a_large_tensor_are_aligned(start: int, chunk_bytes: int) -> None:
    heads: list[bytes] = []

    def find(head: bytes) -> int:
        heads.append(head)
        return start

    joined = await filled(ByteParts(len(BYTES), find), BYTES, chunk_bytes).join()
    assert joined == BYTES
    assert (address(joined) + start) % ALIGNMENT_BYTES == 0
    assert heads == [BYTES[:4096]]


@pytest.mark.parametrize("start", [None, len(BYTES), len(BYTES) - LARGE_CONTENTS_BYTES + 1])
async def test_a_message_without_a_large_tensor_is_plain_bytes(start: int | None) -> None:
    """Parsers of other messages hash their bytes."""
    assert type(await filled(ByteParts(len(BYTES), lambda _head: start), BYTES, 8192).join()) is bytes


def test_declared_bytes_take_memory_only_as_they_arrive() -> None:
    parts = ByteParts(1 << 30, lambda _head: 0)
    tracemalloc.start()
    try:
        filled(parts, BYTES, 8192)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * len(BYTES)


async def test_a_message_that_arrives_is_in_memory_once() -> None:
    parts = ByteParts(len(BYTES), lambda _head: 0)
    tracemalloc.start()
    try:
        await filled(parts, BYTES, 8192).join()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1.2 * len(BYTES)
