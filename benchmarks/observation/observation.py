"""Time what observation costs: CPU of metrics, stamps, traces and log lines of a request, and of metrics pages.

Run: `.venv/bin/python -m benchmarks observation [--quick] [--json]`. About two minutes.
"""

from collections.abc import Sequence

import click
from rich.table import Table

from benchmarks.harness.cpu_cost import QUICK_ROUNDS, ROUNDS, Cost, cost_table, print_costs, turns
from benchmarks.observation.cases import CASES, Case
from benchmarks.observation.receiver import discarding_receiver
from tpuserve_server.core.system.memory import settle_garbage_collector


@click.command()
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(quick: bool, as_json: bool) -> None:
    """Time what observation costs, with the export of traces to a receiver in another process."""
    costs = measure(CASES, QUICK_ROUNDS if quick else ROUNDS)
    print_costs(costs, table(costs), as_json=as_json)


def measure(cases: Sequence[Case], rounds: int) -> list[Cost]:
    """Measure the cases in turn. A cost is the CPU of a case beyond that of its baseline in the same round."""
    settle_garbage_collector()  # A server does this, too.
    beyond_us: dict[str, list[float]] = {case.name: [] for case in cases}
    with discarding_receiver() as url:
        for turn in turns(cases, rounds):
            turn_us = {case.name: case.measure(url) for case in turn}
            for case in cases:
                beyond_us[case.name].append(turn_us[case.name] - turn_us.get(case.baseline, 0.0))
    return [Cost.of(case.name, beyond_us[case.name], case.limit_us) for case in cases if case.baseline]


def table(costs: Sequence[Cost]) -> Table:
    """Return a row for each cost, with its limit."""
    return cost_table(costs, title="CPU for a request or a page in microseconds, all threads", part="part")
