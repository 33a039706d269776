"""TLS and request headers from options. Header values are secrets: no message or report contains them."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.options import AccessOptions
from tpuserve_loadtests.protocols import without_prefix

if TYPE_CHECKING:
    from tpuserve_loadtests.access import Access

# Access options that apply only to addresses with TLS.
OF_TLS: Final = ("ca", "cert", "key", "tls_server_name")
SECURE: Final = ("grpcs://", "https://")
HEADER: Final = "--header"


@cache
def find_access(options: AccessOptions) -> "Access":
    """Read the files, once. Raise usage errors, which never contain a header's value."""
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
        return Access(tls, parse_headers(options.headers))
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=HEADER) from None


def is_secure(addresses: Iterable[object]) -> bool:
    """Return whether any of the texts is an address with TLS."""
    return any(isinstance(text, str) and without_prefix(text).startswith(SECURE) for text in addresses)
