"""What somebody said on the command line, beside what has its default; and what would change nothing there."""

from collections.abc import Mapping
from typing import Any, Final

import click
from click.core import ParameterSource

from tpuserve_loadtests.cli.access import OF_TLS, is_secure

# Options whose values have another name.
_FLAGS: Final = {
    "signature_name": "--signature",
    "input_file": "--input",
    "lengths": "--length",
    "process": "--arrivals",
}


def said_names(given: Mapping[str, Any]) -> set[str]:
    """Names of the values that were given, of the command that runs."""
    context = click.get_current_context()
    return {name for name in given if context.get_parameter_source(name) is not ParameterSource.DEFAULT}


def flag(name: str) -> str:
    """The option that a value is from."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def refuse_idle(given: Mapping[str, Any], *addresses: str) -> None:
    """A usage error for an option that is of no use without another: who gave it believes that it does something.

    `given` has a scenario's settings among its values; `addresses` are others that are asked.
    """
    as_recorded = (given["recorded"] or given.get("scenario")) and not (given.get("users") or given.get("rate"))
    needed = {
        "burst": (given.get("process") == "bursts", "--arrivals bursts"),
        # Commands without --rate have open loads of their own.
        "process": (given.get("rate", True), "--rate"),
        "speed": (given.get("trace_file") or as_recorded, "--trace, or --recorded without --users and --rate"),
        "listen": (given["remote"], "--remote"),
        "recorded_model": (given["recorded"], "--recorded"),
    }
    places = (*addresses, *(given.get(name) for name in ("grpc_address", "rest_url", "server_metrics")))
    needed |= dict.fromkeys(OF_TLS, (is_secure(places), "an address with TLS: grpcs://HOST:PORT or https://HOST:PORT"))
    said = said_names(given)
    for name, (is_there, what) in needed.items():
        if name in said and not is_there:
            raise click.UsageError(f"{flag(name)} changes nothing without {what}")
