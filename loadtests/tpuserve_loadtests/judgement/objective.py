"""Whether a load kept an objective such as `p99<=20ms`, said with 99 % confidence where it is a percentile.

A failed request is a late one. The statistics take requests for independent, as LoadGen does (early_stopping); late
ones come together, so that what was found is tried again with other arrivals before it is believed.
"""

from dataclasses import dataclass
from enum import StrEnum

from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.statistics.early_stopping import late_allowed


class Answer(StrEnum):
    """Whether an objective was shown to be kept, shown to be missed, or neither."""

    KEPT = "kept"
    MISSED = "missed"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests that count towards an objective on a percentile, and how many of them were late or failed."""

    requests: int
    late: int

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.requests + other.requests, self.late + other.late)


def judge(sample: Sample, percentile: float) -> tuple[Answer, str]:
    """What so many late ones say of a percentile (0 to 100), and that in words."""
    allowed = late_allowed(sample.requests, percentile)
    words = f"{sample.late:,} of {sample.requests:,} late"
    if allowed is None:
        # Too few to show that it is kept; they may be enough to show that it is not.
        words += ", too few requests to tell"
    else:
        words += f", {allowed:,} allowed"
        if sample.late <= allowed:
            return Answer.KEPT, words
    in_time_allowed = late_allowed(sample.requests, 100 - percentile)
    if in_time_allowed is not None and sample.requests - sample.late <= in_time_allowed:
        return Answer.MISSED, words
    return Answer.UNCLEAR, words


def is_objective(threshold: Threshold) -> bool:
    """Whether a threshold says what must be of any run: a latency or error rate below something."""
    return threshold.metric != "rate" and not threshold.is_of_checks and threshold.relation in ("<", "<=")
