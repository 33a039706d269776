"""What requests of one line came to: how many, how many failed, and latencies of the others."""

from dataclasses import dataclass
from typing import Any

from tpuserve_loadtests.statistics.early_stopping import upper_bound_us
from tpuserve_loadtests.statistics.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the table. Latencies are milliseconds over successful requests, None when there were none.

    `p99_bound_ms`: what p99 does not exceed with 99 % confidence; None if there were too few requests to say. `checked`
    answers were compared with golden ones; those that were `wrong` are among the failures.
    """

    name: str
    requests: int
    failures: int
    rate_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p99_bound_ms: float | None
    max_ms: float | None
    checked: int = 0
    wrong: int = 0


class Tally:
    """Failures are counted apart: a fast refusal must not flatter the latency of answers. Belongs to one thread."""

    def __init__(self) -> None:
        self.requests = 0
        self.failures = 0
        self.checked = 0
        self.wrong = 0
        self.histogram = LatencyHistogram()

    def record_success(self, latency_us: float) -> None:
        """Count one answered request."""
        self.requests += 1
        self.histogram.record(latency_us)

    def record_failure(self) -> None:
        """Count one request that failed."""
        self.requests += 1
        self.failures += 1

    def record_check(self, wrong: bool) -> None:
        """Count one answer that was compared with a golden one; a wrong one is a failure, which is recorded apart."""
        self.checked += 1
        self.wrong += wrong

    def add(self, other: "Tally") -> None:
        """Merge another tally into this one; percentiles come out as if all requests had been recorded here."""
        self.requests += other.requests
        self.failures += other.failures
        self.checked += other.checked
        self.wrong += other.wrong
        self.histogram.add(other.histogram)

    def percentile_ms(self, percent: float) -> float | None:
        """Latency at a percentile (0 to 100) in milliseconds; None before the first success."""
        return _ms(self.histogram.percentile_us(percent))

    def summary(self, name: str, rate_per_s: float) -> Summary:
        """The tally as one line of the table."""
        return Summary(
            name=name,
            requests=self.requests,
            failures=self.failures,
            rate_per_s=rate_per_s,
            p50_ms=self.percentile_ms(50),
            p90_ms=self.percentile_ms(90),
            p99_ms=self.percentile_ms(99),
            p99_bound_ms=_ms(upper_bound_us(self.histogram, 99)),
            max_ms=_ms(self.histogram.max_us or None),
            checked=self.checked,
            wrong=self.wrong,
        )

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """What `from_wire` reads."""
        return {
            "requests": self.requests,
            "failures": self.failures,
            "checks": [self.checked, self.wrong],
            "histogram": self.histogram.encode(),
            "max_us": self.histogram.max_us,
        }

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> "Tally":
        """The tally of `to_wire`."""
        tally = cls()
        tally.requests, tally.failures = document["requests"], document["failures"]
        tally.checked, tally.wrong = document["checks"]
        tally.histogram = LatencyHistogram.decode(document["histogram"], document["max_us"])
        return tally


def _ms(latency_us: int | None) -> float | None:
    return None if latency_us is None else latency_us / 1000
