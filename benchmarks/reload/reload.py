"""Replace versions under load: memory use after a hundred reloads, and the effect on requests. Linux only.

Run: `.venv/bin/python -m benchmarks reload` for the soak (about 6 minutes), `--swap` for latencies (about 1).
The benchmark starts all processes on loopback, and always stops them.
"""

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import measurement, mlp_model
from benchmarks.harness.json_bodies import instances_body
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import Bodies
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import (
    MODEL_NAME,
    PROTOCOLS,
    REST_PATH,
    Protocol,
    Target,
    http_post,
    model_server,
    write_model,
)
from benchmarks.reload.tools import Latency, LightLoad, Load, latency, publish, retire, wait_for
from tpuserve_client import Client

# Loading a version takes one or two seconds of CPU. Its first signature answers in 20 µs.
DEEP_LAYERS = 150
POLL_FLAG = "--file_system_poll_wait_seconds=0.2"
LIGHT_PAUSE_S = 0.02
# Largest spread of memory allowed in the second half of a soak.
LEVEL = 0.05
# Pause before the first swap and after each, which gives a steady state for comparison.
CALM_S = 3.0


@dataclass(frozen=True, slots=True)
class Reload:
    """The server after a reload: resident MB (10^6) and threads of its process tree."""

    rss_mb: float
    threads: int


@dataclass(frozen=True, slots=True)
class Soak:
    """Reloads under a light load over both protocols."""

    reloads: list[Reload]
    requests: int
    failures: list[str]

    @property
    def spread(self) -> float:
        """Spread of resident memory over the second half: largest over smallest, minus one."""
        half = [reload.rss_mb for reload in self.reloads[len(self.reloads) // 2 :]]
        return max(half) / min(half) - 1


@dataclass(frozen=True, slots=True)
class Swap:
    """Latencies of one protocol outside and during swaps."""

    protocol: Protocol
    rate_per_s: int
    swaps: int
    steady: Latency
    during: Latency
    failures: int

    @property
    def ratio(self) -> float:
        """p99 during swaps over p99 outside them."""
        return self.during.p99_ms / self.steady.p99_ms


def soak(template: Path, count: int, scratch: Path, console: Console) -> Soak:
    """Replace the version `count` times in sequence."""
    base = scratch / "soak"
    base.mkdir()
    publish(template, base, 1)
    with model_server(base, scratch, POLL_FLAG) as server, Client(f"127.0.0.1:{server['grpc'].port}") as client:
        x = mlp_model.example()
        body = instances_body(x)
        grpc = LightLoad(lambda: client.predict(MODEL_NAME, {mlp_model.INPUT: x}), LIGHT_PAUSE_S)
        rest = LightLoad(lambda: http_post(server["rest"].port, REST_PATH, body), LIGHT_PAUSE_S)
        reloads = []
        with grpc, rest:
            for version in range(2, count + 2):
                replace(server["rest"], template, base, version)
                reloads.append(_look(server["grpc"]))
                if version % 10 == 1:
                    console.print(f"{version - 1} reloads, {reloads[-1]}", markup=False, highlight=False)
        measurement.check_answer(server)
    return Soak(reloads, grpc.sent + rest.sent, grpc.failures + rest.failures)


def swap(protocol: Protocol, template: Path, options: "SwapOptions", scratch: Path) -> Swap:
    """Load one protocol at a steady rate, and replace the version several times meanwhile."""
    base = scratch / f"swap-{protocol}"
    base.mkdir()
    publish(template, base, 1)
    with model_server(base, scratch, POLL_FLAG) as server:
        measurement.check_answer(server)
        before = measurement.read_served(server)[protocol]
        target = server[protocol]
        load = Load(target, options.rate_per_s, options.duration_s, options.bodies, scratch)
        try:
            spans = []
            time.sleep(CALM_S)
            for version in range(2, options.swaps + 2):
                began_s = time.time()
                replace(server["rest"], template, base, version)
                spans.append((began_s, time.time()))
                time.sleep(CALM_S)
            samples = load.finish()
        finally:
            load.stop()
        after = measurement.read_served(server)[protocol]
        measurement.check_answer(server)
    # Drop the first second, which warms up the connections.
    samples = [sample for sample in samples if sample.started_s > samples[0].started_s + 1]
    failures = sum(not sample.ok for sample in samples) + after.not_ok - before.not_ok
    steady, during = (latency(samples, spans, inside=inside) for inside in (False, True))
    return Swap(protocol, options.rate_per_s, options.swaps, steady, during, failures)


@dataclass(frozen=True, slots=True)
class SwapOptions:
    """Rate, number of swaps and request bodies of a swap measurement."""

    rate_per_s: int
    swaps: int
    bodies: Bodies

    @property
    def duration_s(self) -> int:
        """Duration that suffices for every swap. h2load writes its log only until then."""
        return int(CALM_S + self.swaps * (CALM_S + 7))


def replace(rest: Target, template: Path, base: Path, version: int) -> None:
    """Publish `version`, wait until it is available and its predecessor has ended, and delete the latter's files."""
    publish(template, base, version)
    wait_for(rest, {version: "AVAILABLE", version - 1: "END"})
    retire(base, version - 1)


def _look(target: Target) -> Reload:
    members = target.tree.members
    return Reload(target.tree.memory().rss_mb, sum(member.num_threads() for member in members))


def print_soak(soak: Soak, console: Console) -> None:
    """Print every tenth reload, and the verdict."""
    table = Table(title=f"{len(soak.reloads)} reloads, {soak.requests} requests")
    for column in ("reload", "RSS MB", "threads"):
        table.add_column(column, justify="right")
    for index, reload in enumerate(soak.reloads, 1):
        if index == 1 or index % 10 == 0:
            table.add_row(str(index), f"{reload.rss_mb:.0f}", str(reload.threads))
    console.print(table)
    verdict = "level" if soak.spread <= LEVEL else f"NOT level (limit {LEVEL:.0%})"
    half = len(soak.reloads) - len(soak.reloads) // 2
    console.print(
        f"memory, last {half} reloads: spread {soak.spread:.1%}, {verdict}; failed requests: {len(soak.failures)}"
    )
    for failure in soak.failures[:5]:
        console.print(failure, markup=False)


def print_swaps(swaps: list[Swap], console: Console) -> None:
    """Print one row per protocol."""
    table = Table(title="Latency in ms, outside and during swaps")
    columns = ["protocol", "req/s", "swaps", "steady p50", "p99", "max", "swap p50", "p99", "max"]
    for column in (*columns, "p99 ratio", "failed"):
        table.add_column(column, justify="right")
    for each in swaps:
        row = [each.protocol, str(each.rate_per_s), str(each.swaps)]
        for part in (each.steady, each.during):
            row += [f"{figure:.2f}" for figure in (part.p50_ms, part.p99_ms, part.max_ms)]
        table.add_row(*row, f"{each.ratio:.2f}", str(each.failures))
    console.print(table)


@click.command(context_settings={"max_content_width": 110})
@click.option("--reloads", default=100, show_default=True, type=click.IntRange(2, 10_000), help="Reloads in the soak.")
@click.option("--swap", "measure_swaps", is_flag=True, help="Measure latencies during swaps instead of the soak.")
@click.option("--swaps", default=8, show_default=True, type=click.IntRange(1, 1000), help="Swaps for each protocol.")
@click.option("--rate", default=400, show_default=True, type=click.IntRange(4, 100_000), help="Requests per second.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(reloads: int, measure_swaps: bool, swaps: int, rate: int, as_json: bool) -> None:
    """Replace a 40 MB model repeatedly under load. Measure resident memory and threads, or latencies.

    Needs h2load (Debian: nghttp2-client) for --swap. Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if measure_swaps and "nghttp2-client" in missing_tools():
        raise click.UsageError("The load generator is missing. Run: apt-get install nghttp2-client")
    exit_on_sigterm()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-reload-") as directory:
        scratch = Path(directory)
        try:
            progress.print("writing the model")
            write_model(scratch / "template", scratch, DEEP_LAYERS)
            template = scratch / "template" / str(mlp_model.VERSION)
            if measure_swaps:
                found: Soak | list[Swap] = _measure_swaps(template, rate, swaps, scratch, progress)
            else:
                found = soak(template, reloads, scratch, progress)
        except (ServerDied, ToolFailed, measurement.WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    console = Console(width=132)
    if isinstance(found, Soak):
        click.echo(json.dumps(asdict(found) | {"spread": found.spread}, indent=2)) if as_json else print_soak(
            found, console
        )
    elif as_json:
        click.echo(json.dumps([asdict(each) | {"p99_ratio": each.ratio} for each in found], indent=2))
    else:
        print_swaps(found, console)


def _measure_swaps(template: Path, rate: int, swaps: int, scratch: Path, progress: Console) -> list[Swap]:
    options = SwapOptions(rate, swaps, measurement.write_bodies(scratch))
    measured = []
    for protocol in PROTOCOLS:
        progress.print(f"measuring {swaps} swaps at {rate}/s, {protocol}, load average {os.getloadavg()[0]:.1f}")
        measured.append(swap(protocol, template, options, scratch))
    return measured
