"""CSV rows: the windows of a run, or a row for each of several runs. The headings contain the units."""

from dataclasses import asdict
from typing import Any

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.timeline import timeline
from tpuserve_loadtests.rendering.report import Cells


def window_rows(measured: Measured) -> list[Cells]:
    """Return the windows of the run for each line of the table and for all lines together.

    `start_s` counts from the start of the measured time. `time` is in Unix seconds.
    """
    began_at = measured.started_at + measured.load.warm_up_s
    rows: list[dict[str, Any]] = [  # values of several types
        {"time": f"{began_at + stretch.start_s:.3f}", "line": line or "total", **asdict(stretch)}
        for line in (*measured.recorder.lines, None)
        for stretch in timeline(measured, line)
    ]
    return [*sorted(rows, key=lambda row: row["start_s"])]


def run_row(measured: Measured) -> dict[str, Any]:  # values of several types
    """Return the figures of all requests of the run, by heading."""
    figures = asdict(measured.total.summary("total", measured.rate_per_s))
    del figures["name"]
    load = measured.load
    return {
        "time": f"{measured.started_at:.3f}",
        "load": str(load),
        "users": load.users or None,
        "offered_per_s": load.offered_per_s,
        "seconds": measured.span_s,
        **figures,
    }
