"""The server's metrics in one run and in several: the time breakdown of a request, and the server's activity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tpuserve_formats.counted import counted
from tpuserve_loadtests.monitoring.process_use import ProcessMoment, ProcessUse
from tpuserve_loadtests.monitoring.server_side import Moment, Phase, ServerSide
from tpuserve_loadtests.monitoring.watched import (
    BATCH_ROWS,
    CORES,
    EXECUTION,
    PADDING,
    PARTS,
    QUEUE,
    Part,
    ServerColumn,
    Watched,
    server_columns,
)
from tpuserve_loadtests.rendering.chart import Axis, Bar, Chart, Key, Numbers, TimeAxis
from tpuserve_loadtests.rendering.report import Charts, Remark, Row, Section, Table
from tpuserve_loadtests.rendering.scales import MIB, Linear, Named, milliseconds, percent, three_digits
from tpuserve_loadtests.reports import charts

_WHERE: Final = "Time breakdown"
# The server's histogram for parts whose percentiles the table shows, too.
_PHASES: Final = {QUEUE: "queue wait", EXECUTION: "execution"}
# Fewer moments do not make a curve.
_LEAST_MOMENTS: Final = 3


def sections(watched: Watched) -> list[Section]:
    """Return the time breakdown, the server's activity and its processes, as far as they are known.

    Without metrics, a page has the reason. On a terminal, it is among the notes of the run.
    """
    server, note = watched.server, watched.note[:1].upper() + watched.note[1:]
    table = [_table(server, watched.parts)] if server is not None and watched.parts else []
    lines = [] if server is None else [f"server: {line}" for line in server_lines(server)]
    lines += process_lines(watched.use)
    reason = [Remark([note], "Server metrics", on="page")] if server is None and note else []
    return [*table, Remark(lines, "Server activity"), *reason]


def process_lines(use: ProcessUse | None) -> list[str]:
    """Describe CPU and memory of the server's processes in a line, or return an empty list without processes."""
    if use is None:
        return []
    name = f"server process{'es' if len(use.pids) > 1 else ''} {', '.join(map(str, use.pids))}"
    children = use.processes - len(use.pids)
    family = f" and {children} child process{'es' if children > 1 else ''}" if children > 0 else ""
    memory = f"peak memory {use.peak_memory_bytes / MIB:,.0f} MiB, {use.memory_bytes / MIB:,.0f} MiB at the end"
    return [f"{name}{family}: {use.cpu_cores:.2f} cores, {memory}"]


def server_lines(server: ServerSide) -> list[str]:
    lines = []
    if server.batch_rows is not None:
        padding = "" if server.padding_share is None else f", {100 * server.padding_share:.3g} % padding"
        executing = "" if server.executing is None else f"; {server.executing:.2f} batches executing on average"
        lines.append(f"batches of {server.batch_rows:.3g} rows{padding}{executing}")
    lines += [f"device {device} busy {100 * share:.3g} % of the time" for device, share in server.busy.items()]
    process = []
    if server.cpu_cores is not None:
        process.append(f"{server.cpu_cores:.2f} cores")
    if server.peak_memory_bytes is not None:
        process.append(f"peak memory {server.peak_memory_bytes / MIB:,.0f} MiB")
    lines += [", ".join(process)] if process else []
    if server.refused:
        counts = ", ".join(f"{count:,} {name}" for name, count in server.refused.items())
        lines.append(f"refused or dropped: {counts}")
    return lines


def timeline(title: str, moments: Sequence[Moment | ProcessMoment], planned_s: float) -> Charts | None:
    """Chart the server's metrics on the clients' time axis. Return None for fewer than three moments."""
    if len(moments) < _LEAST_MOMENTS:
        return None
    time = TimeAxis(max(planned_s, moments[-1].at_s + moments[-1].seconds))
    return Charts(title, [_draw(picture, moments, time) for picture in _PICTURES])


@dataclass(frozen=True, slots=True)
class _Picture:
    """A chart of attributes of the moments, by name. `scale` converts them to the unit."""

    title: str
    unit: str
    figures: Mapping[str, str]
    written: Callable[[float], str]
    scale: float = 1.0


_CORES: Final = "CPU cores in use"
_PICTURES: Final = (
    _Picture("Queue and device", "ms, mean", {"queue wait": "queue_ms", "execution": "execution_ms"}, milliseconds),
    _Picture("Rows per batch", "rows, mean", {"rows": "batch_rows"}, three_digits),
    _Picture(_CORES, "cores", {"cores": "cpu_cores"}, three_digits),
    _Picture("Memory", "MiB", {"resident": "memory_bytes"}, "{:,.0f} MiB".format, 1 / MIB),
)


def _draw(picture: _Picture, moments: Sequence[Moment | ProcessMoment], time: TimeAxis) -> Chart | None:
    drawn = {}
    for name, attribute in picture.figures.items():
        values = [getattr(one, attribute, None) for one in moments]
        if any(value is not None for value in values):
            drawn[name] = [None if value is None else value * picture.scale for value in values]
    return charts.curves_chart(
        picture.title,
        picture.title,
        time.axis,
        picture.unit,
        [(time.middle(one.at_s, one.seconds), time.period(one.at_s, one.seconds)) for one in moments],
        drawn,
        picture.written,
    )


def _table(server: ServerSide, parts: tuple[Part, ...]) -> Table:
    rows = []
    for part in parts:
        phase = server.phase(_PHASES.get(part.name, ""))
        cells = [f"{part.mean_ms:.2f}", f"{100 * part.share:.0f} %", *_percentiles(phase)]
        rows.append(Row(part.name, cells, share=part.share))
    total = Row("latency", [f"{sum(part.mean_ms for part in parts):.2f}", "", "", ""], is_total=True)
    return Table(_WHERE, ["part", "mean ms", "share", "p50 ms", "p99 ms"], [*rows, total])


def _percentiles(phase: Phase | None) -> tuple[str, str]:
    if phase is None:
        return "", ""
    p50, p99 = (f"~{ms:.2f}" if ms > phase.least_ms else f"<{phase.least_ms:g}" for ms in (phase.p50_ms, phase.p99_ms))
    return p50, p99


# Runs by name, in order.
Rows: TypeAlias = Sequence[tuple[str, Watched]]

_TITLE: Final = "Time breakdown (mean ms per request) and batches"
_WHAT: Final = (
    "Mean milliseconds per request. Network includes connections and the client. Other is the remaining time in the "
    "server. Rows and padding are means per batch."
)
# Share of the distance between two bars.
_BAR_WIDTH: Final = 0.7


def table(kind: str, rows: Rows) -> Table:
    """Return a table with a row for each run. `kind` is the heading of the names. Without metrics, it has no rows.

    On a terminal, its title has the units.
    """
    columns = server_columns([watched for _, watched in rows])
    cells = [Row(name, [column.cell(watched) for column in columns]) for name, watched in rows]
    spare = [column.heading for column in columns if column.spare]
    headings = [kind, *(column.heading for column in columns)]
    rows_shown = cells if columns else []
    table = Table(_WHERE, headings, rows_shown, _WHAT, names="right", spare=spare, margins="fitting")
    return replace(table, printed_title=_TITLE)


def load_charts(kind: str, rows: Rows) -> Charts | None:
    """Chart the server's metrics for each load. Return None if fewer than two loads have metrics."""
    known = [(name, watched) for name, watched in rows if watched.parts]
    if len(known) < 2:
        return None
    axis = Axis(kind, Named([name for name, _ in known]))
    rows_per_batch = _draw_figure("Rows per batch", BATCH_ROWS, known, axis)
    drawn = [
        _draw_shares(known, axis),
        _draw_parts(known, axis),
        rows_per_batch,
        _draw_figure(_CORES, CORES, known, axis),
    ]
    return Charts("Server by load", drawn)


def _draw_shares(rows: Rows, x: Axis) -> Chart:
    bars = []
    for place, (_, watched) in enumerate(rows, start=1):
        floor = 0.0
        for style, share in enumerate(_shares(watched)):
            bars.append(Bar(place - _BAR_WIDTH / 2, place + _BAR_WIDTH / 2, 100 * (floor + share), style, 100 * floor))
            floor += share
    names = [column.heading for column in PARTS]
    first, last = rows[0], rows[-1]
    return Chart(
        title="Time breakdown by load",
        label=f"At {first[0]}: {_shares_text(first[1])}; at {last[0]}: {_shares_text(last[1])}",
        x=x,
        y=Axis("% of the mean latency", Linear(0.0, 100.0)),
        bars=bars,
        numbers=Numbers(
            [x.title, *names],
            [[name, *(percent(round(share, 3)) for share in _shares(watched))] for name, watched in rows],
            range(1, len(rows) + 1),
        ),
        keys=[Key(name, style) for style, name in enumerate(names)],
    )


def _draw_parts(rows: Rows, x: Axis) -> Chart | None:
    return charts.curves_chart(
        "Mean time by part",
        f"Parts of the mean latency of {counted(len(rows), 'load')}",
        x,
        "ms, mean",
        [(place, name) for place, (name, _) in enumerate(rows, start=1)],
        {part.heading: [part.figure(watched) for _, watched in rows] for part in PARTS},
        milliseconds,
        further={"total": [milliseconds(watched.latency_ms) for _, watched in rows]},
        dots=True,
    )


def _draw_figure(title: str, figure: ServerColumn, rows: Rows, x: Axis) -> Chart | None:
    return charts.curves_chart(
        title,
        f"{title} over {counted(len(rows), 'load')}",
        x,
        figure.heading,
        [(place, name) for place, (name, _) in enumerate(rows, start=1)],
        {figure.heading: [figure.figure(watched) for _, watched in rows]},
        three_digits,
        further={PADDING.heading: [PADDING.cell(watched) for _, watched in rows]} if figure is BATCH_ROWS else None,
        dots=True,
    )


def _shares(watched: Watched) -> list[float]:
    all_ms = watched.latency_ms or 1.0
    return [(part.figure(watched) or 0.0) / all_ms for part in PARTS]


def _shares_text(watched: Watched) -> str:
    shares = zip(PARTS, _shares(watched), strict=True)
    return ", ".join(f"{part.heading} {percent(round(share, 3))}" for part, share in shares)
