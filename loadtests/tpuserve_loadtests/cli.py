"""`tpuserve loadtest`: the command line. What is slow to import is imported when a run is certain."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpuserve_loadtests.duration import Duration

if TYPE_CHECKING:
    from tpuserve_client.model import ModelSpec, Signature
    from tpuserve_loadtests.report import Report
    from tpuserve_loadtests.runner import Plan
    from tpuserve_loadtests.workload import Protocol, Workload

DEFAULT_GRPC = "localhost:8500"
DEFAULT_REST = "http://localhost:8501"
EXIT_FAILURES = 1
EXIT_UNREACHABLE = 3
PROBE_TIMEOUT_S = 10.0

EPILOG = """\b
Exit codes:
  0  every request was answered
  1  requests failed (the commonest errors are listed)
  2  usage: also a model that the server does not know, and inputs that do not fit it
  3  the server cannot be reached

\b
Examples:
  tpuserve loadtest digits
  tpuserve loadtest digits --protocol grpc --users 64 --duration 1m
  tpuserve loadtest digits --rest http://localhost:8501 --input images.npz --rows 4 --json
"""


def main() -> None:
    """The `tpuserve-loadtest` executable, which people reach as `tpuserve loadtest`."""
    loadtest(prog_name="tpuserve loadtest")


@click.command(epilog=EPILOG)
@click.argument("model")
@click.option("--grpc", "grpc_address", metavar="HOST:PORT", help=f"gRPC address.  [default: {DEFAULT_GRPC}]")
@click.option("--rest", "rest_url", metavar="URL", help=f"REST address.  [default: {DEFAULT_REST}]")
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "rest", "both"]),
    help="What to measure.  [default: the protocols whose address is given, else both]",
)
@click.option("--duration", type=Duration(), default="10s", show_default=True, help="10s, 2m, or seconds.")
@click.option(
    "--users",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Requests in flight; both protocols share them.",
)
@click.option("--rows", type=click.IntRange(1), help="Rows in each request.  [default: 1]")
@click.option(
    "--input",
    "input_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Inputs: .npz, .npy or .json; random ones that fit the model otherwise.",
)
@click.option("--version", type=click.IntRange(0), help="Version of the model.  [default: the latest]")
@click.option("--signature", "signature_name", help="Signature to call.  [default: serving_default]")
@click.option("--timeout", type=Duration(), default="30s", show_default=True, help="Time allowed for one request.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
def loadtest(
    model: str,
    grpc_address: str | None,
    rest_url: str | None,
    protocol: str | None,
    duration: float,
    users: int,
    rows: int | None,
    input_file: Path | None,
    version: int | None,
    signature_name: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Load a running server with predict requests for MODEL and print rates, failures and latencies.

    Each user sends its next request as soon as the last one is answered. Latencies are of successful requests.
    """
    protocols = _protocols(protocol, grpc_address, rest_url)
    if users < len(protocols):
        raise click.UsageError(f"--users {users} cannot be shared between {len(protocols)} protocols")
    addresses = _addresses(protocols, grpc_address, rest_url)

    from tpuserve_loadtests.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    # Locust patches the process too: after gRPC has been told, and before anything else is imported.
    from rich.console import Console

    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.report import print_report, report_json
    from tpuserve_loadtests.runner import Plan

    signature = _ask_for_signature(ModelSpec(model, version), signature_name, addresses)
    workload = _workload(ModelSpec(model, version), signature, addresses, rows, input_file)
    plan = Plan(workload, addresses.get("grpc"), addresses.get("rest"), users, duration, timeout)
    report = _run(plan)
    if as_json:
        click.echo(report_json(report))
    else:
        print_report(report, Console())
    sys.exit(0 if report.ok else EXIT_FAILURES)


def _protocols(chosen: str | None, grpc_address: str | None, rest_url: str | None) -> "tuple[Protocol, ...]":
    if chosen is None:
        chosen = "both" if bool(grpc_address) == bool(rest_url) else "grpc" if grpc_address else "rest"
    if chosen == "grpc":
        return ("grpc",)
    return ("rest",) if chosen == "rest" else ("grpc", "rest")


def _addresses(
    protocols: "tuple[Protocol, ...]", grpc_address: str | None, rest_url: str | None
) -> "dict[Protocol, str]":
    from tpuserve_client.address import parse_address
    from tpuserve_client.errors import InvalidArgument

    given: dict[Protocol, str] = {"grpc": grpc_address or DEFAULT_GRPC, "rest": rest_url or DEFAULT_REST}
    for protocol in protocols:
        try:
            place = parse_address(given[protocol])
        except InvalidArgument as error:
            raise click.BadParameter(error.message, param_hint=f"--{protocol}") from None
        if place.is_rest != (protocol == "rest"):
            raise click.BadParameter(f"{given[protocol]!r} is no {protocol} address", param_hint=f"--{protocol}")
    return {protocol: given[protocol] for protocol in protocols}


def _ask_for_signature(spec: "ModelSpec", name: str | None, addresses: "dict[Protocol, str]") -> "Signature":
    """Ask every address for the model's metadata, which also shows that it can be reached before a run begins."""
    from tpuserve_client import Client
    from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable

    for address in addresses.values():
        try:
            with Client(address, timeout_s=PROBE_TIMEOUT_S) as client:
                signature = client.metadata(spec.name, version=spec.version).signature(name)
        except (Unavailable, DeadlineExceeded) as error:
            click.echo(f"Error: {address} cannot be reached: {error.message}", err=True)
            sys.exit(EXIT_UNREACHABLE)
        except TpuserveError as error:
            raise click.UsageError(f"{address}: {error.message}") from None
    return signature


def _workload(
    spec: "ModelSpec",
    signature: "Signature",
    addresses: "dict[Protocol, str]",
    rows: int | None,
    input_file: Path | None,
) -> "Workload":
    from tpuserve_client.errors import InvalidArgument
    from tpuserve_loadtests.inputs import BadInput, read_inputs
    from tpuserve_loadtests.workload import build_workload

    try:
        inputs = None if input_file is None else read_inputs(input_file, signature)
        return build_workload(spec, signature, tuple(addresses), rows=rows, inputs=inputs)
    except (BadInput, InvalidArgument) as error:
        raise click.UsageError(str(error)) from None


def _run(plan: "Plan") -> "Report":
    from rich.console import Console

    from tpuserve_loadtests.progress import Progress
    from tpuserve_loadtests.report import build_report
    from tpuserve_loadtests.runner import run

    with Progress(plan.duration_s, plan.users_by_protocol, Console(stderr=True)) as progress:
        finished = run(plan, progress.tick)
    return build_report(
        finished.recorder,
        model=str(plan.workload.spec),
        users=plan.users,
        rows=plan.workload.rows,
        elapsed_s=finished.elapsed_s,
        notes=finished.notes,
    )
