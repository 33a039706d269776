"""The row of refused and lost work."""

from deploy.observability.dashboard.panels import Panel, Query, Row

REFUSALS = Row(
    "Refusals and budgets",
    [
        Panel(
            "Requests that did not run",
            "Requests per second by reason and priority. queue_full and too_late: add replicas. expired: clients give "
            "up first. cancelled: clients disconnect. hung: a run does not end.",
            [
                Query(
                    "sum by (reason, priority) (rate(tpuserve_dropped_requests_total{<version>}[rate]))",
                    "{{reason}} {{priority}}",
                )
            ],
            unit="reqps",
        ),
        Panel(
            "Refused before they were read",
            "Requests per second that the server refused before it read them. too_late: add replicas. rate: they are "
            "over --max_requests_per_second. header_size, message_size: they are over a limit. impossible_deadline: "
            "no idle server could meet their timeout.",
            [Query("sum by (reason) (rate(tpuserve_refused_requests_total{<server>}[rate]))", "{{reason}}")],
            unit="reqps",
        ),
        Panel(
            "Memory budgets",
            "Memory of requests in use, as a share of its limit. Near 1, the server refuses the requests that need "
            "the most: clients send large requests slowly, or the limit is too low.",
            [
                Query(
                    'max by (budget) (tpuserve_budget_bytes{<server>, kind="in_use"} / ignoring (kind) '
                    '(tpuserve_budget_bytes{<server>, kind="limit"} > 0))',
                    "{{budget}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Refused by a budget",
            "Requests per second that a memory budget refused. Increase the flag of the budget, or find the client.",
            [Query("sum by (budget) (rate(tpuserve_budget_refusals_total{<server>}[rate]))", "{{budget}}")],
            unit="reqps",
        ),
        Panel(
            "Hung runs",
            "Runs that exceeded --run_timeout_seconds, per model. The server replaces its process.",
            [Query("sum by (model_name) (tpuserve_hung_runs_total{<version>})", "{{model_name}}")],
        ),
        Panel(
            "Request log and traces",
            "Logged and traced requests per second, and those that were dropped. write_failed: the disk is full. "
            "export_failed: the receiver of traces does not respond. rate: the limit of traces is reached.",
            [
                Query("sum(rate(tpuserve_request_log_records_total{<model>}[rate]))", "logged"),
                Query("sum by (reason) (rate(tpuserve_request_log_dropped_total{<model>}[rate]))", "log {{reason}}"),
                Query("sum(rate(tpuserve_traces_exported_total{<server>}[rate]))", "traced"),
                Query("sum by (reason) (rate(tpuserve_traces_dropped_total{<server>}[rate]))", "trace {{reason}}"),
            ],
            unit="ops",
        ),
    ],
)
