"""Latency against throughput."""

from collections.abc import Sequence

from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.report_model.chart import Axis, Chart, Column, Curve, Label, Numbers
from tpuserve_loadtests.report_model.scales import Linear, latency_scale
from tpuserve_loadtests.report_model.units import milliseconds, per_second

_NAMES = ("p50", "p90", "p99")


def throughput_chart(steps: Sequence[tuple[str, Summary]], *, named: bool) -> Chart | None:
    """Draw a point for each load, with its name in the tooltip and, if `named`, next to the point.

    Returns None without successful requests.
    """
    completed = [(load, line) for load, line in steps if line.p50_ms is not None]
    if not completed:
        return None
    curves = [
        Curve(name, [(line.rate_per_s, _latency(line, name)) for _, line in completed], style, dots=True)
        for style, name in enumerate(_NAMES)
    ]
    best = max(line.rate_per_s for _, line in completed)
    return Chart(
        title="Latency and throughput",
        label=f"Latency of {len(completed)} loads by throughput, up to {per_second(best)}",
        x=Axis("responses/s", Linear.around(line.rate_per_s for _, line in completed)),
        y=Axis("ms", latency_scale(y for curve in curves for _, y in curve.points if y is not None)),
        curves=curves,
        labels=[Label(line.rate_per_s, line.p99_ms or 0.0, load) for load, line in completed if named],
        columns=[Column(line.rate_per_s, _tooltip(load, line)) for load, line in completed],
        numbers=Numbers(
            ["load", "responses/s", *_NAMES],
            [
                [load, per_second(line.rate_per_s), *(milliseconds(_latency(line, name)) for name in _NAMES)]
                for load, line in completed
            ],
        ),
    )


def _latency(line: Summary, name: str) -> float | None:
    return {"p50": line.p50_ms, "p90": line.p90_ms, "p99": line.p99_ms}[name]


def _tooltip(load: str, line: Summary) -> str:
    latencies = [f"{name} {milliseconds(_latency(line, name))}" for name in reversed(_NAMES)]
    return "\n".join([load, per_second(line.rate_per_s), *latencies])
