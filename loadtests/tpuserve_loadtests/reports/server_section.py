"""What the server said of itself: where the time of a request went, and what it did meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.rendering.drawing import Axis, Chart, Column, Curve, Numbers, draw_chart
from tpuserve_loadtests.rendering.markup import Markup, element
from tpuserve_loadtests.rendering.sections import show_charts
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.time_axis import TimeAxis
from tpuserve_loadtests.report_model.units import milliseconds, percent, three_digits
from tpuserve_loadtests.reports.server_report import MIB, server_lines
from tpuserve_loadtests.server_side.latency_parts import Part
from tpuserve_loadtests.server_side.server_side import Moment, ServerSide
from tpuserve_loadtests.server_side.watched import Watched

# A curve of fewer moments than this is none.
_LEAST_MOMENTS: Final = 3

_Figure = Callable[[Moment], float | None]


def show_server(watched: Watched) -> Markup:
    """Of a server that does not tell, the note that says why; nothing of one that was not asked."""
    server, note = watched.server, watched.note
    if server is None:
        why = element("p", note[:1].upper() + note[1:], class_="quiet")
        return element("section", element("h2", "The server"), why) if note else Markup()
    bars = [_bar(part) for part in watched.parts]
    lines = [element("li", line) for line in server_lines(server)]
    told = [
        element("table", element("tbody", *bars), class_="shares") if bars else Markup(),
        element("ul", *lines, class_="facts") if lines else Markup(),
    ]
    title = "Where the time of a request went" if bars else "What the server did"
    return element("section", element("h2", title), *told)


def show_server_timeline(server: ServerSide | None, planned_s: float) -> Markup:
    """The server over time, on the clients' axis; nothing of a few moments."""
    moments = server.timeline if server is not None else ()
    if len(moments) < _LEAST_MOMENTS:
        return Markup()
    time = TimeAxis(max(planned_s, moments[-1].at_s + moments[-1].seconds))
    return show_charts("The server meanwhile", [_draw(picture, moments, time) for picture in _PICTURES])


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    figure: _Figure


@dataclass(frozen=True, slots=True)
class _Picture:
    """A chart of the server's figures, and how one of them is written."""

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
    _Picture("Rows in a batch", "rows, mean", (_Line("rows", lambda one: one.batch_rows),), three_digits),
    _Picture("Cores in use", "cores", (_Line("cores", lambda one: one.cpu_cores),), three_digits),
    _Picture(
        "Memory",
        "MiB",
        (_Line("resident", lambda one: None if one.memory_bytes is None else one.memory_bytes / MIB),),
        lambda size: f"{size:,.0f} MiB",
    ),
)


def _draw(picture: _Picture, moments: Sequence[Moment], time: TimeAxis) -> Markup:
    """Nothing where the server does not tell."""
    known = [line for line in picture.lines if any(line.figure(one) is not None for one in moments)]
    curves = [
        Curve(line.name, [(time.middle(one.at_s, one.seconds), line.figure(one)) for one in moments], style)
        for style, line in enumerate(known)
    ]
    values = [y for curve in curves for _, y in curve.points if y is not None]
    if not values:
        return Markup()
    chart = Chart(
        title=picture.title,
        label=f"{picture.title}, from {picture.written(min(values))} to {picture.written(max(values))}",
        x=time.axis,
        y=Axis(picture.unit, latency_scale(values) if picture.written is milliseconds else Linear.around(values)),
        curves=curves,
        columns=[
            Column(time.middle(one.at_s, one.seconds), "\n".join([_says(time, one), *_told(picture, known, one)]))
            for one in moments
        ],
        numbers=Numbers(
            ["time", *(line.name for line in known)],
            [[_says(time, one), *_cells(picture, known, one)] for one in moments],
        ),
    )
    return draw_chart(chart)


def _says(time: TimeAxis, moment: Moment) -> str:
    return time.says(moment.at_s, moment.seconds)


def _cells(picture: _Picture, known: Sequence[_Line], moment: Moment) -> list[str]:
    found = [line.figure(moment) for line in known]
    return ["-" if value is None else picture.written(value) for value in found]


def _told(picture: _Picture, known: Sequence[_Line], moment: Moment) -> list[str]:
    return [f"{line.name} {cell}" for line, cell in zip(known, _cells(picture, known, moment), strict=True)]


def _bar(part: Part) -> Markup:
    bar = element("span", class_="share", style=f"width:{100 * part.share:.1f}%")
    share = element("td", percent(round(part.share, 2)))
    return element("tr", element("th", part.name, bar, scope="row"), element("td", milliseconds(part.mean_ms)), share)
