"""Ratios of B to A with their intervals: where an interval leaves out 1, they differ."""

from typing import Final

from tpuserve_loadtests.rendering.drawing import LEFT, RIGHT, WIDTH
from tpuserve_loadtests.rendering.markup import Markup, element
from tpuserve_loadtests.report_model.scales import Linear
from tpuserve_loadtests.statistics.comparison import Comparison, Figure

_ROW: Final = 46.0
_TOP: Final = 22.0
_BOTTOM: Final = 40.0
# Intervals that reach beyond end in an arrow: one wild figure must not squeeze the others.
_MOST: Final = 3.0
_ARROW: Final = 9.0
# Half the width of "12.345 unclear".
_HALF_LABEL: Final = 48.0


def draw_intervals(comparison: Comparison) -> Markup:
    """A row for each figure; the band is what counts as no difference."""
    effect = comparison.least_effect
    ends = [
        1 / (1 + effect),
        1 + effect,
        *(end for one in comparison.figures for end in (one.ratio.low, one.ratio.high)),
    ]
    scale = Linear.around((min(max(end, 1 / _MOST), _MOST) for end in ends), zero=False)
    height = _TOP + _ROW * len(comparison.figures) + _BOTTOM
    parts = [
        *_frame(scale, height, effect),
        *(part for number, figure in enumerate(comparison.figures) for part in _row(figure, scale, number)),
    ]
    label = "; ".join(_told(figure) for figure in comparison.figures)
    drawing = element("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)
    is_cut = any(not _is_inside(scale, end) for one in comparison.figures for end in (one.ratio.low, one.ratio.high))
    caption = element("figcaption", element("h3", "B as a multiple of A"), _legend(effect, is_cut=is_cut))
    return element("figure", caption, element("div", drawing, class_="drawing"))


def _legend(effect: float, *, is_cut: bool) -> Markup:
    band = f"With 99 % intervals; the shaded band, {100 * effect:g} % around 1, counts as the same."
    arrow = " An arrow marks an interval that continues beyond the chart." if is_cut else ""
    return element("div", f"{band}{arrow}", class_="legend")


def _frame(scale: Linear, height: float, effect: float) -> list[Markup]:
    bottom = height - _BOTTOM
    low, high = _x(scale, 1 / (1 + effect)), _x(scale, 1 + effect)
    parts = [element("rect", x=low, y=_TOP, width=high - low, height=bottom - _TOP, class_="band")]
    for value, text in scale.ticks():
        x = _x(scale, value)
        parts.append(element("line", x1=x, x2=x, y1=_TOP, y2=bottom, class_="grid"))
        parts.append(element("text", text, x=x, y=bottom + 16, class_="tick middle"))
    one = _x(scale, 1.0)
    parts.append(element("line", x1=one, x2=one, y1=_TOP - 6, y2=bottom, class_="rule"))
    parts.append(element("text", "B / A", x=(LEFT + WIDTH - RIGHT) / 2, y=height - 6, class_="tick middle"))
    return parts


def _row(figure: Figure, scale: Linear, number: int) -> list[Markup]:
    y = _TOP + _ROW * (number + 0.62)
    ratio, kind = figure.ratio, str(figure.verdict)
    left, right = _x(scale, ratio.low), _x(scale, ratio.high)
    middle = min(max(_x(scale, ratio.ratio), LEFT + _HALF_LABEL), WIDTH - RIGHT - _HALF_LABEL)
    dot = element("circle", cx=_x(scale, ratio.ratio), cy=y, r=5.0, class_=f"interval-dot {kind}")
    return [
        element("text", figure.name, x=2.0, y=y + 4, class_="tick start"),
        element("line", x1=left, x2=right, y1=y, y2=y, class_=f"interval {kind}"),
        *([_arrow(left, y, -_ARROW, kind)] if scale.place(ratio.low) < 0 else []),
        *([_arrow(right, y, _ARROW, kind)] if scale.place(ratio.high) > 1 else []),
        # A dot at the edge would claim a ratio there.
        *([dot] if _is_inside(scale, ratio.ratio) else []),
        element("text", f"{ratio.ratio:.3f} {kind}", x=middle, y=y - 11, class_=f"tick middle rule {kind}"),
    ]


def _is_inside(scale: Linear, value: float) -> bool:
    return 0 <= scale.place(value) <= 1


def _arrow(x: float, y: float, length: float, kind: str) -> Markup:
    """An arrowhead whose point is at the chart's edge."""
    back = x - length
    points = f"{x:.1f},{y:.1f} {back:.1f},{y - 6:.1f} {back:.1f},{y + 6:.1f}"
    return element("polygon", points=points, class_=f"interval-dot {kind}")


def _x(scale: Linear, value: float) -> float:
    return LEFT + min(max(scale.place(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def _told(figure: Figure) -> str:
    ratio = figure.ratio
    return f"{figure.name}: B is {ratio.ratio:.3f} times A, {ratio.low:.3f} to {ratio.high:.3f}, {figure.verdict}"
