"""The server's metrics in several runs: time breakdown and batches."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from tpuserve_formats.counted import counted
from tpuserve_loadtests.monitoring.server_columns import BATCH_ROWS, CORES, PADDING, PARTS, ServerColumn, server_columns
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.chart import Axis, Bar, Chart, Column, Curve, Key, Numbers
from tpuserve_loadtests.rendering.parts import Charts, Row, Table
from tpuserve_loadtests.rendering.scales import Linear, Named, latency_scale
from tpuserve_loadtests.rendering.units import milliseconds, percent

# Runs by name, in order.
Rows: TypeAlias = Sequence[tuple[str, Watched]]

_TITLE: Final = "Time breakdown (mean ms per request) and batches"
_WHAT: Final = (
    "Mean milliseconds per request. Network includes connections and the client. Other is the remaining time in the "
    "server. Rows and padding are means per batch."
)
# Share of the distance between two bars.
_BAR_WIDTH: Final = 0.7


def servers_table(kind: str, rows: Rows) -> Table:
    """Return a table with a row for each run. `kind` is the heading of the names. Without metrics, it has no rows."""
    columns = server_columns([watched for _, watched in rows])
    headings = [kind, *(column.heading for column in columns)]
    cells = [Row(name, [column.cell(watched) for column in columns]) for name, watched in rows]
    return Table("Time breakdown", headings, cells if columns else [], _WHAT)


def printed_servers(kind: str, runs: Rows) -> Table:
    """Return a terminal table with a row for each run. `kind` is the heading of the names.

    Without metrics, the table has no rows.
    """
    columns = server_columns([watched for _, watched in runs])
    return Table(
        _TITLE,
        [kind, *(column.heading for column in columns)],
        [Row(name, [column.cell(watched) for column in columns]) for name, watched in runs] if columns else [],
        names="right",
        spare=[column.heading for column in columns if column.spare],
        margins="fitting",
    )


def servers_charts(kind: str, rows: Rows) -> Charts | None:
    """Chart the server's metrics for each load. Return None if fewer than two loads have metrics."""
    known = [(name, watched) for name, watched in rows if watched.parts]
    if len(known) < 2:
        return None
    axis = Axis(kind, Named([name for name, _ in known]))
    charts = [
        _draw_shares(known, axis),
        _draw_parts(known, axis),
        _draw_figure("Rows per batch", BATCH_ROWS, known, axis),
    ]
    charts.append(_draw_figure("CPU cores in use", CORES, known, axis))
    return Charts("Server by load", charts)


def _draw_shares(rows: Rows, x: Axis) -> Chart:
    """Draw a stacked bar of each load's parts, 100 % high."""
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
        label=f"At {first[0]}: {_shares_text(first[1], ', ')}; at {last[0]}: {_shares_text(last[1], ', ')}",
        x=x,
        y=Axis("% of the mean latency", Linear(0.0, 100.0)),
        bars=bars,
        columns=[Column(place, f"{row[0]}\n{_shares_text(row[1])}") for place, row in enumerate(rows, start=1)],
        numbers=Numbers(
            [x.title, *names],
            [[name, *(percent(round(share, 3)) for share in _shares(watched))] for name, watched in rows],
        ),
        keys=[Key(name, style) for style, name in enumerate(names)],
    )


def _draw_parts(rows: Rows, x: Axis) -> Chart:
    """Draw a curve for each part."""
    curves = [
        Curve(
            part.heading,
            [(place, part.figure(watched)) for place, (_, watched) in enumerate(rows, 1)],
            style,
            dots=True,
        )
        for style, part in enumerate(PARTS)
    ]
    found = [y for curve in curves for _, y in curve.points if y is not None]
    return Chart(
        title="Mean time by part",
        label=f"Parts of the mean latency of {counted(len(rows), 'load')}, up to {milliseconds(max(found))}",
        x=x,
        y=Axis("ms, mean", latency_scale(found)),
        curves=curves,
        columns=[Column(place, "\n".join([row[0], *_parts_text(row[1])])) for place, row in enumerate(rows, start=1)],
        numbers=Numbers(
            [x.title, *(part.heading for part in PARTS), "total"],
            [
                [name, *(milliseconds(part.figure(watched) or 0.0) for part in PARTS), milliseconds(watched.latency_ms)]
                for name, watched in rows
            ],
        ),
    )


def _draw_figure(title: str, figure: ServerColumn, rows: Rows, x: Axis) -> Chart | None:
    """Draw a figure over the loads, or return None if the server does not report it."""
    points = [(place, figure.figure(watched)) for place, (_, watched) in enumerate(rows, start=1)]
    found = [y for _, y in points if y is not None]
    if not found:
        return None
    shown = [figure, PADDING] if figure is BATCH_ROWS else [figure]
    return Chart(
        title=title,
        label=f"{title} over {counted(len(rows), 'load')}, from {min(found):.3g} to {max(found):.3g}",
        x=x,
        y=Axis(figure.heading, Linear.around(found)),
        curves=[Curve(figure.heading, points, dots=True)],
        columns=[
            Column(place, "\n".join([name, *(f"{column.heading} {column.cell(watched)}" for column in shown)]))
            for place, (name, watched) in enumerate(rows, start=1)
        ],
        numbers=Numbers(
            [x.title, *(column.heading for column in shown)],
            [[name, *(column.cell(watched) for column in shown)] for name, watched in rows],
        ),
    )


def _shares(watched: Watched) -> list[float]:
    """Return the parts' shares of the mean latency, in the order of PARTS."""
    all_ms = watched.latency_ms or 1.0
    return [(part.figure(watched) or 0.0) / all_ms for part in PARTS]


def _shares_text(watched: Watched, between: str = "\n") -> str:
    shares = zip(PARTS, _shares(watched), strict=True)
    return between.join(f"{part.heading} {percent(round(share, 3))}" for part, share in shares)


def _parts_text(watched: Watched) -> list[str]:
    return [f"{part.heading} {milliseconds(part.figure(watched) or 0.0)}" for part in PARTS]
