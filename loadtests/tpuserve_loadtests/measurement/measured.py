"""A finished run and its figures, its windows in order, and the segments of a long load."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, TypeVar

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Recorder, Summary, Tally, Window
from tpuserve_loadtests.statistics.warm_up import windows_to_drop

# perf_analyzer's criterion of a stable run: its last three windows agree within 10 %.
_LAST: Final = 3
_TOLERANCE: Final = 0.10
# The stability check compares fifths of a run, because windows of a few requests differ by chance.
_PARTS = 5
LATENCY_NAMES: Final = ("p50", "p90", "p95", "p99", "p99.9", "max")
# Value of `stopped` for a run that Ctrl-C or SIGTERM ended.
INTERRUPTED: Final = "interrupted"

_Record = TypeVar("_Record", bound="Stretch")


@dataclass(frozen=True)  # no slots: cached properties live in the instance
class Measured:
    """The measurements of a finished run.

    `span_s` is the measured time in seconds. It is shorter than planned if `stopped` gives a reason. `cores` are the
    CPU cores used by each process. `started_at` is the Unix time at the start of the warm-up. `lost` names workers that
    left before they reported, whose share is missing from the figures.
    """

    load: Load
    recorder: Recorder
    span_s: float
    cores: tuple[float, ...]
    stopped: str = ""
    started_at: float = 0.0
    lost: tuple[str, ...] = ()

    @cached_property
    def total(self) -> Tally:
        return self.recorder.tally()

    @property
    def interruption(self) -> str:
        """When Ctrl-C or SIGTERM ended the run, such as `interrupted after 4 of 60 s`; empty if neither did."""
        if self.stopped != INTERRUPTED:
            return ""
        if self.load.requests:
            return f"{INTERRUPTED} after {self.total.requests:,} of {counted(self.load.requests, 'request')}"
        return f"{INTERRUPTED} after {self.span_s:.3g} of {self.load.seconds:g} s"

    @property
    def rate_per_s(self) -> float:
        """Successful responses in the measured time, per second."""
        return self._rate(*self.recorder.lines)

    @property
    def error_rate(self) -> float:
        """The share of requests that failed, 0 without requests."""
        return self.total.failures / self.total.requests if self.total.requests else 0.0

    @property
    def wrong_rate(self) -> float | None:
        """The share of wrong responses, as in Tally."""
        return self.total.wrong_rate

    @property
    def stable(self) -> bool | None:
        """Whether the run's last three fifths agree within 10 % in median latency and, if closed, throughput.

        None if unknown, or if the rate is to change. An open load's throughput is set by its schedule, and random.
        """
        windows = self._complete_windows()
        size = max(len(windows) // _PARTS, 1)
        if self.stopped or not self.load.is_level or len(windows) < _PARTS:
            return None
        parts = [windows[start : start + size] for start in range(0, size * _PARTS, size)]
        rates = [float(sum(window.completed.total() for window in part)) for part in parts]
        medians = [self._merged(part).percentile_ms(50) for part in parts]
        found = (is_stable(medians), self.load.is_open or is_stable(rates))
        return None if None in found else all(found)

    def condensed(self) -> "Measured":
        """Return the run with its totals but without its windows, to save memory."""
        return replace(self, recorder=self.recorder.condensed())

    @cached_property
    def slow_start_s(self) -> float:
        """The seconds at the start that differ from the rest in mean latency; 0 if there are none or they are unknown.

        A rate that changes has no start that differs from the rest without a reason.
        """
        # The windows of merged segments overlay each other.
        is_merged = self.span_s > self.load.seconds
        if self.stopped or is_merged or not self.load.is_level:
            return 0.0
        windows = [self._merged([window]).histogram.mean_us() for window in self._complete_windows()]
        return windows_to_drop(windows) * self.recorder.window_s

    @cached_property
    def settled(self) -> "Measured":
        """The run without its slow start, for latencies."""
        if not self.slow_start_s:
            return self
        recorder = copy(self.recorder)
        recorder.windows = recorder.windows[round(self.slow_start_s / recorder.window_s) :]
        return replace(self, recorder=recorder, span_s=self.span_s - self.slow_start_s)

    @property
    def start_note(self) -> str:
        """The note on the slow start, or an empty string."""
        if not self.slow_start_s:
            return ""
        first = self._merged(self.recorder.windows[: round(self.slow_start_s / self.recorder.window_s)])
        means = [(tally.histogram.mean_us() or 0) / 1000 for tally in (first, self.settled.total)]
        span = f"the first {self.slow_start_s:.3g} s of {self.span_s:.3g} s"
        change = f"mean {means[0]:.3g} ms, then {means[1]:.3g} ms"
        return f"{span} differ ({change}); gates on percentiles and the mean omit them"

    @property
    def parsed_share(self) -> float:
        """The share of responses that the form check parsed in full, 1 without responses."""
        responses = self.total.requests - self.total.failures + self.total.wrong
        return 1 - self.total.unparsed / responses if responses else 1.0

    @property
    def parsed_note(self) -> str:
        """The note on responses that were not parsed in full, or an empty string."""
        if not self.total.unparsed:
            return ""
        share = f"{100 * self.parsed_share:.3g} % of the responses were parsed in full"
        return f"{share}; of the others, the text outside of the numbers was compared"

    @staticmethod
    def _merged(windows: Sequence[Window]) -> Tally:
        merged = Tally()
        for tally in (tally for window in windows for tally in window.tallies.values()):
            merged.add(tally)
        return merged

    @property
    def whole(self) -> "Part":
        return Part("", self.total, self.span_s, self.rate_per_s)

    def part(self, name: str, lines: Sequence[str]) -> "Part":
        """Return the requests of some lines of the table."""
        merged = Tally()
        for line in lines:
            merged.add(self.recorder.tally(line))
        return Part(name, merged, self.span_s, self._rate(*lines))

    def steps(self) -> list["Part"]:
        """Return the steps of a stepped rate that began, or none for another load and for a condensed run."""
        names, windows = self.load.steps, self.recorder.windows
        size = len(windows) // len(names) if names else 0
        found = []
        for number in range(len(names) if size else 0):
            own = windows[number * size : (number + 1) * size]
            merged = self._merged(own)
            seconds = size * self.recorder.window_s
            completed = sum(window.completed.total() for window in own)
            found.append(Part(names[number], merged, seconds, completed / seconds))
        return [part for part in found if part.tally.requests]

    def lines(self) -> list[Summary]:
        names = self.recorder.lines
        return [self.recorder.tally(name).summary(name, self._rate(name)) for name in names]

    def replicas(self) -> list[Summary]:
        """Return the figures of each replica, or an empty list for a single one."""
        return [
            tally.summary(address, (tally.requests - tally.failures) / max(self.span_s, 1e-3))
            for address, tally in sorted(self.recorder.replicas.items())
        ]

    def _complete_windows(self) -> list[Window]:
        return self.recorder.windows[: max(int(self.span_s / self.recorder.window_s + 1e-6), 1)]

    def _rate(self, *lines: str) -> float:
        completed = sum(window.completed[name] for window in self.recorder.windows for name in lines)
        return completed / self.span_s if self.span_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run that gates judge: all requests, some lines of the table, or a step of the rate."""

    name: str
    tally: Tally
    seconds: float
    rate_per_s: float


def is_stable(values: Sequence[float | None]) -> bool | None:
    """Return whether the largest of the last three values exceeds the smallest by at most 10 % of it.

    Returns None for fewer values, or if any of them is None.
    """
    last = [value for value in values[-_LAST:] if value is not None]
    if len(last) < _LAST:
        return None
    return max(last) <= min(last) * (1 + _TOLERANCE)


def together(runs: Sequence[Measured]) -> Measured:
    """Merge at least one run of the same load. The result has the totals, and no windows."""
    first = runs[0]
    recorder = Recorder(first.recorder.lines, first.load)
    for measured in runs:
        recorder.add(measured.recorder)
    cores = tuple(max(used) for used in zip(*(measured.cores for measured in runs), strict=True))
    span_s = sum(measured.span_s for measured in runs)
    return Measured(first.load, recorder, span_s, cores, started_at=first.started_at).condensed()


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
    return _with_figures(Stretch, merged.summary("", completed / seconds), start_s=start_s, seconds=seconds)


def _with_figures(
    kind: type[_Record],
    line: Summary,
    **values: Any,  # noqa: ANN401  fields of several types
) -> _Record:
    """Return a record with these values and with the figures of a line for its other fields."""
    found = {each.name: getattr(line, each.name) for each in fields(kind) if each.name not in values}
    return kind(**found, **values)


@dataclass(frozen=True, slots=True)
class Segment(Stretch):
    """The figures of one segment of a soak. `start_s` counts from the start of the first segment.

    `memory_bytes` is the server's memory at the segment's end, or None if the server does not report it.
    """

    memory_bytes: float | None

    @property
    def at_s(self) -> float:
        """The middle of the segment."""
        return self.start_s + self.seconds / 2

    @property
    def error_rate(self) -> float:
        """The share of requests that failed, 0 without requests."""
        return self.failures / self.requests if self.requests else 0.0


def latencies_ms(line: Summary | Stretch) -> dict[str, float | None]:
    """Return the latencies of LATENCY_NAMES by name."""
    return {name: getattr(line, f"{name.replace('.', '_')}_ms") for name in LATENCY_NAMES}


class Segments:
    """Collector of finished segments, which keeps only a few figures of each."""

    def __init__(self) -> None:
        self.done: list[Segment] = []
        self.total: Measured | None = None
        self._cores_s: tuple[float, ...] = ()

    def add(self, measured: Measured, memory_bytes: float | None) -> Segment:
        """Add the next segment.

        A stopped segment counts only in the total, because its figures cover fewer requests.
        """
        start_s = self.total.span_s if self.total else 0.0
        line = measured.total.summary("total", measured.rate_per_s)
        segment = _with_figures(Segment, line, start_s=start_s, seconds=measured.span_s, memory_bytes=memory_bytes)
        if not measured.stopped:
            self.done.append(segment)
        self._merge(measured)
        return segment

    def _merge(self, measured: Measured) -> None:
        used_s = tuple(cores * measured.span_s for cores in measured.cores)
        if self.total is None:
            self._cores_s = used_s
            self.total = measured
            return
        self._cores_s = tuple(map(sum, zip(self._cores_s, used_s, strict=True)))
        # This merges windows by their number within a segment. The total is right, but it has no timeline.
        self.total.recorder.add(measured.recorder)
        span_s = self.total.span_s + measured.span_s
        cores = tuple(each / span_s for each in self._cores_s) if span_s else measured.cores
        self.total = replace(self.total, span_s=span_s, cores=cores, stopped=measured.stopped, lost=measured.lost)
