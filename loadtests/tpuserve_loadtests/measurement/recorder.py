"""Observations of one process during a run, in time windows: tallies by line, and the generator's own delays.

Locust's statistics round response times to two digits, and times under a millisecond to zero. Serving objectives of a
few milliseconds need more. These histograms keep three digits from a microsecond to an hour.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Final, Self

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.statistics.early_stopping import upper_bound_us
from tpuserve_loadtests.statistics.histogram import LatencyHistogram
from tpuserve_loadtests.statistics.live_latencies import LiveLatencies, LiveLatencyRecorder


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the table. Percentiles are milliseconds of all requests, or None if they fall among failed requests.

    `p99_bound_ms` is the upper limit of p99 with 99 % confidence, or None for too few requests. `checked` counts
    responses whose values were compared with golden answers. `wrong` responses are included in the failures, and those
    with a wrong form, `malformed`, are included in them. `unparsed` is as in Delivery.
    """

    name: str
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    p99_bound_ms: float | None
    max_ms: float | None
    checked: int = 0
    wrong: int = 0
    malformed: int = 0
    unparsed: int = 0
    retries: int = 0


# The counts of a tally, which are fields of Summary, too.
_COUNTS: Final = ("requests", "failures", "checked", "wrong", "malformed", "unparsed", "retries")
# Series of streamed responses: the time to the first token, and the time between tokens.
TTFT: Final = "ttft"
ITL: Final = "itl"


@dataclass(slots=True)
class Delivery:
    """The delivery of a request: the times that the client sent it again, and the replica, if there are several.

    `tokens_s` holds the times at which the parts of a streamed response arrived. `compared` says whether its values
    were compared with a golden answer, `wrong` whether it is wrong, and `unparsed` whether only its text outside of the
    numbers was checked, as for most large JSON responses.
    """

    retries: int = 0
    address: str = ""
    tokens_s: Sequence[float] = ()
    compared: bool = False
    wrong: bool = False
    unparsed: bool = False


class Tally:
    """Counts and latencies of one line. Belongs to one thread.

    The histogram omits failures, because fast error responses would lower the latencies.
    """

    def __init__(self) -> None:
        self.requests = self.failures = self.retries = 0
        self.checked = self.wrong = self.malformed = self.unparsed = 0
        # Further latencies by name: TTFT and ITL of streamed responses.
        self.series: dict[str, LatencyHistogram] = {}
        self.histogram = LatencyHistogram()

    def record_success(self, latency_us: float) -> None:
        self.requests += 1
        self.histogram.record(latency_us)

    def record_failure(self) -> None:
        self.requests += 1
        self.failures += 1

    def record_delivery(self, delivery: Delivery) -> None:
        """Count retries and checks. The caller records a wrong response as a failure separately."""
        self.retries += delivery.retries
        self.checked += delivery.compared
        self.wrong += delivery.wrong
        self.malformed += delivery.wrong and not delivery.compared
        self.unparsed += delivery.unparsed

    @property
    def wrong_rate(self) -> float | None:
        """The share of responses with a wrong form, plus the share of compared ones with wrong values.

        None without a response.
        """
        responses = self.requests - self.failures + self.wrong
        return self.malformed / responses + (self.wrong - self.malformed) / (self.checked or 1) if responses else None

    def record_tokens(self, due_s: float, tokens_s: Sequence[float]) -> None:
        """Record the time to the first token, and the times between tokens."""
        first, between = (self.series.setdefault(name, LatencyHistogram()) for name in (TTFT, ITL))
        first.record((tokens_s[0] - due_s) * 1e6)
        for earlier_s, later_s in pairwise(tokens_s):
            between.record((later_s - earlier_s) * 1e6)

    def add(self, other: "Tally") -> None:
        """Merge another tally into this one. The percentiles equal those of a single tally of all requests."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, histogram in other.series.items():
            self.series.setdefault(name, LatencyHistogram()).add(histogram)
        self.histogram.add(other.histogram)

    def percentile_ms(self, percent: float) -> float | None:
        """Return the latency at a percentile (0 to 100) of all requests in milliseconds.

        A failed request, such as one that timed out, counts as later than all others. Returns None if the percentile
        falls among the failures.
        """
        rank = math.ceil(self.requests * percent / 100 - 1e-6)
        return _ms(self.histogram.value_at_rank(rank) if 0 < self.histogram.count >= rank else None)

    def late(self, limit_ms: float) -> int:
        """Return the number of requests that failed or took longer."""
        return self.failures + self.histogram.count_above(limit_ms * 1000)

    def summary(self, name: str, rate_per_s: float) -> Summary:
        return Summary(
            name=name,
            rate_per_s=rate_per_s,
            p50_ms=self.percentile_ms(50),
            p90_ms=self.percentile_ms(90),
            p95_ms=self.percentile_ms(95),
            p99_ms=self.percentile_ms(99),
            p99_9_ms=self.percentile_ms(99.9),
            p99_bound_ms=_ms(upper_bound_us(self.histogram, 99, self.failures)),
            max_ms=_ms(self.histogram.max_us or None),
            **self._counts(),
        )

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `from_wire`."""
        return {
            **self._counts(),
            "series": {name: [each.encode(), each.max_us] for name, each in self.series.items()},
            "histogram": self.histogram.encode(),
            "max_us": self.histogram.max_us,
        }

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> "Tally":
        """Return the tally that `to_wire` encoded."""
        tally = cls()
        for name in _COUNTS:
            setattr(tally, name, document[name])
        tally.series = {name: LatencyHistogram.decode(*each) for name, each in document["series"].items()}
        tally.histogram = LatencyHistogram.decode(document["histogram"], document["max_us"])
        return tally

    def _counts(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTS}


def _ms(latency_us: int | None) -> float | None:
    return None if latency_us is None else latency_us / 1000


_DIRECT: Final = Delivery()
# Largest number of windows for a run of any length. Each window holds a histogram per line (180 KB).
WINDOWS: Final = 40
LEAST_WINDOW_S: Final = 0.1
# Distinct messages are limited, because messages with an address or request number would grow memory without bound.
MAX_DISTINCT_ERRORS: Final = 100
OTHER_ERRORS: Final = "other errors"


@dataclass(frozen=True, slots=True)
class ErrorCount:
    line: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of requests, failures, wrong responses, and responses later than each of the load's limits.

    `latencies` are those of successful requests.
    """

    requests: int = 0
    failures: int = 0
    late: tuple[int, ...] = ()
    wrong: int = 0
    latencies: LiveLatencies = field(default_factory=LiveLatencies, compare=False)

    def __add__(self, other: "Counts") -> "Counts":
        late = tuple(map(sum, zip_longest(self.late, other.late, fillvalue=0)))
        return Counts(
            self.requests + other.requests,
            self.failures + other.failures,
            late,
            self.wrong + other.wrong,
            self.latencies + other.latencies,
        )

    def to_wire(self) -> list[Any]:  # plain values of several types
        """Return a document for `from_wire`, which msgpack can encode."""
        return [self.requests, self.failures, list(self.late), self.wrong, self.latencies.to_wire()]

    @classmethod
    def from_wire(cls, document: list[Any]) -> Self:
        """Return the counts that `to_wire` encoded."""
        requests, failures, late, wrong, latencies = document
        return cls(requests, failures, tuple(late), wrong, LiveLatencies.from_wire(latencies))


@dataclass(slots=True)
class Window:
    """Tallies by line of requests that were due in the window, and counts of responses that arrived in it."""

    tallies: dict[str, Tally]
    completed: Counter[str]


class Recorder:
    """Recorder of a run. Belongs to one thread, which runs all greenlets of a load test.

    Times are seconds from the run's start. A load with a number of requests ends at an unknown time, so its windows
    start short and double in length.
    """

    def __init__(self, lines: Sequence[str], load: Load) -> None:
        """Record a run of `load`. `lines` are the names of lines, in the table's order."""
        self.lines = tuple(lines)
        windows = 1 if load.requests else min(max(int(load.seconds / LEAST_WINDOW_S), 1), WINDOWS)
        steps = len(load.steps) or 1
        windows = max(windows // steps, 1) * steps  # no window has requests of two steps
        self.window_s = LEAST_WINDOW_S if load.requests else load.seconds / windows
        self.warm_up_s = load.warm_up_s
        # The rate of a load of some requests omits responses after this time.
        self.end_s = math.inf
        self.warm_up_requests = 0
        self.dropped = 0
        self.unanswered = 0  # sent, and abandoned before a response or failure
        self.lag = LatencyHistogram()
        self.replicas: dict[str, Tally] = {}  # by address, if there are several
        self.windows = [Window({}, Counter()) for _ in range(windows)]
        self._errors: Counter[tuple[str, str]] = Counter()
        self._load = load
        self._limits_us = load.limits_us
        self._requests = 0
        self._failures = 0
        self._wrong = 0
        self._late = [0] * len(load.limits_us)
        self._live = LiveLatencyRecorder()
        self._others = Counts()  # of the recorders that were added

    def record(
        self, line: str, due_s: float, finished_s: float, error: str | None, delivery: Delivery = _DIRECT
    ) -> None:
        """Count a finished request. `error` is None for a success.

        Requests due in the warm-up have no recorded latency.
        """
        if error is None and (window := self._window_of_response(due_s, finished_s)) is not None:
            window.completed[line] += 1
        if due_s < self.warm_up_s:
            self.warm_up_requests += 1
            return
        self._requests += 1
        tally = self._tally_at(line, due_s)
        tally.record_delivery(delivery)
        self._wrong += delivery.wrong
        latency_us = (finished_s - due_s) * 1e6
        if delivery.address:
            replica = self.replicas.setdefault(delivery.address, Tally())
            replica.record_success(latency_us) if error is None else replica.record_failure()
        if error is None:
            if delivery.tokens_s:
                tally.record_tokens(due_s, delivery.tokens_s)
            tally.record_success(latency_us)
            self._live.record(latency_us)
            for number, limit_us in enumerate(self._limits_us):
                self._late[number] += latency_us > limit_us
        else:
            tally.record_failure()
            self._failures += 1
            self._count_error((line, error), 1)

    def record_lag(self, due_s: float, lag_s: float) -> None:
        """Record the delay between the time a request was due and the time it was sent."""
        if due_s >= self.warm_up_s:
            self.lag.record(lag_s * 1e6)

    def counts(self) -> Counts:
        """Return the counts so far, without the warm-up. Cheap."""
        own = Counts(self._requests, self._failures, tuple(self._late), self._wrong, self._live.state())
        return own + self._others

    def tally(self, line: str | None = None) -> Tally:
        merged = Tally()
        for window in self.windows:
            for name, tally in window.tallies.items():
                if line in (None, name):
                    merged.add(tally)
        return merged

    def entries(self) -> set[str]:
        """Return the lines with requests, known before or not."""
        return {line for window in self.windows for line in window.tallies}

    def rename(self, names: Mapping[str, str]) -> None:
        """Rename the lines, which keep their requests."""
        for window in self.windows:
            window.tallies = {names[line]: tally for line, tally in window.tallies.items()}
            window.completed = Counter({names[line]: number for line, number in window.completed.items()})
        self._errors = Counter({(names[line], message): number for (line, message), number in self._errors.items()})

    def condensed(self) -> "Recorder":
        """Return a copy with a single window, which uses a fortieth of the memory and records no further requests."""
        one = copy(self)
        one.window_s = self.window_s * len(self.windows)
        tallies = {name: tally for name in self.lines if (tally := self.tally(name)).requests}
        one.windows = [Window(tallies, sum((window.completed for window in self.windows), Counter()))]
        return one

    def errors(self) -> list[ErrorCount]:
        """Return the distinct failures, most frequent first."""
        return [ErrorCount(line, message, count) for (line, message), count in self._errors.most_common()]

    def add(self, other: "Recorder") -> None:
        self.warm_up_requests += other.warm_up_requests
        self.dropped += other.dropped
        self.unanswered += other.unanswered
        self.lag.add(other.lag)
        for address, tally in other.replicas.items():
            self.replicas.setdefault(address, Tally()).add(tally)
        self._others += other.counts()
        while self.window_s < other.window_s:
            self._double_windows()
        while other.window_s < self.window_s:
            other._double_windows()
        self._extend(len(other.windows))
        for mine, others in zip(self.windows, other.windows, strict=False):
            _merge(mine, others)
        for key, count in other._errors.items():
            self._count_error(key, count)

    def _tally_at(self, line: str, due_s: float) -> Tally:
        if self._load.requests:
            window = self._window_at(due_s)
        else:
            window = self.windows[min(int((due_s - self.warm_up_s) / self.window_s), len(self.windows) - 1)]
        tally = window.tallies.get(line)
        if tally is None:
            tally = window.tallies[line] = Tally()
        return tally

    def _window_of_response(self, due_s: float, finished_s: float) -> Window | None:
        """Return the window of a response, or None if the rate omits it.

        A load of some seconds counts the responses that arrive in that time. A load of some requests counts the
        responses to these requests.
        """
        if self._load.requests:
            return self._window_at(finished_s) if due_s >= self.warm_up_s and finished_s <= self.end_s else None
        at = int((finished_s - self.warm_up_s) / self.window_s)
        return self.windows[at] if finished_s >= self.warm_up_s and at < len(self.windows) else None

    def _window_at(self, at_s: float) -> Window:
        while (at := int((at_s - self.warm_up_s) / self.window_s)) >= WINDOWS:
            self._double_windows()
        self._extend(at + 1)
        return self.windows[at]

    def _extend(self, count: int) -> None:
        self.windows += [Window({}, Counter()) for _ in range(count - len(self.windows))]

    def _double_windows(self) -> None:
        self.window_s *= 2
        for first, second in zip(self.windows[::2], self.windows[1::2], strict=False):
            _merge(first, second)
        self.windows = self.windows[::2]

    def _count_error(self, key: tuple[str, str], count: int) -> None:
        if key not in self._errors and len(self._errors) >= MAX_DISTINCT_ERRORS:
            key = (key[0], OTHER_ERRORS)
        self._errors[key] += count

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `add_wire`, which msgpack can encode."""
        return {
            "warm_up_requests": self.warm_up_requests,
            "dropped": self.dropped,
            "unanswered": self.unanswered,
            "lag": [self.lag.encode(), self.lag.max_us],
            "replicas": {address: tally.to_wire() for address, tally in self.replicas.items()},
            "counts": self.counts().to_wire(),
            "windows": [
                {
                    "tallies": {name: tally.to_wire() for name, tally in window.tallies.items()},
                    "answered": dict(window.completed),
                }
                for window in self.windows
            ],
            "window_s": self.window_s,
            "errors": [[*key, count] for key, count in self._errors.items()],
        }

    def add_wire(self, document: dict[str, Any]) -> None:
        """Merge the document that `to_wire` returned in another process for the same run."""
        other = Recorder(self.lines, self._load)
        other.warm_up_requests, other.dropped = document["warm_up_requests"], document["dropped"]
        other.unanswered = document["unanswered"]
        other.lag = LatencyHistogram.decode(*document["lag"])
        other.replicas = {address: Tally.from_wire(tally) for address, tally in document["replicas"].items()}
        other._others = Counts.from_wire(document["counts"])
        other.window_s = document["window_s"]
        other.windows = [
            Window({name: Tally.from_wire(tally) for name, tally in sent["tallies"].items()}, Counter(sent["answered"]))
            for sent in document["windows"]
        ]
        other._errors.update({(line, message): count for line, message, count in document["errors"]})
        self.add(other)


def _merge(window: Window, other: Window) -> None:
    window.completed.update(other.completed)
    for line, tally in other.tallies.items():
        window.tallies.setdefault(line, Tally()).add(tally)
