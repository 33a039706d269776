"""A worker process of the load generator, which sends its share of every load and reports to a coordinator.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import itertools
import time
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import gevent
from gevent.event import Event
from gevent.queue import Queue
from locust.rpc import Message, zmqrpc

from tpuserve_client.errors import InvalidArgument
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.recorder import Counts
from tpuserve_loadtests.traffic import heartbeats
from tpuserve_loadtests.traffic.engine import Engine
from tpuserve_loadtests.traffic.heartbeats import Heartbeats, worker_name
from tpuserve_loadtests.traffic.target import Target

_COORDINATOR: Final = "coordinator"
# A coordinator without a response after this many beats has not started yet.
_FIRST_BEATS: Final = 2


class CoordinatorGone(RuntimeError):
    """Error for a coordinator that disappeared, or needs no more workers."""


class CannotTakePart(RuntimeError):
    """Error for a file from the coordinator's options that is missing or invalid on this machine."""


class Worker:
    def __init__(self, host: str, port: int, on_progress: Callable[[str], None] = lambda words: None) -> None:
        self._name = uuid4().hex
        self._client = zmqrpc.Client(host, port, self._name)
        self._coordinator = Heartbeats()
        self._was_heard = False
        # Pending orders in sequence. None marks the end.
        self._orders: Queue[Message | None] = Queue()
        self._engine: Engine | None = None
        self._has_engine = Event()
        self._problem = ""
        self._on_progress = on_progress

    def serve(self) -> None:
        """Serve until the coordinator sends quit. Wait for it without a time limit.

        Raises:
            CoordinatorGone: the coordinator disappeared, or needs no more workers.
            CannotTakePart: a file is missing or invalid. The coordinator receives the message, too.
        """
        self._send("ready", worker_name())
        greenlets = [gevent.spawn(self._listen), gevent.spawn(self._beat)]
        try:
            if (target := self._orders.get()) is not None:
                self._obey(target)
        finally:
            gevent.killall(greenlets)
            self._client.close(linger=1000)
        if self._problem:
            raise CoordinatorGone(self._problem)

    def _obey(self, target: Message) -> None:
        with self._made(target) as engine:
            self._engine = engine
            self._has_engine.set()
            while (order := self._orders.get()) is not None:
                measured = engine.run(Load.from_wire(order.data["load"]), self._watch, order.data["start_s"])
                report = {"recorder": measured.recorder.to_wire(), "span_s": measured.span_s}
                self._send("measured", {**report, "cores": measured.cores[0]})

    def _made(self, target: Message) -> Engine:
        try:
            return Engine(Target.from_wire(target.data), share=tuple(target.data["share"]))
        except InvalidArgument as error:
            self._send("failed", error.message)
            raise CannotTakePart(error.message) from None

    def _watch(self, _: float, counts: Counts) -> str:
        self._send("counts", counts.to_wire())
        return ""

    def _listen(self) -> None:
        while True:
            message = self._client.recv()
            self._coordinator.hear(_COORDINATOR)
            if not self._was_heard:
                self._was_heard = True
                self._on_progress("Connected")
            match message.type:
                case "target":
                    self._orders.put(message)
                    self._has_engine.wait()  # later messages refer to the engine
                case "load":
                    self._begin_load(message)
                case "time":
                    self._send("time", [message.data, time.perf_counter()])
                case "stop":
                    self._end_load()
                case "hurry":
                    self._end_load(hurried=True)
                case "enough":
                    self._end("it needs no more workers (--remote)")
                case "quit":
                    self._end()

    def _beat(self) -> None:
        for beats in itertools.count(1):
            gevent.sleep(heartbeats.BEAT_S)
            if self._was_heard:
                self._send("alive")
            elif beats == _FIRST_BEATS:
                self._on_progress("Waiting for `tpuserve loadtest run --remote`; press Ctrl-C to stop")
            self._coordinator.beat()
            if self._coordinator.gone():
                self._end(f"disconnected, without a message for {heartbeats.PATIENCE_BEATS * heartbeats.BEAT_S:g} s")
                return

    def _begin_load(self, order: Message) -> None:
        if self._engine is not None:
            # Clear the events here, in message order, so that a following stop applies to this load.
            self._engine.interrupted.clear()
            self._engine.hurried.clear()
            self._orders.put(order)

    def _end(self, problem: str = "") -> None:
        self._problem = problem
        self._orders.put(None)
        self._end_load(hurried=True)

    def _end_load(self, *, hurried: bool = False) -> None:
        if self._engine is not None:
            self._engine.interrupted.set()
            if hurried:
                self._engine.hurried.set()

    def _send(self, kind: str, data: object = None) -> None:
        self._client.send(Message(kind, data, self._name))
