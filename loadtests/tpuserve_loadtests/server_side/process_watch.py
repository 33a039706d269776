"""Periodic samples of the server's processes during a load.

The process must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import gevent
from gevent import get_hub
from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.server_side.process_use import ProcessTree, Sample
from tpuserve_loadtests.server_side.reading_times import reading_times


class ProcessWatch:
    """Sampler of processes. It reads them in a thread outside of gevent, because many processes take milliseconds.

    `has_ended` is whether the processes had ended at the last sample.
    """

    def __init__(self, tree: ProcessTree) -> None:
        self.pids = tree.pids
        self.has_ended = False
        self._tree = tree

    @contextmanager
    def during(self, load: Load) -> Iterator[list[Sample]]:
        """Sample while the block runs the load: at the warm-up's end, periodically, and at the block's end.

        The list is complete after the block. It ends with the last sample before the processes ended.
        """
        samples: list[Sample] = []
        zero_s = time.perf_counter() + load.warm_up_s
        if not load.warm_up_s:
            self._sample(zero_s, samples)
        over = Event()
        greenlet = gevent.spawn(self._keep_sampling, zero_s, load, samples, over)
        try:
            yield samples
        finally:
            over.set()
            greenlet.join()
            self._sample(zero_s, samples)

    def memory_bytes(self) -> float | None:
        """Return the current resident memory of all processes in bytes, or None if they ended."""
        sample = self._read(0.0)
        return None if sample is None else sample.memory_bytes

    def _keep_sampling(self, zero_s: float, load: Load, samples: list[Sample], over: Event) -> None:
        for _ in reading_times(zero_s, load, over, samples):
            self._sample(zero_s, samples)

    def _sample(self, zero_s: float, samples: list[Sample]) -> None:
        sample = self._read(time.perf_counter() - zero_s)
        self.has_ended = sample is None
        if sample is not None and (not samples or sample.at_s > samples[-1].at_s):
            samples.append(sample)

    def _read(self, at_s: float) -> Sample | None:
        pool: Any = get_hub().threadpool  # gevent's annotations omit it
        return cast("Sample | None", pool.apply(self._tree.sample, (at_s,)))
