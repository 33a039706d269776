"""Measure the path through Ray Serve next to the direct server, with one replica and one proxy. Linux only.

Run: `.venv/bin/python -m benchmarks ray [--quick]`, after `make ray`. About 2 minutes. Ray listens on every interface,
so the benchmark moves itself into a network namespace with the loopback alone, which needs root or user namespaces.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import measurement
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import Bodies, Point, WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm, started
from benchmarks.harness.targets import (
    MODEL_NAME,
    PROTOCOLS,
    ROOT,
    Protocol,
    Target,
    answers_get,
    model_server,
    wait_until_ready,
    write_model,
)
from tests.support import loopback_only
from tests.support.optional import find_ray

IN_FLIGHT: Final = (1, 32)
ROUNDS: Final = 3
DIRECT: Final = "tpuserve"
# Ports of gRPC and REST, and Ray's own settings.
RAY: Final = {
    "Ray Serve": (9000, 8000, {}),
    "Ray Serve, throughput": (9001, 8001, {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}),
}


@click.command()
@click.option("--duration", default=5, show_default=True, type=click.IntRange(1, 60), help="Seconds per measurement.")
@click.option("--quick", is_flag=True, help="Measure one round of 2 seconds. Figures are approximate.")
def main(duration: int, quick: bool) -> None:
    """Measure requests/s, latency and CPU per request of Ray Serve and of the direct server, in turns.

    Needs h2load and wrk (Debian: nghttp2-client, wrk). Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    python = enter_ray()
    console = Console(stderr=True)
    rounds, seconds = (1, 2) if quick else (ROUNDS, duration)
    with tempfile.TemporaryDirectory(prefix="tpuserve-ray-") as directory:
        try:
            points = _measure(Path(directory), python, rounds, seconds, console)
        except (ServerDied, ToolFailed, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    print_points(points, Console(width=120))


def enter_ray() -> Path:
    """Move the process into a network namespace with the loopback alone, and return the Python that has Ray Serve.

    Raises:
        click.UsageError: Ray Serve is missing, or the process may not create a network namespace.
    """
    python = find_ray()
    if python is None:
        raise click.UsageError("Ray Serve is missing. Run: make ray")
    exit_on_sigterm()
    try:
        loopback_only.enter()
    except OSError as error:
        raise click.UsageError(f"This process may not create a network namespace: {error}. Run it as root") from None
    return python


def _measure(scratch: Path, python: Path, rounds: int, seconds: int, console: Console) -> dict[str, list[Point]]:
    bodies = measurement.write_bodies(scratch)
    base = scratch / "models" / MODEL_NAME
    console.print("writing the model")
    write_model(base, scratch)
    with ExitStack() as stack:
        args: dict[str, object] = {"model_name": MODEL_NAME, "model_base_path": str(base)}
        sides = {
            DIRECT: stack.enter_context(model_server(base, scratch)),
            **{name: stack.enter_context(ray_serve(python, args, scratch, name)) for name in RAY},
        }
        for targets in sides.values():
            measurement.check_answer(targets)
        return _measure_turns(sides, bodies, scratch, rounds, seconds, console)


def _measure_turns(
    sides: dict[str, dict[Protocol, Target]], bodies: Bodies, scratch: Path, rounds: int, seconds: int, console: Console
) -> dict[str, list[Point]]:
    """Measure all sides in turn at every load, so that all run under the same conditions."""
    points: dict[str, list[Point]] = {side: [] for side in sides}
    for protocol in PROTOCOLS:
        for in_flight in IN_FLIGHT * rounds:
            for side, targets in sides.items():
                console.print(f"measuring {side}, {protocol}, {in_flight} in flight", highlight=False)
                point = measurement.measure(targets[protocol], in_flight, seconds, bodies, scratch)
                if point.load.failures:
                    raise WrongAnswer(f"{side}, {protocol}: {point.load.failures} requests failed")
                points[side].append(point)
    return points


@contextmanager
def ray_serve(
    python: Path, args: Mapping[str, object], scratch: Path, name: str, probe: str = "/readyz"
) -> Iterator[dict[Protocol, Target]]:
    """Run a Ray cluster of one node, with one replica of the application of these arguments.

    Wait until its `probe` answers. A replica without models at the start is not ready.
    """
    grpc_port, rest_port, settings = RAY[name]
    command = [str(python), "-m", "benchmarks.ray.program", json.dumps(args), str(grpc_port), str(rest_port)]
    # With authentication, Ray would write a token into the home directory.
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | ray | settings
    with started(command, scratch / f"ray-{grpc_port}.log", environment) as tree:
        targets: dict[Protocol, Target] = {
            "grpc": Target("server", "grpc", grpc_port, tree),
            "rest": Target("server", "rest", rest_port, tree),
        }
        wait_until_ready(targets["rest"], lambda port: answers_get(port, probe))
        yield targets


def print_points(points: dict[str, list[Point]], console: Console) -> None:
    """Print the median of the rounds of each side, and Ray's ratios to the direct server."""
    table = Table(title="One replica behind one proxy, next to the direct server. Medians of the rounds.")
    for column in (
        "protocol",
        "in flight",
        "server",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "CPU s/1000",
        "rate/direct",
        "CPU/direct",
    ):
        table.add_column(column, justify="left" if column in ("protocol", "server") else "right")
    for protocol in PROTOCOLS:
        for in_flight in IN_FLIGHT:
            at = {
                side: [p for p in points[side] if (p.protocol, p.in_flight) == (protocol, in_flight)] for side in points
            }
            base = _medians(at[DIRECT])
            for side, measured in at.items():
                rate, p50_ms, p99_ms, cpu_s = _medians(measured)
                figures = (p50_ms, p99_ms, cpu_s, rate / base[0], cpu_s / base[3])
                table.add_row(protocol, str(in_flight), side, f"{rate:,.0f}", *(f"{value:.2f}" for value in figures))
    console.print(table)


def _medians(points: Sequence[Point]) -> tuple[float, float, float, float]:
    """Return the medians of the rate, both latencies in ms, and the CPU time of 1000 requests."""
    return (
        median(point.load.rate_per_s for point in points),
        median(point.load.p50_ms for point in points),
        median(point.load.p99_ms for point in points),
        median(point.cpu_s_per_1000 for point in points),
    )
