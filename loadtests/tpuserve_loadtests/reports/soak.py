"""The report of a soak: the trend of each figure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import FROM_DUE
from tpuserve_loadtests.judgement.soak import (
    CONFIDENCE,
    TITLES,
    Course,
    SoakOutcome,
    drift_cells,
    shown_hours,
    verdict_cause,
    verdict_line,
)
from tpuserve_loadtests.measurement.measured import Segment
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.rendering.chart import Chart, TimeAxis
from tpuserve_loadtests.rendering.report import (
    Cells,
    Charts,
    Document,
    Headline,
    Page,
    Remark,
    Report,
    Row,
    Section,
    Table,
    Tile,
)
from tpuserve_loadtests.rendering.scales import MIB, Linear, milliseconds, per_second, seconds
from tpuserve_loadtests.reports import charts, costs, figures
from tpuserve_loadtests.reports.run import NOT_TO_BE_TRUSTED, run_document

# Courses that the report marks as good or bad.
_NEWS: Final = {
    Course.DRIFTING: False,
    Course.CHANGED: False,
    Course.STEADY: True,
    Course.SETTLED: True,
    Course.BETTER: True,
}


def soak_report(outcome: SoakOutcome, settings: Mapping[str, str]) -> Report:
    """Build the report. `settings`: the settings to show, by name."""
    return Report(
        kind="loadtest soak",
        subject=outcome.run.model,
        exit_code=outcome.exit_code,
        cases=outcome.cases,
        statement=costs.added_to(soak_headline(outcome).sentence, outcome.run.spending),
        document=lambda: _document(outcome),
        page=lambda: _page(outcome, settings),
        rows=lambda: _segment_rows(outcome),
        runs={"": outcome.run.measured},
        # Each window merges the same window of all segments, so it shows no course over time.
        in_windows=False,
    )


def _document(outcome: SoakOutcome) -> Document:
    of_run = run_document(outcome.run)
    del of_run["stable"]
    return {
        **of_run,
        "ok": outcome.exit_code == 0,
        "exit_code": outcome.exit_code,
        "notes": list(outcome.notes),
        "verdict": outcome.verdict,
        "confidence": CONFIDENCE,
        "planned_segments": outcome.planned,
        "drifts": [
            {
                "figure": drift.figure.name,
                "course": drift.course,
                "change": drift.change,
                "median": drift.median,
                "per_hour": drift.per_hour,
                "interval": [drift.low, drift.high],
                "share_per_hour": drift.share_per_hour,
            }
            for drift in outcome.drifts
        ],
        "segments": [segment_document(segment) for segment in outcome.segments],
    }


def segment_document(segment: Segment) -> dict[str, Document]:
    return {"at_s": segment.at_s, **asdict(segment), "error_rate": segment.error_rate}


def segment_line(segment: Segment, number: int, planned: int) -> str:
    latencies = ("-" if value is None else f"{value:.2f}" for value in (segment.p50_ms, segment.p99_ms))
    p50, p99 = latencies
    line = f"  {number:4} of {planned}  {segment.rate_per_s:,.1f}/s  p50 {p50} ms  p99 {p99} ms"
    if segment.failures:
        line += f"  {counted(segment.failures, 'failure')}"
    return line if segment.memory_bytes is None else f"{line}  memory {segment.memory_bytes / MIB:,.1f} MiB"


def _segment_rows(outcome: SoakOutcome) -> list[Cells]:
    measured = outcome.run.measured
    began_at = measured.started_at + measured.load.warm_up_s
    return [{"time": f"{began_at + segment.start_s:.3f}", **segment_document(segment)} for segment in outcome.segments]


def _trends(outcome: SoakOutcome) -> Table:
    run = outcome.run
    span = f"{len(outcome.segments)} of {outcome.planned} segments, {counted(run.total.requests, 'request')}"
    title = f"{run.model}: {run.measured.load}, {span}"
    hours = shown_hours(outcome)
    change = "change per hour" if hours == 1 else "change"
    cells = [drift_cells(drift, hours) for drift in outcome.drifts]
    good = [_NEWS.get(drift.course) for drift in outcome.drifts]
    rows = [Row(name, texts, good=is_good) for (name, *texts), is_good in zip(cells, good, strict=True)]
    headings = ["figure", "median", change, "interval", "verdict"]
    return Table("Trends", headings, rows, names="left", printed_title=title)


def _total_line(total: Summary) -> str:
    latencies = zip(figures.LATENCIES, figures.latency_cells(total), strict=True)
    shown = ", ".join(f"{column.removesuffix(' ms')} {cell} ms" for column, cell in latencies)
    ended = f"{counted(total.requests, 'request')}, {counted(total.failures, 'failure')}"
    return f"total: {ended}, {total.rate_per_s:,.1f}/s, {shown}"


def _page(outcome: SoakOutcome, settings: Mapping[str, str]) -> Page:
    measured = outcome.run.measured
    return Page(
        title=f"Soak of {outcome.run.model}",
        origin=figures.describe_origin([measured]),
        headline=soak_headline(outcome),
        tiles=_tiles(outcome),
        sections=[
            *soak_sections(outcome),
            *figures.failures([measured]),
            figures.verdict_lines(outcome.run.gates, outcome.notes),
        ],
        settings={**figures.describe_load(measured), "Measured": _span(outcome), **settings},
    )


def soak_sections(outcome: SoakOutcome) -> list[Section]:
    measured = outcome.run.measured
    planned_s = outcome.planned * measured.load.seconds
    total = measured.total.histogram
    return [
        _trends(outcome),
        Remark([_total_line(outcome.run.total)], on="terminal"),
        charts.timeline_section(outcome.segments, planned_s, stopped=measured.stopped, marks=_marks(outcome)),
        Charts("Server", [_memory_chart(outcome.segments, planned_s)]),
        Charts("Latency", [charts.percentile_chart({"total": total}), charts.histogram_chart({"requests": total})]),
        *costs.sections("load", [(str(measured.load), outcome.run.spending)], outcome.run.spending),
    ]


def _marks(outcome: SoakOutcome) -> list[tuple[str, float]]:
    """Return the start of each worse period, with the names of the figures that changed there."""
    found: dict[float, list[str]] = {}
    for drift in outcome.drifts:
        for at_s in drift.at_s:
            found.setdefault(at_s, []).append(TITLES[drift.figure.name])
    return [(f"{', '.join(names)} worse", at_s) for at_s, names in found.items()]


def soak_headline(outcome: SoakOutcome) -> Headline:
    """Return the verdict. The first reason is the cause."""
    words, gates = (
        outcome.run.measured.load.qualify(verdict_line(outcome)),
        [result for result in outcome.run.gates if result.failed],
    )
    change = [cause] if (cause := verdict_cause(outcome)) else []
    notes = [*map(str, gates), *(note for note in outcome.notes if note != FROM_DUE)]
    if outcome.exit_code == EXIT_GENERATOR:
        return Headline("warn", NOT_TO_BE_TRUSTED, [*outcome.run.generator.limits, words, *change])
    if outcome.is_worse:
        return Headline("bad", words, [*change, *notes])
    if gates:
        return Headline("bad", "Failed the gates", [*notes, words, *change])
    if outcome.run.total.failures and outcome.exit_code:
        return Headline(
            "bad",
            f"{counted(outcome.run.total.failures, 'request')} failed",
            [*figures.most_frequent(outcome.run.measured), words, *change, *notes],
        )
    if outcome.exit_code == EXIT_INTERRUPTED:
        interruption = f"Interrupted after {counted(len(outcome.segments), 'segment')} of {outcome.planned}"
        return Headline("warn", interruption, [words, *change, *notes])
    is_clear = not outcome.exit_code and outcome.verdict != "unclear"
    return Headline("good" if is_clear else "warn", words, [*change, *notes])


def _tiles(outcome: SoakOutcome) -> list[Tile]:
    total = outcome.run.total
    return [
        Tile("segments", f"{len(outcome.segments)} of {outcome.planned}", _span(outcome)),
        Tile("throughput", per_second(total.rate_per_s)),
        Tile("p50", milliseconds(total.p50_ms)),
        Tile("p99", milliseconds(total.p99_ms)),
        figures.failures_tile(outcome.run.measured),
        *costs.tiles(outcome.run.spending),
    ]


def _span(outcome: SoakOutcome) -> str:
    return seconds(round(outcome.run.measured.span_s, 1))


def _memory_chart(segments: Sequence[Segment], planned_s: float) -> Chart | None:
    known = [(one, one.memory_bytes / MIB) for one in segments if one.memory_bytes is not None]
    if not known:
        return None
    time = TimeAxis(planned_s)
    sizes = [size for _, size in known]
    return charts.curves_chart(
        "Memory",
        "The server's resident memory",
        time.axis,
        "MiB",
        [(time.of(one.at_s), time.period(one.start_s, one.seconds)) for one, _ in known],
        {"resident": sizes},
        "{:,.1f} MiB".format,
        # The axis excludes zero, because a leak of a few MiB per hour would not show next to hundreds of MiB.
        scale=Linear.around(sizes, zero=False),
    )
