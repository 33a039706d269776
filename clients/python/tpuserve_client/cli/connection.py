"""What the commands that talk to a server share: the address and timeout options, and errors as one line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import click

from tpuserve_client.address import parse_address
from tpuserve_client.errors import InvalidArgument, TpuserveError

F = TypeVar("F", bound=Callable[..., None])


def _checked_address(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        parse_address(value)
    except InvalidArgument as error:
        raise click.BadParameter(error.message) from None
    return value


def connection_options(command: F) -> F:
    """Adds --address and --timeout."""
    address = click.option(
        "--address",
        envvar="TPUSERVE_ADDRESS",
        default="localhost:8500",
        show_default=True,
        show_envvar=True,
        callback=_checked_address,
        help="host:port, grpc://host:port or unix:/path for gRPC; http://host:port for REST.",
    )
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="Give up after this long, all requests and retries together.",
    )
    return address(timeout(command))


def countdown(timeout_s: float) -> Callable[[], float]:
    """What is left of `timeout_s` seconds, from now on, whenever it is called; negative once they are over."""
    expires = monotonic() + timeout_s
    return lambda: expires - monotonic()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A failed call or an unreadable file ends the command with one line on stderr and exit code 1."""
    try:
        yield
    except TpuserveError as error:
        raise click.ClickException(f"{error.code.name}: {' '.join(error.message.split())}") from None
    except OSError as error:
        raise click.ClickException(str(error)) from None
