"""Levels: memory, threads and descriptors of the server over the run, and whether they are level.

Only the second half of a run is judged. Caches, pools and the allocator fill in the first one, and the faults that end
the process that serves belong there, so that the second half has one process.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import psutil

from tests.soak.soaked_server import SoakedServer, Usage
from tpuserve_loadtests.statistics.trend import LEAST_VALUES, find_trend

# Shorter runs are noise: one load of a version takes as much memory as an hour of a small leak.
LEAST_JUDGED_S: Final = 240.0
_CONFIDENCE: Final = 0.999


@dataclass(frozen=True, slots=True)
class Sample:
    """The usage at a time of the monotonic clock. `worker` is the id of the process that serves, or 0."""

    at_s: float
    usage: Usage
    worker: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest growth of a figure over the second half that still counts as level.

    `share` is relative to the figure.
    """

    name: str
    unit: str
    growth: float
    share: float


# Memory: the second half publishes versions and sends bodies of 64 MiB, whose pages the allocator keeps in part. A leak
# of 1 KB for each request is 100 MB in half an hour at the default rate. Threads and descriptors: one for each fault of
# the second half would be dozens.
LIMITS: Final = (
    Limit("memory_mb", "MB", 24.0, 0.03),
    Limit("threads", "", 4.0, 0.0),
    Limit("descriptors", "", 8.0, 0.0),
)


class Verdict(StrEnum):
    """Whether a figure is level. UNKNOWN: the run is too short, or the process changed."""

    LEVEL = "level"
    GROWS = "grows"
    UNKNOWN = "not judged"


@dataclass(frozen=True, slots=True)
class Level:
    """A figure at the start, after a tenth of the run and at the end, and its trend in the second half."""

    name: str
    unit: str
    start: float
    tenth: float
    end: float
    per_hour: float | None
    limit_per_hour: float | None
    verdict: Verdict


class Sampler:
    """Samples a server at an interval until cancelled."""

    def __init__(self, server: SoakedServer, interval_s: float) -> None:
        """Sample nothing before `run`."""
        self._server = server
        self._interval_s = interval_s
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.take()
            await asyncio.sleep(self._interval_s)

    def take(self) -> None:
        """Take a sample now."""
        worker = 0
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            worker = self._server.worker().pid
        self.samples.append(Sample(time.monotonic(), self._server.usage(), worker))


def judge(samples: Sequence[Sample]) -> list[Level]:
    """Judge each figure. `samples` are in order of time, and not empty."""
    first_s, last_s = samples[0].at_s, samples[-1].at_s
    tenth = next(one for one in samples if one.at_s >= first_s + (last_s - first_s) / 10)
    later = [one for one in samples if one.at_s >= (first_s + last_s) / 2]
    return [_judge(limit, samples[0], tenth, later) for limit in LIMITS]


def _judge(limit: Limit, first: Sample, tenth: Sample, later: Sequence[Sample]) -> Level:
    values = [_value(one, limit.name) for one in later]
    shown = (_value(first, limit.name), _value(tenth, limit.name), values[-1])
    half_s = later[-1].at_s - later[0].at_s
    trend = find_trend([one.at_s for one in later], values, _CONFIDENCE) if len(later) >= LEAST_VALUES else None
    if trend is None or half_s < LEAST_JUDGED_S / 2 or len({one.worker for one in later}) > 1:
        return Level(limit.name, limit.unit, *shown, None, None, Verdict.UNKNOWN)
    most = max(limit.growth, limit.share * values[0])
    grows = trend.rises and trend.slope * half_s > most
    per_hour, limit_per_hour = trend.slope * 3600, most / half_s * 3600
    return Level(limit.name, limit.unit, *shown, per_hour, limit_per_hour, Verdict.GROWS if grows else Verdict.LEVEL)


def _value(sample: Sample, name: str) -> float:
    return float(getattr(sample.usage, name))
