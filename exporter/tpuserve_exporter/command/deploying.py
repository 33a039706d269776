"""The `tpuserve deploy` command. `render` writes a Kustomize overlay, and contacts no cluster.

`vertex` is in `tpuserve_exporter.command.vertex`.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from tpuserve_exporter.command.parameter_types import IMAGE, PRICE, TOPOLOGY
from tpuserve_exporter.command.running import report_error, run_program
from tpuserve_exporter.command.vertex import (
    FILE,
    SETTINGS,
    check_option,
    model_name_option,
    version_option,
    vertex,
)
from tpuserve_exporter.deployment.capacity import Capacity, Demand
from tpuserve_exporter.deployment.checked_version import CheckedVersion
from tpuserve_exporter.deployment.machines import GkeMachine
from tpuserve_exporter.deployment.manifest_check import check_manifest
from tpuserve_exporter.deployment.names import Image, choose_name
from tpuserve_exporter.deployment.overlay import Overlay
from tpuserve_exporter.deployment.plan import Plan
from tpuserve_exporter.deployment.written_files import packaged_manifests, write_files
from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.options.tpu import TpuTopology
from tpuserve_exporter.reports.deployment_table import print_plan
from tpuserve_formats.price import Price

PROG_NAME = "tpuserve deploy"
_VERSION = importlib.metadata.version("tpuserve-exporter")
_LOG_WIDTH = 150
_KUSTOMIZATION = "kustomization.yaml"
_BASE, _COMPONENT = "base", "components/tpu"
# Directory of the copies of both in the output.
_MANIFESTS = "manifests"
# Two servers without a rate, as in the base: one serves while the other restarts.
_REPLICAS = 2
# One server may fail or drain while the others hold the rate.
_HEADROOM = 1
# Limits of servers and of requests/s, beyond which an option is probably wrong.
_MOST = 10_000
_MOST_PER_S = 1e9

_EPILOG = """\b
Examples:
  # two servers, each on one v5e chip
  tpuserve deploy render --version models/digits/3 --tpu v5e:1x1 --output overlays/digits
\b
  # as many servers as 5,000 requests/s need, with their cost
  tpuserve loadtest search digits --slo 'p99<=20ms' --json > search.json
  tpuserve deploy render --version models/digits/3 --tpu v5e:1x1 --output overlays/digits \\
      --loadtest search.json --rate 5000 --price-per-hour 1.20
\b
  # a TPU that the export did not check, with four devices
  tpuserve check models/digits/3 --tpu v5e:2x2 --mesh data=4 --json > check.json
  tpuserve deploy render --version models/digits/3 --tpu v5e:2x2 --check check.json --output overlays/digits
\b
  # an edited overlay: do its selectors, topology, chips and tolerations fit GKE's TPUs?
  kubectl kustomize overlays/digits | tpuserve deploy render --validate -

\b
Exit codes:
  0  the overlay was written, or the manifest of --validate fits
  1  unexpected error
  2  wrong usage, a TPU without a machine, or a load test that shows no capacity
  4  the version was not checked for the TPU, or does not fit on it; or the manifest of --validate does not fit
  5  the output exists, or cannot be written
  6  no version with device programs, or a damaged file; or the manifest of --validate has no pod with a TPU
  130  interrupted
"""


@click.group(context_settings=SETTINGS)
def deploy() -> None:
    """Write Kubernetes manifests or commands that deploy an exported version."""


deploy.add_command(vertex)


def _validate(ctx: click.Context, _: click.Parameter, manifest: str | None) -> None:
    """Compare the manifest with the table of TPUs, and end the command."""
    if manifest is None:
        return
    try:
        with click.open_file(manifest, "rb") as stream:
            names = check_manifest(stream.read(), "standard input" if manifest == "-" else manifest)
    except Exception as error:  # the top of the process
        ctx.exit(report_error(error, as_json=False))
    click.echo(f"{', '.join(names)}: selectors, topology, chips and tolerations fit GKE's TPUs")
    ctx.exit(0)


@deploy.command(epilog=_EPILOG, context_settings=SETTINGS)
@version_option
@click.option(
    "--tpu",
    "topology",
    required=True,
    type=TOPOLOGY,
    help="TPU of each server, on one host: v5e or v6e in 1x1, 2x2, 2x4; v4 or v5p in 2x2x1; tpu7x in 1x1x1, 2x2x1.",
)
@click.option(
    "--validate",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    is_eager=True,
    expose_value=False,
    callback=_validate,
    help="Only compare the TPU pods of a manifest with GKE's TPUs, and exit. `-` reads standard input.",
)
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the overlay.",
)
@click.option(
    "--manifests",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory with the Kustomize base and components that the overlay refers to, such as deploy/kubernetes of a "
    f"checkout of tpuserve.  [default: copies in {_MANIFESTS}/ of --output]",
)
@check_option
@click.option(
    "--loadtest",
    type=FILE,
    metavar="FILE",
    help="Document of `tpuserve loadtest search --json`, or of `run --json` with --fail-if, of one such server.",
)
@click.option(
    "--rate", type=click.FloatRange(0, _MOST_PER_S, min_open=True), help="Requests/s of all servers. Needs --loadtest."
)
@click.option(
    "--headroom",
    type=click.IntRange(0, _MOST),
    help=f"Number of servers beyond those that hold --rate.  [default: {_HEADROOM}]",
)
@click.option(
    "--replicas", type=click.IntRange(1, _MOST), help=f"Number of servers without --rate.  [default: {_REPLICAS}]"
)
@click.option(
    "--max-replicas",
    type=click.IntRange(1, _MOST),
    help="Largest number of servers of the autoscaler.  [default: twice the number of servers]",
)
@click.option(
    "--price-per-hour",
    "price",
    type=PRICE,
    help="Price of one machine for an hour, to print the cost; such as 1.20 or '1.20 EUR'.",
)
@model_name_option
@click.option(
    "--image",
    type=IMAGE,
    help="Image of the server for a TPU, such as registry.example.com/tpuserve-server:0.1.0-tpu.  [default: the "
    "component's]",
)
@click.option("--force", is_flag=True, help="Replace the files of an overlay in --output.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to standard output, and nothing else.")
def render(
    version: Path,
    topology: TpuTopology,
    output: Path,
    manifests: Path | None,
    check: Path | None,
    loadtest: Path | None,
    rate: float | None,
    headroom: int | None,
    replicas: int | None,
    max_replicas: int | None,
    price: Price | None,
    model_name: str | None,
    image: Image | None,
    force: bool,
    as_json: bool,
) -> int:
    """Write a Kustomize overlay that serves a version on TPUs of GKE.

    The version must have been checked for the TPU, by `tpuserve export --tpu` or `tpuserve check --tpu`. The check
    supplies the mesh, the memory of the TPU and the startup budget. With --rate, the number of servers is
    ceil(rate / capacity of one server) + headroom.
    """
    _check_options(loadtest, rate, headroom, replicas)
    try:
        machine = GkeMachine.of(topology)
        checked = CheckedVersion.read(version, topology, check)
        demand = _read_demand(loadtest, rate, headroom)
        servers = demand.replicas if demand is not None else replicas or _REPLICAS
        most = _choose_most(max_replicas, servers)
        plan = Plan(choose_name(model_name, checked.model), checked, machine, servers, most, demand, price)
        overlay = Overlay(
            plan,
            base=_find_manifests(manifests, _BASE, output),
            component=_find_manifests(manifests, _COMPONENT, output),
            image=image,
            author=f"`{PROG_NAME} render` of tpuserve-exporter {_VERSION}",
        )
        copies = packaged_manifests(_MANIFESTS) if manifests is None else {}
        written = write_files(output, {**overlay.files(), **copies}, replace=force)
    except Exception as error:  # the top of the process
        return report_error(error, as_json)
    if as_json:
        files = [str(path) for path in written]
        click.echo(json.dumps({"ok": True, "exit_code": 0, **plan.to_json(), "files": files}, indent=2))
    else:
        shown = [path for path in written if path.parent == output]
        print_plan(Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False), plan, shown)
    return 0


def _check_options(loadtest: Path | None, rate: float | None, headroom: int | None, replicas: int | None) -> None:
    if (loadtest is None) != (rate is None):
        raise click.UsageError("--rate and --loadtest have no effect alone. Set both, or use --replicas")
    if rate is None and headroom is not None:
        raise click.UsageError("--headroom has no effect without --rate. Add --rate and --loadtest")
    if rate is not None and replicas is not None:
        raise click.UsageError("--replicas has no effect with --rate. Omit one of them")


def _read_demand(loadtest: Path | None, rate: float | None, headroom: int | None) -> Demand | None:
    if loadtest is None or rate is None:
        return None
    capacity = Capacity.read(loadtest)
    if not rate / capacity.requests_per_s <= _MOST:  # also false for NaN
        raise OptionConflict(
            f"{rate:g} requests/s at {capacity.requests_per_s:g}/s each need more than {_MOST:,} servers. Check --rate"
        )
    return Demand(rate, capacity, _HEADROOM if headroom is None else headroom)


def _choose_most(most: int | None, servers: int) -> int:
    """Return the largest number of servers. Raises OptionConflict if it is below `servers`."""
    if most is not None and most < servers:
        raise OptionConflict(f"--max-replicas {most} is below the {servers} servers of the overlay")
    return 2 * servers if most is None else most


def _find_manifests(manifests: Path | None, folder: str, output: Path) -> str:
    """Return the path of a folder in `manifests`, relative to the output. Raises SourceUnreadable if it is missing.

    None stands for the copies in the output.
    """
    if manifests is None:
        return f"{_MANIFESTS}/{folder}"
    found = manifests / folder
    if not (found / _KUSTOMIZATION).is_file():
        raise SourceUnreadable(
            f"--manifests {manifests} has no {folder}/{_KUSTOMIZATION}. Use the directory deploy/kubernetes of a "
            "checkout of tpuserve"
        )
    return os.path.relpath(found.resolve(), output.resolve())


def main() -> NoReturn:
    """Run the `tpuserve-deploy` program, which users start as `tpuserve deploy`."""
    run_program(deploy, PROG_NAME)


if __name__ == "__main__":
    main()
