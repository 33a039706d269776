"""CSV rows: the windows of a run, or a row for each of several runs. The headings contain the units."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.run import LINE_TITLES
from tpuserve_loadtests.measurement.measured import Measured, timeline
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.rendering.report import Cells, Row, Table, Text
from tpuserve_loadtests.rendering.scales import seconds, three_digits


def window_rows(measured: Measured) -> list[Cells]:
    """Return the windows of the run for each line of the table and for all lines together.

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
    figures = asdict(measured.total.summary("total", measured.rate_per_s))
    del figures["name"]
    load = measured.load
    return {
        "time": f"{measured.started_at:.3f}",
        "load": str(load),
        "users": load.users or None,
        "offered_per_s": load.offered_per_s,
        "seconds": measured.span_s,
        **figures,
    }


LATENCIES = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
# Narrow terminals omit these.
SPARE_LATENCIES = ("p90 ms", "p95 ms")


def latency_cells(line: Summary) -> list[str]:
    """Format cells for LATENCIES with three significant digits."""
    return ["-" if value is None else three_digits(value) for value in _latencies(line)]


def exact_cells(line: Summary) -> list[str]:
    """Format cells for LATENCIES on a terminal, with two decimals."""
    return ["-" if value is None else f"{value:.2f}" for value in _latencies(line)]


def _latencies(line: Summary) -> tuple[float | None, ...]:
    return line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.p99_9_ms, line.max_ms


_MOST_PRINTED: Final = 5
_MOST_ROWS: Final = 20


def errors_table(runs: Sequence[Measured]) -> Table:
    counts: dict[tuple[str, str], int] = {}
    for measured in runs:
        for error in measured.recorder.errors():
            key = (error.line, error.message)
            counts[key] = counts.get(key, 0) + error.count
    ranked = sorted(counts.items(), key=lambda one: -one[1])
    rows = [Row(message, [line_title(line), f"{count:,}"]) for (line, message), count in ranked[:_MOST_ROWS]]
    hidden = sum(count for _, count in ranked[_MOST_ROWS:])
    if hidden:
        rows.append(Row(counted(len(ranked) - _MOST_ROWS, "other message"), ["", f"{hidden:,}"]))
    return Table("Failures", ["message", "line", "requests"], rows)


def printed_errors(measured: Measured) -> list[Text]:
    errors = measured.recorder.errors()
    shown, hidden = errors[:_MOST_PRINTED], errors[_MOST_PRINTED:]
    lines = [Text(f"  {error.count:,} x {line_title(error.line)}: {error.message}") for error in shown]
    count = sum(error.count for error in hidden)
    return (
        [*lines, Text(f"  {count:,} x {counted(len(hidden), 'other kind')} of error", folds=True)] if hidden else lines
    )


def most_frequent(message: str) -> str:
    return f"most often with: {message}"


def line_title(name: str) -> str:
    """Return the title of a line in tables: a protocol's proper name, or the line's own name."""
    return LINE_TITLES.get(name, name)


def describe_origin(runs: Sequence[Measured]) -> str:
    """Describe the start of the first run, the number of requests, and the version; without runs, the time now."""
    version = f"tpuserve-loadtests {metadata.version('tpuserve-loadtests')}"
    if not runs:
        return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC · no requests · {version}"
    begun = datetime.fromtimestamp(min(measured.started_at for measured in runs), UTC)
    requests = sum(measured.total.requests for measured in runs)
    several = f"{len(runs)} runs, " if len(runs) > 1 else ""
    return f"{begun:%Y-%m-%d %H:%M:%S} UTC · {several}{counted(requests, 'request')} · {version}"


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
