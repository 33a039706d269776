"""TLS and request headers as options give them. Values of headers are secrets: no message and no report has one."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from tpuserve_loadtests.access import Access

# Of an access, those that are for addresses with TLS alone.
OF_TLS: Final = ("ca", "cert", "key", "tls_server_name")
SECURE: Final = ("grpcs://", "https://")
HEADER: Final = "--header"


def find_access(given: Mapping[str, Any]) -> "Access":
    """From the values of options.access_options; files are read once. Usage errors, which tell no value."""
    return _access(*(given[name] for name in OF_TLS), given["headers"])


def is_secure(addresses: Iterable[object]) -> bool:
    """Whether any of the texts is an address with TLS."""
    return any(isinstance(text, str) and text.startswith(SECURE) for text in addresses)


@cache
def _access(
    ca: Path | None, cert: Path | None, key: Path | None, server_name: str | None, headers: tuple[str, ...]
) -> "Access":
    from tpuserve_client.errors import InvalidArgument
    from tpuserve_client.request_headers import parse_headers
    from tpuserve_client.tls import Tls
    from tpuserve_loadtests.access import Access

    tls = Tls(ca, cert, key, server_name)
    try:
        tls.context()
    except InvalidArgument as error:
        raise click.UsageError(error.message) from None
    try:
        return Access(tls, parse_headers(headers))
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=HEADER) from None
