"""Tests for addresses in the forms that users write."""

import pytest

from tpuserve_client import Client, InvalidArgument
from tpuserve_client.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "target", "is_rest"),
    [
        ("localhost", "localhost:8500", False),
        ("localhost:9000", "localhost:9000", False),
        ("grpc://10.0.0.1:9000", "10.0.0.1:9000", False),
        ("grpc://model.example", "model.example:8500", False),
        ("[::1]:9000", "[::1]:9000", False),
        ("unix:/run/tpuserve.sock", "unix:/run/tpuserve.sock", False),
        ("http://localhost:8501", "http://localhost:8501", True),
    ],
)
def test_address_is_read(text: str, target: str, is_rest: bool) -> None:
    assert parse_address(text) == Address(target, is_rest)


@pytest.mark.parametrize(
    ("text", "target", "is_rest"),
    [
        ("grpcs://model.example", "model.example:443", False),
        ("grpcs://[::1]:8500", "[::1]:8500", False),
        ("https://model.example/prefix/", "https://model.example/prefix", True),
    ],
)
def test_address_says_that_it_is_secure(text: str, target: str, is_rest: bool) -> None:
    assert parse_address(text) == Address(target, is_rest, is_secure=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "no host:8500",
        "ftp://host",
        "grpcs://",
        "grpcs:host",
        "host:port",
        "host:99999",
        "http://",
        "unix:",
        "host/path",
        "a@b:1",
        "http://h?q",
        "http://h:abc",
        "http://h:99999",
        "http://[::1",
        "http://no host",
    ],
)
def test_anything_else_is_refused_when_the_client_is_made(text: str) -> None:
    with pytest.raises(InvalidArgument, match="address"):
        Client(text)
