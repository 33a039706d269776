"""Reports as CSV: a run's windows as rows, or a row for each of several runs. Units are in the headings."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.timeline import timeline
from tpuserve_loadtests.outcomes.run import RunReport
from tpuserve_loadtests.outcomes.soak import SoakReport, segment_document
from tpuserve_loadtests.reports.server_table import part_ms
from tpuserve_loadtests.searching import Probe
from tpuserve_loadtests.server_side.latency_parts import ELSEWHERE, EXECUTION, LATE, NETWORK, QUEUE
from tpuserve_loadtests.server_side.watched import Watched

# Of one run among several, beside the figures of all its requests.
Cells: TypeAlias = Mapping[str, Any]


def run_csv(measured: Measured) -> str:
    """Windows of the run, each for every line of the table and for all of them together.

    `start_s` counts from where measuring began, `time` is in seconds since 1970 (UTC).
    """
    began_at = measured.started_at + measured.load.warm_up_s
    rows = [
        {"time": f"{began_at + stretch.start_s:.3f}", "line": line or "total", **asdict(stretch)}
        for line in (*measured.recorder.lines, None)
        for stretch in timeline(measured, line)
    ]
    return _written(sorted(rows, key=lambda row: row["start_s"]))


def sweep_csv(reports: Sequence[RunReport]) -> str:
    """A row for each step, with what the server told of it."""
    return _written(
        [_run(report.measured, {"trusted": report.generator.trusted, **_server(report.watched)}) for report in reports]
    )


def search_csv(probes: Sequence[tuple[Probe, Measured]]) -> str:
    """A row for each rate that was tried, in turn; the figures are of its last run."""
    return _written([_run(measured, {"holds": probe.holds, "reason": probe.reason}) for probe, measured in probes])


def comparison_csv(rounds: Sequence[tuple[Measured, Measured]]) -> str:
    """A row for each run: A's and B's of every round."""
    sides = [
        (number, side, measured)
        for number, pair in enumerate(rounds, start=1)
        for side, measured in zip("AB", pair, strict=True)
    ]
    return _written([{"round": number, "side": side, **_run(measured, {})} for number, side, measured in sides])


def soak_csv(report: SoakReport) -> str:
    """A row for each segment."""
    measured = report.run.measured
    began_at = measured.started_at + measured.load.warm_up_s
    return _written(
        [
            {"time": f"{began_at + segment.at_s - segment.seconds / 2:.3f}", **segment_document(segment)}
            for segment in report.segments
        ]
    )


def _run(measured: Measured, more: Cells) -> Cells:
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
        **more,
    }


def _server(watched: Watched) -> Cells:
    """Means of a request and of a batch; empty where the server does not tell."""
    server = watched.server
    return {
        "network_ms": part_ms(watched, LATE, NETWORK),
        "queue_ms": part_ms(watched, QUEUE),
        "execution_ms": part_ms(watched, EXECUTION),
        "other_ms": part_ms(watched, ELSEWHERE),
        "batch_rows": server.batch_rows if server else None,
        "padding_share": server.padding_share if server else None,
        "server_cores": server.cpu_cores if server else None,
        "refused": sum(server.refused.values()) if server else None,
    }


def _written(rows: Sequence[Cells]) -> str:
    """Nothing but an empty text of no rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    return f"{value:.9g}" if isinstance(value, float) else value
