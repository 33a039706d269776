"""Several processes, local or remote, that share every load. They communicate over Locust's transport for workers.

The coordinator measures nothing. It sends the target and the loads to workers, and merges their records.
"""

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

import gevent
from gevent.event import Event
from gevent.queue import Empty, Queue
from locust.exception import RPCError
from locust.rpc import Message, zmqrpc

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder
from tpuserve_loadtests.traffic import heartbeats
from tpuserve_loadtests.traffic.heartbeats import Heartbeats, worker_name
from tpuserve_loadtests.traffic.target import STOP_MARGIN_S, TICK_S, Target, Watch


class Shares:
    def __init__(self, load: Load, lines: Sequence[str], workers: Sequence[str], start_s: float) -> None:
        self._load = load
        self._lines = lines
        self._start_s = start_s
        self._counts = dict.fromkeys(workers, Counts())
        self._reports: dict[str, dict[str, Any]] = {}  # as Worker sends them

    @property
    def elapsed_s(self) -> float:
        return max(time.perf_counter() - self._start_s, 0.0)

    @property
    def counts(self) -> Counts:
        return sum(self._counts.values(), Counts())

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(self._counts.keys() - self._reports.keys())

    def take(self, worker: str, kind: str, data: Any) -> None:  # noqa: ANN401  what msgpack makes
        if kind == "measured":
            self._reports[worker] = data
        elif kind == "counts":
            self._counts[worker] = Counts.from_wire(data)

    def measured(self, stopped: str, started_at: float, lost: tuple[str, ...]) -> Measured:
        """Merge all reports. Workers without a report count with zero cores."""
        recorder = Recorder(self._lines, self._load)
        for report in self._reports.values():
            recorder.add_wire(report["recorder"])
        span_s = max((report["span_s"] for report in self._reports.values()), default=0.0)
        cores = tuple(self._reports[name]["cores"] if name in self._reports else 0.0 for name in self._counts)
        return Measured(self._load.lasting(span_s), recorder, span_s, cores, stopped, started_at, lost)


LOCAL: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
_REPORT_TIMEOUT_S: Final = 30.0
_END_S: Final = 5.0
# Time for the workers to prepare a load before its common start.
_PREPARATION_S: Final = 0.25
# Exchanges with each worker to compare the clocks. The fastest one counts.
_EXCHANGES: Final = 8
_WORKER_GONE: Final = "stopped, because a worker of the load generator disconnected"


class WorkersFailed(RuntimeError):
    """Error for workers that did not start, or disappeared."""


class CannotListen(RuntimeError):
    """Error for a coordinator that cannot listen at its address."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The numbers of local and remote worker processes, and the coordinator's address for remote ones."""

    local: int
    remote: int = 0
    host: str = LOCAL
    port: int = 0  # any free port


class Workers:
    """Runner for use in a `with` statement, like Engine, with all workers together."""

    def __init__(self, target: Target, crew: Crew) -> None:
        """Block until all workers are connected. Raises CannotListen and WorkersFailed."""
        self.interrupted, self.hurried = Event(), Event()
        self._target = target
        self._counted = target.workload.counted
        self._expected = crew.local + crew.remote
        # Names for messages by names on the wire, in the order of shares.
        self._names: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._heartbeats = Heartbeats()
        self._inbox: Queue[tuple[str, Message]] = Queue()
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._server = _listen(crew)
            stack.callback(self._server.close, linger=500)
            stack.callback(gevent.killall, [gevent.spawn(self._receive), gevent.spawn(self._beat)])
            self._processes = [self._start(stack) for _ in range(crew.local)]
            stack.callback(self._broadcast, "quit")
            self._welcome()
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, load: Load, watch: Watch) -> Measured:
        """Run a load as Engine does. The loss of a worker ends it, with the other workers' records and the lost name.

        Raises WorkersFailed before any request if a worker lacks a file.
        """
        offsets_s = self._compare_clocks()
        start_s = time.perf_counter() + _PREPARATION_S
        shares = Shares(load, self._counted, tuple(self._names), start_s)
        started_at, stopped = time.time() + _PREPARATION_S, ""
        limit_s = load.total_s + self._target.timeout_s + STOP_MARGIN_S + _REPORT_TIMEOUT_S
        for name, offset_s in offsets_s.items():
            self._send(name, "load", {"load": load.to_wire(), "start_s": start_s + offset_s})
        while missing := shares.missing - self._lost.keys():
            self._find_lost(missing if shares.elapsed_s > limit_s else frozenset())
            reason = watch(min(shares.elapsed_s, load.total_s), shares.counts)
            if not stopped and (stopped := self._why_stop() or reason):
                self._broadcast("stop")
            if self.hurried.is_set():
                self._broadcast("hurry")
            for name, message in self._messages():
                shares.take(name, message.type, message.data)
        return shares.measured(stopped or self._why_stop(), started_at, tuple(self._lost.values()))

    def _compare_clocks(self) -> dict[str, float]:
        """Return by how much the clock of each worker is ahead of this process's, in seconds.

        Cristian's algorithm: the error is at most half the time of the fastest exchange. With a common start, the
        arrivals of the workers interleave as planned.
        """
        fastest = dict.fromkeys(self._names, (math.inf, 0.0))
        until_s = time.perf_counter() + START_TIMEOUT_S
        for _ in range(_EXCHANGES):
            self._broadcast("time", time.perf_counter())
            pending = set(self._names)
            while pending := pending - self._lost.keys():
                self._find_lost(frozenset(pending) if time.perf_counter() > until_s else frozenset())
                for name, message in self._messages():
                    if message.type == "time":
                        (sent_s, worker_s), now_s = message.data, time.perf_counter()
                        fastest[name] = min(fastest[name], (now_s - sent_s, worker_s - (sent_s + now_s) / 2))
                        pending.discard(name)
        return {name: offset_s for name, (_, offset_s) in fastest.items()}

    def _why_stop(self) -> str:
        if self._lost:
            return _WORKER_GONE
        return INTERRUPTED if self.interrupted.is_set() else ""

    def _welcome(self) -> None:
        until_s = time.perf_counter() + START_TIMEOUT_S
        while len(self._names) < self._expected:
            for name in self._heartbeats.gone():  # it connected early and left, so another worker replaces it
                self._heartbeats.forget(name)
                del self._names[name]
            ended = [process for process in self._processes if process.poll() is not None]
            if ended:
                raise WorkersFailed(f"A worker of the load generator ended with exit code {ended[0].returncode}")
            if time.perf_counter() > until_s:
                came = f"Only {len(self._names)} of {counted(self._expected, 'worker')} of the load generator connected"
                raise WorkersFailed(f"{came} within {START_TIMEOUT_S:g} s.")
            self._messages()
        target = self._target.to_wire()
        for index, name in enumerate(self._names):
            self._send(name, "target", {**target, "share": [index, self._expected]})

    def _find_lost(self, overdue: frozenset[str]) -> None:
        ended = {worker_name(process.pid) for process in self._processes if process.poll() is not None}
        gone = {name for name, shown in self._names.items() if shown in ended}
        for name in gone.union(self._heartbeats.gone(), overdue):
            self._heartbeats.forget(name)
            self._lost[name] = self._names[name]

    def _messages(self) -> list[tuple[str, Message]]:
        found = []
        try:
            found.append(self._inbox.get(timeout=TICK_S))
            while True:
                found.append(self._inbox.get_nowait())
        except Empty:
            for name, message in found:
                if message.type == "failed":
                    raise WorkersFailed(f"The worker on {self._names[name]} cannot join: {message.data}") from None
            return found

    def _broadcast(self, kind: str, data: object = None) -> None:
        for name in self._names:
            self._send(name, kind, data)

    def _send(self, name: str, kind: str, data: object) -> None:
        self._server.send_to_client(Message(kind, data, name))

    def _receive(self) -> None:
        while True:
            name, message = self._server.recv_from_client()
            if message.type == "ready":
                self._admit(name, message)
            elif name in self._names and name not in self._lost:  # ignore workers of an earlier coordinator
                self._heartbeats.hear(name)
                self._inbox.put((name, message))

    def _admit(self, name: str, message: Message) -> None:
        if len(self._names) == self._expected:
            self._send(name, "enough", None)
            return
        self._names[name] = str(message.data)
        self._heartbeats.hear(name)
        self._send(name, "alive", None)

    def _beat(self) -> None:
        while True:
            gevent.sleep(heartbeats.BEAT_S)
            self._broadcast("alive")
            self._heartbeats.beat()

    def _start(self, stack: ExitStack) -> "subprocess.Popen[bytes]":
        module = "tpuserve_loadtests.traffic.worker_process"
        command = [sys.executable, "-m", module, LOCAL, str(self._server.port)]
        # The worker's input ends with this process. In a separate session, Ctrl-C reaches only the coordinator.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        stack.callback(_end, process)
        return process


def _listen(crew: Crew) -> "zmqrpc.Server":
    try:
        return zmqrpc.Server(crew.host, crew.port)
    except RPCError as error:
        raise CannotListen(f"Cannot listen at {crew.host}:{crew.port}: {error}") from None


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
