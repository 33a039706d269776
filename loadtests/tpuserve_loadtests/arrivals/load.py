"""Loads: the rates and times at which requests arrive, and the duration. They are plain values, for other machines."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.duration import ThinkTime

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
        return self.seconds * (self.start_per_s + self.end_per_s) / 2

    def instants(self, requests: Instants) -> Instants:
        """Return the times at which the mean number of arrivals reaches each of `requests`, in seconds."""
        slope = (self.end_per_s - self.start_per_s) / self.seconds
        root = self.start_per_s + np.sqrt(np.maximum(self.start_per_s**2 + 2 * slope * requests, 0))
        return np.divide(2 * requests, root, out=np.zeros_like(requests), where=root > 0)


@dataclass(frozen=True, slots=True)
class RateProfile:
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
        return len({rate for each in self.segments for rate in (each.start_per_s, each.end_per_s)}) == 1

    @property
    def requests(self) -> float:
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


Process: TypeAlias = Literal["poisson", "constant", "bursts"]

PROCESSES: Final[tuple[Process, ...]] = get_args(Process)
BURST: Final = 10
_CHUNK: Final = 4096


def unit_arrivals(process: Process, seed: int, burst: int = BURST) -> Iterator[Instants]:
    """Yield arrays of ascending arrival times, in seconds.

    Bursts are groups of `burst` simultaneous requests. The groups arrive at random times.
    """
    random = np.random.default_rng(seed)
    now = 0.0
    while True:
        if process == "constant":
            yield now + np.arange(_CHUNK, dtype=np.float64)
            now += _CHUNK
            continue
        size = burst if process == "bursts" else 1
        instants = now + np.cumsum(random.exponential(size, _CHUNK))
        now = float(instants[-1])
        yield np.repeat(instants, size)


SEED = 20


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `seconds` measured seconds after an unmeasured warm-up of `warm_up_s`.

    Closed load (`users` > 0): each user sends its next request as soon as the server answers the previous one, or after
    the pause `think`. Open load (`users` = 0): requests arrive by `profile` and `process`, or at the times in `trace`
    (seconds from the start), regardless of responses. `requests` is the largest number of measured requests, or 0 for
    any number. With it, `seconds` can be infinite. `limits_us` holds latency limits in microseconds. While the load
    runs, the load generator counts the requests that exceed each limit. `origin` describes a rate that no option set.
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
    origin: str = ""

    @property
    def is_open(self) -> bool:
        return not self.users

    @property
    def is_level(self) -> bool:
        """Whether the load is the same all the time, so that changes of the figures have another reason."""
        return not self.trace and (self.profile is None or self.profile.is_level)

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

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps of a stepped rate, such as `200/s`; empty for another load."""
        segments = self.profile.segments if self.profile and not self.requests else ()
        is_stepped = len(segments) > 1 and all(each.start_per_s == each.end_per_s for each in segments)
        return tuple(f"{each.start_per_s:g}/s" for each in segments) if is_stepped else ()

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

    @property
    def note(self) -> str:
        """A note for verdicts: the limit of a closed load, or the origin of an open load's rate; empty for others."""
        if self.users:
            return f"closed load of {self}: hides stalls"
        return f"open load of {self.profile} requests/s: {self.origin}" if self.origin else ""

    def qualify(self, verdict: str) -> str:
        """Return the verdict with the note, because a closed load shows less."""
        return f"{verdict} ({self.note})" if self.note else verdict

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


class BadTrace(ValueError):
    """Error for a file that is not a valid arrival trace."""


def read_trace(path: Path, speed: float = 1.0) -> tuple[float, ...]:
    """Read arrival times in seconds after the first arrival, ascending and `speed` times as fast as recorded.

    `#` starts a comment. Raises BadTrace.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
        instants = np.array([float(line) for line in lines if line])
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    except ValueError as error:
        raise BadTrace(f"{path}: expected one arrival time in seconds per line; {error}") from None
    if len(instants) < 2 or not np.isfinite(instants).all():
        raise BadTrace(f"{path}: expected at least two arrival times in seconds")
    instants.sort()
    relative: list[float] = ((instants - instants[0]) / speed).tolist()
    if relative[-1] <= 0:
        raise BadTrace(f"{path}: all arrival times are equal")
    return tuple(relative)
