"""The origin of the figures: the runs, their time, and their load."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.units import seconds


def describe_origin(runs: Sequence[Measured]) -> str:
    """Describe the start of the first run, the number of requests, and the version; without runs, the time now."""
    version = f"tpuserve-loadtests {metadata.version('tpuserve-loadtests')}"
    if not runs:
        return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC · no requests · {version}"
    begun = datetime.fromtimestamp(min(measured.started_at for measured in runs), UTC)
    requests = sum(measured.total.requests for measured in runs)
    several = f"{len(runs)} runs, " if len(runs) > 1 else ""
    return f"{begun:%Y-%m-%d %H:%M:%S} UTC · {several}{counted(requests, 'request')} · {version}"


def describe_load(measured: Measured) -> dict[str, str]:
    """Describe the load."""
    load = measured.load
    limit = f", until {counted(load.requests, 'request')}" if load.requests else ""
    warm_up = f", after {seconds(load.warm_up_s)} of warm-up" if load.warm_up_s else ""
    kind = "open" if load.is_open else "closed"
    return {
        "Load": f"{load} ({kind})",
        "Measured": f"{seconds(measured.span_s if load.requests else load.seconds)}{limit}{warm_up}",
        "Seed": str(load.seed) if load.is_open else "",
        "Generator": f"{len(measured.cores)} process{'es' if len(measured.cores) > 1 else ''}",
    }
