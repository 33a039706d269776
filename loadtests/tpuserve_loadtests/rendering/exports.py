"""Reports as files for other programs: JUnit XML, CSV, and latencies for HdrHistogram's tools.

The HdrHistogram package encodes the histograms. This module writes the lines around them, because the package's log
writer supports no tags and fails at start times. Its distribution gives the standard deviation and the mean in
different units.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.report import Case, Cells, Report
from tpuserve_loadtests.statistics.histogram import percentile_curve

# Characters that XML 1.0 cannot represent, even escaped. A server's messages may contain them.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: Report) -> str:
    """Render a suite named after the report's kind and subject, with its statement as the output."""
    cases = report.cases
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _text(f"{report.kind} {report.subject}"),
            "tests": str(len(cases)),
            "failures": str(sum(bool(case.problem) for case in cases)),
            "errors": str(sum(bool(case.error and not case.problem) for case in cases)),
            "skipped": str(sum(bool(case.skipped and not (case.problem or case.error)) for case in cases)),
        },
    )
    for case in cases:
        suite.append(_element(report.kind.replace(" ", "."), case))
    if report.statement:
        ElementTree.SubElement(suite, "system-out").text = _text(report.statement)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, "unicode", xml_declaration=True) + "\n"


def _element(classname: str, case: Case) -> ElementTree.Element:
    took = {} if case.seconds is None else {"time": f"{case.seconds:.3f}"}
    element = ElementTree.Element("testcase", {"classname": classname, "name": _text(case.name), **took})
    if problem := _text(case.problem or case.error):
        kind = "failure" if case.problem else "error"
        ElementTree.SubElement(element, kind, {"message": problem.splitlines()[0]}).text = problem
    elif case.skipped:
        ElementTree.SubElement(element, "skipped", {"message": _text(case.skipped)})
    return element


def _text(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def csv_text(rows: Sequence[Cells]) -> str:
    """Render the rows, with the headings of the first row; an empty text without rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{each:.9g}" if isinstance(each, float) else each for name, each in row.items()})
    return text.getvalue()


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
                # The format's tags contain no commas, spaces and line breaks.
                tag = re.sub(r"[,\s]+", "_", f"{name}/{line}" if name else line)
                times = f"{at_s:.3f},{length_s:.3f},{histogram.max_us / 1000:.3f}"
                yield at_s, f"Tag={tag},{times},{histogram.encode().decode('ascii')}\n"
