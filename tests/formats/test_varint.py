"""Tests for varints, single and packed, against each other and against protobuf."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework.tensor_pb2 import TensorProto

from tpuserve_formats.errors import FormatError
from tpuserve_formats.varint import packed_varints, read_varint, varint

UNSIGNED = st.integers(0, 2**64 - 1)


@given(UNSIGNED, st.binary(max_size=3))
def test_varint_is_read_back_wherever_it_stands(value: int, before: bytes) -> None:
    encoded = varint(value)
    assert read_varint(before + encoded + b"\x80", len(before)) == (value, len(before) + len(encoded))


@given(st.lists(UNSIGNED))
def test_packed_varints_are_what_protobuf_packs(values: list[int]) -> None:
    packed = packed_varints(np.array(values, np.uint64))
    assert packed == b"".join(map(varint, values))
    if values:
        assert TensorProto(uint64_val=values).SerializeToString() == b"\x8a\x01" + varint(len(packed)) + packed


def test_negative_varint_takes_ten_bytes_like_protobufs() -> None:
    assert TensorProto(version_number=-5).SerializeToString() == b"\x18" + varint(-5)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "ends inside"), (b"\x80", "ends inside"), (b"\x80" * 11, "more than ten bytes")]
)
def test_cut_off_or_endless_varint_is_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_varint(data, 0)
