"""Packed varints, against the wire format written out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_client.varint import decode_varints, split_strings


def encode(value: int) -> bytes:
    """One varint (protobuf.dev/programming-guides/encoding)."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


@given(st.lists(st.one_of(st.integers(0, 127), st.integers(0, 2**64 - 1))))
def test_values_read_back(values: list[int]) -> None:
    assert decode_varints(b"".join(map(encode, values))).tolist() == values


def test_negative_int32_is_sign_extended() -> None:
    assert decode_varints(encode(2**64 - 5)).astype(np.int32).tolist() == [-5]


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"\x05\x80", "in the middle"), (b"\x80", "in the middle"), (b"\x80" * 10 + b"\x01", "11 bytes")],
)
def test_broken_varint_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_varints(raw)


@given(st.lists(st.binary(max_size=300)))
def test_strings_read_back(items: list[bytes]) -> None:
    raw = b"".join(encode(len(item)) for item in items) + b"".join(items)
    assert split_strings(raw, len(items)) == items


@pytest.mark.parametrize(("raw", "count"), [(b"\x02a", 1), (b"\x01ab", 1), (b"a", 2), (b"a", 0), (b"\xff\xff", 1)])
def test_strings_that_do_not_fit_are_refused(raw: bytes, count: int) -> None:
    with pytest.raises(ValueError, match="strings"):
        split_strings(raw, count)
