"""ModelMemory: how much memory each version takes, and room for the next one."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tpuserve_server.core.system.memory import allocated_bytes
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import ResourceExhausted
from tpuserve_server.core.terms.types import ServableId

# Maximum wait until other loads and the requests of leaving models have ended.
_PATIENCE_S: Final = 60.0
_MIB: Final = 2**20
# Measured sizes that are kept. The oldest are dropped, and measured again.
_MOST_SIZES: Final = 1 << 14


def _nothing_leaves() -> str:
    return ""


class HeldMemory:
    """The memory of one version, from the start of its load to the end of its unload."""

    __slots__ = ("_release", "servable_id", "size_bytes")

    def __init__(self, servable_id: ServableId, size_bytes: int, release: Callable[["HeldMemory"], None]) -> None:
        """Take `release`, which notes the end."""
        self.servable_id = servable_id
        self.size_bytes = size_bytes
        self._release = release

    def release(self) -> None:
        """Note that the version is no longer in memory."""
        self._release(self)


class ModelMemory:
    """The memory of all versions that are loaded. Thread-safe: `_changed` guards all fields.

    The size of a version is what its first load allocates, with its warm-up, or the size of its files if that is more:
    runtimes map some files instead of reading them. Only files count for the first load of the process, and the next
    load of this version measures it. With a limit, first loads take place one at a time, because the allocations of two
    cannot be told apart. If another load or unload takes place meanwhile, the next load measures again.

    `_sizes` are the measured sizes by version and fingerprint. `_held` is the memory of the versions that are loaded or
    that load now, and `_leaving` the models that unload to make room. `_changes` counts the starts and ends of loads
    and unloads, and `_looks` the calls of `reconsider`.
    """

    def __init__(self, clock: Clock, limit_bytes: int = 0, *, patience_s: float = _PATIENCE_S) -> None:
        """`limit_bytes` is the limit of the sum of all sizes; 0: none. `patience_s`: maximum wait for room."""
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._first_load = threading.Lock()
        self._dismiss_one: Callable[[], str] = _nothing_leaves
        self._sizes: dict[tuple[ServableId, str], int] = {}
        self._held: set[HeldMemory] = set()
        self._leaving: set[str] = set()
        self._changes = 0
        self._has_loaded = False
        self._looks = 0

    def make_room_with(self, dismiss_one: Callable[[], str]) -> None:
        """Call `dismiss_one` when a load lacks memory. It begins to unload a model and returns its name, or ""."""
        self._dismiss_one = dismiss_one

    @contextlib.contextmanager
    def loading(self, servable_id: ServableId, fingerprint: str, files_bytes: int) -> Iterator[HeldMemory]:
        """Make room for a version, and measure the load in the block. Blocks while other models unload.

        The caller releases the memory after the unload, and this function if the block raises.

        Raises:
            ResourceExhausted: the version does not fit beside the models that stay.
        """
        key = servable_id, fingerprint
        is_first = bool(self._limit_bytes) and key not in self._sizes
        # A load that hangs keeps the lock. Others then begin after their patience.
        is_alone = is_first and self._first_load.acquire(timeout=self._patience_s)
        try:
            held, changes = self._take(servable_id, self._sizes.get(key, files_bytes))
            before_bytes = allocated_bytes()
            try:
                yield held
            except BaseException:
                held.release()
                raise
            grown_bytes = allocated_bytes() - before_bytes
        finally:
            if is_alone:
                self._first_load.release()
        with self._changed:
            # The first load of the process also starts a runtime, whose memory stays.
            measured_bytes = max(grown_bytes, files_bytes) if self._has_loaded else files_bytes
            if self._changes == changes and self._has_loaded:
                self._sizes.setdefault(key, measured_bytes)
                if len(self._sizes) > _MOST_SIZES:
                    del self._sizes[next(iter(self._sizes))]
            self._changes += 1
            self._has_loaded = True
            held.size_bytes = self._sizes.get(key, measured_bytes)
        # This may be more than the room that was made.
        while self._lacks(0) and self._dismiss():
            pass

    def relieve(self) -> bool:
        """Unload the least recently used model that may leave, and wait for its end. Return False if there is none."""
        if not self._leaving and not self._dismiss():
            return False
        with self._changed:
            leaving = set(self._leaving)
            self._changed.wait_for(lambda: not leaving <= self._leaving, self._patience_s)
        return True

    def sizes(self) -> dict[ServableId, int]:
        """Return the memory of each version that is loaded, in bytes."""
        with self._changed:
            return {held.servable_id: held.size_bytes for held in self._held}

    def _released(self, held: HeldMemory) -> None:
        with self._changed:
            self._changes += 1
            self._held.discard(held)
            name = held.servable_id.name
            if all(other.servable_id.name != name for other in self._held):
                self._leaving.discard(name)
        self.reconsider()

    def reconsider(self) -> None:
        """Let loads that wait for room look again, because another model may leave now."""
        with self._changed:
            self._looks += 1
            self._changed.notify_all()

    def _take(self, servable_id: ServableId, size_bytes: int) -> tuple[HeldMemory, int]:
        """Hold memory for a version, and return it with the number of changes so far."""
        give_up_s = self._clock.monotonic_s() + self._patience_s
        while True:
            with self._changed:
                looks, held_bytes = self._looks, sum(held.size_bytes for held in self._held)
                if not self._limit_bytes or held_bytes + size_bytes <= self._limit_bytes:
                    held = HeldMemory(servable_id, size_bytes, self._released)
                    self._held.add(held)
                    self._changes += 1
                    return held, self._changes
            can_fit = size_bytes <= self._limit_bytes
            if can_fit and self._lacks(size_bytes) and self._dismiss():
                continue
            remaining_s = give_up_s - self._clock.monotonic_s()
            with self._changed:
                if (
                    not can_fit
                    or remaining_s <= 0
                    or not self._changed.wait_for(partial(self._has_looks_beyond, looks), remaining_s)
                ):
                    raise ResourceExhausted(self._describe(size_bytes, held_bytes))

    def _has_looks_beyond(self, looks: int) -> bool:
        return self._looks != looks

    def _lacks(self, size_bytes: int) -> bool:
        """Return whether there is too little room for `size_bytes` even without the models that leave."""
        with self._changed:
            stays = sum(held.size_bytes for held in self._held if held.servable_id.name not in self._leaving)
        return bool(self._limit_bytes) and stays + size_bytes > self._limit_bytes

    def _dismiss(self) -> bool:
        """Begin to unload a model. Called without the lock, because the manager's is taken in it."""
        name = self._dismiss_one()
        with self._changed:
            if any(held.servable_id.name == name for held in self._held):
                self._leaving.add(name)
        return bool(name)

    def _describe(self, size_bytes: int, held_bytes: int) -> str:
        return (
            f"the version needs {size_bytes / _MIB:.0f} MiB, and {held_bytes / _MIB:.0f} of the "
            f"{self._limit_bytes / _MIB:.0f} MiB of --model_memory_bytes are used by models that stay loaded or answer "
            "requests"
        )
