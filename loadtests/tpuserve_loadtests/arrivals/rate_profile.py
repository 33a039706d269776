"""Rates over a run: constant (`500`), in steps (`100,200,400`), or a ramp (`100..1000`)."""

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Instants: TypeAlias = NDArray[np.float64]

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Segment:
    """A period in which the rate changes linearly between two values, in requests per second."""

    seconds: float
    start_per_s: float
    end_per_s: float

    @property
    def requests(self) -> float:
        """The mean number of requests in the segment."""
        return self.seconds * (self.start_per_s + self.end_per_s) / 2

    def instants(self, requests: Instants) -> Instants:
        """Return the times at which the mean number of arrivals reaches each of `requests`, in seconds."""
        slope = (self.end_per_s - self.start_per_s) / self.seconds
        root = self.start_per_s + np.sqrt(np.maximum(self.start_per_s**2 + 2 * slope * requests, 0))
        return np.divide(2 * requests, root, out=np.zeros_like(requests), where=root > 0)


@dataclass(frozen=True, slots=True)
class RateProfile:
    """A sequence of consecutive segments."""

    segments: tuple[Segment, ...]

    @classmethod
    def parse(cls, text: str, seconds: float) -> Self:
        """Parse the rates of a command line. The parts share the time evenly. Raises ValueError for an invalid text."""
        found = [_PART.fullmatch(part.strip()) for part in text.split(",")]
        rates = [(float(part[1]), float(part[2] or part[1])) for part in found if part]
        if len(rates) < len(found) or not all(max(pair) > 0 for pair in rates):
            raise ValueError(
                f"{text!r} is not a rate. Write 500, steps such as 100,200,400 or a ramp such as 100..1000."
            )
        return cls(tuple(Segment(seconds / len(rates), *pair) for pair in rates))

    def after(self, warm_up_s: float) -> "RateProfile":
        """Return this profile after `warm_up_s` seconds at its first rate."""
        if warm_up_s <= 0:
            return self
        first = self.segments[0].start_per_s or self.segments[0].end_per_s
        return RateProfile((Segment(warm_up_s, first, first), *self.segments))

    def lasting(self, seconds: float) -> "RateProfile":
        """Return a constant rate for `seconds` seconds. Requires a constant rate."""
        return RateProfile((replace(self.segments[0], seconds=seconds),))

    @property
    def is_level(self) -> bool:
        """Whether the rate is constant."""
        return len({rate for each in self.segments for rate in (each.start_per_s, each.end_per_s)}) == 1

    @property
    def requests(self) -> float:
        """The mean number of requests in the profile."""
        return sum(segment.requests for segment in self.segments)

    @property
    def mean_per_s(self) -> float:
        """The mean rate over the profile, in requests per second."""
        if self.is_level:
            return self.segments[0].start_per_s
        return self.requests / sum(segment.seconds for segment in self.segments)

    def instants(self, requests: Instants) -> Instants:
        """Return the times at which the mean number of arrivals reaches each of `requests`, in seconds from the start.

        `requests` ascends. The result omits numbers that the profile never reaches. This function converts arrivals at
        one request per second to arrivals at this profile's rates.
        """
        ends = [0.0, *itertools.accumulate(segment.requests for segment in self.segments)]
        starts_s = [0.0, *itertools.accumulate(segment.seconds for segment in self.segments)]
        cuts = np.searchsorted(requests, ends)
        parts = [
            starts_s[number] + segment.instants(requests[cuts[number] : cuts[number + 1]] - ends[number])
            for number, segment in enumerate(self.segments)
        ]
        return np.concatenate(parts)

    def __str__(self) -> str:
        return ",".join(
            _plain(each.start_per_s)
            if math.isclose(each.start_per_s, each.end_per_s)
            else f"{_plain(each.start_per_s)}..{_plain(each.end_per_s)}"
            for each in self.segments
        )


def _plain(rate_per_s: float) -> str:
    return f"{rate_per_s:.2f}".rstrip("0").rstrip(".")
