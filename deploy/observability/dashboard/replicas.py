"""The row that compares the servers: one that differs from the others has a fault or an unfair share of the load."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import SERVER, SERVER_LEGEND, quantile

_PREDICTIONS = f"sum by ({SERVER}) (rate(tpuserve_requests_total{{<version>, <predictions>}}[rate]))"
_FAILURES = f"sum by ({SERVER}) (rate(tpuserve_failed_requests_total{{<version>, <predictions>, <failures>}}[rate]))"

REPLICAS = Row(
    "Replicas",
    [
        Panel(
            "State of each server",
            "1 for the state of the server. A server that is not ready gets no requests: read its /readyz.",
            [Query("tpuserve_server_state{<server>} == 1", f"{SERVER_LEGEND} {{{{state}}}}")],
        ),
        Panel(
            "Predictions by server",
            "Completed predictions per second. Unequal shares: clients keep one connection each, so let the gateway or "
            "the client balance requests (docs/how-to/deploy/balancing.md).",
            [Query(_PREDICTIONS, SERVER_LEGEND)],
            unit="reqps",
        ),
        Panel(
            "Failures by server",
            "Share of predictions that failed by the server's fault. One server alone: restart it, or look at its "
            "device.",
            [Query(f"({_FAILURES} or 0 * {_PREDICTIONS}) / ({_PREDICTIONS} > 0)", SERVER_LEGEND)],
            unit="percentunit",
        ),
        Panel(
            "Latency by server",
            "99th percentile of successful predictions. One server alone: another process uses its machine.",
            [
                Query(
                    quantile(0.99, "tpuserve_request_latency_seconds", '<version>, <predictions>, code="OK"', SERVER),
                    SERVER_LEGEND,
                )
            ],
            unit="s",
        ),
        Panel(
            "Waiting requests by server",
            "Requests in the queues at the time of the scrape. A long queue beside idle servers: balance by least "
            "requests instead of in turns.",
            [Query(f"sum by ({SERVER}) (tpuserve_queue_requests{{<version>}})", SERVER_LEGEND)],
        ),
        Panel(
            "Demand by server",
            "Work that arrived, refused or not, over what the server can do. Above 1 on all servers: add servers. On "
            "one alone: balance by load (docs/how-to/deploy/balancing.md).",
            [Query("tpuserve_demand_ratio{<server>}", SERVER_LEGEND)],
            unit="percentunit",
            steps={1: "red"},
        ),
        Panel(
            "Busy share by server",
            "Time in which batches ran on any device of the server, per second. Equal shares use the fleet best.",
            [Query(f"sum by ({SERVER}) (rate(tpuserve_version_busy_seconds_total{{<version>}}[rate]))", SERVER_LEGEND)],
            unit="percentunit",
        ),
    ],
)
