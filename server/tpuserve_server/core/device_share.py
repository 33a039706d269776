"""DeviceShare: whose batch goes next where more batches are ready than a device runs at a time.

Start-time fair queuing (Goyal, Vin and Cheng, SIGCOMM 1996) between models: a model's virtual time is the device time
that it has used over its weight, and the next slot is the waiting model's that has the least. One that was idle starts
at the virtual time that the device has come to: nobody saves credit, and nobody starts in debt.
"""

import math
import threading
from collections import deque

from tpuserve_server.core.types import ServableId


class _Model:
    """What a device knows of a model, all its versions together."""

    __slots__ = ("slots", "virtual_s", "waiting", "weight", "weights")

    def __init__(self) -> None:
        self.virtual_s = 0.0
        self.slots = 0
        self.waiting: deque[Turn] = deque()
        self.weight = 1.0
        self.weights: dict[int, float] = {}


class DeviceShare:
    """A device's slots: the batches that it runs at a time. Any thread may call; `_lock` guards everything here.

    Nobody holds the lock while waiting, and who has a slot waits for no other. No slot is free while a turn waits: they
    go from hand to hand, so that no latecomer takes one in between.
    """

    def __init__(self, slots: int, *, only_weighted: bool = False) -> None:
        """All `slots` are free; at least 1. With `only_weighted` there is no limit as long as all weights are alike."""
        self._lock = threading.Lock()
        self._limit = slots
        self._only_weighted = only_weighted
        self._slots: float = slots
        self._used = 0
        self._models: dict[str, _Model] = {}
        # Models that wait, the one first that has waited longest since it last got a slot.
        self._waiting: list[_Model] = []
        # How far the device has come: the virtual time of who got the last slot, at that moment.
        self._virtual_s = 0.0
        # How far anyone has.
        self._furthest_s = 0.0

    def join(self, servable_id: ServableId, weight: float) -> None:
        """Let a version in. Versions of one model have one share together, by the weight of the last that came."""
        with self._lock:
            model = self._models.setdefault(servable_id.name, _Model())
            model.weights[servable_id.version] = model.weight = weight
            self._set_slots()

    def leave(self, servable_id: ServableId) -> None:
        """Let a version go whose turns have all been given back."""
        with self._lock:
            model = self._models[servable_id.name]
            del model.weights[servable_id.version]
            if model.weights:
                model.weight = next(reversed(model.weights.values()))
            else:
                del self._models[servable_id.name]
            self._set_slots()

    def turn(self, servable_id: ServableId) -> "Turn":
        """For a device thread of a version that has joined."""
        with self._lock:
            return Turn(self, self._models[servable_id.name])

    def _line_up(self, turn: "Turn") -> bool:
        """Whether the turn must wait. What it has goes to the next in line, itself among them."""
        with self._lock:
            if turn.closed or (not turn.has_slot and self._take_free(turn)):
                return False
            model = turn.model
            self._catch_up(model)
            if not model.waiting:
                self._waiting.append(model)
            model.waiting.append(turn)
            turn.waits = True
            if turn.has_slot:
                self._end(turn)
                self._hand_on()
            return True

    def _give_back(self, turn: "Turn") -> None:
        with self._lock:
            if turn.has_slot:
                self._end(turn)
                self._hand_on()
                if not self._used:
                    # A busy time has ended, and its debts with it.
                    self._virtual_s = self._furthest_s

    def _close(self, turn: "Turn") -> None:
        with self._lock:
            turn.closed = True
            if turn.waits:
                turn.waits = False
                turn.model.waiting.remove(turn)
                if not turn.model.waiting:
                    self._waiting.remove(turn.model)
                turn.called.release()

    # With the lock held.

    def _set_slots(self) -> None:
        unlimited = self._only_weighted and len({model.weight for model in self._models.values()}) <= 1
        self._slots = math.inf if unlimited else self._limit
        self._hand_on()

    def _take_free(self, turn: "Turn") -> bool:
        if self._used >= self._slots:
            return False
        self._catch_up(turn.model)
        self._begin(turn)
        return True

    def _catch_up(self, model: _Model) -> None:
        """A model that comes back starts at the virtual time of now."""
        if not model.slots and not model.waiting:
            model.virtual_s = max(model.virtual_s, self._virtual_s)

    def _charge(self, turn: "Turn") -> None:
        model = turn.model
        model.virtual_s += turn.used_s / model.weight
        turn.used_s = 0.0
        if model.virtual_s > self._furthest_s:
            self._furthest_s = model.virtual_s

    def _begin(self, turn: "Turn") -> None:
        turn.has_slot = turn.is_new = True
        turn.model.slots += 1
        self._used += 1
        self._advance(turn.model)

    def _advance(self, model: _Model) -> None:
        if model.virtual_s > self._virtual_s:
            self._virtual_s = model.virtual_s

    def _end(self, turn: "Turn") -> None:
        self._charge(turn)
        turn.has_slot = False
        turn.model.slots -= 1
        self._used -= 1

    def _is_wanted(self, turn: "Turn") -> bool:
        """Whether another is to have its slot, or there are too many since weights differ."""
        if self._waiting and self._next().virtual_s <= turn.model.virtual_s:
            return True
        return self._used > self._slots

    def _next(self) -> _Model:
        # The first of several: `_waiting` is in the order in which they came.
        return min(self._waiting, key=_virtual_s)

    def _hand_on(self) -> None:
        """Give each free slot to the turn that has waited longest of the model that has had the least."""
        while self._waiting and self._used < self._slots:
            model = self._next()
            self._waiting.remove(model)
            turn = model.waiting.popleft()
            turn.waits = False
            self._begin(turn)
            if model.waiting:
                self._waiting.append(model)
            turn.called.release()


class Turn:
    """A device thread's claim to a slot, and the slot when it has one.

    Its methods are for its thread, but for `close`. The fields are the device's, but for `used_s`, to which the thread
    adds the seconds for which it has used the slot.
    """

    __slots__ = ("_device", "called", "closed", "has_slot", "is_new", "model", "used_s", "waits")

    def __init__(self, device: DeviceShare, model: _Model) -> None:
        """Made by `DeviceShare.turn`; has no slot."""
        self._device = device
        self.model = model
        self.has_slot = False
        self.is_new = False
        self.waits = False
        self.closed = False
        self.used_s = 0.0
        # Released by who hands over a slot.
        self.called = threading.Lock()
        self.called.acquire()

    def take(self) -> bool:
        """Take a free slot, or keep the one it has unless another's turn has come. Never blocks.

        False leaves all as it was: what it has it keeps until `line_up` or `give_back`.
        """
        device = self._device
        with device._lock:
            if not self.has_slot:
                if not device._take_free(self):
                    return False
            # What has just been given is used once before it is compared with others again.
            elif not self.is_new:
                device._charge(self)
                if device._is_wanted(self):
                    return False
                device._advance(self.model)
            self.is_new = False
            return True

    def line_up(self) -> bool:
        """Hand what it has to whose turn it is, and stand in line; False if it has a slot at once, or is closed."""
        return self._device._line_up(self)

    def wait(self) -> None:
        """Wait in line, once; blocks until it has a slot or is closed."""
        self.called.acquire()

    def give_back(self) -> None:
        """Let the slot go, to the next in line; nothing if it has none."""
        self._device._give_back(self)

    def close(self) -> None:
        """Let it never wait again. Callable from any thread, several times."""
        self._device._close(self)


def _virtual_s(model: _Model) -> float:
    return model.virtual_s
