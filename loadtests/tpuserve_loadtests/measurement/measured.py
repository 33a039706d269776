"""A finished run and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Recorder, Window
from tpuserve_loadtests.measurement.tally import Summary, Tally
from tpuserve_loadtests.statistics.bootstrap import Block
from tpuserve_loadtests.statistics.stability import is_stable

# The stability check compares fifths of a run, because windows of a few requests differ by chance.
_PARTS = 5
# Value of `stopped` for a run that an interrupt or a gate ended.
STOPPED_EARLY: Final = "stopped early"


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
        """The merged tallies of all lines."""
        return self.recorder.tally()

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
        """The share of checked responses that were wrong, or None if no response was checked."""
        return self.total.wrong / self.total.checked if self.total.checked else None

    @property
    def stable(self) -> bool | None:
        """Whether the run's last three fifths agree within 10 % in median latency and, if closed, throughput.

        None if unknown. An open load's throughput is set by its schedule, and random.
        """
        windows = self._complete_windows()
        size = max(len(windows) // _PARTS, 1)
        if self.stopped or len(windows) < _PARTS:
            return None
        parts = [windows[start : start + size] for start in range(0, size * _PARTS, size)]
        rates = [float(sum(window.completed.total() for window in part)) for part in parts]
        medians: list[float | None] = []
        for part in parts:
            merged = Tally()
            for window in part:
                for tally in window.tallies.values():
                    merged.add(tally)
            medians.append(merged.percentile_ms(50))
        found = (is_stable(medians), self.load.is_open or is_stable(rates))
        return None if None in found else all(found)

    def condensed(self) -> "Measured":
        """Return the run with its totals but without its windows, to save memory."""
        return replace(self, recorder=self.recorder.condensed())

    def lines(self) -> list[Summary]:
        """Return a summary of each line, in the lines' order."""
        names = self.recorder.lines
        return [self.recorder.tally(name).summary(name, self._rate(name)) for name in names]

    def blocks(self) -> tuple[Block, ...]:
        """Return the windows with complete measurements, for resampling."""
        window_s = self.recorder.window_s
        found = []
        for window in self._complete_windows():
            merged = Tally()
            for tally in window.tallies.values():
                merged.add(tally)
            completed, (values, counts) = window.completed.total(), merged.histogram.recorded()
            found.append(Block(values, counts, completed, window_s, merged.failures))
        return tuple(found)

    def _complete_windows(self) -> list[Window]:
        """Return the windows before the end of the measured time, at least one."""
        return self.recorder.windows[: max(int(self.span_s / self.recorder.window_s + 1e-6), 1)]

    def _rate(self, *lines: str) -> float:
        completed = sum(window.completed[name] for window in self.recorder.windows for name in lines)
        return completed / self.span_s if self.span_s > 0 else 0.0


def together(runs: Sequence[Measured]) -> Measured:
    """Merge at least one run of the same load. The result has the totals, and no windows."""
    first = runs[0]
    recorder = Recorder(first.recorder.lines, first.load)
    for measured in runs:
        recorder.add(measured.recorder)
    cores = tuple(max(used) for used in zip(*(measured.cores for measured in runs), strict=True))
    span_s = sum(measured.span_s for measured in runs)
    return Measured(first.load, recorder, span_s, cores, started_at=first.started_at).condensed()
