"""The row of the server's process."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import SERVER, SERVER_LEGEND

PROCESS = Row(
    "Process",
    [
        Panel(
            "CPU cores in use",
            "Cores that the server's process uses. At the number of cores of the machine, the host is the bottleneck.",
            [
                Query(
                    'rate(process_cpu_seconds_total{<server>, job="tpuserve"}[rate])',
                    SERVER_LEGEND,
                )
            ],
        ),
        Panel(
            "Memory of the process",
            "Resident memory. Plan for two versions of each model. A steady increase over days is a leak.",
            [Query('process_resident_memory_bytes{<server>, job="tpuserve"}', SERVER_LEGEND)],
            unit="bytes",
        ),
        Panel(
            "Open files and connections",
            "Share of the limit. At 1, the server accepts no connections: raise `ulimit -n`, or limit the clients.",
            [
                Query(
                    'process_open_fds{<server>, job="tpuserve"} / process_max_fds{<server>, job="tpuserve"}',
                    SERVER_LEGEND,
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Connections",
            "Open files, nearly all of which are connections, and --max_connections. At the limit, new clients wait.",
            [
                Query('process_open_fds{<server>, job="tpuserve"}', f"{SERVER_LEGEND} open files"),
                Query("tpuserve_max_connections{<server>}", f"{SERVER_LEGEND} limit"),
            ],
        ),
        Panel(
            "Requests by version of HTTP",
            "Requests per second that arrived, also those that the server refused. gRPC needs version 2.",
            [Query("sum by (http_version) (rate(tpuserve_http_requests_total{<server>}[rate]))", "{{http_version}}")],
            unit="reqps",
        ),
        Panel(
            "Gaps in the metrics",
            "Series that the page omits because there are too many. Above 0, this dashboard is incomplete.",
            [Query("sum by (metric) (tpuserve_metrics_omitted_series{<server>})", "{{metric}} series")],
        ),
        Panel(
            "Dropped log events",
            "Events per second that the log lacks. Above 0, the reader of standard error is too slow: log fewer "
            "requests, or repair the log collector.",
            [
                Query(
                    f"sum by ({SERVER}) (rate(tpuserve_log_events_dropped_total{{<server>}}[rate]))",
                    SERVER_LEGEND,
                )
            ],
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
            "Versions of the server and of Python. All servers should have the same.",
            [Query("tpuserve_build_info{<server>}")],
            kind="table",
        ),
    ],
)
