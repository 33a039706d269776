"""Charts of latencies: their distribution, by percentile with HdrHistogram's axis, and over time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.measured import LATENCY_NAMES, Segment, Stretch, latencies_ms
from tpuserve_loadtests.rendering.chart import Axis, Bar, Chart, Column, Curve, Numbers, Rule, TimeAxis, known_values
from tpuserve_loadtests.rendering.report import Charts
from tpuserve_loadtests.rendering.scales import (
    Linear,
    Logarithmic,
    Nines,
    latency_scale,
    milliseconds,
    per_second,
    percent,
    three_digits,
)
from tpuserve_loadtests.statistics.early_stopping import queries_needed
from tpuserve_loadtests.statistics.histogram import LatencyHistogram, percentile_curve

_BINS: Final = 36


def histogram_chart(histograms: Mapping[str, LatencyHistogram]) -> Chart | None:
    """Draw the distributions as shares of each histogram's requests. Return None without successful requests."""
    found = {name: histogram for name, histogram in histograms.items() if histogram.count}
    if not found:
        return None
    edges_ms = _edges_ms(found.values())
    shares = {name: _shares(histogram, edges_ms) for name, histogram in found.items()}
    bins = list(pairwise(edges_ms))
    bars: list[Bar] = []
    curves: list[Curve] = []
    rules: list[Rule] = []
    if len(found) == 1:
        ((name, histogram),) = found.items()
        bars = [Bar(*edges, 100 * share) for edges, share in zip(bins, shares[name], strict=True) if share]
        percentiles = [(part, histogram.percentile_us(part)) for part in (50, 99)]
        rules = [Rule(f"p{part}", x=latency_us / 1000) for part, latency_us in percentiles if latency_us is not None]
    else:
        outlines = [zip(bins, mine, strict=True) for mine in shares.values()]
        points = [[(edge, 100 * share) for edges, share in outline for edge in edges] for outline in outlines]
        curves = [Curve(name, each, style) for style, (name, each) in enumerate(zip(found, points, strict=True))]
    return Chart(
        title="Latency distribution",
        label="; ".join(f"{name}: {_commonest(bins, mine)}" for name, mine in shares.items()),
        x=Axis("ms, logarithmic", Logarithmic(edges_ms[0], edges_ms[-1])),
        y=Axis("% of requests", Linear.around(100 * share for mine in shares.values() for share in mine)),
        bars=bars,
        curves=curves,
        rules=rules,
        columns=[
            Column(
                math.sqrt(low * high), _bin_tooltip(low, high, {name: mine[number] for name, mine in shares.items()})
            )
            for number, (low, high) in enumerate(bins)
        ],
        numbers=Numbers(
            ["ms", *found],
            [
                [_range(low, high), *(percent(mine[number]) for mine in shares.values())]
                for number, (low, high) in enumerate(bins)
                if any(mine[number] for mine in shares.values())
            ],
        ),
    )


def _edges_ms(histograms: Iterable[LatencyHistogram]) -> list[float]:
    recorded = [one.recorded()[0] for one in histograms]
    low = min(float(values[0]) for values in recorded) * 0.999
    high = max(float(values[-1]) for values in recorded) * 1.001
    high = max(high, low * 1.05)
    edges: list[float] = (np.geomspace(low, high, _BINS + 1) / 1000).tolist()
    return edges


def _shares(histogram: LatencyHistogram, edges_ms: list[float]) -> list[float]:
    values_us, counts = histogram.recorded()
    binned, _ = np.histogram(values_us / 1000, bins=edges_ms, weights=counts)
    shares: list[float] = (binned / histogram.count).tolist()
    return shares


def _commonest(bins: list[tuple[float, float]], shares: list[float]) -> str:
    at = max(range(len(bins)), key=shares.__getitem__)
    return f"most requests took {_range(*bins[at])} ms ({percent(shares[at])})"


def _range(low: float, high: float) -> str:
    return f"{three_digits(low)} to {three_digits(high)}"


def _bin_tooltip(low: float, high: float, shares: Mapping[str, float]) -> str:
    lines = [f"{name} {percent(share)}" if len(shares) > 1 else percent(share) for name, share in shares.items()]
    return "\n".join([f"{three_digits(low)} to {milliseconds(high)}", *lines])


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
    latencies = known_values(curves) + [rule.y or 0.0 for rule in rules]
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
    if percent not in (0, 100) and max(one.count for one in found.values()) < queries_needed(percent):
        lines.append("too few requests for 99 % confidence")
    return "\n".join([where, *lines])


# The maximum of each window appears only in the tooltip. For few requests, it equals p99.
_DRAWN: Final = ("p50", "p90", "p99")


def timeline_section(
    stretches: Sequence[Stretch | Segment],
    planned_s: float,
    offered: Sequence[tuple[float, float]] = (),
    stopped: str = "",
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
    stretches: Sequence[Stretch | Segment],
    time: TimeAxis,
    offered: Sequence[tuple[float, float]],
    ended: Sequence[Rule],
) -> Chart:
    curves = [Curve("responses", [(time.middle(one.start_s, one.seconds), one.rate_per_s) for one in stretches])]
    if offered:
        curves.append(Curve("offered", [(time.of(at_s), rate) for at_s, rate in offered], 7))
    if any(one.failures for one in stretches):
        curves.append(
            Curve(
                "failures",
                [(time.middle(one.start_s, one.seconds), one.failures / one.seconds) for one in stretches],
                4,
            )
        )
    rates = [one.rate_per_s for one in stretches]
    return Chart(
        title="Rate",
        label=f"Responses per second, from {per_second(min(rates))} to {per_second(max(rates))}",
        x=time.axis,
        y=Axis("requests/s", Linear.around(known_values(curves))),
        curves=curves,
        rules=ended,
        columns=[
            Column(
                time.middle(one.start_s, one.seconds),
                "\n".join(
                    [
                        time.period(one.start_s, one.seconds),
                        per_second(one.rate_per_s),
                        *([counted(one.failures, "failure")] if one.failures else []),
                    ]
                ),
            )
            for one in stretches
        ],
        numbers=Numbers(
            ["time", "requests", "failures", "responses/s"],
            [
                [
                    time.period(one.start_s, one.seconds),
                    f"{one.requests:,}",
                    f"{one.failures:,}",
                    three_digits(one.rate_per_s),
                ]
                for one in stretches
            ],
        ),
    )


def _latencies(stretches: Sequence[Stretch | Segment], time: TimeAxis, ended: Sequence[Rule]) -> Chart | None:
    completed = [(one, latencies_ms(one)) for one in stretches if one.p50_ms is not None]
    if not completed:
        return None
    known = [name for name in LATENCY_NAMES if any(found[name] is not None for _, found in completed)]
    curves = [
        Curve(name, [(time.middle(one.start_s, one.seconds), latencies_ms(one)[name]) for one in stretches], style)
        for style, name in enumerate(_DRAWN)
        if name in known
    ]
    p99s = [one.p99_ms for one, _ in completed if one.p99_ms is not None]
    return Chart(
        title="Latency",
        label=f"p99 of each period, from {milliseconds(min(p99s))} to {milliseconds(max(p99s))}",
        x=time.axis,
        y=Axis("ms", latency_scale(known_values(curves))),
        curves=curves,
        rules=ended,
        columns=[
            Column(
                time.middle(one.start_s, one.seconds),
                "\n".join(
                    [
                        time.period(one.start_s, one.seconds),
                        *(f"{name} {milliseconds(found[name])}" for name in reversed(known)),
                    ]
                ),
            )
            for one, found in completed
        ],
        numbers=Numbers(
            ["time", *known],
            [
                [time.period(one.start_s, one.seconds), *(milliseconds(found[name]) for name in known)]
                for one, found in completed
            ],
        ),
    )
