"""What one process observes of a run, in windows of time: tallies by line, and how late it was itself.

Locust's own statistics round response times to two digits (and anything under a millisecond to zero), too coarse for
serving objectives of a few milliseconds; these keep three digits from a microsecond to an hour.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.tally import Tally
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

# As many windows as a run has, whatever its length: each holds a histogram for each line (180 KB).
WINDOWS: Final = 40
LEAST_WINDOW_S: Final = 0.1
# A message that differs every time (an address, a request number) must not grow memory for as long as the run lasts.
MAX_DISTINCT_ERRORS: Final = 100
OTHER_ERRORS: Final = "other errors"


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """How often requests of one line failed with one message."""

    line: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests and failures, how many answers came later than each of the load's limits, and how many were wrong."""

    requests: int = 0
    failures: int = 0
    late: tuple[int, ...] = ()
    wrong: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        late = tuple(map(sum, zip_longest(self.late, other.late, fillvalue=0)))
        wrong = self.wrong + other.wrong
        return Counts(self.requests + other.requests, self.failures + other.failures, late, wrong)


@dataclass(slots=True)
class Window:
    """Requests that were due in a stretch of the run, by line; and answers that came in it, whenever due."""

    tallies: dict[str, Tally]
    answered: Counter[str]


class Recorder:
    """Belongs to one thread, on which all greenlets of a load test run. Times are seconds from the run's start."""

    def __init__(self, lines: Sequence[str], load: Load) -> None:
        """Record a run of this load. `lines`: the names that requests are counted under, in the table's order."""
        self.lines = tuple(lines)
        windows = min(max(int(load.seconds / LEAST_WINDOW_S), 1), WINDOWS)
        self.window_s = load.seconds / windows
        self.warm_up_s = load.warm_up_s
        self.warm_up_requests = 0
        self.dropped = 0
        self.unanswered = 0  # sent, and given up before there was an answer or a failure
        self.lag = LatencyHistogram()
        self.windows = [Window({}, Counter()) for _ in range(windows)]
        self._errors: Counter[tuple[str, str]] = Counter()
        self._load = load
        self._limits_us = load.limits_us
        self._requests = 0
        self._failures = 0
        self._wrong = 0
        self._late = [0] * len(load.limits_us)

    def record(self, line: str, due_s: float, finished_s: float, error: str | None) -> None:
        """Count one finished request; `error` is None for a success. One that was due in the warm-up has no latency."""
        at = int((finished_s - self.warm_up_s) / self.window_s)
        if error is None and finished_s >= self.warm_up_s and at < len(self.windows):
            self.windows[at].answered[line] += 1
        if due_s < self.warm_up_s:
            self.warm_up_requests += 1
            return
        self._requests += 1
        tally = self._tally_at(line, due_s)
        if error is None:
            latency_us = (finished_s - due_s) * 1e6
            tally.record_success(latency_us)
            for number, limit_us in enumerate(self._limits_us):
                self._late[number] += latency_us > limit_us
        else:
            tally.record_failure()
            self._failures += 1
            self._count_error((line, error), 1)

    def record_check(self, line: str, due_s: float, wrong: bool) -> None:
        """Count one answer that was compared with its golden one, beside what `record` counts; not in the warm-up."""
        if due_s >= self.warm_up_s:
            self._tally_at(line, due_s).record_check(wrong)
            self._wrong += wrong

    def record_lag(self, due_s: float, lag_s: float) -> None:
        """Note how long after it was due a request was sent."""
        if due_s >= self.warm_up_s:
            self.lag.record(lag_s * 1e6)

    def counts(self) -> Counts:
        """So far, the warm-up's not among them; cheap."""
        return Counts(self._requests, self._failures, tuple(self._late), self._wrong)

    def tally(self, line: str | None = None) -> Tally:
        """All windows merged, of one line or of all."""
        merged = Tally()
        for window in self.windows:
            for name, tally in window.tallies.items():
                if line in (None, name):
                    merged.add(tally)
        return merged

    def condensed(self) -> "Recorder":
        """The same in one window, of a fortieth of the memory: for those who keep many runs. Records no more."""
        one = copy(self)
        one.window_s = self._load.seconds
        tallies = {name: tally for name in self.lines if (tally := self.tally(name)).requests}
        one.windows = [Window(tallies, sum((window.answered for window in self.windows), Counter()))]
        return one

    def errors(self) -> list[ErrorCount]:
        """Distinct failures, the commonest first."""
        return [ErrorCount(line, message, count) for (line, message), count in self._errors.most_common()]

    def add(self, other: "Recorder") -> None:
        """Merge what another process recorded of the same run."""
        self.warm_up_requests += other.warm_up_requests
        self.dropped += other.dropped
        self.unanswered += other.unanswered
        self.lag.add(other.lag)
        self._requests += other._requests
        self._failures += other._failures
        self._wrong += other._wrong
        self._late = [mine + theirs for mine, theirs in zip(self._late, other._late, strict=True)]
        for mine, others in zip(self.windows, other.windows, strict=True):
            mine.answered.update(others.answered)
            for line, tally in others.tallies.items():
                mine.tallies.setdefault(line, Tally()).add(tally)
        for key, count in other._errors.items():
            self._count_error(key, count)

    def _tally_at(self, line: str, due_s: float) -> Tally:
        window = self.windows[min(int((due_s - self.warm_up_s) / self.window_s), len(self.windows) - 1)]
        tally = window.tallies.get(line)
        if tally is None:
            tally = window.tallies[line] = Tally()
        return tally

    def _count_error(self, key: tuple[str, str], count: int) -> None:
        if key not in self._errors and len(self._errors) >= MAX_DISTINCT_ERRORS:
            key = (key[0], OTHER_ERRORS)
        self._errors[key] += count

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """What `add_wire` reads, for msgpack."""
        return {
            "warm_up_requests": self.warm_up_requests,
            "dropped": self.dropped,
            "unanswered": self.unanswered,
            "lag": [self.lag.encode(), self.lag.max_us],
            "counts": [self._requests, self._failures, self._late, self._wrong],
            "windows": [
                {"tallies": {name: tally.to_wire() for name, tally in window.tallies.items()}, **_answered(window)}
                for window in self.windows
            ],
            "errors": [[*key, count] for key, count in self._errors.items()],
        }

    def add_wire(self, document: dict[str, Any]) -> None:
        """Merge what `to_wire` of another process made of the same run."""
        other = Recorder(self.lines, self._load)
        other.warm_up_requests, other.dropped = document["warm_up_requests"], document["dropped"]
        other.unanswered = document["unanswered"]
        other.lag = LatencyHistogram.decode(*document["lag"])
        other._requests, other._failures, other._late, other._wrong = document["counts"]
        for window, sent in zip(other.windows, document["windows"], strict=True):
            window.answered.update(sent["answered"])
            window.tallies.update({name: Tally.from_wire(tally) for name, tally in sent["tallies"].items()})
        other._errors.update({(line, message): count for line, message, count in document["errors"]})
        self.add(other)


def _answered(window: Window) -> dict[str, dict[str, int]]:
    return {"answered": dict(window.answered)}
