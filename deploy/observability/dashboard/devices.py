"""The row of devices."""

from deploy.observability.dashboard.panels import Panel, Query, Row
from deploy.observability.dashboard.promql import SERVER_LEGEND

DEVICES = Row(
    "Devices",
    [
        Panel(
            "Busy share of a device",
            "Share of the time in which a device program ran. Near 1, the device is the bottleneck. Low at a high "
            "latency, the host is.",
            [
                Query(
                    "rate(tpuserve_device_busy_seconds_total{<server>}[rate])",
                    f"{SERVER_LEGEND} {{{{device}}}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Busy share of a version",
            "Time in which batches of the version ran, per second, on any device. Above 1, several ran at once.",
            [
                Query(
                    "sum by (model_name, version) (rate(tpuserve_version_busy_seconds_total{<version>}[rate]))",
                    "{{model_name}} {{version}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Memory of a device",
            "Memory in use, its peak and its limit. A new version must fit next to the one that serves.",
            [Query("tpuserve_device_memory_bytes{<server>}", f"{SERVER_LEGEND} {{{{device}}}} {{{{kind}}}}")],
            unit="bytes",
        ),
        Panel(
            "Device of each version",
            "fallback is the reason against a better device. docs/how-to/operate/troubleshoot.md has the remedies.",
            [Query("tpuserve_version_device{<version>}")],
            kind="table",
            width=24,
        ),
    ],
)
