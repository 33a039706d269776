"""Figures of runs that several reports show: cells, CSV rows, the most frequent errors, the origin and the load."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, Literal

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.run import LINE_TITLES
from tpuserve_loadtests.measurement.measured import Measured, timeline
from tpuserve_loadtests.measurement.recorder import ITL, TTFT, Summary
from tpuserve_loadtests.rendering.report import Cells, Row, Table, Text
from tpuserve_loadtests.rendering.scales import seconds, three_digits

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
    return Table(title, headings, rows, intro, names=names, spare=SPARE_LATENCIES, margins="fitting")


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


def errors_table(runs: Sequence[Measured]) -> Table:
    """List the most frequent failures of all runs, with the server's messages."""
    counts: Counter[tuple[str, str]] = Counter()
    for measured in runs:
        for error in measured.recorder.errors():
            counts[error.line, error.message] += error.count
    ranked = counts.most_common()
    rows = [Row(message, [line_title(line), f"{count:,}"]) for (line, message), count in ranked[:_MOST_ROWS]]
    if hidden := sum(count for _, count in ranked[_MOST_ROWS:]):
        rows.append(Row(counted(len(ranked) - _MOST_ROWS, "other message"), ["", f"{hidden:,}"]))
    return Table("Failures", ["message", "line", "requests"], rows)


def printed_errors(measured: Measured) -> list[Text]:
    errors = measured.recorder.errors()
    shown, hidden = errors[:_MOST_PRINTED], errors[_MOST_PRINTED:]
    lines = [Text(f"  {error.count:,} x {line_title(error.line)}: {error.message}") for error in shown]
    if hidden:
        count = sum(error.count for error in hidden)
        lines.append(Text(f"  {count:,} x {counted(len(hidden), 'other kind')} of error", folds=True))
    return lines


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
