"""The server of a command: its addresses, TLS, API key and headers, and usage errors for options without effect.

Keys and header values are secrets: no message or report contains them.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from tpuserve_client import KeyFile
from tpuserve_client.address import parse_address
from tpuserve_client.credentials import AUTHORIZATION, checked_key
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.request_headers import parse_headers
from tpuserve_client.tls import Tls
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.commands import RUN_OPTIONS
from tpuserve_loadtests.cli.options import (
    ADDRESS_VARIABLE,
    CONTROL_KEY_FILE,
    CONTROL_KEY_VARIABLE,
    DEFAULT_GRPC,
    DEFAULT_REST,
    HEADER,
    KEY_FILE,
    KEY_VARIABLE,
    AccessOptions,
    ArrivalOptions,
    MeasuringOptions,
    ServerOptions,
)
from tpuserve_loadtests.requests.protocols import (
    OIP_JSON,
    Port,
    Protocol,
    client_address,
    port_of,
    protocol_of,
    without_prefix,
)

# Access options that apply only to addresses with TLS.
OF_TLS: Final = ("ca", "cert", "key", "tls_server_name")
SECURE: Final = ("grpcs://", "https://")

_Server = TypeVar("_Server", bound=ServerOptions)


@cache
def find_access(options: AccessOptions) -> Access:
    """Read the files, once. Raise usage errors, which never contain a key or a header's value."""
    tls = Tls(options.ca, options.cert, options.key, options.tls_server_name)
    with refused(InvalidArgument):
        tls.context()
    with refused(InvalidArgument, hint=HEADER):
        headers = parse_headers(options.headers)
    key = _find_key(options.api_key_file, KEY_FILE, KEY_VARIABLE, headers)
    return Access(tls, headers, key, options.allow_plaintext_key)


def find_control_access(options: AccessOptions, file: Path | None) -> Access:
    """Return the access for reloads: with the key of `file` or of its variable, or else the access of the options."""
    access = find_access(options)
    key = _find_key(file, CONTROL_KEY_FILE, CONTROL_KEY_VARIABLE, access.headers)
    return access if key is None else replace(access, api_key=key)


def _find_key(file: Path | None, option: str, variable: str, headers: Mapping[str, str]) -> str | KeyFile | None:
    """Return the key of the file that `option` names, or else that of the environment variable, or None.

    The header `authorization` overrides the variable. Raises a usage error if the option is set, too.
    """
    if file is not None and AUTHORIZATION in headers:
        raise click.UsageError(f"{option} and {HEADER} '{AUTHORIZATION}: …' exclude each other. Set one of them.")
    text = os.environ.get(variable)
    with refused(InvalidArgument):
        if file is not None:
            return KeyFile(file)
        return checked_key(text, f"The variable {variable}") if text and AUTHORIZATION not in headers else None


def is_secure(addresses: Iterable[object]) -> bool:
    return any(isinstance(text, str) and without_prefix(text).startswith(SECURE) for text in addresses)


def with_address(server: _Server, needs: str | None) -> _Server:
    """Use the address in TPUSERVE_ADDRESS if neither an option nor a scenario gives an address.

    `needs` names the ports of the command: `grpc`, `rest`, `both` or None for any. Raises a usage error if the
    address is invalid or of another port.
    """
    text = os.environ.get(ADDRESS_VARIABLE)
    if not text or server.grpc_address or server.rest_url:
        return server
    name = port_of(parse_protocol(text, ADDRESS_VARIABLE))
    if needs not in (None, name):
        others = {"grpc": "--rest URL", "rest": "--grpc HOST:PORT"}[name]
        both = f" and --{name}" if needs == "both" else ""
        raise click.UsageError(
            f"{ADDRESS_VARIABLE}={text} is a {name} address, but the command needs {needs}. Set {others}{both}."
        )
    return replace(server, rest_url=text) if name == "rest" else replace(server, grpc_address=text)


def find_addresses(chosen: str | None, grpc_address: str | None, rest_url: str | None) -> dict[Protocol, str]:
    """Return the address of each measured protocol, in the client's form. `chosen` is the value of --protocol.

    Raises a usage error for an invalid address.
    """
    texts: dict[Port, str] = {"grpc": grpc_address or DEFAULT_GRPC, "rest": rest_url or DEFAULT_REST}
    if chosen is None:
        chosen = "both" if bool(grpc_address) == bool(rest_url) else "grpc" if grpc_address else "rest"
    found: dict[Protocol, str] = {}
    for port, text in texts.items():
        if chosen not in (port, "both"):
            continue
        protocol = parse_protocol(text, f"--{port}")
        if port_of(protocol) != port:
            form = {"grpc": "HOST:PORT or oip+grpc://HOST:PORT", "rest": "a URL such as http://HOST:PORT"}[port]
            raise click.BadParameter(f"expected {form}; received {text!r}", param_hint=f"--{port}")
        found[protocol] = client_address(text)
    return found


def parse_protocol(text: str, origin: str) -> Protocol:
    """Return the protocol of a valid address. Raise a usage error about the option `origin` for any other text."""
    protocol = protocol_of(text)
    with refused(InvalidArgument, hint=origin):
        place = parse_address(client_address(text))
    if protocol == "oip_json" and not place.is_rest:
        raise click.BadParameter(f"{OIP_JSON} needs http:// or https://; received {text!r}", param_hint=origin)
    if "@" in place.target:
        hint = f"An address cannot contain a user and password. Send them with {HEADER} 'authorization: Basic …'."
        raise click.BadParameter(hint, param_hint=origin)
    return protocol


def explicit_names(context: click.Context | None = None) -> set[str]:
    """Return the names of the values, by default the running command's, that do not come from defaults."""
    context = context or click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def flag(name: str) -> str:
    """Return the flag of a value of `run`."""
    return RUN_OPTIONS[name].opts[0]


def refuse_ineffective_arrivals(arrivals: ArrivalOptions, *, is_open: bool = True, is_timed: bool = False) -> None:
    """Raise a usage error for an option of open loads that has no effect.

    `is_open` means that requests arrive at a rate, from --rate or set by the command. `is_timed` means that they arrive
    at recorded times.
    """
    _refuse("burst", arrivals.process == "bursts", "--arrivals bursts")
    _refuse("process", is_open, "--rate")
    _refuse("speed", is_timed, "--trace, or --recorded without --users and --rate")


def refuse_ineffective(options: MeasuringOptions, *addresses: str) -> None:
    """Raise a usage error for an option that has no effect without another option.

    `addresses` are further addresses to which the command sends requests.
    """
    _refuse("listen", bool(options.generator.remote), "--remote")
    _refuse("recorded_model", bool(options.requests.recorded), "--recorded")
    secure = is_secure((*addresses, options.server.grpc_address, options.server.rest_url))
    for name in OF_TLS:
        _refuse(name, secure, "an address with TLS: grpcs://HOST:PORT or https://HOST:PORT")


def _refuse(name: str, is_used: bool, needed: str) -> None:
    if not is_used and name in explicit_names():
        raise click.UsageError(f"{flag(name)} has no effect without {needed}.")
