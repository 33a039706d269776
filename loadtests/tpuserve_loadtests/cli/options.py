"""Options that the subcommands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from tpuserve_loadtests.duration import Duration

# The same as in tpuserve_client.address, which imports gRPC: too slow for --help.
ADDRESS_VARIABLE = "TPUSERVE_ADDRESS"
DEFAULT_GRPC = "localhost:8500"
DEFAULT_REST = "http://localhost:8501"
# Requests in flight, unless told, of runs that are held beside each other.
USERS_HELD_BESIDE = 8

_Command = TypeVar("_Command", bound=Callable[..., Any])  # click's commands take any arguments


class _Decorator(Protocol):
    def __call__(self, command: _Command) -> _Command: ...


def address_options(command: _Command) -> _Command:
    """Where the server is and what of it is measured."""
    return all_of(
        click.option(
            "--grpc",
            "grpc_address",
            metavar="HOST:PORT",
            help=f"gRPC address; grpcs://HOST:PORT with TLS.  [env var: {ADDRESS_VARIABLE}; default: {DEFAULT_GRPC}]",
        ),
        click.option(
            "--rest",
            "rest_url",
            metavar="URL",
            help=f"REST address.  [env var: {ADDRESS_VARIABLE}; default: {DEFAULT_REST}]",
        ),
        click.option(
            "--protocol",
            type=click.Choice(["grpc", "rest", "both"]),
            help="What to measure.  [default: the protocols whose address is given, else both]",
        ),
        access_options,
    )(command)


def access_options(command: _Command) -> _Command:
    """Whom to trust, who calls, and what every request says beside: what access.find_access reads."""
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return all_of(
        click.option("--ca", type=path, help="Trust the authorities in this PEM file, instead of the system's."),
        click.option("--cert", type=path, help="PEM file of this client's certificate, for servers that want one."),
        click.option("--key", type=path, help="PEM file of its key.  [default: it is in --cert]"),
        click.option(
            "--tls-server-name", metavar="NAME", help="Name in the server's certificate.  [default: the host]"
        ),
        click.option(
            "--header",
            "headers",
            metavar="'NAME: VALUE'|@FILE",
            multiple=True,
            help="HTTP header and gRPC metadata of every request; ${VARIABLE} is the environment's; several may be.",
        ),
    )(command)


def version_options(command: _Command) -> _Command:
    """Which version is asked."""
    return all_of(
        click.option("--version", type=click.IntRange(0), help="Version of the model.  [default: the latest]"),
        click.option("--label", help="Label of a version, as canary.  [default: none]"),
    )(command)


def scenario_option(command: _Command) -> _Command:
    """Several models instead of one."""
    return click.option(
        "--scenario",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="YAML file of several models with weights, and of the load, instead of MODEL.",
    )(command)


def request_options(command: _Command) -> _Command:
    """What is sent."""
    return all_of(
        click.option(
            "--rows", metavar="ROWS", help="Rows in a request: 8, 1:0.7,8:0.3, 1..16, poisson(4).  [default: 1]"
        ),
        click.option(
            "--length",
            "lengths",
            metavar="[INPUT=]LENGTH",
            multiple=True,
            help="Of random inputs' free dimensions beside the first: 64, 16..128, lognormal(64,0.5).  [default: 1]",
        ),
        click.option(
            "--input",
            "input_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Inputs: .npz, .npy or .json; random ones that fit the model otherwise.",
        ),
        click.option(
            "--recorded",
            multiple=True,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Recorded requests: the server's request log (TFRecord or JSON), or a warm-up file; several may be.",
        ),
        click.option("--recorded-model", metavar="NAME", help="Whose requests of it are sent.  [default: the model's]"),
        click.option("--signature", "signature_name", help="Signature to call.  [default: serving_default]"),
        click.option("--timeout", type=Duration(), default="30s", show_default=True, help="Time for one request."),
    )(command)


def generator_options(command: _Command) -> _Command:
    """The load generator itself."""
    return all_of(
        click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Generator processes."),
        click.option(
            "--remote", type=click.IntRange(0), default=0, help="Wait for so many `tpuserve loadtest worker` elsewhere."
        ),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            default="0.0.0.0:5557",
            show_default=True,
            help="Where those of --remote find this process; whoever reaches it can take part.",
        ),
        click.option(
            "--generator-limit",
            type=click.Choice(["fail", "note"]),
            default="fail",
            show_default=True,
            help="What to do where the load generator was the limit: exit code 98, or a note.",
        ),
        click.option("--seed", type=click.IntRange(0), default=20, show_default=True, help="Of random arrivals."),
    )(command)


def open_options(command: _Command) -> _Command:
    """How requests of an open load come."""
    return all_of(
        click.option(
            "--arrivals",
            "process",
            type=click.Choice(["poisson", "constant", "bursts"]),
            default="poisson",
            show_default=True,
            help="At random, evenly, or in bursts.",
        ),
        click.option("--burst", type=click.IntRange(2), default=10, show_default=True, help="Requests in a burst."),
    )(command)


def users_or_rate_options(command: _Command) -> _Command:
    """What loads.users_or_rate reads."""
    return all_of(
        click.option(
            "--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {USERS_HELD_BESIDE}]"
        ),
        click.option("--rate", metavar="RATE", help="Open load, in requests/s."),
    )(command)


def least_effect_option(meaning: str) -> _Decorator:
    """From which size on a difference counts; `meaning` is for people."""
    return all_of(
        click.option(
            "--least-effect", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True, help=meaning
        ),
    )


def unclear_option(command: _Command) -> _Command:
    """What a comparison that cannot tell comes to."""
    return click.option(
        "--unclear",
        type=click.Choice(["fail", "note"]),
        default="fail",
        show_default=True,
        help="Where it may be three times the least effect worse, and cannot be told: exit code 98, or a note.",
    )(command)


def time_options(seconds: str, warm_up: str) -> _Decorator:
    """How long a load lasts, and how much of it is not measured."""
    return all_of(
        click.option("--duration", type=Duration(), default=seconds, show_default=True, help="10s, 2m, or seconds."),
        click.option(
            "--warm-up",
            "warm_up",
            type=Duration(zero=True),
            default=warm_up,
            show_default=True,
            help="Time before that is not measured; 0 for none.",
        ),
    )


def html_option(command: _Command) -> _Command:
    """A page beside what is printed."""
    return click.option(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write a page with charts, too: one file, no network.",
    )(command)


def junit_option(command: _Command) -> _Command:
    """What CI systems show."""
    return click.option(
        "--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, too, which CI systems show."
    )(command)


def file_options(command: _Command) -> _Command:
    """Files beside what is printed."""
    path = click.Path(path_type=Path)
    return all_of(
        junit_option,
        html_option,
        click.option("--csv", type=path, metavar="FILE", help="Write a table, too: by time, or a row for each run."),
        click.option(
            "--hdr", type=path, metavar="FILE", help="Write HdrHistogram's log, too; a name in .hgrm: its percentiles."
        ),
    )(command)


def all_of(*decorators: Callable[[Any], Any]) -> _Decorator:  # as click types them
    """Options as one decorator, in the order of the help."""

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate
