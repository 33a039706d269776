"""The plan of a deployment, as lines for a terminal."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tpuserve_exporter.deployment.capacity import Demand
from tpuserve_exporter.deployment.plan import Plan
from tpuserve_exporter.reports.preflight_section import hbm
from tpuserve_exporter.terms.texts import seconds
from tpuserve_formats.price import Price

_NAME_WIDTH = 13


def print_plan(console: Console, plan: Plan, written: Sequence[Path]) -> None:
    """Print the plan's values with their reasons, its notes, and the files of the overlay."""
    version = plan.version
    console.print(f"{plan.model} version {version.number} on {version.topology.name}: {plan.machine.machine_type}")
    for name, value in _lines(plan):
        console.print(Text(f"  {name:<{_NAME_WIDTH}}{value}"), soft_wrap=True)
    for note in plan.notes:
        console.print(Text(f"! {note}.", style="yellow"), soft_wrap=True)
    for path in written:
        console.print(Text(f"Wrote {path}"), soft_wrap=True)
    console.print(Text(f"Apply it: kubectl apply --kustomize {shlex.quote(str(written[0].parent))}"), soft_wrap=True)


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    version, needs = plan.version, plan.needs
    yield "devices", f"{version.mesh.devices} of {version.topology.machine_devices}, --mesh {version.mesh}"
    memory = f"{hbm(version.needed_bytes)} of {hbm(version.available_bytes)} a device"
    yield "HBM", f"{memory}. Versions that fit side by side: {version.side_by_side:,}"
    if version.batch_sizes:
        yield "batch sizes", ", ".join(map(str, version.batch_sizes))
    yield "memory", f"{needs.request_gib} GiB requested, {needs.limit_gib} GiB at most"
    parts = (
        f"process {seconds(needs.process_s)}, compilation {seconds(needs.compile_s)}, reading {seconds(needs.read_s)}"
    )
    yield "startup", f"at most {needs.startup_s} s: {parts}"
    yield "replicas", str(plan.replicas) if plan.demand is None else _describe(plan.demand)
    yield "autoscaler", f"at least {plan.replicas}, at most {plan.max_replicas}"
    if plan.price is not None:
        yield "cost", _describe_cost(plan, plan.price)


def _describe(demand: Demand) -> str:
    capacity = demand.capacity
    each = f"{capacity.requests_per_s:,.6g}/s each with {' and '.join(capacity.terms)}"
    return (
        f"{demand.replicas}: {demand.for_load} for {demand.rate_per_s:,.10g} requests/s at {each}, and "
        f"{demand.headroom} as headroom. Utilization {100 * demand.utilization:.0f} %"
    )


def _describe_cost(plan: Plan, price: Price) -> str:
    hour = f"{plan.cost_per_hour:,.10g} {price.currency}/h: {plan.replicas} x {price}"
    if plan.demand is None or plan.per_million_predictions is None:
        return hour
    predictions_per_s = plan.demand.rate_per_s * plan.demand.capacity.rows
    million = f"{plan.per_million_predictions:.3g} {price.currency} per million predictions"
    return f"{hour}. {million}, at {predictions_per_s:,.6g} predictions/s"
