"""Tests for headers that are decoded one by one."""

import pytest

from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.protocols.raw_headers import RawHeaders

PAIRS = [(b"a", b"1"), (b"b", b"2"), (b"a", b"\xe4")]


@pytest.mark.parametrize("headers", [RawHeaders(PAIRS), Metadata(PAIRS), Metadata(iter(PAIRS))])
def test_values_of_one_name_are_joined(headers: RawHeaders | Metadata) -> None:
    assert (headers.get("a"), headers.get("b"), headers.get("c"), headers.get("c", "x")) == ("1,ä", "2", None, "x")
    assert dict(headers) == {"a": "1,ä", "b": "2"}
    assert len(headers) == 2
    assert headers.get("a") == headers["a"]
    with pytest.raises(KeyError):
        headers["c"]


def test_metadata_has_no_headers_of_the_transport() -> None:
    metadata = Metadata([(b"grpc-timeout", b"1S"), (b":path", b"/"), (b"te", b"trailers"), (b"a", b"1")])
    assert [metadata.get(name) for name in ("grpc-timeout", ":path", "te", "a")] == [None, None, None, "1"]
