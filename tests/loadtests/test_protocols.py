"""Tests for the protocol that an address selects, and for its forms."""

from pathlib import Path

import pytest

from tests.support import forked_command
from tpuserve_loadtests.cli.access import is_secure
from tpuserve_loadtests.requests.protocols import (
    Port,
    Protocol,
    client_address,
    of_port,
    port_of,
    prefix_of,
    protocol_of,
    shown_address,
)

ADDRESSES: tuple[tuple[str, Protocol, Port], ...] = (
    ("host", "grpc", "grpc"),
    ("grpcs://host:443", "grpc", "grpc"),
    ("unix:/run/serve.sock", "grpc", "grpc"),
    ("https://host/models", "rest", "rest"),
    ("oip+grpc://host:8001", "oip_grpc", "grpc"),
    ("oip+unix:/run/serve.sock", "oip_grpc", "grpc"),
    ("oip+https://host", "oip_http", "rest"),
    ("oip-json+http://host:8000", "oip_json", "rest"),
)


@pytest.mark.parametrize(("address", "protocol", "port"), ADDRESSES)
def test_an_address_selects_its_protocol_and_port(address: str, protocol: Protocol, port: Port) -> None:
    assert protocol_of(address) == protocol
    assert port_of(protocol) == port
    assert shown_address(protocol, client_address(address)) == address


@pytest.mark.parametrize(
    ("address", "prefix"), [("http://oip+", ""), (" oip+unix:/s", "oip+"), ("oip-json+http://h", "oip-json+")]
)
def test_the_prefix_is_the_start_of_the_address(address: str, prefix: str) -> None:
    assert prefix_of(address) == prefix


def test_the_client_has_no_prefix_for_json_tensors() -> None:
    assert client_address("oip-json+http://host") == "oip+http://host"


def test_a_port_has_the_protocol_of_its_address() -> None:
    assert of_port(["oip_grpc", "rest"], "grpc") == "oip_grpc"
    assert of_port(["oip_grpc"], "rest") is None


@pytest.mark.parametrize("address", ["oip+grpcs://host", "oip+https://host", "oip-json+https://host", "https://host"])
def test_addresses_with_tls_are_known_by_their_scheme(address: str) -> None:
    assert is_secure([address])
    assert not is_secure([address.replace("s://", "://")])


def test_a_rollout_refuses_a_protocol_without_labels(tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.touch()
    arguments = ("m", "--to", "2", "--model_config_file", str(config), "--grpc", "oip+grpc://host:8500")
    ended = forked_command.run("tpuserve-rollout", *arguments)
    assert ended.returncode == 2
    assert "oip+grpc://host:8500 selects the Open Inference Protocol, which has no labels to move" in ended.stderr


def test_a_load_test_refuses_a_signature_that_oip_does_not_describe() -> None:
    ended = forked_command.run("tpuserve-loadtest", "m", "--grpc", "oip+grpc://127.0.0.1:1", "--signature", "other")
    assert ended.returncode == 2
    assert "Omit the signature 'other', or set an address without oip+" in ended.stderr
