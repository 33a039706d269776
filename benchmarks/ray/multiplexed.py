"""Measure how many of many models a replica of Ray Serve should hold: multiplexed_models_per_replica. Linux only.

Run: `.venv/bin/python -m benchmarks multiplexed [--quick]`, after `make ray`. About 3 minutes. It needs what
`benchmarks ray` needs.
"""

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness.measurement import samples
from benchmarks.harness.mlp_model import example
from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import Protocol, Target, http_get, write_model
from benchmarks.ray.ray import enter_ray, ray_serve
from tpuserve_client import Client

MODELS: Final = 8
PER_REPLICA: Final = (2, 4, 8)
CLIENTS: Final = 8
# Metadata by which Ray finds a replica that has loaded the model.
_ID: Final = "multiplexed_model_id"
_Choose = Callable[[random.Random], int]
# Models by their share of the requests: the same for all, and three quarters for two of them.
MIXES: Final[dict[str, _Choose]] = {
    "uniform": lambda chance: chance.randrange(MODELS),
    "two popular": lambda chance: chance.randrange(2) if chance.random() < 0.75 else chance.randrange(2, MODELS),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Requests a second, latency, and the share of requests that loaded a model."""

    per_replica: int
    mix: str
    rate: float
    p50_ms: float
    p99_ms: float
    load_share: float


@click.command()
@click.option("--seconds", default=15, show_default=True, type=click.IntRange(1, 600), help="Seconds of each load.")
@click.option("--quick", is_flag=True, help="Load for 5 seconds. Figures are approximate.")
def main(seconds: int, quick: bool) -> None:
    """Load one replica with requests for 8 models, of which it holds 2, 4 or all.

    Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    python = enter_ray()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-multiplexed-") as directory:
        try:
            measured = list(_measure(Path(directory), python, 5 if quick else seconds, console))
        except ServerDied as error:
            raise click.ClickException(str(error)) from None
    Console(width=120).print(table(measured))


def _measure(scratch: Path, python: Path, seconds: float, console: Console) -> Iterator[Measured]:
    root = scratch / "models"
    console.print("writing the models")
    write_model(root / "m0", scratch)
    for number in range(1, MODELS):
        shutil.copytree(root / "m0", root / f"m{number}")
    for per_replica in PER_REPLICA:
        args = {"multiplexed_models_root": str(root), "multiplexed_models_per_replica": per_replica}
        with ray_serve(python, args, scratch, "Ray Serve", "/metrics") as targets:
            for mix, choose in MIXES.items():
                console.print(f"measuring {per_replica} of {MODELS} models, {mix}", highlight=False)
                yield _load(targets, per_replica, mix, choose, seconds)


def _load(targets: dict[Protocol, Target], per_replica: int, mix: str, choose: _Choose, seconds: float) -> Measured:
    latencies_s: list[float] = []
    address, before = f"127.0.0.1:{targets['grpc'].port}", _loads(targets)
    end_s = time.monotonic() + seconds

    def send(number: int) -> None:
        chance = random.Random(number)
        with Client(address, timeout_s=60) as client:
            while (began_s := time.monotonic()) < end_s:
                name = f"m{choose(chance)}"
                client.predict(name, {"x": example()}, headers={_ID: name})
                latencies_s.append(time.monotonic() - began_s)

    with _threads(send):
        pass
    loads = _loads(targets) - before
    cuts = quantiles(latencies_s, n=100)
    count = len(latencies_s)
    return Measured(per_replica, mix, count / seconds, 1000 * cuts[49], 1000 * cuts[98], loads / count)


@contextmanager
def _threads(send: Callable[[int], None]) -> Iterator[None]:
    """Run the clients, and join their threads at exit."""
    threads = [threading.Thread(target=send, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def _loads(targets: dict[Protocol, Target]) -> float:
    page = http_get(targets["rest"].port, "/metrics").decode()
    return sum(
        value for labels, value in samples(page, "tpuserve_version_loads_total") if labels["outcome"] == "loaded"
    )


def table(measured: list[Measured]) -> Table:
    """Return a row for each load, with the ratio of its rate to that of a replica that holds all models."""
    found = Table(title=f"One replica, {MODELS} models, {CLIENTS} requests in flight")
    for heading in ("requests", "models held", "requests/s", "rate/all", "p50 ms", "p99 ms", "requests that load"):
        found.add_column(heading, justify="left" if heading == "requests" else "right")
    whole = {each.mix: each.rate for each in measured if each.per_replica == MODELS}
    for each in sorted(measured, key=lambda one: one.mix):
        found.add_row(
            each.mix,
            str(each.per_replica),
            f"{each.rate:,.0f}",
            f"{each.rate / whole[each.mix]:.2f}",
            f"{each.p50_ms:.1f}",
            f"{each.p99_ms:.1f}",
            f"{100 * each.load_share:.1f} %",
        )
    return found
