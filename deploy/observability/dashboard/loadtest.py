"""The row of a load test, from the metrics that `--otlp` pushes (loadtests/tpuserve_loadtests/traffic/otlp_push.py)."""

from typing import Final

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import quantile

_RUN: Final = 'model=~"$model", instance=~"$run"'
_REQUESTS: Final = f"tpuserve_loadtest_requests_total{{{_RUN}"
_LEGEND: Final = "{{model}}"

LOADTEST: Final = Row(
    "Load test",
    [
        Panel(
            "Responses",
            "Successful responses per second since the previous push.",
            [Query(f"sum by (model) (tpuserve_loadtest_throughput_per_second{{{_RUN}}})", _LEGEND)],
            unit="reqps",
            kind="value",
            width=6,
        ),
        Panel(
            "p99",
            "99th percentile of the latency since the previous push, as clients see it.",
            [Query(f'max by (model) (tpuserve_loadtest_latency_quantile_seconds{{{_RUN}, quantile="0.99"}})', _LEGEND)],
            unit="s",
            kind="value",
            width=6,
        ),
        Panel(
            "Failed",
            "Share of failed requests of the whole load. Above zero, the report of the load test lists the errors.",
            [
                Query(
                    f'sum by (model) ({_REQUESTS}, outcome="failure"}}) / (sum by (model) ({_REQUESTS}}}) > 0)',
                    _LEGEND,
                )
            ],
            unit="percentunit",
            kind="value",
            width=6,
            steps={0.001: "red"},
        ),
        Panel(
            "Requests",
            "Measured requests so far. Warm-ups do not count.",
            [Query(f"sum by (model) ({_REQUESTS}}})", _LEGEND)],
            kind="value",
            width=6,
        ),
        Panel(
            "Requests by outcome",
            "Requests per second that succeeded or failed. Failures that rise with the rate mean overload.",
            [Query(f"sum by (model, outcome) (rate({_REQUESTS}}}[rate]))", "{{model}} {{outcome}}")],
            unit="reqps",
            kind="stack",
        ),
        Panel(
            "Latency",
            "Percentiles of successful requests. Bounds of the histogram are powers of two, so p99.9 is approximate.",
            [
                Query(
                    f'max by (model) (tpuserve_loadtest_latency_quantile_seconds{{{_RUN}, quantile="0.5"}})',
                    "{{model}} p50",
                ),
                Query(
                    f'max by (model) (tpuserve_loadtest_latency_quantile_seconds{{{_RUN}, quantile="0.99"}})',
                    "{{model}} p99",
                ),
                Query(quantile(0.999, "tpuserve_loadtest_latency_seconds", _RUN, "model"), "{{model}} p99.9"),
            ],
            unit="s",
        ),
        Panel(
            "Distribution of the latency",
            "Requests by latency over time. Two bands mean two kinds of requests, such as with and without a wait.",
            [Query(f"sum by (le) (rate(tpuserve_loadtest_latency_seconds_bucket{{{_RUN}}}[rate]))", "{{le}}")],
            unit="s",
            kind="heatmap",
        ),
    ],
)
