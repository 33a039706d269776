"""Compare reports of `tpuserve loadtest` with servers of known behaviour: a stalling server, a device of known speed.

Run: `.venv/bin/python -m benchmarks loadtest stall|search|batched|truth|power|checks [--seeds N]`.
"""

import sys
import tempfile
from contextlib import closing
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.batching.simulated_grid import greedy_setting
from benchmarks.batching.simulation import Device, poisson, simulate
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.loadgen import loadtest_search
from benchmarks.loadgen.check_cost import checks
from benchmarks.loadgen.loadtest_search import FIRST_PER_S, Found, loadtest
from benchmarks.loadgen.truth import power, truth
from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.judgement.search import Answer, Outcome, Probe, Sample, judge, search_rates

STALL_USERS = 4
WHY_CLOSED_HIDES = (
    "During the stall, each of the {users} users of the closed load waited for one response and sent nothing. "
    "Therefore only {users} of {requests:,} requests are late, less than 1 %. The closed load does not measure the "
    "requests that other clients would have sent. The open load sent its requests on schedule, and they waited."
)
NOT_SHOWN = "Unexpected result: the p99 of the open load must be above {0:g} ms, and that of the closed load below."
# Latency that reveals a stall of one second, on a server that otherwise answers in milliseconds.
SHOWN_MS = 500.0
# Largest error allowed for `search`, as a share of the true rate.
CLOSE = 0.05
# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 120
# A batch of 8 takes 28 ms. The objective is 100 ms for 99 % of requests.
BATCHED = Device("batched", t0_s=0.020, per_row_s=0.001, max_rows=8, latency_s=0.100)
_BATCHED_ARRIVALS = 300_000


@click.group()
def main() -> None:
    """Load servers of known behaviour."""
    exit_on_sigterm()


main.add_command(truth)
main.add_command(power)
main.add_command(checks)


@main.command()
def stall() -> None:
    """Run a closed and an open load of 10 s on a server that stops for a second in the middle."""
    table = Table("load", "requests", "p50 ms", "p99 ms", "max ms")
    totals = []
    for load in (("--users", str(STALL_USERS)), ("--rate", "200")):
        with serving(Doubling(service_s=0.001, stall_at=500)) as server:
            try:
                report = loadtest("run", MODEL, "--grpc", server.grpc_address, *load, "--warm-up", "0")
            except ServerDied as error:
                raise click.ClickException(str(error)) from None
        total = report["total"]
        totals.append(total)
        figures = (f"{total[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        table.add_row(report["load"], f"{total['requests']:,}", *figures)
    console = Console()
    console.print(table)
    closed, open_ = totals
    console.print(WHY_CLOSED_HIDES.format(users=STALL_USERS, requests=closed["requests"]))
    shown = open_["p99_ms"] > SHOWN_MS > closed["p99_ms"]
    console.print(
        "The p99 of the open load shows the stall. The p99 of the closed load does not."
        if shown
        else NOT_SHOWN.format(SHOWN_MS)
    )


@main.command()
@click.option("--seeds", default=10, show_default=True, help="Number of searches, each with different arrivals.")
@click.option("--duration", default="60s", show_default=True, help="Duration of each try.")
@click.option("--side-by-side", default=5, show_default=True, help="Concurrent searches, each with a separate server.")
def search(seeds: int, duration: str, side_by_side: int) -> None:
    """Compare the highest sustainable rate of the digits model on a scripted device, searched and computed."""
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    progress = Console(stderr=True)
    progress.print("computing the true rate in virtual time")
    truth = loadtest_search.true_rate()
    console.print(f"True rate: {truth:.1f}/s")
    found: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="tpuserve-loadtest-") as directory:
        progress.print("exporting the model")
        try:
            base = loadtest_search.write_digits(Path(directory))
            searches = loadtest_search.searches(base, Path(directory), seeds, side_by_side, duration, _print_try)
            with closing(searches):
                for one in searches:
                    found.append(one)
                    progress.print(f"seed {one.seed}: {_described(one, truth)}", highlight=False)
        except ServerDied as error:
            raise click.ClickException(str(error)) from None
    _print_found(found, truth, console)


def _print_try(line: str) -> None:
    if "Trying" not in line:
        click.echo(line, err=True)


def _print_found(found: list[Found], truth: float, console: Console) -> None:
    table = Table(
        "seed", "true/s", "found/s", "error", "tries", f"first try, {FIRST_PER_S}/s (expected: no late requests)"
    )
    for one in sorted(found, key=lambda one: one.seed):
        rate = "none" if one.rate_per_s is None else f"{one.rate_per_s:.1f}"
        table.add_row(
            str(one.seed), f"{truth:.1f}", rate, f"{100 * one.error(truth):+.1f} %", str(one.tries), one.first
        )
    console.print(table)
    close = sum(abs(one.error(truth)) <= CLOSE for one in found)
    console.print(f"{close} of {len(found)} searches are within {100 * CLOSE:g} % of the true rate")


@main.command()
@click.option("--seeds", default=10, show_default=True, help="Number of searches, each with different arrivals.")
@click.option("--seconds", default=60.0, show_default=True, help="Virtual seconds of each try.")
def batched(seeds: int, seconds: float) -> None:
    """Search the highest sustainable rate of the server's own batcher on a scripted device, in virtual time."""
    truth = _true_batched_rate()
    console = Console()
    console.print(f"True rate: {truth:.1f}/s, from {_BATCHED_ARRIVALS:,} arrivals")
    worst = 0.0
    for seed in range(seeds):
        found = search_rates(_Batched(seed, seconds).attempt, 20, 1e6, 0.02).best
        off = (found.rate_per_s if found else 0.0) / truth - 1
        worst = max(worst, abs(off))
        console.print(f"seed {seed}: {truth * (1 + off):.1f}/s, {100 * off:+.1f} %")
    console.print(f"Largest error: {100 * worst:.1f} %")


class _Batched:
    """Tries rates like `tpuserve loadtest search`, with its arrivals and its judgement."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed = 10_000 * seed
        self._seconds = seconds

    def attempt(self, rate_per_s: float) -> Probe:
        """Run up to four times, until the share of late requests gives a clear result."""
        sample, words = Sample(0, 0), ""
        for _ in range(4):
            self._seed += 1
            profile = RateProfile.parse(f"{rate_per_s:f}", self._seconds)
            times = list(Load(self._seconds, profile=profile, seed=self._seed).instants())
            run = simulate(BATCHED, greedy_setting(BATCHED), times)
            sample += Sample(run.offered, run.offered - run.in_time)
            answer, words = judge(sample, 99)
            if answer is not Answer.UNCLEAR:
                return Probe(rate_per_s, Outcome.HOLDS if answer is Answer.KEPT else Outcome.FAILS, words)
        return Probe(rate_per_s, Outcome.FAILS, words)


def _true_batched_rate() -> float:
    low, high = 0.3 * BATCHED.max_rows / BATCHED.cost_s(8), BATCHED.max_rows / BATCHED.cost_s(8)
    for _ in range(10):
        rate = (low + high) / 2
        run = simulate(BATCHED, greedy_setting(BATCHED), poisson(rate, _BATCHED_ARRIVALS, 1))
        low, high = (rate, high) if run.in_time >= 0.99 * run.offered else (low, rate)
    return low


def _described(found: Found, truth: float) -> str:
    if found.rate_per_s is None:
        return f"found no rate ({found.problem})"
    return f"found {found.rate_per_s:.1f}/s, {100 * found.error(truth):+.1f} %, in {found.tries} tries"
