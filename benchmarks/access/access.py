"""Time what credentials cost: CPU of the rule for a request with a key or a token, on gRPC and REST.

Run: `.venv/bin/python -m benchmarks access [--quick] [--json]`. About half a minute.
"""

from collections.abc import Sequence

import click
from rich.table import Table

from benchmarks.access.cases import CASES, Case, make_clients
from benchmarks.harness.cpu_cost import QUICK_ROUNDS, ROUNDS, Cost, cost_table, print_costs, turns
from tpuserve_server.core.system.memory import settle_garbage_collector


@click.command()
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(quick: bool, as_json: bool) -> None:
    """Time the rule that identifies a client and checks its role."""
    costs = measure(CASES, QUICK_ROUNDS if quick else ROUNDS)
    print_costs(costs, table(costs), as_json=as_json)


def measure(cases: Sequence[Case], rounds: int) -> list[Cost]:
    """Measure the cases in turn."""
    settle_garbage_collector()  # A server does this, too.
    clients = make_clients()
    found_us: dict[str, list[float]] = {case.name: [] for case in cases}
    for turn in turns(cases, rounds):
        for case in turn:
            found_us[case.name].append(case.measure(clients))
    return [Cost.of(case.name, found_us[case.name], case.limit_us) for case in cases]


def table(costs: Sequence[Cost]) -> Table:
    """Return a row for each cost, with its limit."""
    return cost_table(costs, title="CPU of the rule for a request in microseconds", part="request")
