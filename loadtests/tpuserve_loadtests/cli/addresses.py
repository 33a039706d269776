"""Server addresses: from options, the scenario, TPUSERVE_ADDRESS or the defaults on localhost, in this order."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from tpuserve_loadtests.cli.access import HEADER
from tpuserve_loadtests.cli.options import ADDRESS_VARIABLE, DEFAULT_GRPC, DEFAULT_REST, ServerOptions
from tpuserve_loadtests.requests.protocols import OIP_JSON, client_address, port_of, protocol_of

if TYPE_CHECKING:
    from tpuserve_loadtests.requests.protocols import Port, Protocol

_Server = TypeVar("_Server", bound=ServerOptions)


def with_address(server: _Server, needs: str | None) -> _Server:
    """Use the address in TPUSERVE_ADDRESS if neither an option nor a scenario gives an address.

    `needs` names the ports of the command: `grpc`, `rest`, `both` or None for any. Raises a usage error if the
    address is invalid or of another port.
    """
    text = os.environ.get(ADDRESS_VARIABLE)
    if not text or server.grpc_address or server.rest_url:
        return server
    name = port_of(_parse(text, ADDRESS_VARIABLE))
    if needs not in (None, name):
        others = {"grpc": "--rest URL", "rest": "--grpc HOST:PORT"}[name]
        both = f" and --{name}" if needs == "both" else ""
        raise click.UsageError(
            f"{ADDRESS_VARIABLE}={text} is a {name} address, but the command needs {needs}. Set {others}{both}."
        )
    return replace(server, rest_url=text) if name == "rest" else replace(server, grpc_address=text)


def find_addresses(chosen: str | None, grpc_address: str | None, rest_url: str | None) -> "dict[Protocol, str]":
    """Return the address of each measured protocol, in the client's form. `chosen` is the value of --protocol.

    Raises a usage error for an invalid address.
    """
    texts: dict[Port, str] = {"grpc": grpc_address or DEFAULT_GRPC, "rest": rest_url or DEFAULT_REST}
    found: dict[Protocol, str] = {}
    for port in _ports(chosen, grpc_address, rest_url):
        protocol = _parse(texts[port], f"--{port}")
        if port_of(protocol) != port:
            form = {"grpc": "HOST:PORT or oip+grpc://HOST:PORT", "rest": "a URL such as http://HOST:PORT"}[port]
            raise click.BadParameter(f"expected {form}; received {texts[port]!r}", param_hint=f"--{port}")
        found[protocol] = client_address(texts[port])
    return found


def _parse(text: str, origin: str) -> "Protocol":
    """Return the protocol of a valid address. Raise a usage error for any other text."""
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    protocol = protocol_of(text)
    try:
        place = parse_address(client_address(text))
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=origin) from None
    if protocol == "oip_json" and not place.is_rest:
        raise click.BadParameter(f"{OIP_JSON} needs http:// or https://; received {text!r}", param_hint=origin)
    if "@" in place.target:
        hint = f"An address cannot contain a user and password. Send them with {HEADER} 'authorization: Basic …'."
        raise click.BadParameter(hint, param_hint=origin)
    return protocol


def _ports(chosen: str | None, grpc_address: str | None, rest_url: str | None) -> "tuple[Port, ...]":
    if chosen is None:
        chosen = "both" if bool(grpc_address) == bool(rest_url) else "grpc" if grpc_address else "rest"
    if chosen == "grpc":
        return ("grpc",)
    return ("rest",) if chosen == "rest" else ("grpc", "rest")
