"""Protocols of load tests, by the server's port: TensorFlow Serving's, and the Open Inference Protocol (OIP).

This module imports no protocol's messages, because `--help` must be fast. `wires` has them.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

# A port of the server, for gRPC or for HTTP. Options and scenarios name it.
Port: TypeAlias = Literal["grpc", "rest"]
# TensorFlow Serving's two protocols, OIP over gRPC, over HTTP with binary tensors, and over HTTP with JSON alone, and
# OpenAI's streamed chat completions.
Protocol: TypeAlias = Literal["grpc", "rest", "oip_grpc", "oip_http", "oip_json", "openai"]

TITLES: Final[Mapping[Protocol, str]] = {
    "grpc": "gRPC",
    "rest": "REST",
    "oip_grpc": "OIP gRPC",
    "oip_http": "OIP HTTP binary",
    "oip_json": "OIP HTTP JSON",
    "openai": "OpenAI",
}
# Default number of gRPC connections. With a single one, the server's work for that connection would limit the rate.
GRPC_CONNECTIONS: Final = 4
# Prefixes of an address: the client's, and the load test's own for JSON tensors.
OIP: Final = "oip+"
OIP_JSON: Final = "oip-json+"
OPENAI: Final = "openai+"
_URLS: Final = ("http://", "https://")


def port_of(protocol: Protocol) -> Port:
    return "grpc" if protocol in ("grpc", "oip_grpc") else "rest"


def is_oip(protocol: Protocol) -> bool:
    return protocol not in ("grpc", "rest", "openai")


def prefix_of(address: str) -> str:
    """Return the prefix of an address that selects a protocol, or an empty text."""
    return next((prefix for prefix in (OIP_JSON, OIP, OPENAI) if address.strip().startswith(prefix)), "")


def without_prefix(address: str) -> str:
    """Return an address without the prefix that selects a protocol."""
    return address.strip().removeprefix(prefix_of(address))


def protocol_of(address: str) -> Protocol:
    prefix, is_url = prefix_of(address), without_prefix(address).startswith(_URLS)
    if prefix == OIP_JSON:
        return "oip_json"
    if prefix == OPENAI:
        return "openai"
    if prefix == OIP:
        return "oip_http" if is_url else "oip_grpc"
    return "rest" if is_url else "grpc"


def client_address(address: str) -> str:
    """Return an address in the client's form, which has no prefix for JSON tensors and for chat completions."""
    protocol = protocol_of(address)
    if protocol == "openai":
        return without_prefix(address)
    return f"{OIP}{without_prefix(address)}" if protocol == "oip_json" else address


def shown_address(protocol: Protocol, address: str) -> str:
    """Return an address in the client's form with the prefix of its protocol."""
    prefix = {"oip_json": OIP_JSON, "openai": OPENAI}.get(protocol)
    return f"{prefix}{without_prefix(address)}" if prefix else address


def of_port(protocols: Iterable[Protocol], port: Port) -> Protocol | None:
    """Return the protocol of a port, or None if no protocol uses the port."""
    return next((protocol for protocol in protocols if port_of(protocol) == port), None)
