"""The outcome of a run and its two forms: a table for people, a JSON document for programs."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpuserve_loadtests.recorder import ErrorCount, Recorder, Summary

SHOWN_ERRORS = 5
# Rich would fold columns at 80 characters when output goes to a file; the table needs no more than this.
PLAIN_WIDTH = 120
PROTOCOL_TITLES = {"grpc": "gRPC", "rest": "REST", "total": "total"}


@dataclass(frozen=True, slots=True)
class Report:
    """One finished run. `elapsed_s` runs from the first user's start to the last answer."""

    model: str
    users: int
    rows: int
    elapsed_s: float
    lines: tuple[Summary, ...]
    total: Summary
    errors: tuple[ErrorCount, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there were requests and every one of them was answered."""
        return self.total.requests > 0 and self.total.failures == 0


def build_report(
    recorder: Recorder, *, model: str, users: int, rows: int, elapsed_s: float, notes: tuple[str, ...] = ()
) -> Report:
    """Freeze what the recorder holds."""
    return Report(
        model=model,
        users=users,
        rows=rows,
        elapsed_s=elapsed_s,
        lines=tuple(recorder.summaries(elapsed_s)),
        total=recorder.total().summary("total", elapsed_s),
        errors=tuple(recorder.errors()),
        notes=notes,
    )


def report_json(report: Report) -> str:
    """The report as one JSON document; latencies in milliseconds, rates in requests per second."""
    document = {
        "ok": report.ok,
        "model": report.model,
        "users": report.users,
        "rows_per_request": report.rows,
        "elapsed_s": report.elapsed_s,
        "protocols": {line.name: _figures(line) for line in report.lines},
        "total": _figures(report.total),
        "errors": [asdict(error) for error in report.errors],
        "notes": list(report.notes),
    }
    return json.dumps(document, indent=2)


def print_report(report: Report, console: Console) -> None:
    """Print the table, the commonest errors and the notes."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(_table(report))
    for error in report.errors[:SHOWN_ERRORS]:
        console.print(
            f"  {error.count:,} x {PROTOCOL_TITLES[error.protocol]}: {escape(error.message)}",
            soft_wrap=True,
            highlight=False,
        )
    hidden = report.errors[SHOWN_ERRORS:]
    if hidden:
        console.print(
            f"  {sum(error.count for error in hidden):,} x {len(hidden)} other kinds of error", highlight=False
        )
    for note in report.notes:
        console.print(f"  note: {escape(note)}", soft_wrap=True, highlight=False)


def _figures(line: Summary) -> dict[str, float | int | None]:
    figures = asdict(line)
    del figures["name"]
    return figures


def _table(report: Report) -> Table:
    load = f"{_count(report.users, 'user')}, {_count(report.rows, 'row')} a request"
    table = Table(title=f"{escape(report.model)}: {report.elapsed_s:.1f} s, {load}", title_justify="left")
    table.add_column("protocol")
    for heading in ("requests", "failures", "rate/s", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in report.lines:
        table.add_row(*_cells(line))
    table.add_section()
    table.add_row(*_cells(report.total), style="bold")
    return table


def _cells(line: Summary) -> list[str]:
    latencies = (line.p50_ms, line.p90_ms, line.p99_ms, line.max_ms)
    counts = [f"{line.requests:,}", f"{line.failures:,}", f"{line.rate_per_s:,.1f}"]
    return [PROTOCOL_TITLES[line.name], *counts, *("-" if value is None else f"{value:.2f}" for value in latencies)]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
