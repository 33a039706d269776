"""Virtual time: the real batcher, its device thread and its runner, on a clock that jumps from event to event.

Time passes in only two places, both on the device thread: while it waits for a batch (`VirtualClock.wait_until`), and
while it waits for the device (`SimulatedRun.result`). Arrivals and timers due in that time run there too. A run is
therefore deterministic, and takes only the time of its Python code.
"""

import asyncio
import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeVarTuple, Unpack

import numpy as np

from tpuserve_server.core.batching.run_threads import RunThreads, Worker
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.terms.types import Signature, Tensors, TensorSpec

_Arguments = TypeVarTuple("_Arguments")
_Callback = Callable[..., object]


class VirtualClock:
    """A WaitingClock for one Batcher with one device thread.

    During `run`, the device thread owns all fields. Before and after it, the creating thread does.
    """

    def __init__(self) -> None:
        """Start at 0 s without events."""
        self._now_s = 0.0
        self._events: list[tuple[float, int, _Callback, tuple[object, ...], asyncio.TimerHandle | None]] = []
        self._soon: deque[tuple[_Callback, tuple[object, ...]]] = deque()
        self._numbers = itertools.count()
        self._running = False
        # Whether the device thread waits for the device.
        self.computes = False
        self._condition: threading.Condition | None = None
        self._parked = threading.Event()
        self._error: BaseException | None = None

    def monotonic_s(self) -> float:
        """Return the seconds since the start."""
        return self._now_s

    def at(self, at_s: float, callback: _Callback, *args: object, handle: asyncio.TimerHandle | None = None) -> None:
        """Call back at `at_s`, or as soon as possible if that has passed, unless `handle` is cancelled by then."""
        heapq.heappush(self._events, (at_s, next(self._numbers), callback, args, handle))

    def soon(self, callback: _Callback, *args: object) -> None:
        """Call back after everything due at this instant, like a loop's next iteration."""
        self._soon.append((callback, args))

    def run(self) -> None:
        """Run all due events and their consequences. Blocks. The batcher must exist already.

        Raises the exception of a callback.
        """
        if not self._parked.wait(10):
            raise RuntimeError("No device thread waits by this clock")
        assert self._condition is not None
        with self._condition:
            self._running = True
            self._parked.clear()
            self._condition.notify_all()
        self._parked.wait()
        self._running = False
        if self._error is not None:
            raise self._error

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        """Return when a thread is woken, or at `at_s`. See `WaitingClock.wait_until`."""
        if self._running and not self._pass(at_s, until_woken=True):
            return
        # No event is left. Release the condition for other threads, such as `Batcher.stop`.
        self._condition = condition
        self._parked.set()
        condition.wait()

    def pass_until(self, at_s: float) -> None:
        """Let time pass, like a computing device."""
        self.computes = True
        self._pass(at_s, until_woken=False)
        self.computes = False

    def _pass(self, at_s: float, *, until_woken: bool) -> bool:
        """Return whether no event is left."""
        events, soon = self._events, self._soon
        try:
            while soon or (events and events[0][0] <= at_s):
                self._happen()
                woken = bool(soon)
                while soon:
                    callback, args = soon.popleft()
                    callback(*args)
                if woken and until_woken:
                    return False
        except BaseException as error:
            # `run` raises it. If raised here, it would stop the batcher, which must continue.
            self._error = error
            events.clear()
            soon.clear()
        if at_s == math.inf:
            return True
        self._now_s = max(self._now_s, at_s)
        return False

    def _happen(self) -> None:
        """Run everything due at the next instant, or nothing if callbacks still wait at this instant."""
        events = self._events
        if not events or (self._soon and events[0][0] > self._now_s):
            return
        self._now_s = max(self._now_s, events[0][0])
        while events and events[0][0] <= self._now_s:
            _, _, callback, args, handle = heapq.heappop(events)
            if handle is None or not handle.cancelled():
                callback(*args)


class VirtualThreads(RunThreads):
    """The device thread of a VirtualClock. While it waits for the device, it runs other workers like callbacks.

    With real time, another thread of the pool runs them.
    """

    def __init__(self, clock: VirtualClock) -> None:
        """Start no thread before the batcher joins."""
        super().__init__(clock)
        self._virtual = clock

    def submit(self, worker: Worker) -> None:
        """Run a worker on the device thread."""
        if self._virtual.computes:
            self._virtual.soon(worker)
        else:
            super().submit(worker)


class VirtualLoop(asyncio.BaseEventLoop):
    """The part of an event loop that futures, the batcher and the service's timers use. It never runs itself."""

    def __init__(self, clock: VirtualClock) -> None:
        """Use the time of `clock`."""
        super().__init__()
        self._clock = clock
        self._handle = asyncio.Handle(print, (), self)

    def is_closed(self) -> bool:
        """Return True, because there is nothing to close."""
        return True

    def get_debug(self) -> bool:
        """Return False. Every request creates a future, which calls this."""
        return False

    def time(self) -> float:
        """Return the virtual time."""
        return self._clock.monotonic_s()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call back after everything due now. Ignores the context, and the handle cannot cancel."""
        self._clock.soon(callback, *args)
        return self._handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call back like `call_soon`, because only the device thread calls this."""
        return self.call_soon(callback, *args)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at the virtual time `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self)
        self._clock.at(when, callback, *args, handle=handle)
        return handle


FLOAT = np.dtype(np.float32)
ROW_TO_ROW = Signature(
    name="serving_default",
    inputs={"x": TensorSpec("x", FLOAT, (None, 1), "x:0")},
    outputs={"y": TensorSpec("y", FLOAT, (None, 1), "y:0")},
    method_name="tensorflow/serving/predict",
)


@dataclass
class SimulatedDevice:
    """A Servable that runs batches in sequence, each in `cost_s(rows)` virtual seconds, and returns x unchanged."""

    clock: VirtualClock
    cost_s: Callable[[int], float]
    signatures: Mapping[str, Signature] = field(default_factory=lambda: {ROW_TO_ROW.name: ROW_TO_ROW})
    device: str = "simulated"
    unrepeatable: str = ""
    never_blocks: bool = False
    max_in_flight: int = 1
    # Time at which all dispatched batches have finished.
    free_s: float = 0.0

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "SimulatedRun":
        """Start after all earlier dispatches have finished."""
        x = inputs["x"]
        self.free_s = max(self.free_s, self.clock.monotonic_s()) + self.cost_s(len(x))
        return SimulatedRun(self, {"y": x}, self.free_s)

    def close(self) -> None:
        """Release nothing."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A batch on the simulated device."""

    device: SimulatedDevice
    outputs: Tensors
    finish_s: float

    def result(self) -> Tensors:
        """Let time pass until the device has finished."""
        self.device.clock.pass_until(self.finish_s)
        return self.outputs


class _SilentMetrics(Metrics):
    """Metrics that ignore every measurement."""


SILENT_METRICS: Metrics = _SilentMetrics()  # type: ignore[abstract]  # the protocol's own methods do nothing
