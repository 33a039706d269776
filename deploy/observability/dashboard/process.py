"""The row of the server's process and of Envoy."""

from deploy.observability.dashboard.panels import Panel, Query, Row

PROCESS = Row(
    "Process and Envoy",
    [
        Panel(
            "CPU cores in use",
            "Cores that the server's process uses. At the number of cores of the machine, the host is the bottleneck.",
            [Query('rate(process_cpu_seconds_total{<server>, job="tpuserve"}[rate])', "{{instance}}")],
        ),
        Panel(
            "Memory of the process",
            "Resident memory. Plan for two versions of each model. A steady increase over days is a leak.",
            [Query('process_resident_memory_bytes{<server>, job="tpuserve"}', "{{instance}}")],
            unit="bytes",
        ),
        Panel(
            "Open files and connections",
            "Share of the limit. At 1, the server accepts no connections: raise `ulimit -n`, or limit the clients.",
            [
                Query(
                    'process_open_fds{<server>, job="tpuserve"} / process_max_fds{<server>, job="tpuserve"}',
                    "{{instance}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Connections",
            "Connections of clients to Envoy. Many new ones per second with few requests: clients do not keep them.",
            [
                Query("sum(envoy_http_downstream_cx_active{<server>})", "open"),
                Query("sum(envoy_http_downstream_cx_ssl_active{<server>})", "open with TLS"),
                Query("sum(rate(envoy_http_downstream_cx_total{<server>}[rate]))", "new per second"),
            ],
        ),
        Panel(
            "Broken connections and requests",
            "Requests per second that ended early, on Envoy. rx: clients left. tx: the server ended them. Timeouts: "
            "clients send slowly. Refused: --max_connections or --max_heap_bytes is reached.",
            [
                Query("sum(rate(envoy_http_downstream_rq_rx_reset{<server>}[rate]))", "rx reset"),
                Query("sum(rate(envoy_http_downstream_rq_tx_reset{<server>}[rate]))", "tx reset"),
                Query("sum(rate(envoy_http_downstream_cx_protocol_error{<server>}[rate]))", "protocol error"),
                Query("sum(rate(envoy_http_downstream_rq_timeout{<server>}[rate]))", "slow body"),
                Query("sum(rate(envoy_http_downstream_rq_header_timeout{<server>}[rate]))", "slow headers"),
                Query("sum(rate(envoy_http_downstream_rq_too_large{<server>}[rate]))", "too large"),
                Query("sum(rate(envoy_http_downstream_rq_overload_close{<server>}[rate]))", "refused, memory"),
                Query(
                    "sum(rate(envoy_listener_downstream_global_cx_overflow{<server>}[rate]))", "refused, connections"
                ),
            ],
            unit="ops",
        ),
        Panel(
            "Memory of Envoy",
            "Heap of Envoy, and the received and unsent bytes in it. Unsent: clients read their responses slowly.",
            [
                Query("sum(envoy_server_memory_physical_size{<server>})", "in memory"),
                Query("sum(envoy_server_memory_allocated{<server>})", "allocated"),
                Query("sum(envoy_http_downstream_cx_rx_bytes_buffered{<server>})", "received"),
                Query("sum(envoy_http_downstream_cx_tx_bytes_buffered{<server>})", "unsent"),
            ],
            unit="bytes",
        ),
        Panel(
            "Gaps in the metrics",
            "Series that the page omits because there are too many, and pages without Envoy's metrics. Above 0, this "
            "dashboard is incomplete.",
            [
                Query("sum by (metric) (tpuserve_metrics_omitted_series{<server>})", "{{metric}} series"),
                Query("sum by (source) (rate(tpuserve_metrics_source_failures_total{<server>}[rate]))", "{{source}}"),
            ],
        ),
        Panel(
            "Dropped log events",
            "Events per second that the log lacks. Above 0, the reader of standard error is too slow: log fewer "
            "requests, or repair the log collector.",
            [Query("sum by (instance) (rate(tpuserve_log_events_dropped_total{<server>}[rate]))", "{{instance}}")],
        ),
        Panel(
            "Days until certificates expire",
            "The first TLS certificate to expire. server: the server's own and its intermediate certificates. "
            "client_ca: the authorities of clients. Below 0, connections fail.",
            [
                Query(
                    "(min by (certificate) (tpuserve_certificate_expiry_timestamp_seconds{<server>}) - time()) / 86400",
                    "{{certificate}}",
                )
            ],
        ),
        Panel(
            "Builds",
            "Version of the server, of Python, and the host. All servers should have the same.",
            [Query("tpuserve_build_info{<server>}")],
            kind="table",
        ),
    ],
)
