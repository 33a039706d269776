"""A load: how requests come, and for how long. Plain values throughout, so that it can be sent to other machines."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from tpuserve_loadtests.arrivals.process import BURST, Process, unit_arrivals
from tpuserve_loadtests.arrivals.rate_profile import Instants, RateProfile, Segment

SEED = 20


@dataclass(frozen=True, slots=True)
class Load:
    """`seconds` are measured; the `warm_up_s` before them are not.

    Closed (`users` > 0): each user sends its next request as soon as the last is answered. Open (`users` = 0): requests
    come as `profile` and `process` say, or at the instants of `trace` (seconds from the start), whatever is answered.
    `limits_us`: latencies that must not be exceeded often; how many do is counted while the load runs.
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

    @property
    def is_open(self) -> bool:
        """Whether requests come by a schedule."""
        return not self.users

    @property
    def total_s(self) -> float:
        """With the warm-up."""
        return self.warm_up_s + self.seconds

    @property
    def offered_per_s(self) -> float | None:
        """The mean rate of an open load while it is measured; None for a closed one."""
        if self.trace:
            return sum(instant >= self.warm_up_s for instant in self.trace) / self.seconds
        return None if self.profile is None else self.profile.mean_per_s

    def instants(self, index: int = 0, processes: int = 1) -> Iterator[float]:
        """When requests are due, in seconds from the start of the warm-up: every `processes`-th, from `index` on.

        The shares of all processes are the whole load, which does not depend on how many there are.
        """
        number = index
        for chunk in self._chunks():
            yield from chunk[number::processes].tolist()
            number = (number - len(chunk)) % processes

    def _chunks(self) -> Iterator[Instants]:
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
            return f"{self.users} user{'s' if self.users > 1 else ''}"
        if self.trace:
            return f"{len(self.trace):,} recorded arrivals"
        return f"{self.profile} requests/s, {self.process}"

    def to_wire(self) -> dict[str, Any]:  # plain values of several types
        """What `from_wire` reads, for JSON or msgpack."""
        return asdict(self)

    @classmethod
    def from_wire(cls, document: dict[str, Any]) -> Self:
        """The load of `to_wire`."""
        profile = document["profile"]
        if profile is not None:
            profile = RateProfile(tuple(Segment(**segment) for segment in profile["segments"]))
        return cls(
            **{
                **document,
                "profile": profile,
                "trace": tuple(document["trace"]),
                "limits_us": tuple(document["limits_us"]),
            }
        )
