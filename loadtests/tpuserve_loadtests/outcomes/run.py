"""The outcome of a run and its forms: a table for people, a JSON document for programs, cases for CI systems."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpuserve_loadtests.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.generator import GeneratorVerdict, judge_generator
from tpuserve_loadtests.judgement.threshold import GateResult, Threshold, gate_results
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import ErrorCount
from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.rendering.junit import ANSWERED, GENERATOR, Case
from tpuserve_loadtests.reports.server_report import print_server
from tpuserve_loadtests.server_side.server_side import Seen
from tpuserve_loadtests.server_side.watched import Watched
from tpuserve_loadtests.statistics.early_stopping import share_unseen

SHOWN_ERRORS = 5
# Rich would fold columns at 80 characters when output goes to a file; the table needs no more than this.
PLAIN_WIDTH = 120
ROOMY = 95
PROTOCOL_TITLES = {"grpc": "gRPC", "rest": "REST", "total": "total"}
NOT_TRUSTED = "the load generator was the limit, do not trust these figures"
UNSETTLED = "it had not settled: the last three fifths of the run differ by more than 10 % in rate or median latency"
GIVEN_UP = "requests in flight were not waited for: neither answers nor failures, they are in no figure"
FROM_DUE = "latencies count from when a request was due, not from when it was sent"
# What a report of several runs shows of each, too.
LATENCY_COLUMNS = ("p50 ms", "p90 ms", "p99 ms", "max ms")


@dataclass(frozen=True, slots=True)
class RunReport:
    """One finished run and what is to be thought of it. `strict`: a generator at its limit is a failure.

    `rows`: of a request, on average. `watched`: the run with what the server said of itself meanwhile. `told`: notes on
    what was known before it.
    """

    model: str
    rows: float
    measured: Measured
    generator: GeneratorVerdict
    gates: tuple[GateResult, ...]
    watched: Watched
    strict: bool = True
    told: tuple[str, ...] = ()

    @property
    def total(self) -> Summary:
        """All lines together."""
        return self.measured.total.summary("total", self.measured.rate_per_s)

    @property
    def line_kind(self) -> str:
        """What tells the lines of the table apart: the protocol alone, or more than that."""
        return "protocol" if set(self.measured.recorder.lines) <= PROTOCOL_TITLES.keys() else "line"

    @property
    def answered(self) -> bool:
        """Whether there were requests and all were answered, or as few failed as a gate on `error_rate` allows.

        Wrong answers are answers.
        """
        judged = any(result.gate.metric == "error_rate" for result in self.gates)
        return self.total.requests > 0 and (judged or self.total.failures == self.total.wrong)

    @property
    def right(self) -> bool:
        """Whether no answer was wrong, or as few as a gate on them allows."""
        return self.total.wrong == 0 or any(result.gate.is_of_checks for result in self.gates)

    @property
    def exit_code(self) -> int:
        """The first of: generator at its limit, a gate failed, requests failed, all well."""
        if self.generator.fails(strict=self.strict):
            return EXIT_GENERATOR
        if any(result.failed for result in self.gates):
            return EXIT_GATE
        return 0 if self.answered and self.right else EXIT_FAILED

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to read the figures."""
        measured = self.measured
        notes = [measured.stopped] if measured.stopped else []
        if measured.recorder.unanswered:
            notes.append(f"{measured.recorder.unanswered:,} {GIVEN_UP}")
        notes += [f"{NOT_TRUSTED}: {limit}" for limit in self.generator.limits]
        if measured.stable is False:
            notes.append(UNSETTLED)
        if measured.load.is_open:
            notes.append(FROM_DUE)
        notes += [note for note in (*self.told, self.watched.note) if note]
        return tuple(notes)

    @property
    def cases(self) -> list[Case]:
        """For the answers, for the generator and for each gate."""
        errors = "\n".join(f"{error.count} x {error.message}" for error in self.measured.recorder.errors())
        limits = "\n".join(self.generator.limits) if self.generator.fails(strict=self.strict) else ""
        return [
            Case(ANSWERED, "" if self.answered else errors or "no request was made"),
            *([Case("answers are right", "" if self.right else errors)] if self.total.checked else []),
            Case(GENERATOR, limits),
            *(Case(str(result.gate), str(result) if result.failed else "") for result in self.gates),
        ]


def build_report(
    measured: Measured,
    *,
    model: str,
    rows: float,
    gates: tuple[Threshold, ...] = (),
    strict: bool = True,
    seen: Seen | None = None,
    told: tuple[str, ...] = (),
) -> RunReport:
    """Judge a run; `seen` is what the server said of itself, if it was watched."""
    generator, results = judge_generator(measured, gates), gate_results(gates, measured)
    watched = Watched.of(measured, seen or Seen())
    return RunReport(model, rows, measured, generator, results, watched, strict, told)


def report_json(report: RunReport) -> str:
    """The report as one JSON document; latencies in milliseconds, rates in requests per second."""
    return json.dumps(as_document(report), indent=2)


def as_document(report: RunReport) -> dict[str, Any]:  # plain values of several types
    """What report_json writes."""
    measured = report.measured
    return {
        "ok": report.exit_code == 0,
        "exit_code": report.exit_code,
        "model": report.model,
        "load": str(measured.load),
        "users": measured.load.users,
        "offered_per_s": measured.load.offered_per_s,
        "seed": measured.load.seed,
        "rows_per_request": int(report.rows) if float(report.rows).is_integer() else report.rows,
        "elapsed_s": measured.span_s,
        "warm_up_s": measured.load.warm_up_s,
        "warm_up_requests": measured.recorder.warm_up_requests,
        f"{report.line_kind}s": {line.name: figures(line) for line in measured.lines()},
        "total": figures(report.total),
        "error_rate": measured.error_rate,
        "wrong_rate": measured.wrong_rate,
        "stable": measured.stable,
        "generator": {"trusted": report.generator.trusted, **asdict(report.generator)},
        "gates": [
            {"gate": str(result.gate), "figure": result.figure, "failed": result.failed} for result in report.gates
        ],
        "errors": [
            {report.line_kind: error.line, "message": error.message, "count": error.count}
            for error in measured.recorder.errors()
        ],
        **report.watched.as_document(),
        "notes": list(report.notes),
    }


def figures(line: Summary) -> dict[str, float | int | None]:
    """A line of the table for JSON."""
    found = asdict(line)
    del found["name"]
    return found


def print_report(report: RunReport, console: Console) -> None:
    """Print the table, the commonest errors, the gates and the notes."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(_table(report, console.width))
    print_errors(report.measured.recorder.errors(), console)
    if report.total.checked:
        console.print(f"  {_checks(report.total)}", highlight=False)
    bound = report.total.p99_bound_ms
    if bound is not None:
        console.print(f"  p99 is at most {bound:.2f} ms, at 99 % confidence", highlight=False)
    print_server(report.watched, console)
    for result in report.gates:
        console.print(f"  {escape(str(result))}", soft_wrap=True, highlight=False)
    for note in report.notes:
        console.print(f"  note: {escape(note)}", soft_wrap=True, highlight=False)


def print_errors(errors: list[ErrorCount], console: Console) -> None:
    """The commonest errors, one a line."""
    for error in errors[:SHOWN_ERRORS]:
        console.print(
            f"  {error.count:,} x {line_title(error.line)}: {escape(error.message)}",
            soft_wrap=True,
            highlight=False,
        )
    hidden = errors[SHOWN_ERRORS:]
    if hidden:
        console.print(
            f"  {sum(error.count for error in hidden):,} x {len(hidden)} other kinds of error", highlight=False
        )


def line_title(name: str) -> str:
    """What a line is called in tables: a protocol by its proper name, any other as it is named."""
    return PROTOCOL_TITLES.get(name, escape(name))


def latency_cells(line: Summary) -> list[str]:
    """Cells for LATENCY_COLUMNS."""
    latencies = (line.p50_ms, line.p90_ms, line.p99_ms, line.max_ms)
    return ["-" if value is None else f"{value:.2f}" for value in latencies]


def _table(report: RunReport, width: int) -> Table:
    measured = report.measured
    rows = f"{report.rows:.3g} row{'' if report.rows == 1 else 's'} a request"
    warm_up = f", after {measured.load.warm_up_s:.3g} s of warm-up" if measured.load.warm_up_s else ""
    title = f"{escape(report.model)}: {measured.span_s:.1f} s, {measured.load}, {rows}{warm_up}"
    # With a column more, a terminal of 80 has no room for margins.
    is_tight = report.total.checked > 0 and width < ROOMY
    table = Table(title=title, title_justify="left", padding=(0, 0 if is_tight else 1))
    table.add_column(report.line_kind)
    wrong = ("wrong",) if report.total.checked else ()
    for heading in ("requests", "failures", *wrong, "rate/s", *LATENCY_COLUMNS):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in measured.lines():
        table.add_row(*_cells(line, bool(wrong)))
    table.add_section()
    table.add_row(*_cells(report.total, bool(wrong)), style="bold")
    return table


def _cells(line: Summary, with_wrong: bool) -> list[str]:
    wrong = [f"{line.wrong:,}"] if with_wrong else []
    counts = [f"{line.requests:,}", f"{line.failures:,}", *wrong, f"{line.rate_per_s:,.1f}"]
    return [line_title(line.name), *counts, *latency_cells(line)]


def _checks(total: Summary) -> str:
    compared = f"{total.wrong:,} of {total.checked:,} answers that were compared with golden ones were wrong"
    if total.wrong:
        return f"{compared}, {100 * total.wrong / total.checked:.3g} %"
    return f"{compared}: at most {100 * share_unseen(total.checked):.2g} % are, at 99 % confidence"
