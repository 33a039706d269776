"""Figures of runs that several reports show: cells, CSV rows, the most frequent errors, the origin and the load."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, Literal

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.run import LINE_TITLES
from tpuserve_loadtests.judgement.threshold import GateResult
from tpuserve_loadtests.measurement.measured import Measured, timeline
from tpuserve_loadtests.measurement.recorder import ITL, TTFT, Summary
from tpuserve_loadtests.rendering.report import Cells, Remark, Row, Section, Table, Tile
from tpuserve_loadtests.rendering.scales import percent, seconds, three_digits

LATENCIES: Final = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
# Narrow terminals omit these.
SPARE_LATENCIES: Final = ("p90 ms", "p95 ms")
VERSION: Final = f"tpuserve-loadtests {metadata.version('tpuserve-loadtests')}"
# Columns of the time to the first token and of the time between tokens.
_TOKEN_LATENCIES: Final = {
    f"{name} {percent} ms": f"{kind}_{percent}_ms"
    for kind, name in ((TTFT, "first"), (ITL, "between"))
    for percent in ("p50", "p90", "p99")
}
_MOST_PRINTED: Final = 5
_MOST_ROWS: Final = 20


def latency_cells(line: Summary) -> list[str]:
    """Format cells for LATENCIES."""
    latencies = (line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.p99_9_ms, line.max_ms)
    missing = "failed" if line.failures else "-"
    return [missing if ms is None else f"{ms:.2f}" for ms in latencies]


def lines_table(
    title: str,
    kind: str,
    lines: Iterable[tuple[str, Summary]],
    *,
    total: str = "",
    wrong: bool = False,
    retries: bool = False,
    intro: str = "",
    names: Literal["fold", "right"] = "fold",
    printed_title: str = "",
) -> Table:
    """Return a table with a row for each line: counts, rate and latencies. `kind` is the heading of the names.

    `total` is the name of the line that is the total of the others. `wrong` and `retries` add columns of these counts.
    """
    optional = [name for name, is_shown in (("wrong", wrong), ("retries", retries)) if is_shown]
    counted_names = ["requests", "failures", *optional]
    rows = []
    for name, line in lines:
        counts = [f"{getattr(line, count):,.0f}" for count in counted_names]
        rows.append(
            Row(name, [*counts, f"{line.rate_per_s:,.1f}", *latency_cells(line)], bool(total) and name == total)
        )
    headings = [kind, *counted_names, "rate/s", *LATENCIES]
    table = Table(title, headings, rows, intro, names=names, spare=SPARE_LATENCIES, margins="fitting")
    return replace(table, printed_title=printed_title)


def replicas_tables(measured: Measured) -> list[Table]:
    """Return a table of the replicas, or an empty list for a single one."""
    lines = [(line.name, line) for line in measured.replicas()]
    return [lines_table("Replicas", "replica", lines)] if lines else []


def tokens_of(measured: Measured) -> dict[str, dict[str, float]]:
    """Return the figures of streamed responses by line, in milliseconds and tokens per second."""
    found = {}
    for name in measured.recorder.lines:
        series = measured.recorder.tally(name).series
        latencies = {
            f"{kind}_p{percent}_ms": value / 1000
            for kind in series
            for percent in (50, 90, 99)
            if (value := series[kind].percentile_us(percent)) is not None
        }
        if latencies:
            tokens = sum(histogram.count for histogram in series.values())
            found[name] = {"tokens": tokens, "tokens_per_s": tokens / max(measured.span_s, 1e-3), **latencies}
    return found


def tokens_tables(measured: Measured) -> list[Table]:
    """Return a table of the tokens of streamed responses, or an empty list without any."""
    rows = [
        Row(
            line_title(name),
            [
                f"{line['tokens']:,.0f}",
                f"{line['tokens_per_s']:,.1f}",
                *(three_digits(line[key]) if key in line else "-" for key in _TOKEN_LATENCIES.values()),
            ],
        )
        for name, line in tokens_of(measured).items()
    ]
    return [Table("Tokens", ["line", "tokens", "tokens/s", *_TOKEN_LATENCIES], rows)] if rows else []


def window_rows(measured: Measured) -> list[Cells]:
    """Return CSV rows of the windows of the run for each line of the table and for all lines together.

    `start_s` counts from the start of the measured time. `time` is in Unix seconds.
    """
    began_at = measured.started_at + measured.load.warm_up_s
    rows: list[dict[str, Any]] = [  # values of several types
        {"time": f"{began_at + stretch.start_s:.3f}", "line": line or "total", **asdict(stretch)}
        for line in (*measured.recorder.lines, None)
        for stretch in timeline(measured, line)
    ]
    return [*sorted(rows, key=lambda row: row["start_s"])]


def run_row(measured: Measured) -> dict[str, Any]:  # values of several types
    """Return a CSV row of the figures of all requests of the run."""
    load = measured.load
    return {
        "time": f"{measured.started_at:.3f}",
        "load": str(load),
        "users": load.users or None,
        "offered_per_s": load.offered_per_s,
        "seconds": measured.span_s,
        **figures_of(measured.total.summary("total", measured.rate_per_s)),
    }


def figures_of(line: Summary) -> dict[str, float | int | None]:
    """Return the figures of a line by name."""
    found = asdict(line)
    del found["name"]
    return found


def failures(runs: Sequence[Measured]) -> list[Section]:
    """List the most frequent failures of all runs with the server's messages: lines on a terminal, else a table."""
    counts: Counter[tuple[str, str]] = Counter()
    for measured in runs:
        for error in measured.recorder.errors():
            counts[error.line, error.message] += error.count
    ranked = [(line_title(line), message, count) for (line, message), count in counts.most_common()]
    lines = [f"{count:,} x {line}: {message}" for line, message, count in ranked[:_MOST_PRINTED]]
    if others := ranked[_MOST_PRINTED:]:
        lines.append(f"{sum(each[2] for each in others):,} x {counted(len(others), 'other kind')} of error")
    rows = [Row(message, [line, f"{count:,}"]) for line, message, count in ranked[:_MOST_ROWS]]
    if others := ranked[_MOST_ROWS:]:
        hidden = f"{sum(each[2] for each in others):,}"
        rows.append(Row(counted(len(others), "other message"), ["", hidden]))
    table = Table("Failures", ["message", "line", "requests"], rows, on="page")
    return [Remark(lines, on="terminal"), table]


def failures_tile(measured: Measured) -> Tile:
    share = f"{percent(measured.error_rate)} of {counted(measured.total.requests, 'request')}"
    return Tile("failures", f"{measured.total.failures:,}", share)


def gate_row(result: GateResult) -> Row:
    """Return the row of a gate in a table of checks."""
    marks = {"passed": "✓ passed", "failed": "✗ failed"}
    figure = f"{result.gate.show(result.figure)}{f'; {result.shortfall}' if result.shortfall else ''}"
    good = None if result.shortfall else not result.failed
    return Row(result.condition, [figure, marks.get(result.outcome, result.outcome)], good=good)


def verdict_lines(gates: Iterable[GateResult], notes: Iterable[str]) -> Remark:
    """Return the gates and the notes, as lines on a terminal. A page has tables and the reasons of its headline."""
    return Remark([*map(str, gates), *(f"note: {note}" for note in notes)], on="terminal")


def most_frequent(measured: Measured) -> list[str]:
    """Return the most frequent error as the end of a sentence, or an empty list without errors."""
    return [f"most often with: {error.message}" for error in measured.recorder.errors()[:1]]


def line_title(name: str) -> str:
    """Return the title of a line in tables: a protocol's proper name, or the line's own name."""
    line, comma, rows = name.partition(", ")
    return f"{LINE_TITLES.get(line, line)}{comma}{rows}"


def describe_origin(runs: Sequence[Measured]) -> str:
    """Describe the start of the first run, the number of requests, and the version; without runs, the time now."""
    if not runs:
        return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC · no requests · {VERSION}"
    begun = datetime.fromtimestamp(min(measured.started_at for measured in runs), UTC)
    requests = sum(measured.total.requests for measured in runs)
    several = f"{len(runs)} runs, " if len(runs) > 1 else ""
    return f"{begun:%Y-%m-%d %H:%M:%S} UTC · {several}{counted(requests, 'request')} · {VERSION}"


def describe_load(measured: Measured) -> dict[str, str]:
    load = measured.load
    limit = f", until {counted(load.requests, 'request')}" if load.requests else ""
    warm_up = f", after {seconds(load.warm_up_s)} of warm-up" if load.warm_up_s else ""
    kind = "open" if load.is_open else "closed"
    return {
        "Load": f"{load} ({kind})",
        "Measured": f"{seconds(measured.span_s if load.requests else load.seconds)}{limit}{warm_up}",
        "Seed": str(load.seed) if load.is_open else "",
        "Generator": f"{len(measured.cores)} process{'es' if len(measured.cores) > 1 else ''}",
    }
