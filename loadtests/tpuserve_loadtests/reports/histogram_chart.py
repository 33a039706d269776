"""Latency distributions: bars for one run, outlines for several."""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from tpuserve_loadtests.rendering.chart import Axis, Bar, Chart, Column, Curve, Numbers, Rule
from tpuserve_loadtests.rendering.scales import Linear, Logarithmic
from tpuserve_loadtests.rendering.units import milliseconds, percent, three_digits
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

_BINS: Final = 36


def histogram_chart(histograms: Mapping[str, LatencyHistogram]) -> Chart | None:
    """Draw the distributions as shares of each histogram's requests. Return None without successful requests."""
    found = {name: histogram for name, histogram in histograms.items() if histogram.count}
    if not found:
        return None
    edges_ms = _edges_ms(found.values())
    shares = {name: _shares(histogram, edges_ms) for name, histogram in found.items()}
    bins = list(pairwise(edges_ms))
    single = len(found) == 1
    return Chart(
        title="Latency distribution",
        label="; ".join(f"{name}: {_commonest(bins, mine)}" for name, mine in shares.items()),
        x=Axis("ms, logarithmic", Logarithmic(edges_ms[0], edges_ms[-1])),
        y=Axis("% of requests", Linear.around(100 * share for mine in shares.values() for share in mine)),
        bars=[
            Bar(*edges, 100 * share)
            for mine in shares.values()
            for edges, share in zip(bins, mine, strict=True)
            if single and share
        ],
        curves=[]
        if single
        else [_outline(name, bins, mine, style) for style, (name, mine) in enumerate(shares.items())],
        rules=_percentiles(next(iter(found.values()))) if single else [],
        columns=[
            Column(math.sqrt(low * high), _tooltip(low, high, {name: mine[number] for name, mine in shares.items()}))
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
    """Return bins of equal width on a logarithmic axis, from the smallest to the largest latency."""
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


def _outline(name: str, bins: list[tuple[float, float]], shares: list[float], style: int) -> Curve:
    points = [(edge, 100 * share) for edges, share in zip(bins, shares, strict=True) for edge in edges]
    return Curve(name, points, style)


def _percentiles(histogram: LatencyHistogram) -> list[Rule]:
    return [
        Rule(f"p{part}", x=latency_us / 1000)
        for part in (50, 99)
        if (latency_us := histogram.percentile_us(part)) is not None
    ]


def _commonest(bins: list[tuple[float, float]], shares: list[float]) -> str:
    at = max(range(len(bins)), key=shares.__getitem__)
    return f"most requests took {_range(*bins[at])} ms ({percent(shares[at])})"


def _range(low: float, high: float) -> str:
    return f"{three_digits(low)} to {three_digits(high)}"


def _tooltip(low: float, high: float, shares: Mapping[str, float]) -> str:
    lines = [f"{name} {percent(share)}" if len(shares) > 1 else percent(share) for name, share in shares.items()]
    return "\n".join([f"{three_digits(low)} to {milliseconds(high)}", *lines])
