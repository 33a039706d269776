"""A sweep as tables: each load, what came back, how fast, and where the server's time went."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpuserve_loadtests.outcomes.run import (
    FROM_DUE,
    LATENCY_COLUMNS,
    PLAIN_WIDTH,
    RunReport,
    latency_cells,
    print_errors,
)
from tpuserve_loadtests.rendering.junit import Case
from tpuserve_loadtests.reports.server_table import print_server_table


def print_sweep(reports: Sequence[RunReport], console: Console) -> None:
    """A line for each load, then the notes: those of all loads once, then the others of each that has any."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    first = reports[0]
    table = Table(title=f"{escape(first.model)}: {first.measured.load.seconds:g} s each", title_justify="left")
    for heading in ("load", "requests", "failures", "rate/s", *LATENCY_COLUMNS):
        table.add_column(heading, justify="right", no_wrap=True)
    for report in reports:
        total = report.total
        counts = [f"{total.requests:,}", f"{total.failures:,}", f"{total.rate_per_s:,.1f}"]
        table.add_row(str(report.measured.load), *counts, *latency_cells(total))
    console.print(table)
    print_server_table("load", [(step_name(report), report.watched) for report in reports], console)
    shared = shared_notes(reports)
    for note in shared:
        console.print(f"  note: {escape(note)}", soft_wrap=True, highlight=False)
    for report in reports:
        print_errors(report.measured.recorder.errors(), console)
        for note in step_notes(report):
            if note not in shared:
                console.print(f"  {report.measured.load}: {escape(note)}", soft_wrap=True, highlight=False)


def sweep_cases(reports: Sequence[RunReport]) -> list[Case]:
    """Each step's, after the name of the load."""
    return [replace(case, name=f"{step_name(report)}: {case.name}") for report in reports for case in report.cases]


def step_name(report: RunReport) -> str:
    """A load in few letters."""
    offered_per_s = report.measured.load.offered_per_s
    return str(report.measured.load) if offered_per_s is None else f"{offered_per_s:g}/s"


def shared_notes(reports: Sequence[RunReport]) -> list[str]:
    """Notes that all of several steps have."""
    first, *others = [step_notes(report) for report in reports]
    return [note for note in first if all(note in notes for notes in others)] if others else []


def step_notes(report: RunReport) -> list[str]:
    """A step's notes, but how latencies of all steps are counted."""
    return [note for note in report.notes if note != FROM_DUE]
