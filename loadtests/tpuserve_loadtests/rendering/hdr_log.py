"""Latencies for HdrHistogram's tools: its log of interval histograms, and its percentile distribution.

The HdrHistogram package encodes the histograms. This module writes the lines around them, because the package's log
writer supports no tags and fails at start times. Its distribution gives the standard deviation and the mean in
different units.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.statistics.percentile_curve import percentile_curve

_HEAD = """\
#[Histogram log format version 1.2]
#[Latencies in microseconds; Interval_Max in milliseconds]
#[StartTime: {start:.3f} (seconds since epoch), {written}]
#[BaseTime: {start:.3f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


def hdr_log(runs: Mapping[str, Measured], *, in_windows: bool = True) -> str:
    """Return a log with a histogram for each window and each line of the table.

    The tag of a histogram is its line, after the run's name if any. Timestamps ascend and count from the first run's
    start. The log omits windows without a successful response. Without `in_windows`, each line has one histogram for
    the whole run, for runs without meaningful windows.
    """
    start = min((measured.started_at for measured in runs.values()), default=0.0)
    written = datetime.fromtimestamp(start, UTC).isoformat(" ", "milliseconds")
    intervals = sorted(
        interval for name, measured in runs.items() for interval in _intervals(name, measured, start, in_windows)
    )
    return _HEAD.format(start=start, written=written) + "".join(line for _, line in intervals)


def percentile_distribution(measured: Measured) -> str:
    """Return a run's distribution as `.hgrm` in milliseconds, for HdrHistogram's plotter page."""
    histogram = measured.total.histogram
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}\n"]
    for level in percentile_curve(histogram):
        inverse = f"{1 / (1 - level.part):14.2f}" if level.part < 1 else ""
        lines.append(f"{level.latency_us / 1000:12.3f} {level.part:2.12f} {level.count:10d} {inverse}".rstrip())
    mean_us, max_us = histogram.mean_us() or 0.0, histogram.max_us
    lines.append(f"#[Mean    = {mean_us / 1000:12.3f}, StdDeviation   = {histogram.deviation_us() / 1000:12.3f}]")
    lines.append(f"#[Max     = {max_us / 1000:12.3f}, TotalCount     = {histogram.count:12d}]")
    return "\n".join(lines) + "\n"


def _intervals(name: str, measured: Measured, start: float, in_windows: bool) -> Iterator[tuple[float, str]]:
    recorder = measured.recorder
    length_s = recorder.window_s if in_windows else measured.span_s
    of_all = {line: recorder.tally(line) for line in recorder.lines}
    windows = [window.tallies for window in recorder.windows] if in_windows else [of_all]
    offset_s = measured.started_at - start + measured.load.warm_up_s
    for number, window in enumerate(windows):
        at_s = offset_s + number * length_s
        for line, tally in window.items():
            histogram = tally.histogram
            if histogram.count:
                tag = _tag(f"{name}/{line}" if name else line)
                times = f"{at_s:.3f},{length_s:.3f},{histogram.max_us / 1000:.3f}"
                yield at_s, f"Tag={tag},{times},{histogram.encode().decode('ascii')}\n"


def _tag(name: str) -> str:
    """Replace commas, spaces and line breaks, which the format's tags cannot contain."""
    return re.sub(r"[,\s]+", "_", name)
