import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_loadtests.traffic.header_block import BadHeaderBlock, decode, encode

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)


@given(st.dictionaries(TEXT.map(lambda name: f"x-{name}"), TEXT, max_size=5))
def test_headers_come_back_as_they_were_encoded(headers: dict[str, str]) -> None:
    assert decode(encode(headers)) == headers


def test_huffman_codes_are_those_of_the_standard() -> None:
    # Source: RFC 7541, C.4.1, C.4.3 and C.6.1.
    for code, text in {
        "f1e3c2e5f23a6ba0ab90f4ff": "www.example.com",
        "25a849e95bb8e8b4bf": "custom-value",
        "9d29ad171863c78f0b97c8e9ae82ae43d3": "https://www.example.com",
        "d07abe941054d444a8200595040b8166e082a62d1bff": "Mon, 21 Oct 2013 20:13:21 GMT",
    }.items():
        value = bytes.fromhex(code)
        assert decode(b"\x00\x01x" + bytes([0x80 | len(value)]) + value) == {"x": text}


@pytest.mark.parametrize(
    ("block", "status"),
    [(b"\x88", "200"), (b"\x8d", "404"), (b"\x20\x88", "200"), (b"\x08\x03503", "503"), (b"\x48\x03503", "503")],
)
def test_a_status_is_known_by_entry_and_by_value(block: bytes, status: str) -> None:
    assert decode(block) == {":status": status}


def test_other_headers_of_the_static_table_are_passed_over() -> None:
    assert decode(b"\x88\x0f\x10\x10application/grpc\x00\x0bgrpc-status\x010") == {":status": "200", "grpc-status": "0"}


@pytest.mark.parametrize("block", [b"\xbe", b"\x7f\x00\x01a", b"\x80", b"\x00\x05ab", b"\x00\x01x", b"\x0f"])
def test_a_block_that_means_nothing_is_an_error(block: bytes) -> None:
    with pytest.raises(BadHeaderBlock):
        decode(block)
