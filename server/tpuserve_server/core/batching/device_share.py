"""DeviceShare: decides whose batch runs next if more batches are ready than a device runs at a time.

It uses start-time fair queuing (Goyal, Vin and Cheng, SIGCOMM 1996) between models. A model's virtual time is the
device time that it has used, divided by its weight. The next slot goes to the waiting model with the least virtual
time. A model that was idle starts at the current virtual time of the device, without credit or debt.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tpuserve_server.core.terms.deadline import Clock, SystemClock
from tpuserve_server.core.terms.types import ServableId


class _Model:
    """The state of one model on a device, for all its versions together."""

    __slots__ = ("slots", "virtual_s", "waiting", "weight", "weights")

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self.slots = 0
        self.waiting: deque[Turn] = deque()
        self.weight = 1.0
        # The weight of each version that has joined, in order. A version is in it twice while a hung batcher keeps an
        # old copy.
        self.weights: list[tuple[int, float]] = []


class BusyTimes(NamedTuple):
    """Seconds in which any model had a slot, and the sum over models of the seconds in which each had one."""

    any_s: float
    models_s: float


class DeviceShare:
    """The slots of a device: the batches that it runs at a time. Thread-safe: `_lock` guards all state.

    No thread waits for a slot: a turn in line is called. It gives up its slot before it lines up. No slot is free while
    a turn waits. Slots pass directly from turn to turn, so that a later turn cannot take one in between.
    """

    def __init__(self, slots: int, *, only_weighted: bool = False, clock: Clock | None = None) -> None:
        """Share `slots` slots, at least 1. With `only_weighted` there is no limit while all weights are equal."""
        # The share of event loops that run batches themselves.
        self.loops = LoopShare()
        self._lock = threading.Lock()
        self._limit = slots
        self._only_weighted = only_weighted
        self._slots = float(slots)
        self._used = 0
        self._clock = clock or SystemClock()
        # The models with a slot, since `_changed_s`, and the seconds before that.
        self._busy = 0
        self._changed_s = 0.0
        self._any_s = self._models_s = 0.0
        self._models: dict[str, _Model] = {}
        # Waiting models, ordered by the time since each last got a slot, the longest first.
        self._waiting: list[_Model] = []
        # Virtual time of the device: that of the model that got the latest slot, at that moment.
        self._virtual_s = 0.0
        # Largest virtual time of any model.
        self._furthest_s = 0.0

    def join(self, servable_id: ServableId, weight: float) -> None:
        """Add a version. All versions of a model have one share together, with the weight of the latest version."""
        with self._lock:
            model = self._models.setdefault(servable_id.name, _Model())
            model.weights.append((servable_id.version, weight))
            model.weight = weight
            self._set_slots()

    def leave(self, servable_id: ServableId) -> None:
        """Remove a version whose turns have all been given back."""
        with self._lock:
            model = self._models[servable_id.name]
            model.weights.remove(next(one for one in model.weights if one[0] == servable_id.version))
            if model.weights:
                model.weight = model.weights[-1][1]
            else:
                del self._models[servable_id.name]
            self._set_slots()

    def turn(self, servable_id: ServableId, on_called: Callable[[], None] = lambda: None) -> "Turn":
        """Return a turn for the runs of a version that has joined.

        `on_called` is called when a turn that waits gets a slot or is closed, on any thread. It must not block, and use
        no device.
        """
        with self._lock:
            return Turn(self, self._models[servable_id.name], on_called)

    def busy_times(self) -> BusyTimes:
        """Return the seconds up to now. Models whose runs overlap on one device delay each other."""
        with self._lock:
            self._count_busy(0)
            return BusyTimes(self._any_s, self._models_s)

    def _line_up(self, turn: "Turn") -> bool:
        """Put the turn in line, and hand on its slot, possibly to itself. Return whether the turn must wait."""
        with self._lock:
            if turn.closed or (not turn.has_slot and self._take_free(turn)):
                return False
            model = turn.model
            if not model.waiting:
                self._waiting.append(model)
            model.waiting.append(turn)
            turn.waits = True
            if turn.has_slot:
                self._end(turn)
                self._hand_on()
            return True

    # The methods below are called with the lock held.

    def _set_slots(self) -> None:
        unlimited = self._only_weighted and len({model.weight for model in self._models.values()}) <= 1
        self._slots = math.inf if unlimited else self._limit
        self._hand_on()

    def _take_free(self, turn: "Turn") -> bool:
        model = turn.model
        if not model.slots and not model.waiting:
            # It was idle.
            model.virtual_s = max(model.virtual_s, self._virtual_s)
        if self._used >= self._slots:
            return False
        self._begin(turn)
        return True

    def _charge(self, turn: "Turn") -> None:
        model = turn.model
        model.virtual_s += turn.used_s / model.weight
        turn.used_s = 0.0
        if model.virtual_s > self._furthest_s:
            self._furthest_s = model.virtual_s

    def _count_busy(self, change: int) -> None:
        """Record that `change` more models have a slot from now on."""
        now_s = self._clock.monotonic_s()
        if self._busy:
            passed_s = now_s - self._changed_s
            self._any_s += passed_s
            self._models_s += passed_s * self._busy
        self._changed_s = now_s
        self._busy += change

    def _begin(self, turn: "Turn") -> None:
        turn.has_slot = turn.is_new = True
        turn.model.slots += 1
        if turn.model.slots == 1:
            self._count_busy(1)
        self._used += 1
        self._virtual_s = max(self._virtual_s, turn.model.virtual_s)

    def _end(self, turn: "Turn") -> None:
        self._charge(turn)
        turn.has_slot = False
        turn.model.slots -= 1
        self._used -= 1
        if not turn.model.slots:
            self._count_busy(-1)

    def _next(self) -> _Model:
        # `_waiting` is in order of arrival, so the first of equals has waited longest.
        return min(self._waiting, key=_virtual_s)

    def _hand_on(self) -> None:
        """Give each free slot to the first waiting turn of the model with the least virtual time."""
        while self._waiting and self._used < self._slots:
            model = self._next()
            self._waiting.remove(model)
            turn = model.waiting.popleft()
            turn.waits = False
            self._begin(turn)
            if model.waiting:
                self._waiting.append(model)
            turn.on_called()


class Turn:
    """A claim to a slot, and the slot once it has one.

    One thread at a time calls its methods, except `close`. The device owns the fields, except `used_s`: the thread adds
    the seconds for which it has used the slot.
    """

    __slots__ = ("_device", "closed", "has_slot", "is_new", "model", "on_called", "used_s", "waits")

    def __init__(self, device: DeviceShare, model: _Model, on_called: Callable[[], None]) -> None:
        """Create a turn without a slot. Only `DeviceShare.turn` calls this."""
        self._device = device
        self.model = model
        self.has_slot = False
        self.is_new = False
        self.waits = False
        self.closed = False
        self.used_s = 0.0
        self.on_called = on_called

    def take(self) -> bool:
        """Take a free slot, or keep the current one unless another turn is due. Never blocks.

        Return False if there is no slot for this turn. The turn then keeps any slot until `line_up` or `give_back`.
        """
        device = self._device
        with device._lock:
            if not self.has_slot:
                if not device._take_free(self):
                    return False
            # A new slot is used once before the turn competes with others again.
            elif not self.is_new:
                device._charge(self)
                virtual_s = self.model.virtual_s
                # Another model should get the slot, or too many slots are in use for unequal weights.
                if device._used > device._slots or (device._waiting and device._next().virtual_s <= virtual_s):
                    return False
                device._virtual_s = max(device._virtual_s, virtual_s)
            self.is_new = False
            return True

    def line_up(self) -> bool:
        """Hand on the slot and stand in line. Return False if there is a free slot at once, or the turn is closed.

        A turn in line must not be used until it is called.
        """
        return self._device._line_up(self)

    def give_back(self) -> None:
        """Hand the slot, if any, to the next turn in line."""
        device = self._device
        with device._lock:
            if self.has_slot:
                device._end(self)
                if device._waiting:
                    device._hand_on()
                if not device._used:
                    # The device is idle, so no model owes device time any more.
                    device._virtual_s = device._furthest_s

    def close(self) -> None:
        """Stop the turn from ever waiting again. Thread-safe, and may be called several times."""
        with self._device._lock:
            self.closed = True
            if self.waits:
                self.waits = False
                self.model.waiting.remove(self)
                if not self.model.waiting:
                    self._device._waiting.remove(self.model)
                self.on_called()


def _virtual_s(model: _Model) -> float:
    return model.virtual_s


class LoopShare:
    """Lets an event loop run one batch, and then look at its sockets before the next one. Thread-safe.

    Without it, the runs of several models could follow each other, and all other requests would wait for their sum.
    """

    __slots__ = ("_ran",)

    def __init__(self) -> None:
        """Start without runs."""
        # Loops that have not looked at their sockets since their latest run. Only its own loop changes an entry.
        self._ran: set[asyncio.AbstractEventLoop] = set()

    def may_run(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the running loop has looked at its sockets since its latest run."""
        return loop not in self._ran

    def ran(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record a run on the running loop."""
        self._ran.add(loop)
        # A loop looks at its sockets before it calls what was added meanwhile.
        loop.call_soon(self._ran.discard, loop)
