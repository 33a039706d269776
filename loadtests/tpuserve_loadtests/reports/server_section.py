"""The server's metrics during a run: the time breakdown of a request, and the server's activity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.report_model.chart import Axis, Chart, Column, Curve, Numbers
from tpuserve_loadtests.report_model.parts import Charts, Printed, Remark, Row, Share, Shares, Table, Text
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.time_axis import TimeAxis
from tpuserve_loadtests.report_model.units import MIB, milliseconds, three_digits
from tpuserve_loadtests.server_side.latency_parts import EXECUTION, QUEUE, Part
from tpuserve_loadtests.server_side.server_side import Moment, Phase, ServerSide
from tpuserve_loadtests.server_side.watched import Watched

_WHERE: Final = "Time breakdown"
# The server's histogram for parts whose percentiles the table shows, too.
_PHASES: Final = {QUEUE: "queue wait", EXECUTION: "execution"}
# Fewer moments do not make a curve.
_LEAST_MOMENTS: Final = 3

_Figure = Callable[[Moment], float | None]


def server_section(watched: Watched) -> Shares | Remark:
    """Return the time breakdown, or a remark with the reason if the server reports no metrics."""
    server, note = watched.server, watched.note
    if server is None:
        return Remark([note[:1].upper() + note[1:]] if note else [], "Server metrics")
    shares = [Share(part.name, part.share, milliseconds(part.mean_ms)) for part in watched.parts]
    return Shares(_WHERE if shares else "Server activity", shares, server_lines(server))


def printed_server(watched: Watched) -> list[Printed]:
    """List the time breakdown, if known, and the server's activity; nothing without metrics."""
    if watched.server is None:
        return []
    table = [_table(watched.server, watched.parts)] if watched.parts else []
    return [*table, *(Text(f"  server: {line}") for line in server_lines(watched.server))]


def server_lines(server: ServerSide) -> list[str]:
    """List the server's activity in words, as far as it reports it."""
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
    lines += [f"refused or dropped: {_counts(server.refused)}"] if server.refused else []
    return lines


def server_timeline(server: ServerSide | None, planned_s: float) -> Charts | None:
    """Chart the server's metrics on the clients' time axis. Return None for fewer than three moments."""
    moments = server.timeline if server is not None else ()
    if len(moments) < _LEAST_MOMENTS:
        return None
    time = TimeAxis(max(planned_s, moments[-1].at_s + moments[-1].seconds))
    return Charts("Server over time", [_draw(picture, moments, time) for picture in _PICTURES])


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    figure: _Figure


@dataclass(frozen=True, slots=True)
class _Picture:
    """A chart of the server's figures, with their text format."""

    title: str
    unit: str
    lines: tuple[_Line, ...]
    written: Callable[[float], str]


_PICTURES: Final = (
    _Picture(
        "Queue and device",
        "ms, mean",
        (_Line("queue wait", lambda one: one.queue_ms), _Line("execution", lambda one: one.execution_ms)),
        milliseconds,
    ),
    _Picture("Rows per batch", "rows, mean", (_Line("rows", lambda one: one.batch_rows),), three_digits),
    _Picture("CPU cores in use", "cores", (_Line("cores", lambda one: one.cpu_cores),), three_digits),
    _Picture(
        "Memory",
        "MiB",
        (_Line("resident", lambda one: None if one.memory_bytes is None else one.memory_bytes / MIB),),
        lambda size: f"{size:,.0f} MiB",
    ),
)


def _draw(picture: _Picture, moments: Sequence[Moment], time: TimeAxis) -> Chart | None:
    """Draw a chart, or return None if the server does not report its figures."""
    known = [line for line in picture.lines if any(line.figure(one) is not None for one in moments)]
    curves = [
        Curve(line.name, [(time.middle(one.at_s, one.seconds), line.figure(one)) for one in moments], style)
        for style, line in enumerate(known)
    ]
    values = [y for curve in curves for _, y in curve.points if y is not None]
    if not values:
        return None
    return Chart(
        title=picture.title,
        label=f"{picture.title}, from {picture.written(min(values))} to {picture.written(max(values))}",
        x=time.axis,
        y=Axis(picture.unit, latency_scale(values) if picture.written is milliseconds else Linear.around(values)),
        curves=curves,
        columns=[
            Column(time.middle(one.at_s, one.seconds), "\n".join([_period(time, one), *_tooltip(picture, known, one)]))
            for one in moments
        ],
        numbers=Numbers(
            ["time", *(line.name for line in known)],
            [[_period(time, one), *_cells(picture, known, one)] for one in moments],
        ),
    )


def _period(time: TimeAxis, moment: Moment) -> str:
    return time.period(moment.at_s, moment.seconds)


def _cells(picture: _Picture, known: Sequence[_Line], moment: Moment) -> list[str]:
    found = [line.figure(moment) for line in known]
    return ["-" if value is None else picture.written(value) for value in found]


def _tooltip(picture: _Picture, known: Sequence[_Line], moment: Moment) -> list[str]:
    return [f"{line.name} {cell}" for line, cell in zip(known, _cells(picture, known, moment), strict=True)]


def _table(server: ServerSide, parts: tuple[Part, ...]) -> Table:
    rows = []
    for part in parts:
        phase = server.phase(_PHASES.get(part.name, ""))
        rows.append(Row(part.name, [f"{part.mean_ms:.2f}", f"{100 * part.share:.0f} %", *_percentiles(phase)]))
    total = Row("latency", [f"{sum(part.mean_ms for part in parts):.2f}"], is_total=True)
    return Table(_WHERE, ["part", "mean ms", "share", "p50 ms", "p99 ms"], [*rows, total])


def _percentiles(phase: Phase | None) -> tuple[str, str]:
    if phase is None:
        return "", ""
    p50, p99 = (f"~{ms:.2f}" if ms > phase.least_ms else f"<{phase.least_ms:g}" for ms in (phase.p50_ms, phase.p99_ms))
    return p50, p99


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
