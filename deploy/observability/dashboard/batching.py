"""The row of queues and batches."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import mean, quantile

_BATCHES = "sum by (model_name, version) (rate(tpuserve_batch_rows_count{<version>}[rate]))"

BATCHING = Row(
    "Batching",
    [
        Panel(
            "Wait in the queue",
            "Time from the arrival of a request to the start of its batch. If the 99th percentile approaches the "
            "timeout of clients, add replicas or set a latency objective.",
            [
                Query(quantile(0.5, "tpuserve_queue_wait_seconds", "<version>", "model_name"), "{{model_name}} p50"),
                Query(quantile(0.99, "tpuserve_queue_wait_seconds", "<version>", "model_name"), "{{model_name}} p99"),
            ],
            unit="s",
        ),
        Panel(
            "Waiting now",
            "Requests and rows in the queue at the time of the scrape. A steady increase means overload.",
            [
                Query("sum by (model_name) (tpuserve_queue_requests{<version>})", "{{model_name}} requests"),
                Query("sum by (model_name) (tpuserve_queue_rows{<version>})", "{{model_name}} rows"),
            ],
        ),
        Panel(
            "Batches",
            "Batches that ran per second.",
            [Query(_BATCHES, "{{model_name}} {{version}}")],
            unit="ops",
        ),
        Panel(
            "Rows of a batch",
            "Mean number of rows without padding. One row under load: the version has no manifest, or its rows "
            "depend on each other.",
            [Query(mean("tpuserve_batch_rows", "<version>", "model_name, signature"), "{{model_name}} {{signature}}")],
        ),
        Panel(
            "Padding",
            "Mean share of padding in a batch. Above 0.3, add a size to allowed_batch_sizes near the usual number of "
            "rows.",
            [
                Query(
                    mean("tpuserve_batch_padding_ratio", "<version>", "model_name, signature"),
                    "{{model_name}} {{signature}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Run time by batch size",
            "Mean time of a batch on the device. A size that takes no longer than a smaller one is free throughput.",
            [
                Query(
                    mean("tpuserve_batch_run_seconds", "<version>", "model_name, bucket"),
                    "{{model_name}} {{bucket}} rows",
                )
            ],
            unit="s",
        ),
        Panel(
            "Run time against expectation",
            "Time of a batch divided by the expected time of its size. Above 1.2, another process uses the machine, "
            "or the device is throttled.",
            [
                Query(quantile(0.5, "tpuserve_batch_run_ratio", "<version>", "model_name"), "{{model_name}} p50"),
                Query(quantile(0.99, "tpuserve_batch_run_ratio", "<version>", "model_name"), "{{model_name}} p99"),
            ],
        ),
        Panel(
            "Runs without warm-up",
            "Runs per second of shapes that warm-up did not run. A TPU or GPU compiles for each: record a request of "
            "this shape as warm-up data.",
            [
                Query(
                    "sum by (model_name, signature) (rate(tpuserve_unwarmed_runs_total{<version>}[rate]))",
                    "{{model_name}} {{signature}}",
                )
            ],
            unit="ops",
        ),
        Panel(
            "Error of the predicted finish",
            "With a latency objective: 99th percentile of the actual minus the predicted finish. Far above 0, "
            "requests finish later than the batcher expects.",
            [Query(quantile(0.99, "tpuserve_finish_error_seconds", "<version>", "model_name"), "{{model_name}}")],
            unit="s",
        ),
    ],
)
