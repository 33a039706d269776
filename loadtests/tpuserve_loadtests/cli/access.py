"""TLS and request headers as options give them. Values of headers are secrets: no message and no report has one."""

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.options import AccessOptions

if TYPE_CHECKING:
    from tpuserve_loadtests.access import Access

# Of an access, those that are for addresses with TLS alone.
OF_TLS: Final = ("ca", "cert", "key", "tls_server_name")
SECURE: Final = ("grpcs://", "https://")
HEADER: Final = "--header"


@cache
def find_access(options: AccessOptions) -> "Access":
    """Read the files, once. Raises usage errors, which contain no value of a header."""
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
    """Whether any of the texts is an address with TLS."""
    return any(isinstance(text, str) and text.startswith(SECURE) for text in addresses)
