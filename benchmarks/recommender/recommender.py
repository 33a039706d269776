"""Measure a recommender as people serve it: DLRM-DCNv2, one item a request, beside Triton with the same program.

Run: `.venv/bin/python -m benchmarks recommender --model build/recommender`. The benchmark exports the model from Keras
and from Flax if the directory lacks them, starts all processes on loopback, and always stops them. Linux only.
"""

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.devices.resnet import SessionLoop, loop_process
from benchmarks.harness.environments import SetupFailed
from benchmarks.harness.load_tools import ToolFailed, framed, run_h2load
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.turns import in_turn
from benchmarks.loadgen.loadtest_search import loadtest
from benchmarks.recommender.dlrm import SHAPES, requests
from benchmarks.recommender.subjects import (
    NAME,
    SUBJECTS,
    WIRES,
    Serving,
    Source,
    Subject,
    find_or_export,
    serving,
)
from tpuserve_client.exchange import PredictCall
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire

Progress: TypeAlias = Callable[[str], None]

PARTS: Final = ("loop", "closed", "rates", "search")
SIZES: Final = (1, 2, 4, 8, 16, 32)
ITEMS: Final = 1000
# Seconds of each size in a loop.
LOOP_S: Final = 1.0
LOG_WIDTH: Final = 140
# Milliseconds, and real rows of a batch. The server's mean times are those of a request. CPU is of its process tree.
FIGURES: Final = ("p50", "p99", "CPU", "in the server", "queue", "execution", "rows")


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a run. `objective_ms` is the limit of p99."""

    shape: str
    rates: tuple[int, ...]
    first_rate: int
    objective_ms: int
    seconds: int
    rounds: int
    wires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoopCost:
    """Milliseconds of a batch without a server, and of CPU for it. The least of the rounds: other work adds to all."""

    runtime: str
    rows: int
    mean_ms: float
    p99_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Closed:
    """A server with two batches in flight, and the loop of its program: items/s, and ms of CPU for an item."""

    subject: str
    served_per_s: float
    loop_per_s: float
    cpu_ms: float
    loop_cpu_ms: float
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A server under one open load. `figures` are by FIGURES, without those that the server does not report."""

    subject: str
    wire: str
    rate_per_s: float
    failures: int
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one search. Without a rate, `problem` is the reason."""

    subject: str
    wire: str
    rate_per_s: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of each part, medians of the rounds. A part that was not measured has none."""

    loop: list[LoopCost]
    closed: list[Closed]
    rates: list[Turn]
    search: list[Found]


@contextlib.contextmanager
def loops(subjects: Sequence[Subject], bases: Mapping[Source, Path], plan: Plan) -> Iterator[dict[str, SessionLoop]]:
    """Start a loop for each runtime of the subjects, for the duration of the block."""
    program = str(Path(__file__).with_name("model_loop.py"))
    with contextlib.ExitStack() as running:
        yield {
            runtime: running.enter_context(loop_process(program, runtime, str(bases[source] / "1"), plan.shape))
            for runtime, source in {one.runtime: one.source for one in subjects}.items()
        }


def measure_loops(running: Mapping[str, SessionLoop], plan: Plan, progress: Progress) -> list[LoopCost]:
    """Run batches of each size with each runtime in turn."""
    found: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for number in range(plan.rounds):
        progress(f"loop, round {number + 1} of {plan.rounds}")
        for rows in SIZES:
            for runtime in in_turn(list(running), number):
                found.setdefault((runtime, rows), []).append(running[runtime].figures(rows, LOOP_S))
    return [LoopCost(*key, *(min(values) for values in zip(*costs, strict=True))) for key, costs in found.items()]


def measure_closed(
    servers: Sequence[Serving], running: Mapping[str, SessionLoop], plan: Plan, scratch: Path, progress: Progress
) -> list[Closed]:
    """Keep two batches in flight over OIP's gRPC, and run the loop of the same program with full batches, in turns."""
    found: dict[str, list[Closed]] = {}
    exchange = OipGrpcWire().predict(PredictCall(ModelSpec(NAME), requests(SHAPES[plan.shape], 1), None))
    body = scratch / "item.grpc"
    body.write_bytes(framed(exchange.body))
    for number in range(plan.rounds):
        for server in in_turn(servers, number):
            subject = server.subject
            progress(f"{subject.name}: two batches in flight, round {number + 1} of {plan.rounds}")
            mean_ms, _, loop_cpu_ms = running[subject.runtime].figures(SIZES[-1], plan.seconds)
            before_s = server.tree.cpu_seconds()
            load = run_h2load(
                *(server.ports["grpc"], exchange.path, body),
                in_flight=2 * SIZES[-1],
                duration_s=plan.seconds,
                scratch=scratch,
            )
            cpu_ms = 1e3 * (server.tree.cpu_seconds() - before_s) / load.requests
            figures = (load.rate_per_s, 1e3 * SIZES[-1] / mean_ms, cpu_ms, loop_cpu_ms / SIZES[-1], load.p50_ms)
            found.setdefault(subject.name, []).append(Closed(subject.name, *figures))
    return [
        Closed(name, *(statistics.median(values) for values in zip(*(astuple(one)[1:] for one in turns), strict=True)))
        for name, turns in found.items()
    ]


def measure_rates(servers: Sequence[Serving], plan: Plan, scratch: Path, progress: Progress) -> list[Turn]:
    """Load each server over each wire at each rate, in turns. Return the medians of the rounds."""
    turns: dict[tuple[str, str, int], list[Turn]] = {}
    for number in range(plan.rounds):
        for rate in plan.rates:
            for server, wire in in_turn(_pairs(servers, plan), number):
                progress(f"{server.subject.name}, {wire}: {rate} requests/s, round {number + 1} of {plan.rounds}")
                turn = _turn(server, wire, rate, plan, scratch)
                turns.setdefault((turn.subject, wire, rate), []).append(turn)
    return [_median(several) for several in turns.values()]


def search(servers: Sequence[Serving], plan: Plan, scratch: Path, progress: Progress) -> list[Found]:
    """Search the highest rate of each server over each wire, in turns. Return the medians of the rounds."""
    found: dict[tuple[str, str], list[Found]] = {}
    for number in range(plan.rounds):
        for server, wire in in_turn(_pairs(servers, plan), number):
            progress(f"{server.subject.name}, {wire}: search, round {number + 1} of {plan.rounds}")
            report = loadtest(
                *("search", NAME, *_target(server, wire, scratch), "--slo", f"p99<={plan.objective_ms}ms"),
                *("--from", str(plan.first_rate), "--duration", f"{plan.seconds}s", "--precision", "0.05"),
                progress=progress,
            )
            one = Found(server.subject.name, wire, report["rate_per_s"], report["problem"])
            found.setdefault((one.subject, wire), []).append(one)
    return [_middle(several) for several in found.values()]


def _pairs(servers: Sequence[Serving], plan: Plan) -> list[tuple[Serving, str]]:
    return [(server, wire) for server in servers for wire in server.subject.wires if wire in plan.wires]


def _target(server: Serving, wire: str, scratch: Path) -> list[str]:
    protocol, address = server.address(wire)
    own = server.subject.name != "triton"
    metrics = f"http://127.0.0.1:{server.ports['rest']}/metrics" if own else "off"
    return [
        *(f"--{protocol}", address, "--protocol", protocol, "--input", str(scratch / "items.npz")),
        *("--server-pid", str(server.tree.process.pid), "--server-metrics", metrics, "--golden", "off"),
    ]


def _turn(server: Serving, wire: str, rate: int, plan: Plan, scratch: Path) -> Turn:
    report = loadtest(
        *("run", NAME, *_target(server, wire, scratch), "--rate", str(rate), "--duration", f"{plan.seconds}s")
    )
    return read_turn(report, server.subject.name, wire, rate)


def read_turn(report: dict[str, Any], subject: str, wire: str, rate: float) -> Turn:  # a JSON document
    """Read the figures of one run. Raises WrongAnswer if the server answered no request."""
    total, server, process = report["total"], report["server"] or {}, report["server_process"] or {}
    if total["requests"] == total["failures"]:
        raise WrongAnswer(f"{subject}, {wire}: all {total['requests']} requests failed: {report['errors']}")
    phases = {phase["name"]: phase["mean_ms"] for phase in server.get("phases", ())}
    cores = process.get("cpu_cores")
    read = {
        "p50": total["p50_ms"],
        "p99": total["p99_ms"],
        "CPU": None if cores is None else 1e3 * cores / total["rate_per_s"],
        "in the server": phases.get("request"),
        "queue": phases.get("queue wait"),
        "execution": server.get("execution_ms"),
        "rows": server.get("batch_rows"),
    }
    figures = {name: value for name, value in read.items() if value is not None}
    return Turn(subject, wire, rate, total["failures"], figures)


def _median(turns: Sequence[Turn]) -> Turn:
    first = turns[0]
    figures = {name: statistics.median(turn.figures[name] for turn in turns) for name in first.figures}
    return replace(first, failures=sum(turn.failures for turn in turns), figures=figures)


def _middle(searches: Sequence[Found]) -> Found:
    """Return the median search. One without a rate counts as 0."""
    ordered = sorted(searches, key=lambda one: one.rate_per_s or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def show(results: Results, console: Console) -> None:
    """Print a table for each part that was measured."""
    titles = {subject.name: subject.title for subject in SUBJECTS}
    if results.loop:
        table = _table("Loop without a server, ms a batch", "runtime", "rows", "mean", "p99", "CPU", "items/s")
        for cost in results.loop:
            figures = (f"{value:.2f}" for value in (cost.mean_ms, cost.p99_ms, cost.cpu_ms))
            table.add_row(cost.runtime, str(cost.rows), *figures, f"{1e3 * cost.rows / cost.mean_ms:,.0f}")
        console.print(table)
    if results.closed:
        columns = ("items/s", "loop", "ratio", "CPU ms", "loop's CPU ms", "p50 ms")
        table = _table("Two batches of 32 in flight, and the loop with batches of 32", "server", *columns)
        for closed in results.closed:
            table.add_row(
                *(titles[closed.subject], f"{closed.served_per_s:,.0f}", f"{closed.loop_per_s:,.0f}"),
                *(f"{closed.served_per_s / closed.loop_per_s:.2f}", f"{closed.cpu_ms:.2f}"),
                *(f"{closed.loop_cpu_ms:.2f}", f"{closed.p50_ms:.1f}"),
            )
        console.print(table)
    if results.rates:
        table = _table("Open load; ms, means", "server", "protocol", "items/s", *FIGURES, "failures")
        for turn in results.rates:
            cells = (f"{turn.figures[name]:.2f}" if name in turn.figures else "-" for name in FIGURES)
            table.add_row(titles[turn.subject], turn.wire, f"{turn.rate_per_s:g}", *cells, str(turn.failures))
        console.print(table)
    if results.search:
        table = _table("Highest rate that meets the objective", "server", "protocol", "items/s", "note")
        for one in results.search:
            rate_text = "-" if one.rate_per_s is None else f"{one.rate_per_s:,.0f}"
            table.add_row(titles[one.subject], one.wire, rate_text, one.problem)
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in ("server", "protocol", "runtime", "note") else "right")
    return table


@click.command(epilog="Exit codes: 0 success, 1 a step failed.")
@click.argument("parts", type=click.Choice(PARTS), nargs=-1)
@click.option("--model", type=click.Path(path_type=Path), help="Directory that keeps the versions between runs.")
@click.option(
    "--shape", type=click.Choice(list(SHAPES)), default="mlperf", show_default=True, help="Size of the model."
)
@click.option("--only", type=click.Choice([one.name for one in SUBJECTS]), multiple=True, help="Servers to measure.")
@click.option("--wire", type=click.Choice(WIRES), multiple=True, help="Protocols to measure.")
@click.option("--rate", type=int, multiple=True, default=(100, 200), show_default=True, help="Rates of the open load.")
@click.option("--from", "first_rate", default=50, show_default=True, help="First rate of a search.")
@click.option("--objective", "objective_ms", default=20, show_default=True, help="Limit of p99 in ms.")
@click.option("--seconds", default=8, show_default=True, help="Seconds of each load. A search may need longer ones.")
@click.option("--rounds", default=3, show_default=True, help="Number of rounds. The medians count.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(
    parts: Sequence[str],
    model: Path | None,
    only: Sequence[str],
    wire: Sequence[str],
    rate: Sequence[int],
    as_json: bool,
    **options: Any,  # noqa: ANN401 - those of Plan
) -> None:
    """Measure the PARTS: the model in a loop, open loads, the highest rate with a p99 of 20 ms (default: all)."""
    exit_on_sigterm()
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else LOG_WIDTH)
    plan = Plan(rates=tuple(rate), wires=tuple(wire) or WIRES, **options)
    subjects = [one for one in SUBJECTS if not only or one.name in only]
    try:
        with tempfile.TemporaryDirectory(prefix="tpuserve-recommender-") as folder:
            scratch = Path(folder)
            kept = (model or scratch).absolute()
            sources = dict.fromkeys(one.source for one in subjects)
            bases = {source: find_or_export(source, plan.shape, kept) for source in sources}
            results = measure(parts or PARTS, subjects, bases, plan, scratch, console.print)
    except (ServerDied, SetupFailed, ToolFailed, WrongAnswer) as error:
        raise click.ClickException(str(error)) from None
    show(results, console)
    if as_json:
        print(json.dumps(asdict(results), indent=2))


def measure(
    parts: Sequence[str],
    subjects: Sequence[Subject],
    bases: Mapping[Source, Path],
    plan: Plan,
    scratch: Path,
    progress: Progress,
) -> Results:
    """Measure the parts. Raises ServerDied, SetupFailed, ToolFailed and WrongAnswer."""
    results = Results([], [], [], [])
    with contextlib.ExitStack() as running:
        if "loop" in parts or "closed" in parts:
            looping = running.enter_context(loops(subjects, bases, plan))
        if "loop" in parts:
            results.loop.extend(measure_loops(looping, plan, progress))
        if set(parts) == {"loop"}:
            return results
        items: dict[str, Any] = {**requests(SHAPES[plan.shape], ITEMS)}  # np.savez has a parameter that is a bool
        np.savez(scratch / "items.npz", **items)
        servers = [running.enter_context(serving(one, bases[one.source], scratch)) for one in subjects]
        for server in servers:
            server.check(plan.shape)
        if "closed" in parts:
            results.closed.extend(measure_closed(servers, looping, plan, scratch, progress))
        if "rates" in parts:
            results.rates.extend(measure_rates(servers, plan, scratch, progress))
        if "search" in parts:
            results.search.extend(search(servers, plan, scratch, progress))
        for server in servers:
            server.check(plan.shape)
    return results
