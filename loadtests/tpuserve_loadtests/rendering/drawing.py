"""Charts as inline SVG, with their numbers.

A chart needs no scripts: each column has a tooltip, and a table under the chart lists the numbers.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tpuserve_formats.markup import Markup, element
from tpuserve_loadtests.rendering.chart import (
    Axis,
    Bar,
    Chart,
    Column,
    Curve,
    Dot,
    Interval,
    Intervals,
    Key,
    Label,
    Rule,
)
from tpuserve_loadtests.rendering.scales import Linear

# Size of the drawing, in units close to a phone's pixels.
WIDTH: Final = 420.0
HEIGHT: Final = 250.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 14.0, 24.0, 42.0
# Labels closer than this would overlap.
_LABEL_WIDTH: Final = 56.0
_LABEL_HEIGHT: Final = 14.0
# Number of styles for series, each with a colour and a dash pattern.
STYLES: Final = 8


def draw_chart(chart: Chart) -> Markup:
    frame = _Frame(chart.x, chart.y)
    parts = [
        *frame.axes(),
        *(frame.bar(bar) for bar in chart.bars),
        *(part for curve in chart.curves for part in frame.curve(curve)),
        *(frame.dot(dot) for dot in chart.dots),
        *frame.labels(chart.labels),
        *(part for number, rule in enumerate(chart.rules) for part in frame.rule(rule, number)),
        *frame.columns(chart.columns or chart.numbers.columns),
    ]
    drawing = element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=chart.label)
    caption = element("figcaption", element("h3", chart.title), _legend(chart))
    return element("figure", caption, element("div", drawing, class_="drawing"), _show_numbers(chart))


def _legend(chart: Chart) -> Markup:
    lines = chart.curves if len(chart.curves) > 1 else ()
    curves = [element("span", _sample(curve.style), curve.name, class_="key") for curve in lines]
    keys = [*curves, *map(_key, chart.keys)]
    return element("div", *keys, class_="legend") if keys else Markup()


def _key(key: Key) -> Markup:
    if key.style is None:
        dot = element("span", class_="dot good" if key.good else "dot bad")
        return element("span", dot, key.name, class_="key")
    bar = element("rect", x=4.0, y=0.0, width=14.0, height=10.0, class_=f"bar style-{key.style % STYLES}")
    return element("span", element("svg", bar, viewBox="0 0 22 10", aria_hidden="true"), key.name, class_="key")


def _sample(style: int) -> Markup:
    line = element("line", x1=0.0, x2=22.0, y1=5.0, y2=5.0, class_=f"curve style-{style % STYLES}")
    return element("svg", line, viewBox="0 0 22 10", aria_hidden="true")


def _show_numbers(chart: Chart) -> Markup:
    numbers = chart.numbers
    head = element("tr", *(element("th", heading, scope="col") for heading in numbers.headings))
    rows = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:]))
        for row in numbers.rows
    ]
    table = element("table", element("thead", head), element("tbody", *rows), class_="plain")
    # A scrollable region needs keyboard access and a label.
    region = element(
        "div", table, class_="scrolls", tabindex="0", role="region", aria_label=f"Numbers of {chart.title}"
    )
    return element("details", element("summary", "Numbers"), region)


class _Frame:
    def __init__(self, x: Axis, y: Axis) -> None:
        self._x_axis = x
        self._y_axis = y

    def axes(self) -> list[Markup]:
        base = HEIGHT - BOTTOM
        parts = [
            element("text", self._y_axis.title, x=2.0, y=12.0, class_="tick"),
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"),
        ]
        for value, text in self._y_axis.scale.ticks():
            y = self._y(value)
            parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(element("text", text, x=LEFT - 6, y=y + 4, class_="tick end"))
        for value, text in self._x_axis.scale.ticks():
            x = self._x(value)  # a tick at the right end stays inside the drawing
            parts.append(element("line", x1=x, x2=x, y1=base, y2=base + 4, class_="axis"))
            parts.append(
                element("text", text, x=x, y=base + 17, class_="tick end" if x > WIDTH - RIGHT - 12 else "tick middle")
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(element("text", self._x_axis.title, x=middle, y=HEIGHT - 6, class_="tick middle"))
        return parts

    def curve(self, curve: Curve) -> list[Markup]:
        steps, pen = [], "M"
        for x, y in curve.points:
            if y is None:
                pen = "M"
                continue
            steps.append(f"{pen}{self._x(x):.1f} {self._y(y):.1f}")
            pen = "L"
        style = f"style-{curve.style % STYLES}"
        parts = [element("path", d="".join(steps), class_=f"curve {style}")] if steps else []
        single = sum(y is not None for _, y in curve.points) == 1
        if curve.dots or single:
            marks = [(x, y) for x, y in curve.points if y is not None]
            parts += [element("circle", cx=self._x(x), cy=self._y(y), r=3.5, class_=f"mark {style}") for x, y in marks]
        return parts

    def dot(self, dot: Dot) -> Markup:
        kind = "dot good" if dot.good else "dot bad"
        return element("circle", cx=self._x(dot.x), cy=self._y(dot.y), r=5.0, class_=kind)

    def bar(self, bar: Bar) -> Markup:
        left, right, top = self._x(bar.start), self._x(bar.end), self._y(bar.y)
        height, width = self._y(bar.floor) - top, max(right - left - 0.5, 0.5)
        return element(
            "rect", x=left, y=top, width=width, height=max(height, 0.0), class_=f"bar style-{bar.style % STYLES}"
        )

    def labels(self, labels: Sequence[Label]) -> list[Markup]:
        places: list[tuple[float, float]] = []
        parts = []
        for label in labels:
            x, y = self._x(label.x) - 8, self._y(label.y) + 4
            if all(abs(x - other_x) > _LABEL_WIDTH or abs(y - other_y) > _LABEL_HEIGHT for other_x, other_y in places):
                places.append((x, y))
                parts.append(element("text", label.text, x=x, y=y, class_="tick end value"))
        return parts

    def rule(self, rule: Rule, number: int) -> list[Markup]:
        """Draw a rule. The names of vertical rules are staggered, because the rules can be close."""
        if rule.y is not None:
            y = self._y(rule.y)
            line = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="rule")
            below = y < TOP + 12
            text = element("text", rule.text, x=LEFT + 4, y=y + 13 if below else y - 5, class_="tick start rule")
            return [line, text]
        assert rule.x is not None  # a rule is at either
        x = self._x(rule.x)
        line = element("line", x1=x, x2=x, y1=TOP - 4, y2=HEIGHT - BOTTOM, class_="rule")
        side = "end" if x > WIDTH / 2 else "start"
        text = element(
            "text", rule.text, x=x - 4 if side == "end" else x + 4, y=TOP + 4 + 13 * number, class_=f"tick {side} rule"
        )
        return [line, text]

    def columns(self, columns: Sequence[Column]) -> list[Markup]:
        ordered = sorted(columns, key=lambda column: column.x)
        places = [self._x(column.x) for column in ordered]
        edges = [LEFT, *((left + right) / 2 for left, right in pairwise(places)), WIDTH - RIGHT]
        return [
            element(
                "g",
                element("title", column.text),
                element("rect", x=left, y=TOP, width=max(right - left, 0.5), height=HEIGHT - BOTTOM - TOP),
                element("line", x1=place, x2=place, y1=TOP, y2=HEIGHT - BOTTOM),
                class_="column",
            )
            for column, place, (left, right) in zip(ordered, places, pairwise(edges), strict=True)
        ]

    def _x(self, value: float) -> float:
        return LEFT + _within(self._x_axis.scale.place(value)) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - _within(self._y_axis.scale.place(value)) * (HEIGHT - BOTTOM - TOP)


def _within(part: float) -> float:
    return min(max(part, 0.0), 1.0) if math.isfinite(part) else 0.0


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
    place = scale.place(row.ratio)
    before, after = "← " if place < 0 else "", " →" if place > 1 else ""
    return f"{before}{row.ratio:.3f} {row.kind}{after}"


def _is_inside(scale: Linear, value: float) -> bool:
    return 0 <= scale.place(value) <= 1


def _arrow(x: float, y: float, length: float, kind: str) -> Markup:
    back = x - length
    points = f"{x:.1f},{y:.1f} {back:.1f},{y - 6:.1f} {back:.1f},{y + 6:.1f}"
    return element("polygon", points=points, class_=f"interval-dot {kind}")


def _x(scale: Linear, value: float) -> float:
    return LEFT + min(max(scale.place(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)
