"""TLS and request headers as options give them. Values of headers are secrets: no message and no report has one."""

import os
import re
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

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


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
    from tpuserve_client.request_headers import read_headers
    from tpuserve_client.tls import Tls
    from tpuserve_loadtests.access import Access

    tls = Tls(ca, cert, key, server_name)
    try:
        tls.context()
    except InvalidArgument as error:
        raise click.UsageError(error.message) from None
    pairs = [pair for text in headers for pair in _pairs(text)]
    try:
        read = read_headers(dict(pairs))
    except InvalidArgument as error:
        raise click.BadParameter(error.message, param_hint=HEADER) from None
    names = [name.lower() for name, _ in pairs]
    if len(names) > len(read):
        twice = next(name for name in names if names.count(name) > 1)
        raise click.BadParameter(f"The header {twice} was given twice.", param_hint=HEADER)
    return Access(tls, read)


def _pairs(text: str) -> list[tuple[str, str]]:
    if not text.startswith("@"):
        return [_pair(text, expand=True)]
    try:
        lines = Path(text[1:]).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text"
        raise click.BadParameter(f"{text[1:]}: {reason}", param_hint=HEADER) from None
    return [_pair(line, expand=False) for line in lines if line.strip()]


def _pair(text: str, *, expand: bool) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip()
    if not colon:
        raise click.BadParameter("expected 'NAME: VALUE' or @FILE, received a text without a colon", param_hint=HEADER)
    if expand:
        value = _VARIABLE.sub(_of_environment, value)
    if not value.strip():
        raise click.BadParameter(f"the header {name} has no value", param_hint=HEADER)
    return name, value


def _of_environment(variable: re.Match[str]) -> str:
    name = variable[1]
    if name not in os.environ:
        raise click.BadParameter(f"there is no variable {name} in the environment", param_hint=HEADER)
    return os.environ[name]
