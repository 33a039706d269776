"""What a run observed: latency histograms and failure counts, per protocol.

Locust's own statistics round response times to two digits (and anything under a millisecond to zero), too coarse for
serving objectives of a few milliseconds; these keep three digits from a microsecond to an hour.
"""

from collections import Counter
from dataclasses import dataclass

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # ships no annotations

HIGHEST_TRACKABLE_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
# A message that differs every time (an address, a request number) must not grow memory for as long as the run lasts.
MAX_DISTINCT_ERRORS = 100
OTHER_ERRORS = "other errors"


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the table. Latencies are milliseconds over successful requests, None when there were none."""

    name: str
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """How often requests of one protocol failed with one message."""

    protocol: str
    message: str
    count: int


class Tally:
    """Requests of one protocol. Failures are counted apart: a fast refusal must not flatter the latency of answers."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.max_us = 0
        self.histogram = HdrHistogram(1, HIGHEST_TRACKABLE_US, SIGNIFICANT_DIGITS)

    def record_success(self, latency_us: float) -> None:
        """Count one answered request; a latency beyond an hour is recorded as an hour."""
        value = min(max(round(latency_us), 1), HIGHEST_TRACKABLE_US)
        self.requests += 1
        self.max_us = max(self.max_us, value)
        self.histogram.record_value(value)

    def record_failure(self) -> None:
        """Count one request that failed."""
        self.requests += 1
        self.failures += 1

    def add(self, other: "Tally") -> None:
        """Merge another tally into this one; percentiles come out as if all requests had been recorded here."""
        self.requests += other.requests
        self.failures += other.failures
        self.max_us = max(self.max_us, other.max_us)
        if other.histogram.get_total_count():
            self.histogram.add(other.histogram)

    def percentile_ms(self, percentile: float) -> float | None:
        """Latency at a percentile (0..100) in milliseconds, to three digits; None before the first success."""
        if not self.histogram.get_total_count():
            return None
        # The histogram answers with the top of the bucket, which may lie above everything that was recorded.
        return min(int(self.histogram.get_value_at_percentile(percentile)), self.max_us) / 1000

    def summary(self, name: str, elapsed_s: float) -> Summary:
        """The tally as one line of the table. The rate counts successes only, over `elapsed_s` seconds."""
        return Summary(
            name=name,
            requests=self.requests,
            failures=self.failures,
            rate_per_s=(self.requests - self.failures) / elapsed_s if elapsed_s > 0 else 0.0,
            p50_ms=self.percentile_ms(50),
            p90_ms=self.percentile_ms(90),
            p99_ms=self.percentile_ms(99),
            max_ms=self.max_us / 1000 if self.requests > self.failures else None,
        )


class Recorder:
    """Tallies of a run by protocol. Belongs to one thread: all greenlets of a load test run on the same one."""

    def __init__(self, protocols: tuple[str, ...]) -> None:
        self._tallies = {protocol: Tally() for protocol in protocols}
        self._errors: Counter[tuple[str, str]] = Counter()

    def record(self, protocol: str, latency_us: float, error: str | None) -> None:
        """Count one finished request; `error` is None for a success."""
        tally = self._tallies[protocol]
        if error is None:
            tally.record_success(latency_us)
            return
        tally.record_failure()
        key = (protocol, error)
        if key not in self._errors and len(self._errors) >= MAX_DISTINCT_ERRORS:
            key = (protocol, OTHER_ERRORS)
        self._errors[key] += 1

    def total(self) -> Tally:
        """All protocols merged."""
        merged = Tally()
        for tally in self._tallies.values():
            merged.add(tally)
        return merged

    def counts(self) -> tuple[int, int]:
        """Requests and failures so far, over all protocols; cheap enough to show progress with."""
        tallies = self._tallies.values()
        return sum(tally.requests for tally in tallies), sum(tally.failures for tally in tallies)

    def summaries(self, elapsed_s: float) -> list[Summary]:
        """One line per protocol, in the order they were named."""
        return [tally.summary(protocol, elapsed_s) for protocol, tally in self._tallies.items()]

    def errors(self) -> list[ErrorCount]:
        """Distinct failures, the commonest first."""
        return [ErrorCount(protocol, message, count) for (protocol, message), count in self._errors.most_common()]
