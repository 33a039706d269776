"""Loads: the arrival of requests, and the duration. They are plain values, so that other machines can run them."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.process import BURST, Process, unit_arrivals
from tpuserve_loadtests.arrivals.rate_profile import Instants, RateProfile, Segment
from tpuserve_loadtests.arrivals.think_time import ThinkTime

SEED = 20


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `seconds` measured seconds after an unmeasured warm-up of `warm_up_s`.

    Closed load (`users` > 0): each user sends its next request as soon as the server answers the previous one, or after
    the pause `think`. Open load (`users` = 0): requests arrive by `profile` and `process`, or at the times in `trace`
    (seconds from the start), regardless of responses. `requests` is the largest number of measured requests, or 0 for
    any number. With it, `seconds` can be infinite. `limits_us` holds latency limits in microseconds. While the load
    runs, the load generator counts the requests that exceed each limit.
    """

    seconds: float
    warm_up_s: float = 0.0
    users: int = 0
    profile: RateProfile | None = None
    process: Process = "poisson"
    burst: int = BURST
    trace: tuple[float, ...] = ()
    seed: int = SEED
    limits_us: tuple[float, ...] = ()
    requests: int = 0
    think: ThinkTime | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests arrive by a schedule."""
        return not self.users

    @property
    def total_s(self) -> float:
        """The duration in seconds, with the warm-up."""
        return self.warm_up_s + self.seconds

    @property
    def length(self) -> str:
        """The end of the load in words: its number of requests, its duration with the warm-up, or both."""
        ends = [counted(self.requests, "request")] if self.requests else []
        ends += [f"{self.total_s:.4g} s"] if math.isfinite(self.seconds) else []
        return " or ".join(ends)

    def lasting(self, seconds: float) -> "Load":
        """Return the load with the measured `seconds` that it took, if its requests alone limited it."""
        if math.isfinite(self.seconds):
            return self
        seconds = max(seconds, 1e-3)  # it may have been stopped in its warm-up
        return replace(self, seconds=seconds, profile=self.profile and self.profile.lasting(seconds))

    def users_of(self, index: int, processes: int) -> int:
        """Return the number of users of process number `index`."""
        return self._users_before(index + 1, processes) - self._users_before(index, processes)

    def requests_of(self, index: int, processes: int) -> int:
        """Return the share of a closed load's `requests` of process number `index`, in proportion to its users."""
        first, end = (self._users_before(each, processes) * self.requests // self.users for each in (index, index + 1))
        return end - first

    def _users_before(self, index: int, processes: int) -> int:
        each, more = divmod(self.users, processes)
        return index * each + min(index, more)

    @property
    def offered_per_s(self) -> float | None:
        """The mean rate of an open load in the measured time, in requests per second; None for a closed load."""
        if self.trace:
            return sum(instant >= self.warm_up_s for instant in self.trace) / self.seconds
        return None if self.profile is None else self.profile.mean_per_s

    def instants(self, index: int = 0, processes: int = 1) -> Iterator[float]:
        """Yield every `processes`-th arrival time from `index` on, in seconds from the start of the warm-up.

        Together, the processes send the whole load. It is the same for any number of processes.
        """
        number = index
        for chunk in self._chunks():
            yield from chunk[number::processes].tolist()
            number = (number - len(chunk)) % processes

    def _chunks(self) -> Iterator[Instants]:
        """Yield the arrival times up to the last of `requests` measured arrivals."""
        left = self.requests or math.inf
        for chunk in self._planned_chunks():
            first = int(np.searchsorted(chunk, self.warm_up_s))
            if len(chunk) - first >= left:
                yield chunk[: first + int(left)]
                return
            left -= len(chunk) - first
            yield chunk

    def _planned_chunks(self) -> Iterator[Instants]:
        if self.profile is None:
            yield np.asarray(self.trace)
            return
        profile = self.profile.after(self.warm_up_s)
        for unit in unit_arrivals(self.process, self.seed, self.burst):
            yield profile.instants(unit)
            if unit[-1] >= profile.requests:
                return

    def __str__(self) -> str:
        if self.users:
            think = f", {self.think}" if self.think else ""
            return f"{self.users} user{'s' if self.users > 1 else ''}{think}"
        if self.trace:
            return counted(len(self.trace), "recorded arrival")
        return f"{self.profile} requests/s, {self.process}"

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """Return a document for `from_wire`, which JSON or msgpack can encode."""
        return asdict(self)

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> Self:
        """Return the load that `to_wire` encoded."""
        profile = document["profile"]
        if profile is not None:
            profile = RateProfile(tuple(Segment(**segment) for segment in profile["segments"]))
        return cls(
            **{
                **document,
                "profile": profile,
                "trace": tuple(document["trace"]),
                "limits_us": tuple(document["limits_us"]),
                "think": document["think"] and ThinkTime(**document["think"]),
            }
        )
