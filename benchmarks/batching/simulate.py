"""Simulate batching: the real batcher in virtual time, on devices whose batches cost t0 + a * rows.

Run: `.venv/bin/python -m benchmarks simulate [--quick]`. Runs only Python, without a device.
"""

import json
import sys

import click
from rich.console import Console

from benchmarks.batching import simulated_grid, simulated_overload, simulated_paper

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
QUICK_LOADS = (0.5, 0.9, 1.2, 2.0)
WIDTH = 132


@click.command()
@click.argument("what", type=click.Choice(["paper", "grid", "overload", "all"]), default="all")
@click.option("--quick", is_flag=True, help="Simulate fewer loads and requests on one device of the grid.")
@click.option("--requests", default=None, type=click.IntRange(100), help="Requests per grid run (default: 12,000).")
@click.option(
    "--jitter",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Variation of batch costs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(what: str, quick: bool, requests: int | None, jitter: float, as_json: bool) -> None:
    """Simulate the TPU paper's Table 4 (paper), or an objective next to a grid of fixed settings (grid).

    Or simulate requests with deadlines at up to ten times the capacity, next to other queues (overload).

    Loads are shares of the capacity: the rate at which evenly spaced requests can all be in time. It is the rows of the
    best allowed size over its cost, among sizes of which two batches fit the objective. Goodput is the number of
    requests answered within the objective per second.

    The batcher uses no absolute times. A device that is a thousand times slower gives the same figures, and its
    simulation is that much faster than real time.

    \b
    python -m benchmarks simulate --quick
    python -m benchmarks simulate grid --jitter 0.05
    python -m benchmarks simulate overload --quick
    python -m benchmarks simulate all --json > simulated.json

    Exit codes: 0 all goals reached, 1 a goal missed, 2 usage error.
    """
    console = Console(stderr=True)
    found: dict[str, object] = {}
    reached = True
    if what in ("paper", "all"):
        rows = list(simulated_paper.measure(console.print, *([5] if quick else [])))
        found["paper"] = simulated_paper.as_json(rows)
        if not as_json:
            simulated_paper.print_rows(rows, Console(width=WIDTH))
    if what in ("grid", "all"):
        devices = simulated_grid.shapes(jitter)
        loads, count = (QUICK_LOADS, 4_000) if quick else (LOADS, 12_000)
        points = list(
            simulated_grid.measure(devices[1:2] if quick else devices, loads, requests or count, console.print)
        )
        found["grid"] = simulated_grid.as_json(points)
        reached = all(goal.reached for goal in simulated_grid.goals(points))
        if not as_json:
            simulated_grid.print_points(points, Console(width=WIDTH))
    if what in ("overload", "all"):
        outcomes = list(simulated_overload.measure(quick=quick, report=console.print))
        found["overload"] = simulated_overload.as_json(outcomes)
        reached = reached and simulated_overload.is_reached(outcomes)
        if not as_json:
            simulated_overload.print_outcomes(outcomes, Console(width=WIDTH))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    sys.exit(0 if reached else 1)
