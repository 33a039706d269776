"""Tests that the reader of fields accepts only tags that protobuf in C++ reads in the same way."""

import pytest

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.fields import field_contents, message_fields

CONTENT = b"\x03abc"
FIELD_2 = 2 << 3 | 2


@pytest.mark.parametrize("tag", [b"\x12", b"\x92\x00", b"\x92\x80\x80\x80\x00"])
def test_a_field_with_needless_bytes_in_its_tag_is_found(tag: bytes) -> None:
    assert [bytes(one) for one in field_contents(memoryview(tag + CONTENT), 2)] == [b"abc"]


@pytest.mark.parametrize(
    "high", [b"\x80\x80\x80\x10", b"\x80\x80\x80\x70", b"\x80\x80\x80\x80\x01", b"\x80\x80\x80\x80\x00"]
)
def test_a_tag_of_more_than_32_bits_is_damage(high: bytes) -> None:
    with pytest.raises(FormatError):
        list(message_fields(bytes([FIELD_2 | 0x80]) + high + CONTENT))


@pytest.mark.parametrize("tag", [b"\x02", b"\x00"])
def test_field_0_is_damage(tag: bytes) -> None:
    with pytest.raises(FormatError):
        list(message_fields(tag + CONTENT))
