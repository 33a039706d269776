"""Sequential loads in this process, one at a time.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import gc
import resource
import time
from typing import Final, Self

import gevent
from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.answers import AnswerChecks
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.traffic.senders import Connections
from tpuserve_loadtests.traffic.target import STOP_MARGIN_S, TICK_S, Target, Watch
from tpuserve_loadtests.traffic.traffic import Traffic

_SCHEDULE_GRACE_S: Final = 1.0


class Engine:
    """Runner for use in a `with` statement, with persistent connections. Belongs to the main greenlet."""

    def __init__(self, target: Target, share: tuple[int, int] = (0, 1)) -> None:
        """Set up the process for part `share[0]`, counted from 0, of `share[1]` parts of each load."""
        _allow_many_connections()
        _keep_modules_out_of_collections()
        self._share = share
        self._counted = target.workload.counted
        self._order = target.workload.order
        self._checks = target.checks
        index, processes = share
        own = target.connections and max(len(range(index, target.connections, processes)), 1)
        self._connections = Connections(target.addresses, target.access, target.timeout_s, own, target.replicas)
        self._senders = tuple(self._connections.sender(line) for line in target.workload.lines)
        self._timeout_s = target.timeout_s
        self.interrupted, self.hurried = Event(), Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    def run(self, load: Load, watch: Watch, start_s: float | None = None) -> Measured:
        """Run a load, and block until its last response arrives, or until `watch` or Ctrl-C stops it.

        The load starts at `start_s` of `time.perf_counter`, or at once.
        """
        self._connections.open()
        recorder = Recorder(self._counted, load)
        index, processes = self._share
        users = 1 if load.is_open else load.users_of(index, processes)
        checks = AnswerChecks([sender.line for sender in self._senders], self._checks, load.seed + index)
        traffic = Traffic(load, self._senders, recorder, checks, order=self._order, share=self._share, start_s=start_s)
        started_at, cpu_start_s = time.time(), time.process_time()
        greenlets = [gevent.spawn(traffic.drive) for _ in range(users)]
        if not users:
            traffic.landed.set()
        stopped = self._wait(traffic, load, watch)
        # The same instant ends the schedule and the measured time, so that the arrivals after it do not count.
        elapsed_s = traffic.end_schedule()
        cores = (time.process_time() - cpu_start_s) / elapsed_s
        if load.is_open:
            # Give a late dispatcher some time, because arrivals can be due while `watch` runs. Requests that the
            # dispatcher still has not sent count as dropped.
            gevent.wait([traffic.dispatched, self.hurried], timeout=_SCHEDULE_GRACE_S, count=1)
        traffic.stop()
        self._land(traffic)
        landed_s = time.perf_counter() - traffic.start_s
        gevent.killall(greenlets)
        if self.hurried.is_set():
            stopped = stopped or INTERRUPTED
        span_s = min(elapsed_s - load.warm_up_s, load.seconds) if stopped else load.seconds
        if load.requests:
            span_s = landed_s - load.warm_up_s
        span_s = max(span_s, 0.0)
        return Measured(load.lasting(span_s), recorder, span_s, (cores,), stopped, started_at)

    def _wait(self, traffic: Traffic, load: Load, watch: Watch) -> str:
        """Wait until the load's time is up, or its requests are answered.

        Return a reason if the wait ended early, or an empty string.
        """
        while (elapsed_s := max(time.perf_counter() - traffic.start_s, 0)) < load.total_s:
            if reason := watch(elapsed_s, traffic.recorder.counts()):
                return reason
            ends = [self.interrupted, traffic.landed] if load.requests else [self.interrupted]
            gevent.wait(ends, timeout=min(TICK_S, load.total_s - elapsed_s), count=1)
            if self.interrupted.is_set():
                return INTERRUPTED
            if load.requests and traffic.landed.is_set():
                break
        return ""

    def _land(self, traffic: Traffic) -> None:
        gevent.wait([traffic.landed, self.hurried], timeout=self._timeout_s + STOP_MARGIN_S, count=1)
        if not traffic.landed.is_set():
            traffic.give_up(self._timeout_s)


def _keep_modules_out_of_collections() -> None:
    """Exclude the objects so far from garbage collection.

    They are mostly imported modules, which are never garbage. A full collection of them takes 20 ms or more, and would
    add this to the latency of every request in flight.
    """
    gc.collect()
    gc.freeze()


def _allow_many_connections() -> None:
    """Raise the limit of open files, because REST needs a connection for each request in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
