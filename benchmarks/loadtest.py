"""What `tpuserve loadtest` says of servers whose truth is known: one stalls, one's device takes a set time.

Run from anywhere: `.venv/bin/python benchmarks/loadtest.py stall|search|batched [--seeds N]`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

# Run by path, so that it works from anywhere: the workspace's root is not on the path then.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.simulated_grid import greedy_setting
from benchmarks.simulation import Device, poisson, simulate
from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.arrivals.rate_profile import RateProfile
from tpuserve_loadtests.judgement.objective import Answer, Sample, judge
from tpuserve_loadtests.searching import Outcome, Probe
from tpuserve_loadtests.searching import search as search_rates

SERVICE_S = 0.010
LIMIT_MS = 80.0
_ARRIVALS = 2_000_000
# A batch of 8 takes 28 ms; 99 % of requests shall be answered within 100 ms.
BATCHED = Device("batched", t0_s=0.020, per_row_s=0.001, max_rows=8, latency_s=0.100)
_BATCHED_ARRIVALS = 300_000


def loadtest(*arguments: str) -> dict[str, Any]:  # a JSON document
    """Its report. The generator shares this machine with the server: where it is late, that is a note."""
    program = Path(sys.executable).with_name("tpuserve-loadtest")
    command = [str(program), *arguments, "--generator-limit", "note", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@click.group()
def main() -> None:
    """Loads servers whose truth is known."""


@main.command()
def stall() -> None:
    """A closed and an open load of 10 s before a server that stops for a second in the middle."""
    table = Table("load", "requests", "p50 ms", "p99 ms", "max ms")
    for load in (("--users", "4"), ("--rate", "200")):
        with serving(Doubling(service_s=0.001, stall_at=500)) as server:
            report = loadtest("run", MODEL, "--grpc", server.grpc_address, *load, "--warm-up", "0")
        total = report["total"]
        figures = (f"{total[name]:.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        table.add_row(report["load"], f"{total['requests']:,}", *figures)
    Console().print(table)


@main.command()
@click.option("--seeds", default=10, show_default=True, help="Searches, each with arrivals of its own.")
@click.option("--duration", default="30s", show_default=True, help="Of each try.")
def search(seeds: int, duration: str) -> None:
    """The rate at which p99 is 80 ms on a device of 10 ms a request, searched for and computed."""
    truth = true_rate()
    console = Console()
    console.print(f"Computed: {truth:.1f}/s, without what the network and the machine add to each request.")
    for seed in range(seeds):
        options = ("--slo", f"p99<={LIMIT_MS:g}ms", "--from", "40", "--duration", duration, "--seed", str(seed))
        with serving(Doubling(service_s=SERVICE_S)) as server:
            found = loadtest("search", MODEL, "--grpc", server.grpc_address, *options)["rate_per_s"]
        told = "found no rate" if found is None else f"found {found:.1f}/s, {100 * (found / truth - 1):+.1f} %"
        console.print(f"seed {seed}: {told}")


@main.command()
@click.option("--seeds", default=10, show_default=True, help="Searches, each with arrivals of its own.")
@click.option("--seconds", default=60.0, show_default=True, help="Of each try, in virtual time.")
def batched(seeds: int, seconds: float) -> None:
    """The highest rate that the server's own batcher holds before a scripted device, in virtual time."""
    truth = _true_batched_rate()
    console = Console()
    console.print(f"True rate: {truth:.1f}/s, of {_BATCHED_ARRIVALS:,} arrivals")
    worst = 0.0
    for seed in range(seeds):
        found = search_rates(_Batched(seed, seconds).attempt, 20, 1e6, 0.02).best
        off = (found.rate_per_s if found else 0.0) / truth - 1
        worst = max(worst, abs(off))
        console.print(f"seed {seed}: {truth * (1 + off):.1f}/s, {100 * off:+.1f} %")
    console.print(f"Furthest from the truth: {100 * worst:.1f} %")


class _Batched:
    """Tries rates as `tpuserve loadtest search` does, with its arrivals and its judgement."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed = 10_000 * seed
        self._seconds = seconds

    def attempt(self, rate_per_s: float) -> Probe:
        """Up to four runs, until what is late tells."""
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


def true_rate() -> float:
    """Where a hundredth of requests that come at random are late, before a device that takes SERVICE_S for each."""
    gaps = np.random.default_rng(0).exponential(1, _ARRIVALS)
    works = SERVICE_S * np.arange(1, _ARRIVALS + 1)
    low, high = 0.3 / SERVICE_S, 1 / SERVICE_S
    for _ in range(20):
        rate = (low + high) / 2
        instants = np.cumsum(gaps / rate)
        # Each begins when it has come and all before it are done (Lindley's recursion, unrolled).
        finished = works + np.maximum.accumulate(instants - (works - SERVICE_S))
        late = float((finished - instants > LIMIT_MS / 1000).mean())
        low, high = (rate, high) if late <= 0.01 else (low, rate)
    return low


if __name__ == "__main__":
    main()
