"""Measure the load generator's cost per request next to plain Locust, h2load and wrk, on a byte echo. Linux only.

Run: `.venv/bin/python -m benchmarks loadgen [--quick] [--tls] [--json]`. About 4 minutes, or 1 with `--quick`. `--tls`
repeats every measurement over TLS and takes twice as long.

Generators alternate in each round, so that all run under the same conditions. Figures are medians over the rounds.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness.load_tools import GRACE_S, ToolFailed, framed, missing_tools, run_h2load, run_wrk
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import GRPC_PATH, PROTOCOLS, REST_PATH, Protocol, Target, echoes
from benchmarks.loadgen.body import grpc_answer, rest_answer
from tests.support.certificates import Authority

USERS = 32
# Goal for the generator's rate, as a share of plain Locust's.
SHARE = 0.8
PLAIN, CLOSED, OPEN = "plain Locust", "tpuserve loadtest, closed", "tpuserve loadtest, open"
UNCHECKED = "tpuserve loadtest, closed, no checks"


@dataclass(frozen=True, slots=True)
class Turn:
    """One generator's turn. `lag_p99_ms` (send delay) and `limits` (why its run is not trusted) are for our generator
    only.

    `cpu_s` covers the measured time, when connections are already open. For the tools, which have no warm-up, it
    includes opening them.
    """

    protocol: Protocol
    generator: str
    requests: int
    failures: int
    seconds: float
    cpu_s: float
    lag_p99_ms: float | None = None
    limits: tuple[str, ...] = ()
    tls: bool = False

    @property
    def rate_per_s(self) -> float:
        """Requests per second, including failures."""
        return self.requests / self.seconds

    @property
    def cpu_s_per_1000(self) -> float:
        """The generator's own CPU time, user and system, per 1000 requests."""
        return 1000 * self.cpu_s / self.requests


@dataclass(frozen=True, slots=True)
class Line:
    """Medians of one generator, and their ratios to plain Locust's in the same rounds, with or without TLS.

    For `rate_share` and `cpu_share`, values above 1 are better than plain Locust. `clear_share` is the generator's
    requests per CPU-second over TLS, relative to those without TLS in the same rounds. It is None without TLS.
    """

    protocol: Protocol
    generator: str
    rate_per_s: float
    cpu_s_per_1000: float
    rate_share: float
    cpu_share: float
    failures: int
    lag_p99_ms: float | None
    limits: tuple[str, ...]
    tls: bool = False
    clear_share: float | None = None

    def __str__(self) -> str:
        return f"{self.protocol}{' over TLS' if self.tls else ''}, {self.generator}"


@dataclass(frozen=True, slots=True)
class Bench:
    """The echo, and the duration of a turn. With `ca`, the authority of its certificate, all requests use TLS."""

    targets: dict[Protocol, Target]
    seconds: int
    scratch: Path
    ca: Path | None = None

    def round(self, protocol: Protocol) -> list[Turn]:
        """Run every generator once. The open load runs at the goal's share of plain Locust's rate."""
        plain = self._python(protocol, PLAIN, self._plain(protocol))
        rate = max(round(SHARE * plain.rate_per_s), 1)
        return [
            plain,
            self._python(protocol, CLOSED, self._tpuserve(protocol, users=USERS, rate=0)),
            self._python(protocol, UNCHECKED, self._tpuserve(protocol, users=USERS, rate=0), LOADGEN_CHECKS="off"),
            self._python(protocol, OPEN, self._tpuserve(protocol, users=0, rate=rate)),
            self._tool(protocol),
        ]

    def with_checks(self, protocol: Protocol, values: int, modes: Sequence[str]) -> list[Turn]:
        """Run the closed load once for each mode of LOADGEN_CHECKS. A response has this number of floats."""
        command = self._tpuserve(protocol, users=USERS, rate=0)
        size = str(values)
        return [self._python(protocol, CLOSED, command, LOADGEN_CHECKS=mode, LOADGEN_VALUES=size) for mode in modes]

    def _plain(self, protocol: Protocol) -> list[str]:
        address = f"127.0.0.1:{self.targets[protocol].port}"
        scheme = "https" if self.ca else "http"
        host, user = (address, "GrpcUser") if protocol == "grpc" else (f"{scheme}://{address}", "RestUser")
        file = str(Path(__file__).with_name("plain.py"))
        size = ["-u", str(USERS), "-r", str(USERS), "--stop-timeout", "5"]
        return ["-m", "locust", "-f", file, "--headless", "--only-summary", *size, "--host", host, user]

    def _tpuserve(self, protocol: Protocol, *, users: int, rate: int) -> list[str]:
        file = str(Path(__file__).with_name("tpuserve_load.py"))
        numbers = map(str, (self.targets[protocol].port, self.seconds, users, rate))
        return [file, protocol, *numbers, *([str(self.ca)] if self.ca else [])]

    def _python(self, protocol: Protocol, generator: str, arguments: Sequence[str], **variables: str) -> Turn:
        command = [sys.executable, *arguments]
        environment = os.environ | {"LOADGEN_CA": str(self.ca or ""), "LOADGEN_SECONDS": str(self.seconds)} | variables
        timeout_s = self.seconds + GRACE_S
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        figures: dict[str, Any] = json.loads(found[0].removeprefix("RESULT ")) if found else {}
        if not figures.get("requests"):
            raise ToolFailed(f"{generator} finished no request:\n{(done.stdout + done.stderr)[-800:]}")
        limits = tuple(figures.get("limits", ()))
        return Turn(protocol, generator, **{**figures, "limits": limits, "tls": self.ca is not None})

    def _tool(self, protocol: Protocol) -> Turn:
        name, run, path, body = (
            ("h2load", run_h2load, GRPC_PATH, framed(grpc_answer()))
            if protocol == "grpc"
            else ("wrk", run_wrk, REST_PATH, rest_answer())
        )
        file = self.scratch / f"{protocol}.body"
        file.write_bytes(body)
        port = self.targets[protocol].port
        tls = self.ca is not None
        load = run(port, path, file, in_flight=USERS, duration_s=self.seconds, scratch=self.scratch, tls=tls)
        cpu_s = load.generator_cores * self.seconds
        return Turn(protocol, name, load.requests, load.failures, load.elapsed_s, cpu_s, tls=tls)


def lines(turns: Sequence[Turn]) -> list[Line]:
    """Return the medians by protocol and generator, in the order of their first turns.

    Ratios compare turns of the same round.
    """
    by_kind: dict[tuple[Protocol, bool, str], list[Turn]] = {}
    for turn in turns:
        by_kind.setdefault((turn.protocol, turn.tls, turn.generator), []).append(turn)
    found = []
    for (protocol, tls, generator), mine in by_kind.items():
        pairs = list(zip(mine, by_kind[protocol, tls, PLAIN], strict=True))
        clear = list(zip(mine, by_kind[protocol, False, generator], strict=True)) if tls else []
        lags = [turn.lag_p99_ms for turn in mine if turn.lag_p99_ms is not None]
        found.append(
            Line(
                protocol,
                generator,
                median(turn.rate_per_s for turn in mine),
                median(turn.cpu_s_per_1000 for turn in mine),
                median(turn.rate_per_s / reference.rate_per_s for turn, reference in pairs),
                median(reference.cpu_s_per_1000 / turn.cpu_s_per_1000 for turn, reference in pairs),
                sum(turn.failures for turn in mine),
                median(lags) if lags else None,
                tuple(limit for turn in mine for limit in turn.limits),
                tls,
                median(reference.cpu_s_per_1000 / turn.cpu_s_per_1000 for turn, reference in clear) if clear else None,
            )
        )
    return found


def print_lines(found: Sequence[Line], console: Console) -> None:
    """Print the table, the goals and the failures."""
    with_tls = any(line.tls for line in found)
    table = Table("target", "generator", "rate/s", "CPU-s per 1000", "rate", "requests per CPU-s", "send delay, p99")
    if with_tls:
        table.add_column("relative to plaintext")
    for line in found:
        clear = "" if line.clear_share is None else f"{line.clear_share:.2f} x"
        table.add_row(
            f"{'gRPC' if line.protocol == 'grpc' else 'REST'}{', TLS' if line.tls else ''}",
            line.generator,
            f"{line.rate_per_s:,.0f}",
            f"{line.cpu_s_per_1000:.3f}",
            f"{line.rate_share:.2f} x",
            f"{line.cpu_share:.2f} x",
            "" if line.lag_p99_ms is None else f"{line.lag_p99_ms:.1f} ms",
            *([clear] if with_tls else []),
        )
    console.print(table)
    for line in found:
        if line.generator in (CLOSED, OPEN):
            reached = "reached" if line.cpu_share >= SHARE else "missed"
            console.print(
                f"{line}: {line.cpu_share:.2f} of plain Locust's requests per CPU-second (goal ≥ {SHARE}): {reached}"
            )
        if line.failures:
            console.print(f"{line}: {line.failures:,} requests failed")
        for limit in line.limits:
            console.print(f"{line}: {limit}")


@click.command()
@click.option("--seconds", default=5, show_default=True, type=click.IntRange(1, 60), help="Seconds per run.")
@click.option("--rounds", default=4, show_default=True, type=click.IntRange(1, 50), help="Runs of each generator.")
@click.option("--protocols", default="grpc,rest", show_default=True, help="Comma-separated protocols to measure.")
@click.option("--quick", is_flag=True, help="Run two rounds of 2 seconds. Figures are approximate.")
@click.option("--tls", is_flag=True, help="Repeat all measurements over TLS.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(seconds: int, rounds: int, protocols: str, quick: bool, tls: bool, as_json: bool) -> None:
    """Compare one process of the load generator, open and closed, with plain Locust, h2load and wrk.

    Needs h2load and wrk (Debian: nghttp2-client, wrk). Exit codes: 0 success, 1 a step failed, 2 usage error.
    """
    if missing := missing_tools():
        raise click.UsageError(f"Load generators are missing. Run: apt-get install {' '.join(missing)}")
    chosen = _chosen(protocols)
    if quick:
        seconds, rounds = 2, 2
    exit_on_sigterm()
    progress = Console(stderr=True)
    progress.print(f"machine: {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before the run")
    turns: list[Turn] = []

    def done(turn: Turn) -> None:
        turns.append(turn)
        _print_turn(turn, progress)

    with tempfile.TemporaryDirectory(prefix="tpuserve-loadgen-") as directory:
        try:
            with _benches(Path(directory), seconds, tls=tls) as benches:
                for _ in range(rounds):
                    _round(benches, chosen, done)
        except (ServerDied, ToolFailed, subprocess.TimeoutExpired) as error:
            raise click.ClickException(str(error)) from None
    found = lines(turns)
    if as_json:
        click.echo(json.dumps([asdict(line) for line in found], indent=2))
    else:
        print_lines(found, Console(width=150 if tls else 120))


@contextmanager
def _benches(scratch: Path, seconds: int, *, tls: bool) -> Iterator[list[Bench]]:
    """Start the echo without TLS, and with `tls` also over TLS."""
    with ExitStack() as stack:
        benches = [Bench(stack.enter_context(echoes(scratch)), seconds, scratch)]
        if tls:
            folder = scratch / "tls"
            folder.mkdir()
            authority = Authority(folder)
            secure = stack.enter_context(echoes(folder, authority.server))
            benches.append(Bench(secure, seconds, folder, authority.ca))
        yield benches


def _round(benches: Sequence[Bench], protocols: Sequence[Protocol], done: Callable[[Turn], None]) -> None:
    for protocol in protocols:
        for bench in benches:
            for turn in bench.round(protocol):
                done(turn)


def _print_turn(turn: Turn, console: Console) -> None:
    over = " over TLS" if turn.tls else ""
    line = (
        f"{turn.protocol}{over}, {turn.generator}: {turn.rate_per_s:,.0f}/s, {turn.cpu_s_per_1000:.3f} CPU-s per 1000"
    )
    console.print(line, markup=False, highlight=False)


def _chosen(text: str) -> list[Protocol]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PROTOCOLS]:
        raise click.BadParameter(
            f"Unknown protocol {unknown[0]!r}. The protocols are {', '.join(PROTOCOLS)}.", param_hint="--protocols"
        )
    return [protocol for protocol in PROTOCOLS if protocol in names]
