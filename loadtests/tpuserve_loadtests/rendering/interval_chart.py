"""Charts of ratios with their intervals, as inline SVG. An interval that excludes 1 shows a difference."""

from typing import Final

from tpuserve_formats.markup import Markup, element
from tpuserve_loadtests.rendering.chart import Interval, Intervals
from tpuserve_loadtests.rendering.drawing import LEFT, RIGHT, WIDTH
from tpuserve_loadtests.rendering.scales import Linear

_ROW: Final = 46.0
_TOP: Final = 22.0
_BOTTOM: Final = 40.0
# Longer intervals end in an arrow, so that an outlier does not compress the other intervals.
_MOST: Final = 3.0
_ARROW: Final = 9.0
_BEYOND_RADIUS: Final = 5.0
# Half the width of "12.345 unclear →".
_HALF_LABEL: Final = 54.0
_CUT: Final = " An arrow marks an interval that continues beyond the chart."
_BEYOND: Final = " A hollow mark at the edge stands for a ratio beyond the chart, which its number shows."


def draw_intervals(chart: Intervals) -> Markup:
    """Draw a row for each ratio. Ratios in the band count as no difference."""
    ends = [end for row in chart.rows for end in (row.low, row.high)]
    around = (1 / (1 + chart.band), 1 + chart.band, *ends)
    scale = Linear.around((min(max(end, 1 / _MOST), _MOST) for end in around), zero=False)
    height = _TOP + _ROW * len(chart.rows) + _BOTTOM
    parts = [
        *_frame(chart, scale, height),
        *(part for number, row in enumerate(chart.rows) for part in _row(row, scale, number)),
    ]
    drawing = element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=chart.label)
    arrow = "" if all(_is_inside(scale, end) for end in ends) else _CUT
    beyond = "" if all(_is_inside(scale, row.ratio) for row in chart.rows) else _BEYOND
    caption = element(
        "figcaption", element("h3", chart.title), element("div", f"{chart.legend}{arrow}{beyond}", class_="legend")
    )
    return element("figure", caption, element("div", drawing, class_="drawing"))


def _frame(chart: Intervals, scale: Linear, height: float) -> list[Markup]:
    bottom = height - _BOTTOM
    low, high = _x(scale, 1 / (1 + chart.band)), _x(scale, 1 + chart.band)
    parts = [element("rect", x=low, y=_TOP, width=high - low, height=bottom - _TOP, class_="band")]
    for value, text in scale.ticks():
        x = _x(scale, value)
        parts.append(element("line", x1=x, x2=x, y1=_TOP, y2=bottom, class_="grid"))
        parts.append(element("text", text, x=x, y=bottom + 16, class_="tick middle"))
    one = _x(scale, 1.0)
    parts.append(element("line", x1=one, x2=one, y1=_TOP - 6, y2=bottom, class_="rule"))
    parts.append(element("text", chart.axis, x=(LEFT + WIDTH - RIGHT) / 2, y=height - 6, class_="tick middle"))
    return parts


def _row(row: Interval, scale: Linear, number: int) -> list[Markup]:
    y = _TOP + _ROW * (number + 0.62)
    left, right = _x(scale, row.low), _x(scale, row.high)
    middle = min(max(_x(scale, row.ratio), LEFT + _HALF_LABEL), WIDTH - RIGHT - _HALF_LABEL)
    return [
        element("text", row.name, x=2.0, y=y + 4, class_="tick start"),
        element("line", x1=left, x2=right, y1=y, y2=y, class_=f"interval {row.kind}"),
        *([_arrow(left, y, -_ARROW, row.kind)] if scale.place(row.low) < 0 else []),
        *([_arrow(right, y, _ARROW, row.kind)] if scale.place(row.high) > 1 else []),
        _dot(row, scale, y),
        element("text", _label(row, scale), x=middle, y=y - 11, class_=f"tick middle rule {row.kind}"),
    ]


def _dot(row: Interval, scale: Linear, y: float) -> Markup:
    """Draw the ratio. A ratio beyond the chart has a hollow mark, because a filled one would show a wrong ratio."""
    if _is_inside(scale, row.ratio):
        return element("circle", cx=_x(scale, row.ratio), cy=y, r=5.0, class_=f"interval-dot {row.kind}")
    inward = 1 if scale.place(row.ratio) < 0 else -1
    x = _x(scale, row.ratio) + inward * (_ARROW + _BEYOND_RADIUS + 1)
    return element("circle", cx=x, cy=y, r=_BEYOND_RADIUS, class_=f"interval-beyond {row.kind}")


def _label(row: Interval, scale: Linear) -> str:
    """Return the ratio and its verdict, with the direction of a ratio beyond the chart."""
    place = scale.place(row.ratio)
    before, after = "← " if place < 0 else "", " →" if place > 1 else ""
    return f"{before}{row.ratio:.3f} {row.kind}{after}"


def _is_inside(scale: Linear, value: float) -> bool:
    return 0 <= scale.place(value) <= 1


def _arrow(x: float, y: float, length: float, kind: str) -> Markup:
    """Draw an arrowhead with its tip at the chart's edge."""
    back = x - length
    points = f"{x:.1f},{y:.1f} {back:.1f},{y - 6:.1f} {back:.1f},{y + 6:.1f}"
    return element("polygon", points=points, class_=f"interval-dot {kind}")


def _x(scale: Linear, value: float) -> float:
    return LEFT + min(max(scale.place(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)
