"""What was measured when, in a line."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

from tpuserve_loadtests.measurement.measured import Measured


def describe_origin(runs: Sequence[Measured]) -> str:
    """Describe the start of the first run, the number of requests, and the version; without runs, the time now."""
    version = f"tpuserve-loadtests {metadata.version('tpuserve-loadtests')}"
    if not runs:
        return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC · no requests · {version}"
    begun = datetime.fromtimestamp(min(measured.started_at for measured in runs), UTC)
    requests = sum(measured.total.requests for measured in runs)
    several = f"{len(runs)} runs, " if len(runs) > 1 else ""
    return f"{begun:%Y-%m-%d %H:%M:%S} UTC · {several}{requests:,} requests · {version}"
