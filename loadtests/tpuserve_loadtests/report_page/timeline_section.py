"""How a load went over time: rates, failures, latencies."""

from collections.abc import Sequence
from typing import Final

from tpuserve_loadtests.measurement.timeline import Stretch
from tpuserve_loadtests.report_page.chart import Axis, Chart, Column, Curve, Numbers, Rule, draw_chart
from tpuserve_loadtests.report_page.markup import Markup
from tpuserve_loadtests.report_page.scales import Linear, latency_scale
from tpuserve_loadtests.report_page.sections import show_charts
from tpuserve_loadtests.report_page.units import milliseconds, per_second, three_digits

# Units of a time axis, and from how many seconds on each is used.
_UNITS: Final = (("s", 1.0, 0.0), ("min", 60.0, 300.0), ("h", 3600.0, 4 * 3600.0))


def show_timeline(
    stretches: Sequence[Stretch], planned_s: float, offered: Sequence[tuple[float, float]] = (), stopped: str = ""
) -> Markup:
    """`planned_s`: how long it should have lasted. `offered`: instants in seconds and the rate that was asked for.

    Of nothing measured, nothing.
    """
    if not stretches:
        return Markup()
    time = _Time(planned_s)
    ended = [Rule("stopped", x=time.of(stretches[-1].start_s + stretches[-1].seconds))] if stopped else []
    charts = [_rates(stretches, time, offered, ended), _latencies(stretches, time, ended)]
    return show_charts("Over time", charts)


class _Time:
    """The axis, in the unit that suits so many seconds."""

    def __init__(self, planned_s: float) -> None:
        self.unit, self._size, _ = [one for one in _UNITS if planned_s >= one[2]][-1]
        self.axis = Axis(self.unit, Linear(0.0, planned_s / self._size))

    def of(self, seconds: float) -> float:
        return seconds / self._size

    def middle(self, stretch: Stretch) -> float:
        return self.of(stretch.start_s + stretch.seconds / 2)

    def says(self, stretch: Stretch) -> str:
        start, end = self.of(stretch.start_s), self.of(stretch.start_s + stretch.seconds)
        return f"{three_digits(start)} to {three_digits(end)} {self.unit}"


def _rates(
    stretches: Sequence[Stretch], time: _Time, offered: Sequence[tuple[float, float]], ended: Sequence[Rule]
) -> Markup:
    curves = [Curve("answers", [(time.middle(one), one.rate_per_s) for one in stretches])]
    if offered:
        curves.append(Curve("offered", [(time.of(at_s), rate) for at_s, rate in offered], 7))
    if any(one.failures for one in stretches):
        curves.append(Curve("failures", [(time.middle(one), one.failures / one.seconds) for one in stretches], 4))
    rates = [one.rate_per_s for one in stretches]
    chart = Chart(
        title="Rate",
        label=f"Answers a second, from {per_second(min(rates))} to {per_second(max(rates))}",
        x=time.axis,
        y=Axis("requests/s", Linear.around(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        rules=ended,
        columns=[Column(time.middle(one), _rate_told(one, time)) for one in stretches],
        numbers=Numbers(
            ["time", "requests", "failures", "answers/s"],
            [
                [time.says(one), f"{one.requests:,}", f"{one.failures:,}", three_digits(one.rate_per_s)]
                for one in stretches
            ],
        ),
    )
    return draw_chart(chart)


def _latencies(stretches: Sequence[Stretch], time: _Time, ended: Sequence[Rule]) -> Markup:
    answered = [one for one in stretches if one.p50_ms is not None]
    if not answered:
        return Markup()
    names = ("p50", "p90", "p99", "max")
    # The slowest of each stretch is told and not drawn: of few requests it is p99 itself.
    curves = [
        Curve(name, [(time.middle(one), _latency(one, name)) for one in stretches], style)
        for style, name in enumerate(names[:-1])
    ]
    p99s = [one.p99_ms for one in answered if one.p99_ms is not None]
    chart = Chart(
        title="Latency",
        label=f"p99 of each stretch, from {milliseconds(min(p99s))} to {milliseconds(max(p99s))}",
        x=time.axis,
        y=Axis("ms", latency_scale(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        rules=ended,
        columns=[Column(time.middle(one), _latency_told(one, time)) for one in answered],
        numbers=Numbers(
            ["time", *names],
            [[time.says(one), *(milliseconds(_latency(one, name)) for name in names)] for one in answered],
        ),
    )
    return draw_chart(chart)


def _latency(stretch: Stretch, name: str) -> float | None:
    return {"p50": stretch.p50_ms, "p90": stretch.p90_ms, "p99": stretch.p99_ms, "max": stretch.max_ms}[name]


def _rate_told(stretch: Stretch, time: _Time) -> str:
    failures = f"\n{stretch.failures:,} failures" if stretch.failures else ""
    return f"{time.says(stretch)}\n{per_second(stretch.rate_per_s)}{failures}"


def _latency_told(stretch: Stretch, time: _Time) -> str:
    names = ("max", "p99", "p90", "p50")
    return "\n".join([time.says(stretch), *(f"{name} {milliseconds(_latency(stretch, name))}" for name in names)])
