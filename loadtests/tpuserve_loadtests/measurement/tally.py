"""Results of the requests of one line: counts, failures and latencies of successful requests."""

from dataclasses import dataclass
from typing import Any

from tpuserve_loadtests.statistics.early_stopping import upper_bound_us
from tpuserve_loadtests.statistics.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the table. Latencies are milliseconds of successful requests, or None without any.

    `p99_bound_ms` is the upper limit of p99 with 99 % confidence, or None for too few requests. `checked` counts
    responses that were compared with golden answers. `wrong` responses are included in the failures.
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


class Tally:
    """Counts and latencies of one line. Belongs to one thread.

    Failures are counted separately, because fast error responses would lower the latencies.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.checked = 0
        self.wrong = 0
        self.histogram = LatencyHistogram()

    def record_success(self, latency_us: float) -> None:
        """Count a successful request."""
        self.requests += 1
        self.histogram.record(latency_us)

    def record_failure(self) -> None:
        """Count a failed request."""
        self.requests += 1
        self.failures += 1

    def record_check(self, wrong: bool) -> None:
        """Count a checked response. The caller records a wrong one as a failure separately."""
        self.checked += 1
        self.wrong += wrong

    def add(self, other: "Tally") -> None:
        """Merge another tally into this one. The percentiles equal those of a single tally of all requests."""
        self.requests += other.requests
        self.failures += other.failures
        self.checked += other.checked
        self.wrong += other.wrong
        self.histogram.add(other.histogram)

    def percentile_ms(self, percent: float) -> float | None:
        """Return the latency at a percentile (0 to 100) in milliseconds, or None before the first success."""
        return _ms(self.histogram.percentile_us(percent))

    def summary(self, name: str, rate_per_s: float) -> Summary:
        """Return the tally as a line of the table."""
        return Summary(
            name=name,
            requests=self.requests,
            failures=self.failures,
            rate_per_s=rate_per_s,
            p50_ms=self.percentile_ms(50),
            p90_ms=self.percentile_ms(90),
            p95_ms=self.percentile_ms(95),
            p99_ms=self.percentile_ms(99),
            p99_9_ms=self.percentile_ms(99.9),
            p99_bound_ms=_ms(upper_bound_us(self.histogram, 99)),
            max_ms=_ms(self.histogram.max_us or None),
            checked=self.checked,
            wrong=self.wrong,
        )

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `from_wire`."""
        return {
            "requests": self.requests,
            "failures": self.failures,
            "checks": [self.checked, self.wrong],
            "histogram": self.histogram.encode(),
            "max_us": self.histogram.max_us,
        }

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> "Tally":
        """Return the tally that `to_wire` encoded."""
        tally = cls()
        tally.requests, tally.failures = document["requests"], document["failures"]
        tally.checked, tally.wrong = document["checks"]
        tally.histogram = LatencyHistogram.decode(document["histogram"], document["max_us"])
        return tally


def _ms(latency_us: int | None) -> float | None:
    return None if latency_us is None else latency_us / 1000
