"""Address, timeout, TLS and header options of the commands that call a server, and one-line errors."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click

from tpuserve_client.address import ADDRESS_VARIABLE, parse_address
from tpuserve_client.client import Client
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.request_headers import parse_headers
from tpuserve_client.tls import Tls

_Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Connection:
    """The server's address, the timeout, and the TLS files and headers to send."""

    address: str
    timeout_s: float
    tls: Tls
    headers: tuple[str, ...]

    def client(self) -> Client:
        """Return a client of that server. Raises click.UsageError for certificates or headers that are invalid."""
        # The command reports the error of the call. Without this, gRPC also writes log lines to stderr.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        tls = None if self.tls == Tls() else self.tls
        try:
            return Client(self.address, tls=tls, headers=parse_headers(self.headers))
        except InvalidArgument as error:
            raise click.UsageError(error.message) from None


def _checked_address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        parse_address(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from None
    return value


def connection_options(command: _Command) -> _Command:
    """Add --address, --timeout, and the TLS and header options. The command receives them as `connection`."""

    @functools.wraps(command)
    def with_connection(
        *,
        address: str,
        timeout_s: float,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        tls_server_name: str | None,
        headers: tuple[str, ...],
        **others: Any,  # noqa: ANN401  the command's own
    ) -> None:
        command(connection=Connection(address, timeout_s, Tls(ca, cert, key, tls_server_name), headers), **others)

    made: _Command = with_connection
    for option in reversed(_options()):
        made = option(made)
    return made


def _options() -> list[Callable[[_Command], _Command]]:
    file = click.Path(exists=True, dir_okay=False, path_type=Path)
    return [
        click.option(
            "--address",
            envvar=ADDRESS_VARIABLE,
            default="localhost:8500",
            show_default=True,
            show_envvar=True,
            callback=_checked_address,
            help="Server address: host:port or unix:/path for gRPC, grpcs://host:port with TLS, http(s)://host:port "
            "for REST. oip+grpc://host:port and oip+http://host:port use the Open Inference Protocol.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0, min_open=True),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="Timeout for all requests and retries together.",
        ),
        click.option(
            "--ca", type=file, help="PEM file of the certificate authorities to trust instead of the system's."
        ),
        click.option("--cert", type=file, help="PEM file of a client certificate, for servers that require one."),
        click.option(
            "--key", type=file, help="PEM file of the certificate's key. Default: --cert also contains the key."
        ),
        click.option(
            "--tls-server-name", metavar="NAME", help="Name in the server's certificate, if it differs from the host."
        ),
        click.option(
            "--header",
            "headers",
            metavar="'NAME: VALUE'|@FILE",
            multiple=True,
            help="HTTP header or gRPC metadata. ${VARIABLE} expands to the environment variable. Repeatable.",
        ),
    ]


def countdown(timeout_s: float) -> Callable[[], float]:
    """Return a function that returns the seconds left of `timeout_s`, negative after the timeout."""
    expires = monotonic() + timeout_s
    return lambda: expires - monotonic()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a failed call or an unreadable file into one line on stderr and exit code 1."""
    try:
        yield
    except TpuserveError as error:
        raise click.ClickException(f"{error.code.name}: {' '.join(error.message.split())}") from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
