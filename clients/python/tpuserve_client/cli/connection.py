"""Address, timeout, TLS, key and header options of the commands that call a server, and one-line errors."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click

from tpuserve_client.address import ADDRESS_VARIABLE, parse_address, parse_addresses
from tpuserve_client.client import Client
from tpuserve_client.credentials import (
    AUTHORIZATION,
    KEY_VARIABLE,
    ApiKey,
    KeyFile,
    check_private,
    checked_key,
)
from tpuserve_client.errors import DeadlineExceeded, InvalidArgument, PermissionDenied, TpuserveError, Unauthenticated
from tpuserve_client.exchange import CANNOT_CONNECT, CONNECTION_ENDED
from tpuserve_client.handshake import handshake_problem
from tpuserve_client.request_headers import parse_headers
from tpuserve_client.tls import Tls

_Command = Callable[..., None]
_KEY_FILE = "--api-key-file"
_ALLOW = "--allow-plaintext-key"


@dataclass(frozen=True, slots=True)
class Connection:
    """The server's address, the timeout, the TLS files, and the key and headers to send."""

    address: str
    timeout_s: float
    tls: Tls
    headers: tuple[str, ...]
    key_file: Path | None
    allow_plaintext_key: bool

    def client(self) -> Client:
        """Return a client of that server. Raises click.UsageError for invalid certificates, keys and headers."""
        # The command reports the error of the call. Without this, gRPC also writes log lines to stderr.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        tls = None if self.tls == Tls() else self.tls
        try:
            headers = parse_headers(self.headers)
            api_key = self._api_key(headers)
            # Here too, because the client's own message names its argument.
            if api_key is not None and not self.allow_plaintext_key:
                check_private(parse_addresses(self.address), f"set {_ALLOW}")
            return Client(self.address, tls=tls, headers=headers, api_key=api_key, allow_plaintext_key=True)
        except InvalidArgument as error:
            raise click.UsageError(error.message) from None

    def advised(self, message: str) -> str:
        """Return why the server is not reachable or not ready as one line, with what to do if no server is there."""
        line = " ".join(message.split())
        # A server of the other kind refuses the connection, or answers with bytes that are not HTTP.
        if line.startswith((CANNOT_CONNECT, CONNECTION_ENDED)) and (problem := self._tls_problem()):
            return f"{CANNOT_CONNECT}: {problem}"
        return f"{line}. Start the server, or set --address" if CANNOT_CONNECT in line else line

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Turn a failed call or an unreadable file into one line on stderr and exit code 1."""
        try:
            yield
        except TpuserveError as error:
            raise click.ClickException(f"{error.code.name}: {self._advised_error(error)}") from None
        except OSError as error:
            raise click.ClickException(str(error)) from None

    def _advised_error(self, error: TpuserveError) -> str:
        """Return an error's message as one line, with what to do about a server that refuses TLS or the key."""
        # A server without TLS may wait for the rest of a handshake.
        if isinstance(error, DeadlineExceeded) and self._is_secure and (problem := self._tls_problem()):
            return f"{CANNOT_CONNECT}: {problem}"
        line = self.advised(error.message)
        if not isinstance(error, Unauthenticated | PermissionDenied):
            return line
        if error.context is None or not error.context.has_credentials:
            advice = f"The command sent no credentials. Set {_KEY_FILE}, {KEY_VARIABLE} or --cert"
        elif isinstance(error, PermissionDenied):
            advice = "Use a key whose roles and models include this call"
        else:
            advice = f"Check the key in {_KEY_FILE} or {KEY_VARIABLE}"
        return f"{line.removesuffix('.')}. {advice}"

    @property
    def _is_secure(self) -> bool:
        return parse_address(self.address).is_secure

    def _tls_problem(self) -> str:
        return handshake_problem(parse_address(self.address), self.tls, self.address)

    def _api_key(self, headers: Mapping[str, str]) -> ApiKey | None:
        """Return the key of the file, or else of the environment. The header `authorization` overrides the latter."""
        if self.key_file is not None:
            if AUTHORIZATION in headers:
                raise InvalidArgument(
                    f"{_KEY_FILE} and --header '{AUTHORIZATION}: …' exclude each other. Set one of them."
                )
            return KeyFile(self.key_file)
        key = os.environ.get(KEY_VARIABLE)
        return None if not key or AUTHORIZATION in headers else checked_key(key, f"The variable {KEY_VARIABLE}")


def _checked_address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        parse_address(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from None
    return value


def connection_options(command: _Command) -> _Command:
    """Add --address, --timeout, and the TLS, key and header options. The command receives them as `connection`."""

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
        api_key_file: Path | None,
        allow_plaintext_key: bool,
        **others: Any,  # noqa: ANN401  the command's own
    ) -> None:
        tls = Tls(ca, cert, key, tls_server_name)
        connection = Connection(address, timeout_s, tls, headers, api_key_file, allow_plaintext_key)
        command(connection=connection, **others)

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
            _KEY_FILE,
            type=file,
            help=f"File of an API key or token for the server. Default: the key in the variable {KEY_VARIABLE}.",
        ),
        click.option(
            _ALLOW, is_flag=True, help="Send the key without TLS to another machine, where others may read it."
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
