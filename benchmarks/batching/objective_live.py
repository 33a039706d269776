"""Measure a server with and without a latency objective at loads of 10 % to 200 % of its capacity. Linux only.

Run: `.venv/bin/python -m benchmarks objective_live [--json FILE]`, about 5 minutes. The benchmark starts all processes
on loopback, and always stops them.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.batching.open_load import Seen
from benchmarks.harness import environments, mlp_model
from benchmarks.harness.environments import SetupFailed
from benchmarks.harness.load_tools import ToolFailed, framed, percentile
from benchmarks.harness.measurement import predict_request, samples
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import MODEL_NAME, Target, http_get, model_server, write_model
from tpuserve_server.core.batching import objective
from tpuserve_server.core.batching.objective import Sizes

OBJECTIVE_MS = 20.0
PERCENTILE = 99
# Large enough that a batch takes milliseconds, as on a device. The generator shares the machine and must be able to
# send twice the requests that the server can answer.
ROWS, LAYERS = 24, 60
SIZES = (24, 48, 72, 96, 120, 144, 192)
STEPS = (10, 25, 50, 75, 90, 100, 125, 150, 200)
MODES = {
    "objective": (f"--latency_objective_ms={OBJECTIVE_MS:g}", f"--latency_percentile={PERCENTILE}"),
    "greedy": (),
}
FLAGS = (
    f"--max_batch_size={SIZES[-1]}",
    f"--allowed_batch_sizes={','.join(map(str, SIZES))}",
    # The device uses one core; the server and the generator use the other.
    "--tensorflow_intra_op_parallelism=1",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One mode at one load, measured by the client. Latencies count from each request's scheduled time."""

    mode: str
    load_percent: int
    offered_per_s: float
    goodput_per_s: float
    refused: float
    within_objective: float
    p50_ms: float
    p99_ms: float
    # 99th percentile of the generator's own send delay, which is part of every latency.
    lag_ms: float
    others: dict[str, int]


def batch_costs(page: str) -> dict[int, float]:
    """Return the cost in seconds of a batch of the deep signature by number of rows, from a metrics page."""
    return {
        int(labels["bucket"]): cost_s
        for labels, cost_s in samples(page, "tpuserve_batch_cost_seconds")
        if labels["signature"] == mlp_model.DEEP_SIGNATURE
    }


def capacity(costs: dict[int, float]) -> float:
    """Return the requests per second of batches that run back to back within the objective
    (core/batching/objective.py).

    A request that just misses a batch waits for it and runs in the next. The objective must therefore cover twice a
    batch's cost.
    """
    sizes = Sizes(tuple(costs), tuple(costs.values()), (0.0,) * len(costs))
    rows_per_s = objective.capacity(sizes, OBJECTIVE_MS / 1000)
    if not rows_per_s:
        raise ServerDied(f"No batch size can run twice within {OBJECTIVE_MS:g} ms here. Batch costs, s: {costs}")
    return rows_per_s / ROWS


def write_body(scratch: Path) -> Path:
    """Write a framed request for the deep signature, and return its path."""
    x = np.random.default_rng(0).random((ROWS, mlp_model.DEEP_FEATURES), np.float32)
    message = predict_request(MODEL_NAME, {mlp_model.INPUT: x}, mlp_model.DEEP_SIGNATURE)
    path = scratch / "deep.grpc"
    path.write_bytes(framed(message))
    return path


def send(target: Target, body: Path, rate_per_s: float, seconds: int, seed: int) -> Seen:
    """Run open_load.py and return its result."""
    command = [sys.executable, str(Path(__file__).with_name("open_load.py")), str(target.port), str(body)]
    command += [str(rate_per_s), str(seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    if done.returncode:
        raise ToolFailed(f"The load generator failed:\n{done.stderr[-1000:]}")
    return Seen(**json.loads(done.stdout))


def step(mode: str, load_percent: int, rate_per_s: float, seconds: int, seen: Seen) -> Step:
    """Compute the figures of one step from the client's measurements."""
    codes = dict(seen.codes)
    sent = sum(codes.values())
    latencies_us = sorted(round(1000 * latency) for latency in seen.latencies_ms)
    lags_us = sorted(round(1000 * lag) for lag in seen.lags_ms)
    good = sum(latency <= 1000 * OBJECTIVE_MS for latency in latencies_us)
    return Step(
        mode=mode,
        load_percent=load_percent,
        offered_per_s=sent / seconds,
        goodput_per_s=good / seconds,
        refused=codes.pop("RESOURCE_EXHAUSTED", 0) / sent,
        within_objective=good / len(latencies_us) if latencies_us else 0.0,
        p50_ms=percentile(latencies_us, 50) / 1000,
        p99_ms=percentile(latencies_us, PERCENTILE) / 1000,
        lag_ms=percentile(lags_us, 99) / 1000,
        others={code: count for code, count in codes.items() if code != "OK"},
    )


def steps(mode: str, base: Path, rate_of: dict[int, float], run: "Run") -> Iterator[Step]:
    """Measure all loads in turn on one server."""
    with model_server(base, run.scratch, *FLAGS, *MODES[mode]) as server:
        for load_percent, rate_per_s in rate_of.items():
            seen = send(server["grpc"], run.body, rate_per_s, run.seconds, seed=load_percent)
            found = step(mode, load_percent, rate_per_s, run.seconds, seen)
            run.console.print(
                f"{mode:9} {load_percent:3} %: {found.goodput_per_s:6.0f}/s of {found.offered_per_s:6.0f} within "
                f"{OBJECTIVE_MS:g} ms, p99 {found.p99_ms:.1f} ms, {100 * found.refused:.1f} % refused"
            )
            yield found


def calibrate(base: Path, run: "Run") -> tuple[float, dict[int, float]]:
    """Return the capacity and the batch costs that the server learns under load.

    The costs of the warm-up are too low, because the warm-up has the machine for itself.
    """
    with model_server(base, run.scratch, *FLAGS) as server:
        costs = batch_costs(http_get(server["rest"].port, "/metrics").decode())
        for seed in (1, 2):
            send(server["grpc"], run.body, 0.8 * capacity(costs), run.seconds, seed)
            costs = batch_costs(http_get(server["rest"].port, "/metrics").decode())
    return capacity(costs), costs


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of every step."""

    seconds: int
    body: Path
    scratch: Path
    console: Console


def show(found: Sequence[Step], per_s: float, console: Console) -> None:
    """Print the table."""
    table = Table(title=f"Objective {OBJECTIVE_MS:g} ms, p{PERCENTILE}; capacity {per_s:.0f} requests/s of {ROWS} rows")
    for column in ("mode", "load", "offered/s", "goodput/s", "refused", "in time", "p50 ms", "p99 ms", "send delay ms"):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            each.mode,
            f"{each.load_percent} %",
            f"{each.offered_per_s:.0f}",
            f"{each.goodput_per_s:.0f}",
            f"{100 * each.refused:.1f} %",
            f"{100 * each.within_objective:.2f} %",
            f"{each.p50_ms:.1f}",
            f"{each.p99_ms:.1f}",
            f"{each.lag_ms:.1f}",
        )
    console.print(table)


@click.command(epilog="Exit codes: 0 success, 1 a step failed.")
@click.option("--seconds", default=8, show_default=True, help="Seconds per load step.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the results to this JSON file.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw p99 and goodput by load into this .svg file.")
@click.option("--modes", default=",".join(MODES), show_default=True, help="Comma-separated modes to measure.")
def main(seconds: int, json_file: Path | None, picture: Path | None, modes: str) -> None:
    """Serve a model with an objective of 20 ms, and increase the load to twice its capacity."""
    exit_on_sigterm()
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-objective-") as folder:
            scratch = Path(folder)
            base = scratch / "model"
            write_model(base, scratch, LAYERS)
            run = Run(seconds, write_body(scratch), scratch, console)
            per_s, costs = calibrate(base, run)
            console.print(
                f"capacity {per_s:.0f} requests/s; batch cost in ms by rows:",
                {rows: round(1000 * s, 2) for rows, s in costs.items()},
            )
            rate_of = {percent: per_s * percent / 100 for percent in STEPS}
            found = [each for mode in modes.split(",") for each in steps(mode, base, rate_of, run)]
            show(found, per_s, console)
            figures = json_file or scratch / "objective.json"
            write(figures, per_s, costs, found)
            if picture is not None:
                environments.draw("draw_objective.py", figures, picture)
    except (ServerDied, ToolFailed, SetupFailed, OSError) as error:
        raise click.ClickException(str(error)) from None


def write(path: Path, per_s: float, costs: dict[int, float], found: Sequence[Step]) -> None:
    """Write all figures as JSON."""
    about = {"objective_ms": OBJECTIVE_MS, "percentile": PERCENTILE, "capacity_per_s": per_s, "batch_cost_s": costs}
    path.write_text(json.dumps({**about, "steps": [asdict(each) for each in found]}, indent=2))
