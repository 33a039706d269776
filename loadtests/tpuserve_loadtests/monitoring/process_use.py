"""CPU and memory of processes on this machine, with their child processes, from samples during loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil
from gevent import get_hub


class NoProcess(ValueError):
    """Error for a process that does not run on this machine, or that another user hides."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The processes at `at_s` seconds after the start of the measured time.

    `cpu_s` is their CPU time since their start. `memory_bytes` is the sum of their resident memory. It counts a page in
    each process that shares it.
    """

    at_s: float
    cpu_s: float
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class ProcessMoment:
    """Cores in use during `seconds` from `at_s` on, and the resident memory at their end, in bytes."""

    at_s: float
    seconds: float
    cpu_cores: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """CPU and memory of processes in the measured part of one or more runs.

    `processes` is the largest number of processes, with child processes. `memory_bytes` is the resident memory at the
    end of the last run. Several runs have no timeline.
    """

    pids: tuple[int, ...]
    processes: int
    seconds: float
    cpu_cores: float
    memory_bytes: int
    peak_memory_bytes: int
    timeline: tuple[ProcessMoment, ...]


class ProcessTree:
    """Processes of this machine. `has_ended` is whether all of them had ended at the last reading."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Find the processes. Raises NoProcess."""
        self.pids = tuple(dict.fromkeys(pids))
        self.has_ended = False
        self._roots = [_find(pid) for pid in self.pids]

    def add_sample(self, at_s: float, samples: list[Sample]) -> None:
        """Add a sample, unless the processes ended."""
        sample = self.read(at_s)
        if sample is not None and (not samples or sample.at_s > samples[-1].at_s):
            samples.append(sample)

    def read(self, at_s: float) -> Sample | None:
        """Return a sample from a thread outside of gevent, because many processes take milliseconds."""
        pool: Any = get_hub().threadpool  # gevent's annotations omit it
        sample: Sample | None = pool.apply(self.sample, (at_s,))
        self.has_ended = sample is None
        return sample

    def sample(self, at_s: float) -> Sample | None:
        """Read CPU and memory of all processes now, or return None if all the given processes ended.

        Blocks for milliseconds if there are many processes. A process keeps the CPU time of its ended and awaited child
        processes, so their time is not lost.
        """
        found: dict[int, psutil.Process] = {}
        for root in self._roots:
            try:
                if root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
                    found |= {each.pid: each for each in (root, *root.children(recursive=True))}
            except psutil.NoSuchProcess:
                continue
        cpu_s, memory_bytes, processes = 0.0, 0, 0
        for process in found.values():
            try:
                with process.oneshot():
                    cpu_s += sum(process.cpu_times()[:4])  # user and system, of itself and of ended child processes
                    memory_bytes += process.memory_info().rss
            except psutil.Error:  # it ended meanwhile, or belongs to another user
                continue
            processes += 1
        return Sample(at_s, cpu_s, memory_bytes, processes) if processes else None


def read_use(pids: Sequence[int], samples: Sequence[Sample]) -> ProcessUse | None:
    """Return the use between the first sample, at the end of the warm-up, and the last; None for fewer than two."""
    if len(samples) < 2:
        return None
    timeline = tuple(
        ProcessMoment(earlier.at_s, later.at_s - earlier.at_s, _cores(earlier, later), later.memory_bytes)
        for earlier, later in pairwise(samples)
    )
    return ProcessUse(
        pids=tuple(pids),
        processes=max(sample.processes for sample in samples),
        seconds=samples[-1].at_s - samples[0].at_s,
        cpu_cores=_cores(samples[0], samples[-1]),
        memory_bytes=samples[-1].memory_bytes,
        peak_memory_bytes=max(sample.memory_bytes for sample in samples),
        timeline=timeline,
    )


def join_uses(uses: Sequence[ProcessUse]) -> ProcessUse | None:
    """Combine the use in several runs. Return None without any."""
    if len(uses) <= 1:
        return next(iter(uses), None)
    seconds = sum(use.seconds for use in uses)
    return ProcessUse(
        pids=uses[-1].pids,
        processes=max(use.processes for use in uses),
        seconds=seconds,
        cpu_cores=sum(use.cpu_cores * use.seconds for use in uses) / seconds,
        memory_bytes=uses[-1].memory_bytes,
        peak_memory_bytes=max(use.peak_memory_bytes for use in uses),
        timeline=(),
    )


def _find(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        raise NoProcess(f"No process with id {pid} runs on this machine.") from None


def _cores(earlier: Sample, later: Sample) -> float:
    # A process whose parent ended first takes its CPU time with it.
    return max(later.cpu_s - earlier.cpu_s, 0.0) / (later.at_s - earlier.at_s)
