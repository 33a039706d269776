"""Tests for addresses in the forms that users write."""

from dataclasses import replace

import pytest

from tpuserve_client import Client, InvalidArgument, Tls
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
    ("text", "plain"),
    [
        ("oip+grpc://localhost:8001", "grpc://localhost:8001"),
        ("oip+grpc://localhost", "localhost:8500"),
        ("oip+grpcs://model.example", "grpcs://model.example"),
        ("oip+dns:///models.svc:8001", "dns:///models.svc:8001"),
        ("oip+unix:/run/tpuserve.sock", "unix:/run/tpuserve.sock"),
        ("oip+http://localhost:8000/", "http://localhost:8000"),
        (" oip+https://model.example/prefix ", "https://model.example/prefix"),
    ],
)
def test_prefix_selects_the_open_inference_protocol_at_the_same_place(text: str, plain: str) -> None:
    place = parse_address(text)
    assert place == replace(parse_address(plain), is_oip=True)
    assert place != parse_address(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oip+localhost:8001", r"no scheme after oip\+. Use oip\+grpc://host:port or oip\+http://host:port"),
        ("oip+", r"no scheme after oip\+"),
        ("oip+ftp://h", r"Unknown scheme in address 'oip\+ftp://h'.*after oip\+"),
        ("oip+oip+grpc://h", "Unknown scheme"),
        ("oip://h", r"Unknown scheme in address 'oip://h'.*after oip\+"),
        ("oip+http://h:abc", r"Invalid server address: 'oip\+http://h:abc'"),
        ("oip+grpc://", r"Invalid server address: 'oip\+grpc://'"),
    ],
)
def test_address_of_the_open_inference_protocol_needs_a_scheme(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Client(text)


def test_addresses_of_two_protocols_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="The addresses must have one scheme"):
        Client("grpc://a:1,oip+grpc://b:1")


def test_ip_address_of_a_host_keeps_its_protocol() -> None:
    place = parse_address("oip+https://model.example:8000/prefix").at("10.0.0.1")
    assert place == Address("https://10.0.0.1:8000/prefix", is_rest=True, is_secure=True, is_oip=True)
    assert parse_address("oip+dns:///model.example").at("::1") == Address("[::1]:8500", is_rest=False, is_oip=True)


def test_address_without_tls_refuses_certificates() -> None:
    with pytest.raises(InvalidArgument, match=r"Use oip\+grpcs:// or oip\+https://"):
        Client("oip+grpc://localhost:1", tls=Tls())


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
