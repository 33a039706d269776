"""TLS, API key and request headers from options. Keys and header values are secrets: no message or report has them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.options import CONTROL_KEY_VARIABLE, KEY_VARIABLE, AccessOptions
from tpuserve_loadtests.requests.protocols import without_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from tpuserve_client import KeyFile
    from tpuserve_loadtests.access import Access

# Access options that apply only to addresses with TLS.
OF_TLS: Final = ("ca", "cert", "key", "tls_server_name")
SECURE: Final = ("grpcs://", "https://")
HEADER: Final = "--header"
KEY_FILE: Final = "--api-key-file"
CONTROL_KEY_FILE: Final = "--control-api-key-file"


@cache
def find_access(options: AccessOptions) -> "Access":
    """Read the files, once. Raise usage errors, which never contain a key or a header's value."""
    from tpuserve_client.errors import InvalidArgument
    from tpuserve_client.request_headers import parse_headers
    from tpuserve_client.tls import Tls
    from tpuserve_loadtests.access import Access

    tls = Tls(options.ca, options.cert, options.key, options.tls_server_name)
    try:
        tls.context()
    except InvalidArgument as error:
        raise click.UsageError(error.message) from None
    try:
        headers = parse_headers(options.headers)
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=HEADER) from None
    key = find_key(options.api_key_file, KEY_FILE, KEY_VARIABLE, headers)
    return Access(tls, headers, key, options.allow_plaintext_key)


def find_key(file: "Path | None", option: str, variable: str, headers: Mapping[str, str]) -> "str | KeyFile | None":
    """Return the key of the file that `option` names, or else that of the environment variable, or None.

    The header `authorization` overrides the variable. Raises a usage error if the option is set, too.
    """
    from tpuserve_client import KeyFile
    from tpuserve_client.credentials import AUTHORIZATION, checked_key
    from tpuserve_client.errors import InvalidArgument

    if file is not None and AUTHORIZATION in headers:
        raise click.UsageError(f"{option} and {HEADER} '{AUTHORIZATION}: …' exclude each other. Set one of them.")
    text = os.environ.get(variable)
    try:
        if file is not None:
            return KeyFile(file)
        return checked_key(text, f"The variable {variable}") if text and AUTHORIZATION not in headers else None
    except InvalidArgument as error:
        raise click.UsageError(error.message) from None


def find_control_access(options: AccessOptions, file: "Path | None") -> "Access":
    """Return the access for reloads: with the key of `file` or of its variable, or else the access of the options."""
    access = find_access(options)
    key = find_key(file, CONTROL_KEY_FILE, CONTROL_KEY_VARIABLE, access.headers)
    return access if key is None else replace(access, api_key=key)


def is_secure(addresses: Iterable[object]) -> bool:
    """Return whether any of the texts is an address with TLS."""
    return any(isinstance(text, str) and without_prefix(text).startswith(SECURE) for text in addresses)
