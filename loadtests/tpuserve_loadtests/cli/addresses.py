"""Server addresses: from options, the scenario, TPUSERVE_ADDRESS or the defaults on localhost, in this order."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from tpuserve_loadtests.cli.access import HEADER
from tpuserve_loadtests.cli.options import ADDRESS_VARIABLE, DEFAULT_GRPC, DEFAULT_REST, ServerOptions

if TYPE_CHECKING:
    from tpuserve_client.address import Address
    from tpuserve_loadtests.workload import Protocol


_Server = TypeVar("_Server", bound=ServerOptions)


def with_address(server: _Server, needs: str | None) -> _Server:
    """Use the address in TPUSERVE_ADDRESS if neither an option nor a scenario gives an address.

    `needs` names the protocols of the command: `grpc`, `rest`, `both` or None for any. Raises a usage error if the
    address is invalid or of another protocol.
    """
    text = os.environ.get(ADDRESS_VARIABLE)
    if not text or server.grpc_address or server.rest_url:
        return server
    name: Protocol = "rest" if _parse(text, ADDRESS_VARIABLE).is_rest else "grpc"
    if needs not in (None, name):
        others = {"grpc": "--rest URL", "rest": "--grpc HOST:PORT"}[name]
        both = f" and --{name}" if needs == "both" else ""
        raise click.UsageError(
            f"{ADDRESS_VARIABLE}={text} is a {name} address, but the command needs {needs}. Set {others}{both}."
        )
    return replace(server, rest_url=text) if name == "rest" else replace(server, grpc_address=text)


def find_addresses(protocol: str | None, grpc_address: str | None, rest_url: str | None) -> "dict[Protocol, str]":
    """Return the address of each measured protocol. Raise a usage error for an invalid address."""
    found: dict[Protocol, str] = {"grpc": grpc_address or DEFAULT_GRPC, "rest": rest_url or DEFAULT_REST}
    chosen = _protocols(protocol, grpc_address, rest_url)
    for name in chosen:
        place = _parse(found[name], f"--{name}")
        if place.is_rest != (name == "rest"):
            form = {"grpc": "HOST:PORT", "rest": "a URL such as http://HOST:PORT"}[name]
            raise click.BadParameter(f"expected {form}; received {found[name]!r}", param_hint=f"--{name}")
    return {name: found[name] for name in chosen}


def _parse(text: str, origin: str) -> "Address":
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    try:
        place = parse_address(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=origin) from None
    if "@" in place.target:
        hint = f"An address cannot contain a user and password. Send them with {HEADER} 'authorization: Basic …'."
        raise click.BadParameter(hint, param_hint=origin)
    return place


def _protocols(chosen: str | None, grpc_address: str | None, rest_url: str | None) -> "tuple[Protocol, ...]":
    if chosen is None:
        chosen = "both" if bool(grpc_address) == bool(rest_url) else "grpc" if grpc_address else "rest"
    if chosen == "grpc":
        return ("grpc",)
    return ("rest",) if chosen == "rest" else ("grpc", "rest")
