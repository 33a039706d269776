"""Sequential loads with Locust in this process: its runner, users and events.

This module imports Locust: see gevent_setup.
"""

import gc
import logging
import resource
import time
from typing import Any, ClassVar, Final, Self

import gevent
from gevent.event import Event
from locust import User
from locust.env import Environment
from locust.exception import StopUser

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.answers import AnswerChecks
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.workload import Line
from tpuserve_loadtests.traffic.senders import Connections
from tpuserve_loadtests.traffic.target import STOP_MARGIN_S, TICK_S, Target, Watch
from tpuserve_loadtests.traffic.traffic import Traffic

_SCHEDULE_GRACE_S: Final = 1.0


class Engine:
    """Runner for use in a `with` statement, with persistent connections. Belongs to the main greenlet."""

    def __init__(self, target: Target, share: tuple[int, int] = (0, 1)) -> None:
        """Set up the process for part `share[0]`, counted from 0, of `share[1]` parts of each load."""
        logging.basicConfig(level=logging.ERROR)  # Locust logs its own warnings to the root logger
        _allow_many_connections()
        _keep_modules_out_of_collections()
        self._share = share
        self.lines = tuple(line.name for line in target.workload.lines)
        self._counted = target.workload.counted
        self._order = target.workload.order
        self._checks = target.checks
        index, processes = share
        own = target.connections and max(len(range(index, target.connections, processes)), 1)
        self._connections = Connections(target.addresses, target.access, target.timeout_s, own, target.replicas)
        self._senders = tuple(self._connections.sender(line) for line in target.workload.lines)
        self._traffic: Traffic | None = None
        self._timeout_s = target.timeout_s
        self._stop_s = self._timeout_s + STOP_MARGIN_S
        self._environment = Environment(user_classes=[self._user_class()], stop_timeout=self._stop_s)
        self._runner = self._environment.create_local_runner()
        self.interrupted, self.hurried = Event(), Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.quit()
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
        self._traffic = traffic = Traffic(
            load,
            self._senders,
            recorder,
            self._fire,
            checks,
            order=self._order,
            share=self._share,
            start_s=start_s,
        )
        started_at, cpu_start_s = time.time(), time.process_time()
        if users:
            self._runner.start(users, spawn_rate=users)
        else:
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
        self._runner.stop()
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
        gevent.wait([traffic.landed, self.hurried], timeout=self._stop_s, count=1)
        self._environment.stop_timeout = self._stop_s
        if not traffic.landed.is_set():
            traffic.give_up(self._timeout_s)
        if not traffic.landed.is_set() or traffic.is_pausing:
            self._environment.stop_timeout = 0  # users are killed while they wait

    def _fire(self, line: Line, latency_ms: float, length: int, error: Exception | None) -> None:
        self._environment.events.request.fire(
            request_type=protocols.TITLES[line.protocol],
            name=line.name,
            response_time=latency_ms,
            response_length=length,
            response=None,
            context={},
            exception=error,
        )

    def _user_class(self) -> type[Any]:  # Locust ships no annotations
        def drive(_: object) -> None:
            assert self._traffic is not None  # users are started by `run` alone
            self._traffic.drive()
            raise StopUser

        class Predict(User):  # type: ignore[misc]  # Locust ships no annotations
            tasks: ClassVar = [drive]

        return Predict


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
