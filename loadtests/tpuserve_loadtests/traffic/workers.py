"""Several processes, here or on other machines, that share every load; over Locust's own transport between workers.

The coordinator measures nothing: it tells workers what to send and where to, and merges what they recorded.
"""

import logging
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import gevent
from gevent.event import Event
from gevent.queue import Empty, Queue
from locust.exception import RPCError
from locust.rpc import Message, zmqrpc

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder
from tpuserve_loadtests.traffic.engine import STOP_MARGIN_S, TICK_S, Target, Watch
from tpuserve_loadtests.traffic.target_wire import target_to_wire

LOCAL: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
_REPORT_TIMEOUT_S: Final = 30.0
_END_S: Final = 5.0


class WorkersFailed(RuntimeError):
    """Workers did not come, or went while a load ran."""


class CannotListen(RuntimeError):
    """The coordinator has no address at which workers would find it."""


@dataclass(frozen=True, slots=True)
class Crew:
    """How many processes are started here, how many come from elsewhere, and where these find the coordinator."""

    local: int
    remote: int = 0
    host: str = LOCAL
    port: int = 0  # any free one


class Workers:
    """Use it in a `with` statement, as Engine: the same loads, run by all workers together."""

    def __init__(self, target: Target, crew: Crew) -> None:
        """Block until all workers are there. Raises CannotListen and WorkersFailed."""
        logging.basicConfig(level=logging.ERROR)  # Locust logs its own warnings to the root logger
        self.interrupted = Event()
        self._target = target
        self.lines = tuple(line.name for line in target.workload.lines)
        self._names: list[str] = []
        self._inbox: Queue[tuple[str, Message]] = Queue()
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._server = _listen(crew)
            stack.callback(self._server.close, linger=500)
            receiver = gevent.spawn(self._receive)
            stack.callback(receiver.kill)
            self._processes = [self._start(stack) for _ in range(crew.local)]
            stack.callback(self._tell_all, "quit")
            self._welcome(crew.local + crew.remote)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, load: Load, watch: Watch) -> Measured:
        """As Engine's."""
        started_at = time.time()
        self._tell_all("load", load.to_wire())
        reports: dict[str, dict[str, Any]] = {}  # what Measured.to_wire made
        counts = dict.fromkeys(self._names, Counts())
        start_s, stopped = time.perf_counter(), ""
        limit_s = load.total_s + self._target.timeout_s + STOP_MARGIN_S + _REPORT_TIMEOUT_S
        while len(reports) < len(self._names):
            elapsed_s = time.perf_counter() - start_s
            reason = watch(min(elapsed_s, load.total_s), sum(counts.values(), Counts()))
            if not stopped and (stopped := "stopped early" if self.interrupted.is_set() else reason):
                self._tell_all("stop")
            self._check(elapsed_s < limit_s)
            for name, message in self._messages():
                if message.type == "measured":
                    reports[name] = message.data
                elif message.type == "counts":
                    counts[name] = Counts(message.data[0], message.data[1], tuple(message.data[2]), message.data[3])
        return replace(self._merged(load, reports, stopped), started_at=started_at)

    def _merged(self, load: Load, reports: dict[str, dict[str, Any]], stopped: str) -> Measured:
        recorder = Recorder(self.lines, load)
        for report in reports.values():
            recorder.add_wire(report["recorder"])
        spans_s = [report["span_s"] for report in reports.values()]
        cores = tuple(report["cores"] for report in reports.values())
        return Measured(load, recorder, max(spans_s), cores, stopped)

    def _welcome(self, expected: int) -> None:
        until_s = time.perf_counter() + START_TIMEOUT_S
        while len(self._names) < expected:
            self._check(time.perf_counter() < until_s)
            for name, message in self._messages():
                if message.type == "ready" and name not in self._names:
                    self._names.append(name)
        target = target_to_wire(self._target)
        for index, name in enumerate(self._names):
            self._server.send_to_client(Message("target", {**target, "share": [index, expected]}, name))

    def _messages(self) -> list[tuple[str, Message]]:
        found = []
        try:
            found.append(self._inbox.get(timeout=TICK_S))
            while True:
                found.append(self._inbox.get_nowait())
        except Empty:
            return found

    def _check(self, in_time: bool) -> None:
        dead = [process for process in self._processes if process.poll() is not None]
        if dead:
            raise WorkersFailed(f"a worker of the load generator ended with exit code {dead[0].returncode}")
        if not in_time:
            raise WorkersFailed(f"{len(self._names)} workers of the load generator came, and not all of them answer")

    def _tell_all(self, kind: str, data: object = None) -> None:
        for name in self._names:
            self._server.send_to_client(Message(kind, data, name))

    def _receive(self) -> None:
        while True:
            self._inbox.put(self._server.recv_from_client())

    def _start(self, stack: ExitStack) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tpuserve_loadtests.traffic.worker", LOCAL, str(self._server.port)]
        # Its input ends when this process does; in a session of its own, Ctrl-C reaches the coordinator alone.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        stack.callback(_end, process)
        return process


def _listen(crew: Crew) -> "zmqrpc.Server":
    try:
        return zmqrpc.Server(crew.host, crew.port)
    except RPCError as error:
        raise CannotListen(f"nobody can listen at {crew.host}:{crew.port}: {error}") from None


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
