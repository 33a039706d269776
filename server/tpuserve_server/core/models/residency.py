"""Residency: which of the models that load on demand are in memory, and who waits for them."""

import asyncio
import math
import threading
from collections.abc import Collection, Mapping
from functools import partial

from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.model_memory import ModelMemory
from tpuserve_server.core.models.model_record import ModelRecord
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.system.changes import ChangeEvent
from tpuserve_server.core.terms.deadline import Deadline, WaitingClock
from tpuserve_server.core.terms.errors import NotLoaded
from tpuserve_server.core.terms.options import ResidencyOptions
from tpuserve_server.core.terms.types import ServableId

# Why models leave.
UNLOAD_REASONS = ("idle", "memory")


class Residency:
    """Loads models at their first request. Unloads those that are idle, and the least recently used ones for others.

    The registry holds the states of the models, and the manager changes them. `_changed` guards `_waiting`, the
    requests by the model that they wait for, and all other fields.
    """

    def __init__(
        self, registry: ModelRegistry, clock: WaitingClock, options: ResidencyOptions, memory: ModelMemory
    ) -> None:
        """Do nothing before `start`. Models leave when `memory` lacks room."""
        self._registry = registry
        self._memory = memory
        self._clock = clock
        self._idle_s = options.idle_unload_s
        self._manager: VersionManager | None = None
        self._changed = threading.Condition()
        self._waiting: dict[str, list[ChangeEvent]] = {}
        self._loads = 0
        self._unloads = dict.fromkeys(UNLOAD_REASONS, 0)
        self._stopping = False
        self._thread = threading.Thread(target=self._unload_idle, name="idle-models")

    def start(self, manager: VersionManager) -> None:
        """Load and unload with `manager` from now on."""
        self._manager = manager
        self._memory.make_room_with(self.dismiss_one)
        self._registry.subscribe(self._on_change)
        if self._idle_s:
            self._thread.start()

    def stop(self) -> None:
        """Unload no more idle models, and join the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    async def loaded(self, name: str, deadline: Deadline) -> None:
        """Load a model that loads on demand, and wait until it serves or has failed. Return at once for any other.

        Raises:
            NotLoaded: `deadline` is near. The load continues.
        """
        if self._manager is None or not self._registry.must_wait(name):
            return
        changed = ChangeEvent()
        with self._changed:
            self._waiting.setdefault(name, []).append(changed)
        try:
            # In a thread, because it waits for the manager's lock.
            if await asyncio.to_thread(self._manager.demand, name):
                with self._changed:
                    self._loads += 1
            async with asyncio.timeout(deadline.patience_s(self._clock.monotonic_s())):
                while self._registry.is_warming(name):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise NotLoaded(f"Model {name} is not loaded yet: the load continues") from None
        finally:
            # The model stays until the loop's next step, so that the caller can acquire it.
            asyncio.get_running_loop().call_soon(self._leave, name, changed)

    def dismiss_one(self) -> str:
        """Begin to unload the least recently used model that may leave, and return its name, or "" if there is none.

        A model that a request waits for stays, and one that a request holds leaves last.
        """
        if self._manager is None:
            return ""
        names = self._registry.read(partial(_least_recently_used, self._awaited()))
        return next((name for name in names if self._dismiss(name, "memory")), "")

    def loads(self) -> int:
        """Return how many loads requests have begun."""
        with self._changed:
            return self._loads

    def unloads(self) -> Mapping[str, int]:
        """Return how many models have left, by reason: `idle`, or `memory` to make room for another."""
        with self._changed:
            return dict(self._unloads)

    def memory_bytes(self) -> Mapping[ServableId, int]:
        """Return the memory of each version that is loaded."""
        return self._memory.sizes()

    def _dismiss(self, name: str, reason: str) -> bool:
        if self._manager is None or not self._manager.dismiss(name):
            return False
        with self._changed:
            self._unloads[reason] += 1
        return True

    def _awaited(self) -> set[str]:
        with self._changed:
            return set(self._waiting)

    def _leave(self, name: str, changed: ChangeEvent) -> None:
        with self._changed:
            self._waiting[name].remove(changed)
            if not self._waiting[name]:
                del self._waiting[name]
        self._memory.reconsider()

    def _on_change(self) -> None:
        """Wake the requests whose model has been loaded or has failed. Called by the threads that change models."""
        with self._changed:
            waiting = {name: list(events) for name, events in self._waiting.items()}
            self._changed.notify_all()
        for name, events in waiting.items():
            if not self._registry.is_warming(name):
                for changed in events:
                    changed()
        self._memory.reconsider()

    def _unload_idle(self) -> None:
        while True:
            since_s = self._clock.monotonic_s() - self._idle_s
            idle, next_s = self._registry.read(partial(_idle_models, self._awaited(), since_s))
            for name in idle:
                self._dismiss(name, "idle")
            with self._changed:
                if not self._stopping:
                    self._clock.wait_until(self._changed, next_s + self._idle_s)
                if self._stopping:
                    return


def _least_recently_used(awaited: Collection[str], models: Mapping[str, ModelRecord]) -> list[str]:
    can_leave = [name for name, model in models.items() if model.can_leave() and name not in awaited]
    return sorted(can_leave, key=lambda name: (models[name].in_use(), models[name].used_s))


def _idle_models(
    awaited: Collection[str], since_s: float, models: Mapping[str, ModelRecord]
) -> tuple[list[str], float]:
    """Return the models without a request since `since_s`, and the time of the earliest last request of the others."""
    can_leave = {name: model for name, model in models.items() if model.can_leave() and name not in awaited}
    used_s = {name: model.used_s for name, model in can_leave.items() if not model.in_use()}
    idle = [name for name, at_s in used_s.items() if at_s <= since_s]
    return idle, min((at_s for at_s in used_s.values() if at_s > since_s), default=math.inf)
