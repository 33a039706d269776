"""Measure the server's overhead: a small MLP over gRPC and REST, next to a byte echo. Linux only.

Run: `.venv/bin/python -m benchmarks overhead [--quick] [--json]`. About 10 minutes, or 5 with `--quick`. The benchmark
starts all processes on loopback, and always stops them. `call_turns.py` then compares the protocols, and
`handshakes.py` measures new connections. `loop_time.py` divides the loop time of a request by its parts.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from benchmarks.harness import measurement
from benchmarks.harness.load_tools import ToolFailed, missing_tools
from benchmarks.harness.measurement import Bodies, Point, Served, WrongAnswer
from benchmarks.harness.process_tree import Memory, ServerDied, exit_on_sigterm
from benchmarks.harness.targets import (
    PROTOCOLS,
    Kind,
    Protocol,
    Target,
    echoes,
    model_server,
    write_ensemble,
    write_model,
)
from benchmarks.harness.turns import in_turn
from benchmarks.overhead import report as overhead_report
from benchmarks.overhead.call_turns import CallPoint, measure_calls
from benchmarks.overhead.handshakes import HandshakePoint, measure_handshakes
from benchmarks.overhead.loop_time import QUICK_ROUNDS, ROUNDS, LoopTime, measure_loop
from benchmarks.overhead.report import Outcome
from tests.support.certificates import Authority

IN_FLIGHT = (1, 32, 256)
# The servers with a response cache, with the ensemble and with TLS are measured only at these loads.
COMPARED_IN_FLIGHT = (1, 32)
CACHE_FLAG = "--response_cache_max_bytes=10000000"
# Turns of each call in the comparison of protocols, and seconds for each turn.
CALL_ROUNDS, CALL_S = 4, 2
# Turns of each server under each load, which share its duration.
POINT_ROUNDS = 2
WIDTH = 150


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The authority of the servers' certificate, and the file that configures it."""

    ca: Path
    config: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a server with TLS."""
        return (f"--ssl_config_file={self.config}",)


@dataclass(frozen=True, slots=True)
class Models:
    """The base path of the MLP, the configuration file of the ensemble around it, and the TLS of a further server."""

    base: Path
    ensemble: Path
    tls: ServerTls


@dataclass
class Run:
    """One run of the benchmark and its results so far."""

    duration_s: int
    scratch: Path
    console: Console
    points: list[Point]
    warnings: list[str]
    memory: Memory | None = None
    calls: list[CallPoint] = field(default_factory=list)
    handshakes: list[HandshakePoint] = field(default_factory=list)
    loops: tuple[LoopTime, ...] = ()

    def measure_servers(self, bodies: Bodies, models: Models | None) -> None:
        """Measure the echo, alternating with the server, its cache and an ensemble if there are models."""
        with echoes(self.scratch) as echo:
            if models is None:
                self.measure_points({}, (), echo, bodies)
                return
            flag = f"--model_config_file={models.ensemble}"
            with (
                model_server(models.base, self.scratch) as server,
                model_server(models.base, self.scratch, CACHE_FLAG, kind="cache") as cached,
                model_server(models.base, self.scratch, flag, kind="ensemble") as ensemble,
                model_server(models.base, self.scratch, *models.tls.flags, kind="tls") as secure,
            ):
                measurement.check_answer(server)
                measurement.check_answer(ensemble)
                measurement.check_secure_answer(secure, models.tls.ca)
                before = measurement.read_served(server)
                self.measure_points(server, (cached, ensemble, secure), echo, bodies)
                self.measure_handshakes((server, secure), models.tls.ca)
                measurement.check_answer(server)
                measurement.check_answer(ensemble)
                # The second check of the cache gets its responses from the cache.
                measurement.check_answer(cached)
                measurement.check_answer(cached)
                self.memory = measurement.memory(server)
                self.warnings += compare_counts(before, measurement.read_served(server), self.points)

    def measure_handshakes(self, servers: tuple[dict[Protocol, Target], ...], ca: Path) -> None:
        """Measure new connections to each server, without load."""
        for target in (target for server in servers for target in server.values()):
            what = f"new connections to {target.kind}, {target.protocol}"
            self.console.print(f"measuring {what}", markup=False, highlight=False)
            self.handshakes.append(measure_handshakes(target, self.duration_s, ca))

    def measure_points(
        self,
        server: dict[Protocol, Target],
        compared: tuple[dict[Protocol, Target], ...],
        echo: dict[Protocol, Target],
        bodies: Bodies,
    ) -> None:
        """Measure the echo and the servers in turns at every load, so that all run under the same conditions."""
        for protocol, in_flight in ((protocol, load) for protocol in PROTOCOLS for load in IN_FLIGHT):
            sides = (echo, server, *(compared if in_flight in COMPARED_IN_FLIGHT else ()))
            targets = [side[protocol] for side in sides if protocol in side]
            found: dict[Kind, list[Point]] = {target.kind: [] for target in targets}
            for number in range(POINT_ROUNDS):
                for target in in_turn(targets, number):
                    found[target.kind].append(self._measure_point(target, in_flight, bodies))
            self.points += map(measurement.joined, found.values())

    def _measure_point(self, target: Target, in_flight: int, bodies: Bodies) -> Point:
        what = f"{target.kind}, {target.protocol}, {in_flight} in flight"
        self.console.print(f"measuring {what}", markup=False, highlight=False)
        duration_s = math.ceil(self.duration_s / POINT_ROUNDS)
        point = measurement.measure(target, in_flight, duration_s, bodies, self.scratch)
        if point.load.failures:
            self.warnings.append(f"{what}: {point.load.failures} of {point.load.requests} requests failed")
        return point


def compare_counts(before: dict[Protocol, Served], after: dict[Protocol, Served], points: list[Point]) -> Iterator[str]:
    """Warn if the server's own counts disagree: h2load counts any HTTP 200 response as a success.

    The server also counts the warm-up and the checks, so its count must be at least that of the tools. A tool closes
    its connections during its last requests, which may count as cancelled. These are at most one per in-flight request,
    for the warm-up and for the measurement of each turn.
    """
    for protocol in after:
        mine = [p for p in points if (p.kind, p.protocol) == ("server", protocol)]
        ok = after[protocol].ok - before[protocol].ok
        not_ok = after[protocol].not_ok - before[protocol].not_ok
        claimed = sum(point.load.requests - point.load.failures for point in mine)
        abandoned = 2 * POINT_ROUNDS * sum(point.in_flight for point in mine)
        if ok < claimed or not_ok > abandoned:
            yield (
                f"{protocol}: the load generators counted {claimed} successes, the server {ok} and {not_ok} failures"
            )


@click.command()
@click.option(
    "--duration",
    default=5,
    show_default=True,
    type=click.IntRange(1, 60),
    help="Seconds per measurement, except in the protocol comparison.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Measure for 2 seconds each, and compare protocols in one round. Figures are approximate.",
)
@click.option("--echo-only", is_flag=True, help="Measure only the byte echo, without the model server.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(duration: int, quick: bool, echo_only: bool, as_json: bool) -> None:
    """Measure requests/s, latency, CPU per request and memory of the server, and the same of a byte echo on h2corn.

    Needs h2load and wrk (Debian: nghttp2-client, wrk). Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    exit_on_sigterm()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tpuserve-overhead-") as directory:
        run = Run(2 if quick else duration, Path(directory), Console(stderr=True), [], [])
        try:
            run.measure_servers(measurement.write_bodies(run.scratch), None if echo_only else _write_models(run))
            if not echo_only:
                run.calls = _measure_calls(run, quick)
                run.console.print("measuring the loop time")
                run.loops = measure_loop(QUICK_ROUNDS if quick else ROUNDS)
        except (ServerDied, ToolFailed, WrongAnswer) as error:
            raise click.ClickException(str(error)) from None
    outcome = Outcome(
        run.duration_s,
        os.cpu_count() or 1,
        load_before,
        tuple(run.points),
        run.memory,
        tuple(run.warnings),
        tuple(run.calls),
        tuple(run.handshakes),
        run.loops,
    )
    if as_json:
        click.echo(json.dumps(overhead_report.as_json(outcome), indent=2))
    else:
        overhead_report.print_outcome(outcome, Console(width=WIDTH))


def _write_models(run: Run) -> Models:
    run.console.print("writing the models")
    base = run.scratch / "models" / "mlp"
    write_model(base, run.scratch)
    return Models(base, write_ensemble(base, run.scratch), _write_tls(run.scratch / "tls"))


def _write_tls(folder: Path) -> ServerTls:
    folder.mkdir()
    authority = Authority(folder)
    key, certificate = (json.dumps(path.read_text()) for path in (authority.server.key, authority.server.cert))
    config = folder / "ssl.config"
    config.touch(mode=0o600)
    config.write_text(f"server_key: {key} server_cert: {certificate}")
    return ServerTls(authority.ca, config)


def _measure_calls(run: Run, quick: bool) -> list[CallPoint]:
    rounds, seconds = (1, 1) if quick else (CALL_ROUNDS, CALL_S)

    def progress(what: str) -> None:
        run.console.print(f"measuring {what}", markup=False, highlight=False)

    models = run.scratch / "models" / "mlp"
    return measure_calls(models, run.scratch, rounds=rounds, seconds=seconds, progress=progress)
