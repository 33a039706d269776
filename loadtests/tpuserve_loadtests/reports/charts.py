"""Charts of latencies: their distribution, by percentile with HdrHistogram's axis, and over time."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from tpuserve_loadtests.measurement.measured import LATENCY_NAMES, Stretch, latencies_ms
from tpuserve_loadtests.rendering.chart import Axis, Bar, Chart, Column, Curve, Numbers, Rule, TimeAxis, known_values
from tpuserve_loadtests.rendering.report import Charts
from tpuserve_loadtests.rendering.scales import (
    Linear,
    Logarithmic,
    Nines,
    Scale,
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
        numbers=Numbers(
            ["latency", *found],
            [
                [f"{_range(low, high)} ms", *(percent(mine[number]) for mine in shares.values())]
                for number, (low, high) in enumerate(bins)
            ],
            [math.sqrt(low * high) for low, high in bins],
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
    stretches: Sequence[Stretch],
    planned_s: float,
    offered: Sequence[tuple[float, float]] = (),
    stopped: str = "",
    marks: Sequence[tuple[str, float]] = (),
) -> Charts | None:
    """Chart rates and latencies over time. Return None without measurements.

    `planned_s` is the planned duration. `offered` holds times in seconds with the offered rate, and `marks` names of
    times in seconds.
    """
    if not stretches:
        return None
    time = TimeAxis(planned_s)
    ended = [Rule("stopped", x=time.of(stretches[-1].start_s + stretches[-1].seconds))] if stopped else []
    ended += [Rule(name, x=time.of(at_s)) for name, at_s in marks]
    return Charts("Over time", [_rates(stretches, time, offered, ended), _latencies(stretches, time, ended)])


def _rates(
    stretches: Sequence[Stretch],
    time: TimeAxis,
    offered: Sequence[tuple[float, float]],
    ended: Sequence[Rule],
) -> Chart | None:
    places = [(time.middle(one.start_s, one.seconds), time.period(one.start_s, one.seconds)) for one in stretches]
    failures = [one.failures / one.seconds for one in stretches]
    others = [Curve("offered", [(time.of(at_s), rate) for at_s, rate in offered], 7)] if offered else []
    if any(failures):
        others.append(Curve("failures", [(at, rate) for (at, _), rate in zip(places, failures, strict=True)], 4))
    return curves_chart(
        "Rate",
        "Responses per second",
        time.axis,
        "requests/s",
        places,
        {"responses": [one.rate_per_s for one in stretches]},
        per_second,
        further={
            "requests": [f"{one.requests:,}" for one in stretches],
            "failures": [*map(per_second, failures)],
        },
        others=others,
        rules=ended,
    )


def _latencies(stretches: Sequence[Stretch], time: TimeAxis, ended: Sequence[Rule]) -> Chart | None:
    every = {name: [latencies_ms(one)[name] for one in stretches] for name in LATENCY_NAMES}
    known = {name: values for name, values in every.items() if any(value is not None for value in values)}
    return curves_chart(
        "Latency",
        "Percentiles of each period",
        time.axis,
        "ms",
        [(time.middle(one.start_s, one.seconds), time.period(one.start_s, one.seconds)) for one in stretches],
        {name: known[name] for name in _DRAWN if name in known},
        milliseconds,
        further={name: [*map(milliseconds, values)] for name, values in known.items() if name not in _DRAWN},
        rules=ended,
    )


def curves_chart(
    title: str,
    what: str,
    x: Axis,
    unit: str,
    places: Sequence[tuple[float, str]],
    curves: Mapping[str, Sequence[float | None]],
    show: Callable[[float], str],
    *,
    further: Mapping[str, Sequence[str]] | None = None,
    others: Sequence[Curve] = (),
    rules: Sequence[Rule] = (),
    dots: bool = False,
    scale: Scale | None = None,
) -> Chart | None:
    """Draw curves over common places, with their values in tooltips and numbers. Return None without a value.

    `what` describes the values for screen readers. `places` are x values with names. Tooltips and numbers also have
    the texts in `further`. `others` are curves without numbers.
    """
    drawn = [
        Curve(name, [(at, value) for (at, _), value in zip(places, values, strict=True)], style, dots)
        for style, (name, values) in enumerate(curves.items())
    ]
    found = known_values(drawn)
    if not found:
        return None
    shown = found + known_values(others)
    texts = {name: ["-" if value is None else show(value) for value in values] for name, values in curves.items()}
    texts |= {name: list(values) for name, values in (further or {}).items()}
    rows = list(zip(*texts.values(), strict=True))
    return Chart(
        title=title,
        label=f"{what}, from {show(min(found))} to {show(max(found))}",
        x=x,
        y=Axis(unit, scale or (latency_scale(shown) if show is milliseconds else Linear.around(shown))),
        curves=[*drawn, *others],
        rules=rules,
        # The axis title has the unit, which the names of the places contain.
        numbers=Numbers(
            [x.title.partition(",")[0], *texts],
            [[name, *row] for (_, name), row in zip(places, rows, strict=True)],
            [at for at, _ in places],
        ),
    )
