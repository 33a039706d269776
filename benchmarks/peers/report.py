"""Markdown reports of runs of peers.py, for the terminal and for docs/explanation/performance.md."""

import statistics
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.measurement import IN_FLIGHT, LARGE_BYTES, Point
from benchmarks.peers.outcome import Outcome
from benchmarks.peers.rotation import Rotation, Turns
from benchmarks.peers.wire import WIRES

# Reference for the comparison.
REFERENCE = "tpuserve"
# Servers to which the turns of the others are compared, if they took part.
BASES = ("parent", "triton-c")
GOALS = {"triton": 5.0, "mlserver": 8.0}
# Load average above which other processes disturb the measurements.
BUSY = 1.0
WIDTH = 120
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
_TIMES = "\N{MULTIPLICATION SIGN}"


def markdown(outcome: Outcome, chart: str | None = None) -> str:
    """Return the whole report. `chart` is the path of its image relative to the document."""
    parts = [_opening(outcome), _table(_LOAD_HEADINGS, _load_rows(outcome)), _LOAD_NOTE]
    parts += [f"![Requests per second and CPU per request of each server]({chart})"] if chart else []
    parts += [_table(_GOAL_HEADINGS, _goal_rows(outcome)), _ISOLATION_NOTE]
    parts += [_table(_ISOLATION_HEADINGS, _isolation_rows(outcome)), "Batching settings:"]
    parts.append(
        _table(_BATCHING_HEADINGS, ([result.title, result.version, result.batching] for result in outcome.results))
    )
    parts += [f"Not measured: {result.title}: {result.problem}" for result in outcome.results if result.problem]
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def turns_markdown(rotation: Rotation) -> str:
    """Return the report of servers that took turns."""
    titles = {server.name: server.title for server in rotation.servers}
    bases = [name for name in BASES if name in titles]
    headings = [*_TURNS_HEADINGS, *(f"CPU \N{DIVISION SIGN} {titles[name]}" for name in bases)]
    wires = list(WIRES)
    names = list(titles)
    ordered = sorted(rotation.turns, key=lambda each: (wires.index(each.wire), each.in_flight, names.index(each.name)))
    opening = (
        f"Measured on {rotation.date} on {rotation.machine}, shared with the load generator. The load average before "
        f"the run was {rotation.load_before:.1f}. All servers were up at once and took turns of {rotation.seconds} s. "
        "Figures are medians over the rounds, ratios medians of the rounds' ratios. CPU is that of the server's "
        "process tree."
    )
    memory = (
        [server.title, server.version, f"{server.memory.rss_mb:,.0f} MB ({server.memory.pss_mb:,.0f})"]
        for server in rotation.servers
    )
    rows = (_turns_row(each, titles, bases, rotation.turns) for each in ordered)
    return "\n\n".join((_wrapped(opening), _table(headings, rows), _table(_MEMORY_HEADINGS, memory))) + "\n"


def turns_ratio(turns: Turns, base: str, others: Sequence[Turns]) -> float | None:
    """Return the median ratio of the CPU to that of the server `base` under the same load, or None without one."""
    for other in others:
        if (other.name, other.case) == (base, turns.case):
            return statistics.median(mine / its for mine, its in zip(turns.cpu_us, other.cpu_us, strict=True))
    return None


def insert(document: str, report: str) -> str:
    """Replace the report between the document's markers. Raises ValueError if the document has no markers."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The document does not contain {BEGIN} followed by {END}.")
    return f"{head}{begin}\n\n{report}\n{end}{tail}"


def rate_ratio(outcome: Outcome, name: str, wire: str) -> float | None:
    """Return our rate over the other's on the same wire, or None if one was not measured."""
    reference, peer = _both(outcome, name, wire)
    return reference.load.rate_per_s / peer.load.rate_per_s if reference and peer and peer.load.rate_per_s else None


def cpu_ratio(outcome: Outcome, name: str, wire: str) -> float | None:
    """Return the other's CPU per request over ours on the same wire, or None if one was not measured."""
    reference, peer = _both(outcome, name, wire)
    return peer.cpu_s_per_1000 / reference.cpu_s_per_1000 if reference and peer and reference.cpu_s_per_1000 else None


def save_between_markers(document: Path, report: str) -> None:
    """Write the report into a file. Raises ValueError if the file has no markers."""
    document.write_text(insert(document.read_text(), report))


def _both(outcome: Outcome, name: str, wire: str) -> tuple[Point | None, Point | None]:
    reference, peer = outcome.result(REFERENCE), outcome.result(name)
    against = WIRES[wire].against or wire
    return (reference.point(against) if reference else None, peer.point(wire) if peer else None)


def _opening(outcome: Outcome) -> str:
    busy = (
        " Other processes used the machine, so rates are too low and ratios are approximate."
        if outcome.load_before > BUSY
        else ""
    )
    return (
        f"Measured on {outcome.date} on {outcome.machine}, shared with the load generator. The load average before the "
        f"run was {outcome.load_before:.1f}. The servers took turns in one run: {outcome.seconds} s per measurement, "
        f"with {IN_FLIGHT} requests in flight. CPU is the CPU time of the server's process tree, in seconds per 1000 "
        "requests."
        f"{busy}"
    )


_LOAD_HEADINGS = (
    *("server", "protocol", "req/s", "p50 ms", "p99 ms", "CPU", "one in flight, p50 ms"),
    *("rate, tpuserve \N{DIVISION SIGN} server", "CPU, server \N{DIVISION SIGN} tpuserve"),
)
_LOAD_NOTE = (
    "The last two columns compare each server with tpuserve over the same protocol: the "
    "Open Inference Protocol (OIP) or TensorFlow Serving's. For servers without both, tpuserve uses TensorFlow "
    "Serving's. All servers ran the same SavedModel in TensorFlow, except Triton with a backend in C: that backend "
    "computes only this model, from the SavedModel's weights. Before and after the load, the benchmark checked the "
    "outputs for 64 different rows, sent concurrently."
)
_GOAL_HEADINGS = ("goal", "limit", "result", "verdict")
_ISOLATION_HEADINGS = (
    *("server", "memory, RSS (PSS)", "failed valid rows", "accepted invalid rows"),
    *("slowest small request during the large body (before it)", "response to the large body"),
)
_ISOLATION_NOTE = (
    "Fault isolation, over HTTP. Invalid rows: the benchmark sends 15 valid rows together with one that lacks a "
    "number, 31 times. Large body: eight clients send small requests while the server receives and answers a JSON body "
    f"of {LARGE_BYTES // 1_000_000} MB."
)
_BATCHING_HEADINGS = ("server", "version", "batching")


_TURNS_HEADINGS = ("protocol", "in flight", "server", "req/s", "p50 ms", "CPU \N{MICRO SIGN}s/request (rounds)")
_MEMORY_HEADINGS = ("server", "version", "memory, RSS (PSS)")


def _turns_row(turns: Turns, titles: dict[str, str], bases: Sequence[str], others: Sequence[Turns]) -> list[str]:
    ratios = [turns_ratio(turns, base, others) for base in bases]
    return [
        *(WIRES[turns.wire].title, str(turns.in_flight), titles[turns.name]),
        f"{statistics.median(load.rate_per_s for load in turns.loads):,.0f}",
        f"{statistics.median(load.p50_ms for load in turns.loads):.2f}",
        f"{statistics.median(turns.cpu_us):.1f} ({min(turns.cpu_us):.1f} to {max(turns.cpu_us):.1f})",
        *("" if ratio is None else f"{ratio:.2f}{_TIMES}" for ratio in ratios),
    ]


def _load_rows(outcome: Outcome) -> Iterator[list[str]]:
    for result in outcome.results:
        for wire in WIRES.values():
            if point := result.point(wire.name):
                load = point.load
                failed = f", {load.failures:,} failed" if load.failures else ""
                yield [
                    *(result.title, wire.title, f"{load.rate_per_s:,.0f}{failed}"),
                    *(f"{load.p50_ms:.1f}", f"{load.p99_ms:.1f}", f"{point.cpu_s_per_1000:.2f}"),
                    f"{point.lone.p50_ms:.2f}",
                    _times(rate_ratio(outcome, result.name, wire.name)),
                    _times(cpu_ratio(outcome, result.name, wire.name)),
                ]


def _goal_rows(outcome: Outcome) -> Iterator[list[str]]:
    for name, limit in GOALS.items():
        for wire in WIRES.values():
            got, result = rate_ratio(outcome, name, wire.name), outcome.result(name)
            if got is not None and result is not None:
                what = f"rate relative to {result.title}, {wire.title}"
                yield [what, f"≥ {_times(limit)}", _times(got), "reached" if got >= limit else "**missed**"]


def _isolation_rows(outcome: Outcome) -> Iterator[list[str]]:
    for result in outcome.results:
        if found := result.measured:
            poisoned, stall = found.poisoned, found.stall
            yield [
                *(result.title, f"{found.memory.rss_mb:,.0f} MB ({found.memory.pss_mb:,.0f})"),
                *(f"{poisoned.good_failed} of {poisoned.good}", f"{poisoned.bad_accepted} of {poisoned.bad}"),
                *(f"{stall.worst_ms:,.0f} ms ({stall.steady_worst_ms:,.0f})", stall.answer),
            ]


def _wrapped(part: str) -> str:
    """Wrap prose to the width of the documents. Tables and images stay unchanged."""
    return part if part.startswith(("|", "!")) else textwrap.fill(part, WIDTH, break_on_hyphens=False)


def _times(value: float | None) -> str:
    """Return a ratio with one decimal, and with two below 1."""
    return "" if value is None else f"{value:.{1 if value >= 1 else 2}f}{_TIMES}"


def _table(headings: Sequence[str], rows: Iterator[list[str]]) -> str:
    """Return a Markdown table, or "" without rows."""
    lines = [_line(row) for row in rows]
    return "\n".join([_line(headings), _line(["---"] * len(headings)), *lines]) if lines else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
