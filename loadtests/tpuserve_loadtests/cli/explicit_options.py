"""Values that the command line sets explicitly, and usage errors for options without effect."""

from typing import Final, Protocol

import click
from click.core import ParameterSource

from tpuserve_loadtests.cli.access import OF_TLS, is_secure
from tpuserve_loadtests.cli.options import ArrivalOptions, GeneratorOptions, RequestOptions, ServerOptions

# Flags that differ from their value's name.
_FLAGS: Final = {
    "signature_name": "--signature",
    "input_file": "--input",
    "lengths": "--length",
    "process": "--arrivals",
    "request_limit": "--requests",
    "settling_figure": "--repeat-until-settled",
}


def explicit_names() -> set[str]:
    """Return the names of the running command's values that do not come from defaults."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def flag(name: str) -> str:
    """Return the flag that sets a value."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


class Sending(Protocol):
    """Options of a command that sends requests."""

    @property
    def server(self) -> ServerOptions: ...
    @property
    def requests(self) -> RequestOptions: ...
    @property
    def generator(self) -> GeneratorOptions: ...


def refuse_ineffective_arrivals(arrivals: ArrivalOptions, *, is_open: bool = True, is_timed: bool = False) -> None:
    """Raise a usage error for an option of open loads that has no effect.

    `is_open` means that requests arrive at a rate, from --rate or set by the command. `is_timed` means that they arrive
    at recorded times.
    """
    _refuse("burst", arrivals.process == "bursts", "--arrivals bursts")
    _refuse("process", is_open, "--rate")
    _refuse("speed", is_timed, "--trace, or --recorded without --users and --rate")


def refuse_ineffective(options: Sending, *addresses: str) -> None:
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
