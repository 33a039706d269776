"""Latency by percentile, with HdrHistogram's axis: each further nine has the same width."""

from collections.abc import Mapping, Sequence
from typing import Final

from tpuserve_loadtests.rendering.chart import Axis, Chart, Column, Curve, Numbers, Rule
from tpuserve_loadtests.rendering.scales import Nines, latency_scale
from tpuserve_loadtests.rendering.units import milliseconds
from tpuserve_loadtests.statistics.early_stopping import queries_needed
from tpuserve_loadtests.statistics.histogram import LatencyHistogram
from tpuserve_loadtests.statistics.percentile_curve import percentile_curve

_LISTED: Final = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999)


def percentile_chart(histograms: Mapping[str, LatencyHistogram], rules: Sequence[Rule] = ()) -> Chart | None:
    """Draw a curve for each name. Return None without successful requests. `rules`: limits in milliseconds."""
    found = {name: histogram for name, histogram in histograms.items() if histogram.count}
    if not found:
        return None
    curves = [
        Curve(name, [(level.part, level.latency_us / 1000) for level in percentile_curve(histogram)], style)
        for style, (name, histogram) in enumerate(found.items())
    ]
    latencies = [y for curve in curves for _, y in curve.points if y is not None] + [rule.y or 0.0 for rule in rules]
    fullest = max(found.values(), key=lambda histogram: histogram.count)
    percents = [percent for percent in _LISTED if fullest.count >= 100 / (100 - percent)]
    return Chart(
        title="Latency by percentile",
        label="; ".join(
            f"{name}: p50 {_at(one, 50)}, p99 {_at(one, 99)}, max {milliseconds(one.max_us / 1000)}"
            for name, one in found.items()
        ),
        x=Axis("percentile of requests", Nines(fullest.count)),
        y=Axis("ms", latency_scale(latencies)),
        curves=curves,
        rules=rules,
        columns=[Column(level.part, _tooltip(100 * level.part, found)) for level in percentile_curve(fullest)],
        numbers=Numbers(
            ["percentile", *found],
            [
                *([f"p{percent:g}", *(_at(one, percent) for one in found.values())] for percent in percents),
                ["max", *(milliseconds(one.max_us / 1000) for one in found.values())],
            ],
        ),
    )


def _at(histogram: LatencyHistogram, percent: float) -> str:
    latency_us = histogram.percentile_us(percent)
    return "-" if latency_us is None else milliseconds(latency_us / 1000)


def _tooltip(percent: float, found: Mapping[str, LatencyHistogram]) -> str:
    where = "max" if percent == 100 else f"p{percent:.6g}"
    lines = [f"{name} {_at(one, percent)}" if len(found) > 1 else _at(one, percent) for name, one in found.items()]
    needed = "" if percent in (0, 100) else _confidence(percent, max(one.count for one in found.values()))
    return "\n".join([where, *lines, *([needed] if needed else [])])


def _confidence(percent: float, count: int) -> str:
    """Return a warning if the histogram has too few requests for the percentile."""
    return "too few requests for 99 % confidence" if count < queries_needed(percent) else ""
