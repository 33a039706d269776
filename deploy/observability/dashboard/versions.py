"""The rows of versions and of the response cache."""

from deploy.observability.dashboard.panels import Panel, Query, Row

_STATES = {"10": "START", "20": "LOADING", "30": "AVAILABLE", "40": "UNLOADING", "50": "END"}

VERSIONS = Row(
    "Versions",
    [
        Panel(
            "State",
            "State of each version. START for minutes after a failed load: `tpuserve status NAME` has the error.",
            [Query("max by (model_name, version) (tpuserve_version_state{<version>})", "{{model_name}} {{version}}")],
            kind="states",
            width=12,
            words=_STATES,
        ),
        Panel(
            "Loads",
            "Loads of versions by outcome. A failed load keeps the old version. The log has the reason.",
            [
                Query(
                    "sum by (model_name, outcome) (tpuserve_version_loads_total{<model>})", "{{model_name}} {{outcome}}"
                )
            ],
            width=12,
        ),
        Panel(
            "Time until a version serves",
            "Time to load, to compile device programs and to warm up. A compilation cache shortens the second start.",
            [
                Query("max by (model_name, version) (tpuserve_version_load_seconds{<version>})", "{{model_name}} load"),
                Query("max by (model_name, version) (tpuserve_compile_seconds{<version>})", "{{model_name}} compile"),
                Query("max by (model_name, version) (tpuserve_warmup_seconds{<version>})", "{{model_name}} warm-up"),
            ],
            unit="s",
        ),
        Panel(
            "Cost of a batch",
            "Learned time of a batch by its size. The batcher plans with it. Compare two servers with each other.",
            [
                Query(
                    "max by (model_name, signature, lengths, bucket) (tpuserve_batch_cost_seconds{<version>})",
                    "{{model_name}} {{signature}} {{lengths}} {{bucket}} rows",
                )
            ],
            unit="s",
        ),
        Panel(
            "Cost of a row",
            "Time that each row adds to a batch, and its constant part, by the line fitted through the sizes.",
            [
                Query(
                    "max by (model_name, signature) (tpuserve_batch_cost_row_seconds{<version>})",
                    "{{model_name}} {{signature}} row",
                ),
                Query(
                    "max by (model_name, signature) (tpuserve_batch_cost_base_seconds{<version>})",
                    "{{model_name}} {{signature}} constant",
                ),
            ],
            unit="s",
        ),
    ],
)

CACHE = Row(
    "Response cache",
    [
        Panel(
            "Hit ratio",
            "Share of requests that the cache answered. Near 0, the requests differ and the cache only costs memory.",
            [
                Query(
                    "sum by (model_name) (rate(tpuserve_response_cache_hits_total{<version>}[rate])) / (sum by "
                    "(model_name) (rate(tpuserve_response_cache_hits_total{<version>}[rate]) + "
                    "rate(tpuserve_response_cache_misses_total{<version>}[rate])) > 0)",
                    "{{model_name}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Size",
            "Memory of the cached responses.",
            [Query("sum by (model_name) (tpuserve_response_cache_bytes{<version>})", "{{model_name}}")],
            unit="bytes",
        ),
        Panel(
            "Evictions",
            "Responses per second that left for newer ones. Many evictions at a low hit ratio: increase the limit.",
            [
                Query(
                    "sum by (model_name) (rate(tpuserve_response_cache_evictions_total{<version>}[rate]))",
                    "{{model_name}}",
                )
            ],
            unit="ops",
        ),
    ],
)
