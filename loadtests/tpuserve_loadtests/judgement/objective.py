"""Verdicts on objectives such as `p99<=20ms`, with 99 % confidence for percentiles.

A failed request counts as late. The statistics assume independent requests, as LoadGen does (early_stopping). Late
requests often cluster, so the search repeats a passing rate with other arrivals.
"""

from dataclasses import dataclass
from enum import StrEnum

from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.statistics.early_stopping import late_allowed


class Answer(StrEnum):
    """The result for an objective: kept, missed or unclear."""

    KEPT = "kept"
    MISSED = "missed"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests that count for a percentile objective, and the number of them that were late or failed."""

    requests: int
    late: int

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.requests + other.requests, self.late + other.late)


def judge(sample: Sample, percentile: float) -> tuple[Answer, str]:
    """Return the result for a percentile (0 to 100), with a description."""
    allowed = late_allowed(sample.requests, percentile)
    words = f"{sample.late:,} of {sample.requests:,} late"
    if allowed is None:
        # Too few requests to show that the objective is kept can still show that it is missed.
        words += ", too few requests for a verdict"
    else:
        words += f", {allowed:,} allowed"
        if sample.late <= allowed:
            return Answer.KEPT, words
    in_time_allowed = late_allowed(sample.requests, 100 - percentile)
    if in_time_allowed is not None and sample.requests - sample.late <= in_time_allowed:
        return Answer.MISSED, words
    return Answer.UNCLEAR, words


def is_objective(threshold: Threshold) -> bool:
    """Return whether a threshold is an upper limit on latency or error rate, and so an objective for any run."""
    return threshold.metric != "rate" and not threshold.is_of_checks and threshold.relation in ("<", "<=")
