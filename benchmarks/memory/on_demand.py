"""Many more models than fit into memory: loads at requests, and their effect on the models that are loaded. Linux only.

Run: `.venv/bin/python -m benchmarks on_demand` (about 4 minutes). The benchmark starts all processes on loopback, and
always stops them.
"""

import asyncio
import itertools
import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import mlp_model
from benchmarks.harness.load_tools import percentile
from benchmarks.harness.measurement import predict_request, samples
from benchmarks.harness.model_config import config_entry, config_list
from benchmarks.harness.process_tree import exit_on_sigterm
from benchmarks.harness.targets import GRPC_PATH, Protocol, Target, model_server, write_model

# Requests in flight for models that are not loaded, and for all models together.
COLD_IN_FLIGHT = 2
MIXED_IN_FLIGHT = 8
# Exponent of the popularity of the models (Zipf's law).
EXPONENT = 1.0
PATIENCE_S = 60.0
SEED = 1


@dataclass(slots=True)
class Phase:
    """Requests of one phase: latencies in ms, errors by their text, loads by the server's own count."""

    latencies_ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    loads: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a run."""

    models: int
    holds: int
    size_mib: float
    start_s: float
    hit_p50_ms: float
    hit_p99_ms: float
    beside_p50_ms: float
    beside_p99_ms: float
    loads_per_s: float
    load_p50_ms: float
    mixed_requests: int
    mixed_hit_rate: float
    mixed_p99_ms: float
    requests: int
    lost: int

    @property
    def p99_ratio(self) -> float:
        """p99 of hits beside loads over p99 of hits alone."""
        return self.beside_p99_ms / self.hit_p99_ms


class Fleet:
    """Clients of one server, and its models by number."""

    def __init__(self, server: Mapping[Protocol, Target], count: int) -> None:
        self._page = f"http://127.0.0.1:{server['rest'].port}/metrics"
        self._address = f"127.0.0.1:{server['grpc'].port}"
        self._requests = [
            predict_request(_name(number), {mlp_model.INPUT: mlp_model.example()}) for number in range(count)
        ]

    def figure(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the samples with these labels."""
        with urllib.request.urlopen(self._page, timeout=PATIENCE_S) as page:
            found = samples(page.read().decode(), name)
        return sum(value for each, value in found if labels.items() <= each.items())

    async def warm(self, numbers: range) -> None:
        """Load these models."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            for number in numbers:
                await self._send(channel, number, Phase())

    async def steady(self, numbers: range, rate_per_s: float, phase: Phase, duration_s: float) -> None:
        """Send requests for these models in turn at a rate."""
        async with grpc.aio.insecure_channel(self._address) as channel, asyncio.TaskGroup() as group:
            began_s = time.monotonic()
            for index in range(round(rate_per_s * duration_s)):
                await asyncio.sleep(began_s + index / rate_per_s - time.monotonic())
                group.create_task(self._send(channel, numbers[index % len(numbers)], phase))

    async def closed(self, numbers: Iterator[int], in_flight: int, phase: Phase, duration_s: float) -> None:
        """Keep some requests in flight for these models."""
        before, began_s = self.figure("tpuserve_on_demand_loads_total"), time.monotonic()
        async with grpc.aio.insecure_channel(self._address) as channel, asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(self._loop(channel, numbers, phase, began_s + duration_s))
        phase.seconds = time.monotonic() - began_s
        phase.loads = round(self.figure("tpuserve_on_demand_loads_total") - before)

    async def _loop(self, channel: grpc.aio.Channel, numbers: Iterator[int], phase: Phase, until_s: float) -> None:
        while time.monotonic() < until_s:
            await self._send(channel, next(numbers), phase)

    async def _send(self, channel: grpc.aio.Channel, number: int, phase: Phase) -> None:
        began_s = time.monotonic()
        try:
            call: Any = channel.unary_unary(GRPC_PATH)
            await call(self._requests[number], timeout=PATIENCE_S)
        except grpc.RpcError as error:
            phase.errors.append(f"{error.code().name}: {error.details()}")
        else:
            phase.latencies_ms.append((time.monotonic() - began_s) * 1000)


def _name(number: int) -> str:
    return f"m{number:04d}"


def write_models(root: Path, count: int) -> Path:
    """Write the models, which share their files, and return their configuration file."""
    write_model(root / _name(0), root.parent)
    for number in range(1, count):
        shutil.copytree(root / _name(0), root / _name(number), copy_function=os.link)
    config_file = root / "models.config"
    config_file.write_text(config_list(*(config_entry(_name(number), root / _name(number)) for number in range(count))))
    return config_file


def popular(count: int) -> Iterator[int]:
    """Yield numbers of models: the nth most popular one is in a random place, and its share is 1/n of the first."""
    generator = np.random.default_rng(SEED)
    places, weights = generator.permutation(count), 1 / np.arange(1, count + 1) ** EXPONENT
    while True:
        yield from places[generator.choice(count, size=10_000, p=weights / weights.sum())].tolist()


def measure_size(config_file: Path, scratch: Path) -> int:
    """Return the memory of one model, by the server's own figure."""
    flags = (f"--model_config_file={config_file}", "--load_policy=on_demand")
    with model_server(config_file.parent, scratch, *flags) as server:
        fleet = Fleet(server, 3)
        asyncio.run(fleet.warm(range(3)))
        # The first load of a process counts only files, and the second one starts what runs need.
        return round(fleet.figure("tpuserve_model_memory_bytes", model_name=_name(2)))


def measure(
    count: int, holds: int, rate_per_s: float, duration_s: float, threads: int, scratch: Path, console: Console
) -> Result:
    """Run all phases with one server."""
    config_file = write_models(scratch / "models", count)
    size = measure_size(config_file, scratch)
    console.print(f"one model takes {size / 2**20:.2f} MiB; the server holds {holds} of {count}", highlight=False)
    hot, cold = range(holds // 2), itertools.cycle(range(holds // 2, count))
    alone, beside, loads, mixed = Phase(), Phase(), Phase(), Phase()
    flags = (
        f"--model_config_file={config_file}",
        "--load_policy=on_demand",
        f"--model_memory_bytes={size * holds}",
        f"--num_load_threads={threads}",
    )
    began_s = time.monotonic()
    with model_server(config_file.parent, scratch, *flags) as server:
        start_s = time.monotonic() - began_s
        fleet = Fleet(server, count)

        async def run() -> None:
            await fleet.warm(hot)
            await fleet.steady(hot, rate_per_s, Phase(), duration_s / 4)
            await fleet.steady(hot, rate_per_s, alone, duration_s)
            console.print("hits alone: done", highlight=False)
            async with asyncio.TaskGroup() as group:
                group.create_task(fleet.steady(hot, rate_per_s, beside, duration_s))
                group.create_task(fleet.closed(cold, COLD_IN_FLIGHT, loads, duration_s))
            console.print("hits beside loads: done", highlight=False)
            await fleet.closed(popular(count), MIXED_IN_FLIGHT, mixed, duration_s)

        asyncio.run(run())
    phases = (alone, beside, loads, mixed)
    errors = [error for phase in phases for error in phase.errors]
    for error in errors[:5]:
        console.print(error, markup=False)
    hits, hits_beside, cold_ms, mixed_ms = (sorted(phase.latencies_ms) for phase in phases)
    return Result(
        count, holds, size / 2**20, start_s,
        percentile(hits, 50), percentile(hits, 99), percentile(hits_beside, 50), percentile(hits_beside, 99),
        loads.loads / loads.seconds, percentile(cold_ms, 50),
        len(mixed_ms), 1 - mixed.loads / max(len(mixed_ms), 1), percentile(mixed_ms, 99),
        sum(len(phase.latencies_ms) for phase in phases) + len(errors), len(errors),
    )  # fmt: skip


@click.command(context_settings={"max_content_width": 110})
@click.option("--models", default=1000, show_default=True, type=click.IntRange(4, 100_000), help="Configured models.")
@click.option("--holds", default=20, show_default=True, type=click.IntRange(2, 10_000), help="Models that fit.")
@click.option("--rate", default=100.0, show_default=True, type=click.FloatRange(1), help="Hits per second.")
@click.option("--duration", default=40.0, show_default=True, type=click.FloatRange(1), help="Seconds of each phase.")
@click.option("--load-threads", default=4, show_default=True, type=click.IntRange(1), help="Loads at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(models: int, holds: int, rate: float, duration: float, load_threads: int, as_json: bool) -> None:
    """Serve many models from a memory that holds a few, and print hit rate, latencies and loads."""
    exit_on_sigterm()
    console = Console(stderr=as_json)
    with tempfile.TemporaryDirectory() as scratch:
        result = measure(models, holds, rate, duration, load_threads, Path(scratch), console)
    if as_json:
        print(json.dumps(asdict(result) | {"p99_ratio": result.p99_ratio}))
        return
    table = Table(title=f"{models} models, memory for {holds}", show_header=False)
    for name, value in (
        ("start", f"{result.start_s:.1f} s"),
        ("memory of a model", f"{result.size_mib:.2f} MiB"),
        ("hits alone: p50, p99", f"{result.hit_p50_ms:.2f} ms, {result.hit_p99_ms:.2f} ms"),
        ("hits beside loads: p50, p99", f"{result.beside_p50_ms:.2f} ms, {result.beside_p99_ms:.2f} ms"),
        ("p99 beside loads ÷ alone", f"{result.p99_ratio:.2f}"),
        ("loads", f"{result.loads_per_s:.1f}/s, p50 {result.load_p50_ms:.0f} ms"),
        ("mixed: requests, hit rate", f"{result.mixed_requests}, {result.mixed_hit_rate:.1%}"),
        ("mixed: p99", f"{result.mixed_p99_ms:.0f} ms"),
        ("requests, lost", f"{result.requests}, {result.lost}"),
    ):  # fmt: skip
        table.add_row(name, value)
    console.print(table)
