"""Rates, failures and latencies over time."""

from collections.abc import Sequence

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.timeline import Stretch
from tpuserve_loadtests.rendering.chart import Axis, Chart, Column, Curve, Numbers, Rule
from tpuserve_loadtests.rendering.parts import Charts
from tpuserve_loadtests.rendering.scales import Linear, latency_scale
from tpuserve_loadtests.rendering.time_axis import TimeAxis
from tpuserve_loadtests.rendering.units import milliseconds, per_second, three_digits

# The maximum of each window appears only in the tooltip. For few requests, it equals p99.
_DRAWN = ("p50", "p90", "p99")
_LISTED = ("p50", "p90", "p95", "p99", "p99.9", "max")


def timeline_section(
    stretches: Sequence[Stretch], planned_s: float, offered: Sequence[tuple[float, float]] = (), stopped: str = ""
) -> Charts | None:
    """Chart rates and latencies over time. Return None without measurements.

    `planned_s` is the planned duration. `offered` holds times in seconds with the offered rate.
    """
    if not stretches:
        return None
    time = TimeAxis(planned_s)
    ended = [Rule("stopped", x=time.of(stretches[-1].start_s + stretches[-1].seconds))] if stopped else []
    return Charts("Over time", [_rates(stretches, time, offered, ended), _latencies(stretches, time, ended)])


def _rates(
    stretches: Sequence[Stretch], time: TimeAxis, offered: Sequence[tuple[float, float]], ended: Sequence[Rule]
) -> Chart:
    curves = [Curve("responses", [(_middle(time, one), one.rate_per_s) for one in stretches])]
    if offered:
        curves.append(Curve("offered", [(time.of(at_s), rate) for at_s, rate in offered], 7))
    if any(one.failures for one in stretches):
        curves.append(Curve("failures", [(_middle(time, one), one.failures / one.seconds) for one in stretches], 4))
    rates = [one.rate_per_s for one in stretches]
    return Chart(
        title="Rate",
        label=f"Responses per second, from {per_second(min(rates))} to {per_second(max(rates))}",
        x=time.axis,
        y=Axis("requests/s", Linear.around(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        rules=ended,
        columns=[Column(_middle(time, one), _rate_tooltip(one, time)) for one in stretches],
        numbers=Numbers(
            ["time", "requests", "failures", "responses/s"],
            [
                [_period(time, one), f"{one.requests:,}", f"{one.failures:,}", three_digits(one.rate_per_s)]
                for one in stretches
            ],
        ),
    )


def _latencies(stretches: Sequence[Stretch], time: TimeAxis, ended: Sequence[Rule]) -> Chart | None:
    completed = [one for one in stretches if one.p50_ms is not None]
    if not completed:
        return None
    known = [name for name in _LISTED if any(_latency(one, name) is not None for one in completed)]
    curves = [
        Curve(name, [(_middle(time, one), _latency(one, name)) for one in stretches], style)
        for style, name in enumerate(_DRAWN)
        if name in known
    ]
    p99s = [one.p99_ms for one in completed if one.p99_ms is not None]
    return Chart(
        title="Latency",
        label=f"p99 of each period, from {milliseconds(min(p99s))} to {milliseconds(max(p99s))}",
        x=time.axis,
        y=Axis("ms", latency_scale(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        rules=ended,
        columns=[Column(_middle(time, one), _latency_tooltip(one, time, known)) for one in completed],
        numbers=Numbers(
            ["time", *known],
            [[_period(time, one), *(milliseconds(_latency(one, name)) for name in known)] for one in completed],
        ),
    )


def _middle(time: TimeAxis, stretch: Stretch) -> float:
    return time.middle(stretch.start_s, stretch.seconds)


def _period(time: TimeAxis, stretch: Stretch) -> str:
    return time.period(stretch.start_s, stretch.seconds)


def _latency(stretch: Stretch, name: str) -> float | None:
    latencies = (stretch.p50_ms, stretch.p90_ms, stretch.p95_ms, stretch.p99_ms, stretch.p99_9_ms, stretch.max_ms)
    return dict(zip(_LISTED, latencies, strict=True))[name]


def _rate_tooltip(stretch: Stretch, time: TimeAxis) -> str:
    failures = f"\n{counted(stretch.failures, 'failure')}" if stretch.failures else ""
    return f"{_period(time, stretch)}\n{per_second(stretch.rate_per_s)}{failures}"


def _latency_tooltip(stretch: Stretch, time: TimeAxis, known: Sequence[str]) -> str:
    latencies = [f"{name} {milliseconds(_latency(stretch, name))}" for name in reversed(known)]
    return "\n".join([_period(time, stretch), *latencies])
