"""Timeline of a run: its measured windows in order."""

from dataclasses import dataclass

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.tally import Tally


@dataclass(frozen=True, slots=True)
class Stretch:
    """A window of a run. `start_s` counts from the start of the measured time.

    Latencies are milliseconds of requests that were due in the window, or None without a successful response. The rate
    counts the responses that arrived in the window, regardless of when they were due.
    """

    start_s: float
    seconds: float
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None


def timeline(measured: Measured, line: str | None = None) -> list[Stretch]:
    """Return the windows of one line of the table, or of all lines. The last one is shorter if the run was stopped."""
    recorder = measured.recorder
    found = []
    for number, window in enumerate(recorder.windows):
        start_s = number * recorder.window_s
        seconds = min(recorder.window_s, measured.span_s - start_s)
        if seconds <= 1e-6 * recorder.window_s:
            break
        completed = window.completed.total() if line is None else window.completed[line]
        tallies = [tally for name, tally in window.tallies.items() if line in (None, name)]
        found.append(_stretch(start_s, seconds, completed, tallies))
    return found


def _stretch(start_s: float, seconds: float, completed: int, tallies: list[Tally]) -> Stretch:
    merged = Tally()
    for tally in tallies:
        merged.add(tally)
    figures = merged.summary("", completed / seconds)
    return Stretch(
        start_s,
        seconds,
        merged.requests,
        merged.failures,
        figures.rate_per_s,
        figures.p50_ms,
        figures.p90_ms,
        figures.p95_ms,
        figures.p99_ms,
        figures.p99_9_ms,
        figures.max_ms,
    )
