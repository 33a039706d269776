"""What somebody said on the command line, beside what has its default; and what would change nothing there."""

from typing import Final

import click
from click.core import ParameterSource

from tpuserve_loadtests.cli.access import OF_TLS, is_secure
from tpuserve_loadtests.cli.options import GeneratorOptions, RequestOptions, ServerOptions

# Options whose values have another name.
_FLAGS: Final = {
    "signature_name": "--signature",
    "input_file": "--input",
    "lengths": "--length",
    "process": "--arrivals",
}


def said_names() -> set[str]:
    """Names of the values that were given, of the command that runs."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def flag(name: str) -> str:
    """The option that a value is from."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def refuse_idle(
    server: ServerOptions,
    requests: RequestOptions,
    generator: GeneratorOptions,
    *addresses: str,
    process: str = "",
    is_open: bool = True,
    is_timed: bool = False,
) -> None:
    """A usage error for an option that is of no use without another: who gave it believes that it does something.

    `addresses` are others that are asked. `process`: how requests come; `is_open`: at a rate, which commands without
    --rate have of their own; `is_timed`: at recorded instants.
    """
    needed = {
        "burst": (process == "bursts", "--arrivals bursts"),
        "process": (is_open, "--rate"),
        "speed": (is_timed, "--trace, or --recorded without --users and --rate"),
        "listen": (generator.remote, "--remote"),
        "recorded_model": (requests.recorded, "--recorded"),
    }
    secure = is_secure((*addresses, server.grpc_address, server.rest_url))
    needed |= dict.fromkeys(OF_TLS, (secure, "an address with TLS: grpcs://HOST:PORT or https://HOST:PORT"))
    said = said_names()
    for name, (is_there, what) in needed.items():
        if name in said and not is_there:
            raise click.UsageError(f"{flag(name)} changes nothing without {what}")
