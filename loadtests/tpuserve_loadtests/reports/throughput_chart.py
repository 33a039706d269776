"""Latency against throughput."""

from collections.abc import Sequence

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.report_model.chart import Axis, Chart, Column, Curve, Label, Numbers, Rule
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.units import milliseconds, per_second

_DRAWN = ("p50", "p90", "p99")
_LISTED = ("p50", "p90", "p95", "p99", "p99.9")


def throughput_chart(
    steps: Sequence[tuple[str, Summary]], *, named: bool, knee_per_s: float | None = None
) -> Chart | None:
    """Draw a point for each load, with its name in the tooltip and, if `named`, next to the point.

    A rule marks the throughput of the knee, if it is known. Returns None without successful requests.
    """
    completed = [(load, line) for load, line in steps if line.p50_ms is not None]
    if not completed:
        return None
    curves = [
        Curve(name, [(line.rate_per_s, _latency(line, name)) for _, line in completed], style, dots=True)
        for style, name in enumerate(_DRAWN)
    ]
    best = max(line.rate_per_s for _, line in completed)
    return Chart(
        title="Latency and throughput",
        label=f"Latency of {counted(len(completed), 'load')} by throughput, up to {per_second(best)}",
        x=Axis("responses/s", Linear.around(line.rate_per_s for _, line in completed)),
        y=Axis("ms", latency_scale(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        rules=[] if knee_per_s is None else [Rule("knee", x=knee_per_s)],
        labels=[Label(line.rate_per_s, line.p99_ms or 0.0, load) for load, line in completed if named],
        columns=[Column(line.rate_per_s, _tooltip(load, line)) for load, line in completed],
        numbers=Numbers(
            ["load", "responses/s", *_LISTED],
            [
                [load, per_second(line.rate_per_s), *(milliseconds(_latency(line, name)) for name in _LISTED)]
                for load, line in completed
            ],
        ),
    )


def _latency(line: Summary, name: str) -> float | None:
    latencies = (line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.p99_9_ms)
    return dict(zip(_LISTED, latencies, strict=True))[name]


def _tooltip(load: str, line: Summary) -> str:
    latencies = [f"{name} {milliseconds(_latency(line, name))}" for name in reversed(_LISTED)]
    return "\n".join([load, per_second(line.rate_per_s), *latencies])
