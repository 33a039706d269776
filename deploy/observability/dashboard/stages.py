"""The row that answers in which stage the time of requests goes."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import quantile

_STAGE_SECONDS = "sum by (stage) (rate(tpuserve_request_stage_seconds_total{<model>}[rate]))"

STAGES = Row(
    "Where the time goes",
    [
        Panel(
            "Mean time of a request by stage",
            "The stages of docs/how-to/operate/slow-requests.md, added up. queue or batch: overload, or the batching "
            "parameters. execute: the model. decode or encode: the size of the messages. resume: the CPU is "
            "busy.",
            [
                Query(
                    f"{_STAGE_SECONDS} / ignoring (stage) group_left () "
                    "(sum(rate(tpuserve_request_stage_requests_total{<model>}[rate])) > 0)",
                    "{{stage}}",
                )
            ],
            unit="s",
            kind="stack",
            width=12,
        ),
        Panel(
            "Share of the stages",
            "Share of each stage in the time of all requests. Improve the largest stage first.",
            [
                Query(
                    f"{_STAGE_SECONDS} / ignoring (stage) group_left () "
                    "(sum(rate(tpuserve_request_stage_seconds_total{<model>}[rate])) > 0)",
                    "{{stage}}",
                )
            ],
            unit="percentunit",
            kind="stack",
            width=12,
        ),
        Panel(
            "Queue and run, 99th percentile",
            "If the wait in the queue is longer than a run, the device has more load than it can run: add replicas.",
            [
                Query(quantile(0.99, "tpuserve_queue_wait_seconds", "<version>"), "queue"),
                Query(quantile(0.99, "tpuserve_batch_run_seconds", "<version>"), "run"),
                Query(
                    quantile(0.99, "tpuserve_request_latency_seconds", '<version>, <predictions>, code="OK"'), "total"
                ),
            ],
            unit="s",
            width=12,
        ),
        Panel(
            "Slowest models",
            "99th percentile of successful predictions by model and signature. Choose the model above to see its "
            "stages.",
            [
                Query(
                    "topk(10, "
                    + quantile(
                        0.99,
                        "tpuserve_request_latency_seconds",
                        '<version>, <predictions>, code="OK"',
                        "model_name, signature",
                    )
                    + ")",
                    "{{model_name}} {{signature}}",
                )
            ],
            unit="s",
            width=12,
        ),
    ],
)
