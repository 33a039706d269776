"""Scrape the metrics page of a server with many models: its size, its time, and the effect on predictions. Linux only.

Run: `.venv/bin/python -m benchmarks scrapes [--models 400]`. About two minutes. All models are the same small MLP, and
each gets requests over gRPC and REST before the measurement. h2load then sends predictions to one of them. Scrapes have
the headers of Prometheus.
"""

import gzip
import json
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import measurement, mlp_model
from benchmarks.harness.json_bodies import instances_body
from benchmarks.harness.load_tools import ToolFailed, missing_tools, run_h2load
from benchmarks.harness.model_config import config_entry, config_list
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import (
    GRPC_PATH,
    MODEL_NAME,
    Protocol,
    Target,
    http_post,
    model_server,
    write_model,
)
from benchmarks.reload.tools import Latency, latency, parse_log
from tpuserve_client import Client

_READY_S = 900.0
_PROMETHEUS: Final = {
    "accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "accept-encoding": "gzip",
}
_GZIP_MAGIC: Final = b"\x1f\x8b"
_IDLE_SCRAPES = 10
_PAUSE_S = 0.7
_REQUESTS = 3
# Requests in flight of the load.
_IN_FLIGHT = 8

Server: TypeAlias = Mapping[Protocol, Target]
Span: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a server without other requests. Times are medians: until its end, and of the server's CPU."""

    size_bytes: int
    sent_bytes: int
    lines: int
    other_lines: int
    scrape_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Effect:
    """Predictions during scrapes, and at other times of the same load, in requests per second and milliseconds."""

    scrapes: int
    scrape_ms: float
    rate_with: float
    rate_without: float
    with_scrape: Latency
    without: Latency


def scrape_idle(server: Server) -> Page:
    """Scrape a server that has nothing else to do."""
    walls_ms, cpus_ms, sent = [], [], b""
    for _ in range(_IDLE_SCRAPES):
        cpu_s, began_s = server["rest"].tree.cpu_seconds(), time.monotonic()
        sent = scrape(server["rest"].port)
        walls_ms.append(1000 * (time.monotonic() - began_s))
        cpus_ms.append(1000 * (server["rest"].tree.cpu_seconds() - cpu_s))
    page = gzip.decompress(sent) if sent.startswith(_GZIP_MAGIC) else sent
    others = page.count(b'model_name="other"')
    return Page(len(page), len(sent), page.count(b"\n"), others, median(walls_ms), median(cpus_ms))


def scrape(port: int) -> bytes:
    """Return the page as the server sends it to Prometheus."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=_PROMETHEUS)
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())


def scrape_under_load(server: Server, duration_s: int, scratch: Path) -> Effect:
    """Scrape every second while h2load sends as many predictions as the server answers."""
    bodies = measurement.write_bodies(scratch)
    spans: list[Span] = []
    ended = threading.Event()

    def scrape_often() -> None:
        while not ended.wait(_PAUSE_S):
            began_s = time.time()
            scrape(server["rest"].port)
            spans.append((began_s, time.time()))

    scraper = threading.Thread(target=scrape_often, name="scraper")
    scraper.start()
    try:
        run_h2load(
            server["grpc"].port, GRPC_PATH, bodies.grpc, in_flight=_IN_FLIGHT, duration_s=duration_s, scratch=scratch
        )
    finally:
        ended.set()
        scraper.join()
    samples = parse_log((scratch / "h2load.log").read_text())
    start_s, end_s = min(one.started_s for one in samples), max(one.started_s for one in samples)
    inside = [(a, b) for a, b in spans if a > start_s and b < end_s]
    inside_s = sum(b - a for a, b in inside)
    ends_s = [one.started_s + one.latency_us / 1e6 for one in samples]
    number = sum(any(a <= end <= b for a, b in inside) for end in ends_s)
    return Effect(
        len(inside),
        1000 * median(b - a for a, b in inside),
        number / inside_s,
        (len(samples) - number) / (end_s - start_s - inside_s),
        latency(samples, inside, inside=True),
        latency(samples, inside, inside=False),
    )


def use(server: Server, names: Sequence[str]) -> None:
    """Send a few requests to each model over both protocols."""
    x = mlp_model.example()
    body = instances_body(x)
    with Client(f"127.0.0.1:{server['grpc'].port}") as client:
        for name in names:
            for _ in range(_REQUESTS):
                client.predict(name, {mlp_model.INPUT: x})
                http_post(server["rest"].port, f"/v1/models/{name}:predict", body)


def print_figures(page: Page, effect: Effect, models: int, console: Console) -> None:
    """Print the figures of a page, and those of predictions with and without a scrape."""
    console.print(
        f"{models} models: {page.size_bytes:,} bytes, {page.sent_bytes:,} sent, {page.lines:,} lines "
        f"({page.other_lines:,} of 'other'), scrape {page.scrape_ms:.0f} ms, CPU {page.cpu_ms:.0f} ms"
    )
    table = Table(title=f"Predictions beside {effect.scrapes} scrapes of {effect.scrape_ms:.0f} ms")
    for column in ("", "requests/s", "p50 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for name, rate, times in (
        ("without a scrape", effect.rate_without, effect.without),
        ("during a scrape", effect.rate_with, effect.with_scrape),
    ):
        table.add_row(name, f"{rate:.0f}", *(f"{ms:.2f}" for ms in (times.p50_ms, times.p99_ms, times.max_ms)))
    console.print(table)


@click.command()
@click.option("--models", default=400, show_default=True, type=click.IntRange(1, 10_000), help="Models with requests.")
@click.option("--seconds", default=20, show_default=True, type=click.IntRange(5, 600), help="Duration of the load.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(models: int, seconds: int, as_json: bool) -> None:
    """Scrape a server with many models, without and beside predictions.

    Needs h2load (Debian: nghttp2-client). Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if "nghttp2-client" in missing_tools():
        raise click.UsageError("The load generator is missing. Run: apt-get install nghttp2-client")
    exit_on_sigterm()
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="tpuserve-scrapes-") as directory:
        scratch = Path(directory)
        try:
            write_model(scratch / "mlp", scratch)
            names = [MODEL_NAME, *(f"recommender-{number:04}" for number in range(1, models))]
            config = scratch / "models.config"
            config.write_text(config_list(*(config_entry(name, scratch / "mlp") for name in names)))
            flags = (f"--model_config_file={config}", "--num_load_threads=4")
            progress.print(f"loading {models} models")
            with model_server(scratch / "mlp", scratch, *flags, ready_timeout_s=_READY_S) as server:
                progress.print("sending requests to each model")
                use(server, names)
                page = scrape_idle(server)
                effect = scrape_under_load(server, seconds, scratch)
        except (ServerDied, ToolFailed, measurement.WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps({"page": asdict(page), "effect": asdict(effect)}, indent=2))
    else:
        print_figures(page, effect, models, Console(width=132))


if __name__ == "__main__":
    main()
