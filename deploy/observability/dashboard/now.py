"""The row that answers whether clients are well served now."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import quantile

_LATENCY = "tpuserve_request_latency_seconds"
_SUCCESSES = '<version>, <predictions>, code="OK"'

NOW = Row(
    "Now",
    [
        Panel(
            "Ready servers",
            "Servers whose /readyz is 200, of all that Prometheus scrapes. If one is missing, read its /readyz.",
            [
                Query('sum(tpuserve_server_state{<server>, state="ready"})', "ready"),
                Query('count(tpuserve_server_state{<server>, state="ready"})', "all"),
            ],
            kind="value",
            width=4,
        ),
        Panel(
            "Firing alerts",
            "Alerts of tpuserve that fire. docs/how-to/operate/alerts.md has the action of each.",
            [Query('count(ALERTS{<namespace>, alertname=~"Tpuserve.*", alertstate="firing"}) or vector(0)', "alerts")],
            kind="value",
            width=4,
            steps={1: "red"},
        ),
        Panel(
            "Predictions",
            "Completed predictions per second, failed ones included. A sudden fall means that clients cannot connect.",
            [Query("sum(rate(tpuserve_requests_total{<version>, <predictions>}[rate]))", "predictions")],
            unit="reqps",
            kind="value",
            width=4,
        ),
        Panel(
            "Failures",
            "Share of predictions that failed by the server's fault: errors, missed deadlines, refusals, and models "
            "without a version. Read Failures by fault for the kind.",
            [
                Query(
                    "(sum(rate(tpuserve_failed_requests_total{<version>, <predictions>, <failures>}[rate])) "
                    "or vector(0)) / (sum(rate(tpuserve_requests_total{<version>, <predictions>}[rate])) > 0)",
                    "failures",
                )
            ],
            unit="percentunit",
            kind="value",
            width=4,
            steps={0.001: "orange", 0.01: "red"},
        ),
        Panel(
            "Latency, 99th percentile",
            "99 % of the successful predictions took less. Where the time goes shows the stage to improve.",
            [Query(quantile(0.99, _LATENCY, _SUCCESSES), "p99")],
            unit="s",
            kind="value",
            width=4,
        ),
        Panel(
            "Error budget left",
            "Share of the error budget of 3 days that is left in the namespace with the least, by the objective in "
            "rules/objectives.yaml. Below 0, the objective is missed: stop roll-outs until the cause is found.",
            [
                Query(
                    "1 - max(namespace_job:tpuserve_failure_ratio:rate3d{<namespace>}) "
                    "/ (1 - scalar(tpuserve:availability:objective))",
                    "budget",
                )
            ],
            unit="percentunit",
            kind="value",
            width=4,
        ),
        Panel(
            "Predictions by model",
            "Completed predictions per second. Compare a change of latency with a change of load first.",
            [
                Query(
                    "sum by (model_name, version) (rate(tpuserve_requests_total{<version>, <predictions>}[rate]))",
                    "{{model_name}} {{version}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            "Failures by fault",
            "Failed requests per second by fault and code. client: wrong requests, and timeouts that no idle server "
            "could meet. server NOT_FOUND: a configured model has no version that serves. Refusals and budgets shows "
            "the reasons of refusals.",
            [
                Query(
                    "sum by (fault, code) (rate(tpuserve_failed_requests_total{<version>}[rate])) or vector(0)",
                    "{{fault}} {{code}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            "Requests in flight",
            "Requests between their begin and their end. A steady increase at a steady rate means that the server "
            "is overloaded, or that runs hang.",
            [Query("sum by (protocol) (tpuserve_requests_in_flight{<server>})", "{{protocol}}")],
        ),
        Panel(
            "Latency",
            "Percentiles of successful predictions. A point is a traced request: open its trace to see its stages.",
            [
                Query(quantile(0.5, _LATENCY, _SUCCESSES), "p50"),
                Query(quantile(0.9, _LATENCY, _SUCCESSES), "p90"),
                Query(quantile(0.99, _LATENCY, _SUCCESSES), "p99", exemplars=True),
            ],
            unit="s",
        ),
        Panel(
            "Latency by protocol and method",
            "99th percentile. A difference between protocols is the cost of the format: JSON against protobuf.",
            [Query(quantile(0.99, _LATENCY, _SUCCESSES, "protocol, method"), "{{protocol}} {{method}}")],
            unit="s",
        ),
        Panel(
            "Latency distribution",
            "Successful predictions per second by latency. Two bands mean two kinds of requests or two batch sizes.",
            [Query(f"sum by (le) (rate({_LATENCY}_bucket{{{_SUCCESSES}}}[rate]))", "{{le}}")],
            unit="s",
            kind="heatmap",
        ),
    ],
)
