"""Simulate a fleet that scales by queue wait, utilisation or demand, with the autoscaler of the shipped manifest.

Run: `.venv/bin/python -m benchmarks fleet [--json]`. About 10 seconds. Runs only Python, without servers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.fleet.autoscaler import Settings
from benchmarks.fleet.curves import CURVES
from benchmarks.fleet.responses import CAPACITY, POLICIES, TIGHT, ServerResponses
from benchmarks.fleet.simulation import SIGNALS, Outcome, overloaded_wish, simulate

MANIFEST: Final = Path(__file__).parents[2] / "deploy/kubernetes/base/horizontalpodautoscaler.yaml"
# Seconds from the decision to a server that answers: scheduling, the start of the process, the load and the warm-up.
START_UP_S: Final = 45.0
# After a step the fleet has this many periods of the manifest's scale-up policy.
PERIODS: Final = 2
LEAST_GOODPUT, MOST_OF_IDEAL = 0.95, 1.2
SERVERS, LOAD = 8, 4.0
WIDTH = 132


@dataclass(frozen=True, slots=True)
class Result:
    """An outcome under one policy of the servers. `settled` is the goodput of the worst minute after the periods."""

    policy: str
    outcome: Outcome
    settled: float

    @property
    def holds(self) -> bool:
        """Whether the fleet reaches the goals."""
        return (
            self.settled >= LEAST_GOODPUT
            and not self.outcome.wrong_removals_s
            and self.outcome.of_ideal <= MOST_OF_IDEAL
        )


def settings_of(manifest: Path = MANIFEST) -> Settings:
    """Read the numbers of a manifest."""
    return Settings.read(yaml.safe_load(manifest.read_text(encoding="utf-8")))


def measure(settings: Settings, start_up_s: float = START_UP_S) -> tuple[list[Result], dict[tuple[str, str], int]]:
    """Return the results, and the servers that each signal asks for under a lasting overload, by policy and signal."""
    results, wishes = [], {}
    for policy in (*POLICIES, TIGHT):
        responses = ServerResponses.of(policy)
        for signal in SIGNALS:
            wishes[policy.name, signal.name] = overloaded_wish(signal, responses, settings, SERVERS, LOAD)
            # The tight objective refuses some requests under any load, so no number of servers reaches the goal.
            for curve in CURVES if policy is not TIGHT else ():
                outcome = simulate(curve, signal, responses, settings, start_up_s)
                results.append(Result(policy.name, outcome, outcome.worst_minute(settings, PERIODS)))
    return results, wishes


@click.command()
@click.option(
    "--start-up", "start_up_s", default=START_UP_S, show_default=True, help="Seconds until a server is ready."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(start_up_s: float, as_json: bool) -> None:
    """Simulate load curves on servers with the real batcher, behind an autoscaler with the numbers of the manifest.

    Goals of demand: in each minute from two scaling periods after a step on, 95 % of the requests are answered in time.
    The autoscaler removes no server while the others are overloaded. Server-hours are at most 1.2 times the ideal.

    Exit codes: 0 all goals reached, 1 a goal missed, 2 usage error.
    """
    results, wishes = measure(settings_of(), start_up_s)
    if as_json:
        click.echo(json.dumps({"wishes": _wishes_json(wishes), "results": [_json(result) for result in results]}))
    else:
        console = Console(width=WIDTH)
        console.print(_wish_table(wishes))
        console.print(_table(results, start_up_s))
    missed = [result for result in results if result.outcome.signal.startswith("demand") and not result.holds]
    raise SystemExit(1 if missed else 0)


def _wish_table(wishes: dict[tuple[str, str], int]) -> Table:
    offered = round(LOAD * CAPACITY)
    table = Table(
        title=f"Servers that the autoscaler wants while each of {SERVERS} gets {offered}/s and can answer "
        f"{round(CAPACITY)}/s",
        title_justify="left",
    )
    table.add_column("refusals by")
    for signal in SIGNALS:
        table.add_column(signal.name, justify="right")
    for policy in (*POLICIES, TIGHT):
        table.add_row(policy.name, *(str(wishes[policy.name, signal.name]) for signal in SIGNALS))
    return table


def _table(results: Sequence[Result], start_up_s: float) -> Table:
    table = Table(
        title=f"Fleets of servers that start within {start_up_s:g} s",
        title_justify="left",
        caption="Goodput: requests answered in time. Settled: in the worst minute from two scaling periods after the "
        "step on. Removals: decisions to remove servers while the others were overloaded. Of the ideal: server-hours, "
        "divided by those of servers that are there exactly when they are needed.",
        caption_justify="left",
    )
    for heading in ("curve", "refusals by", "signal"):
        table.add_column(heading)
    for heading in ("goodput", "settled", "removals", "server-hours", "of the ideal", "goals"):
        table.add_column(heading, justify="right")
    for result in sorted(results, key=lambda each: [each.outcome.curve.name, each.policy]):
        outcome = result.outcome
        table.add_row(
            outcome.curve.name,
            result.policy,
            outcome.signal,
            f"{100 * outcome.goodput:.1f} %",
            f"{100 * result.settled:.1f} %",
            str(len(outcome.wrong_removals_s)),
            f"{outcome.server_hours:.1f}",
            f"{outcome.of_ideal:.2f}",
            "yes" if result.holds else "no",
        )
    return table


def _wishes_json(wishes: dict[tuple[str, str], int]) -> list[dict[str, object]]:
    return [{"policy": policy, "signal": signal, "servers": count} for (policy, signal), count in wishes.items()]


def _json(result: Result) -> dict[str, object]:
    outcome = result.outcome
    return {
        "curve": outcome.curve.name,
        "policy": result.policy,
        "signal": outcome.signal,
        "goodput": outcome.goodput,
        "settled": result.settled,
        "removals": len(outcome.wrong_removals_s),
        "server_hours": outcome.server_hours,
        "of_ideal": outcome.of_ideal,
        "moments": [(moment.at_s, moment.wanted, moment.answered, moment.servers) for moment in outcome.moments[::3]],
    }
