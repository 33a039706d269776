"""Virtual time: the real batcher, its device thread and its runner, driven by a clock that jumps from event to event.

Time passes in two places only, both on the device thread: where it waits for a batch (`VirtualClock.wait_until`) and
where it waits for the device (`SimulatedRun.result`). What is due meanwhile, arrivals and timers, happens there too, so
that a run is the same every time and takes no longer than its Python.
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

from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.types import Signature, Tensors, TensorSpec

_Arguments = TypeVarTuple("_Arguments")
_Callback = Callable[..., object]


class VirtualClock:
    """A WaitingClock for one Batcher of one device thread. Before `run` and after it, everything belongs to the thread
    that made it; during it, to the device thread.
    """

    def __init__(self) -> None:
        """It is 0 s, and nothing is due."""
        self._now_s = 0.0
        self._events: list[tuple[float, int, _Callback, tuple[object, ...], asyncio.TimerHandle | None]] = []
        self._soon: deque[tuple[_Callback, tuple[object, ...]]] = deque()
        self._numbers = itertools.count()
        self._running = False
        self._condition: threading.Condition | None = None
        self._parked = threading.Event()
        self._error: BaseException | None = None

    def monotonic_s(self) -> float:
        """Seconds since the start."""
        return self._now_s

    def at(self, at_s: float, callback: _Callback, *args: object, handle: asyncio.TimerHandle | None = None) -> None:
        """Call back at `at_s`, or as soon as possible when that has passed; not if `handle` is cancelled by then."""
        heapq.heappush(self._events, (at_s, next(self._numbers), callback, args, handle))

    def soon(self, callback: _Callback, *args: object) -> None:
        """Call back when all that is due at this instant has happened, as a loop's next turn does."""
        self._soon.append((callback, args))

    def run(self) -> None:
        """Let everything that is due happen, and all that follows from it; blocks. The batcher is made by then.

        Raises whatever a callback raised.
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
        """As `WaitingClock.wait_until`: returns when something has woken a thread, or at `at_s`."""
        if self._running and not self._pass(at_s, until_woken=True):
            return
        # Nothing will ever come: let others at the condition, `Batcher.stop` among them.
        self._condition = condition
        self._parked.set()
        condition.wait()

    def pass_until(self, at_s: float) -> None:
        """Let time pass, as a device does that computes."""
        self._pass(at_s, until_woken=False)

    def _pass(self, at_s: float, *, until_woken: bool) -> bool:
        """Whether the end of time has come."""
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
            # Told by `run`: here it would be the batcher's, which must go on.
            self._error = error
            events.clear()
            soon.clear()
        if at_s == math.inf:
            return True
        self._now_s = max(self._now_s, at_s)
        return False

    def _happen(self) -> None:
        """All that is due at the next instant; nothing when callbacks wait for their turn at this one."""
        events = self._events
        if not events or (self._soon and events[0][0] > self._now_s):
            return
        self._now_s = max(self._now_s, events[0][0])
        while events and events[0][0] <= self._now_s:
            _, _, callback, args, handle = heapq.heappop(events)
            if handle is None or not handle.cancelled():
                callback(*args)


class VirtualLoop(asyncio.BaseEventLoop):
    """As much of an event loop as futures, the batcher and the service's timers ask for. It never runs itself."""

    def __init__(self, clock: VirtualClock) -> None:
        """Tell time by `clock`."""
        super().__init__()
        self._clock = clock
        self._handle = asyncio.Handle(print, (), self)

    def is_closed(self) -> bool:
        """There is nothing to close."""
        return True

    def get_debug(self) -> bool:
        """Futures ask; their creation is on the way of every request."""
        return False

    def time(self) -> float:
        """The virtual time."""
        return self._clock.monotonic_s()

    def call_soon(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """After what is due now. The context does not matter here, and the handle cancels nothing."""
        self._clock.soon(callback, *args)
        return self._handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """As `call_soon`: only the device thread calls."""
        return self.call_soon(callback, *args)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """At the virtual time `when`."""
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
    """A Servable that takes `cost_s(rows)` virtual seconds for each batch, one after the other, and hands x through."""

    clock: VirtualClock
    cost_s: Callable[[int], float]
    signatures: Mapping[str, Signature] = field(default_factory=lambda: {ROW_TO_ROW.name: ROW_TO_ROW})
    device: str = "simulated"
    max_in_flight: int = 1
    # When it has finished all it has begun.
    free_s: float = 0.0

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "SimulatedRun":
        """Begin when all that was handed in before has finished."""
        x = inputs["x"]
        self.free_s = max(self.free_s, self.clock.monotonic_s()) + self.cost_s(len(x))
        return SimulatedRun(self, {"y": x}, self.free_s)

    def close(self) -> None:
        """Nothing to give back."""


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
    """Takes every measurement and keeps none."""


SILENT_METRICS: Metrics = _SilentMetrics()  # type: ignore[abstract]  # the protocol's own methods do nothing
