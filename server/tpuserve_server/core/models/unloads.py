"""Unloads: unload versions when their requests have ended, and give up an unload that does not end."""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuserve_server.core.models.loader import AspiredVersion, Loaded, Loader
from tpuserve_server.core.models.model_record import VersionRecord
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.system.threads import JobThreads
from tpuserve_server.core.system.timers import VersionTimer
from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.errors import DeadlineExceeded
from tpuserve_server.core.terms.types import ServableId

_log = logging.getLogger(__name__)

# An unload waits for the requests that hold the version, which may take minutes. One model's requests must not keep the
# memory of another model.
_THREADS = 8
# Time that an unload has left once its version is wanted again.
_WANTED_S = 60.0


@dataclass(slots=True, eq=False)
class _Unload:
    """An unload in the queue or in progress. `due_s` is the end of its time, and `reason` why it is given up then."""

    servable_id: ServableId
    version: VersionRecord
    unload: Callable[["_Unload"], None]
    has_begun: bool = False
    due_s: float = math.inf
    reason: str = ""
    is_given_up: bool = False

    def run(self) -> None:
        """Implement Job.run."""
        self.unload(self)


class Unloads:
    """Unloads versions on its own threads.

    A run that hangs never ends, and Python cannot end its thread. An unload that takes too long is given up: its
    version ends with the reason, and may be loaded again. If the unload ends later, it still releases its memory.

    `_lock` guards `_unloads`, without those that were given up, and `_hung`, which counts these by model until they
    end. The registry's lock is taken inside it.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        loader: Loader[Loaded],
        clock: WaitingClock,
        timeout_s: float,
        on_end: Callable[[str], None],
    ) -> None:
        """Give up an unload after `timeout_s`; 0: never. Call `on_end` with the model after the end of each version."""
        self._registry = registry
        self._loader = loader
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._lock = threading.Lock()
        self._unloads: dict[ServableId, _Unload] = {}
        self._hung: Counter[str] = Counter()
        self._limits = VersionTimer(clock, self._limit, name="unload-limits")
        self._threads = JobThreads(_THREADS, name="unload", stop_patience_s=None)

    def begin(self, servable_id: ServableId) -> None:
        """Begin to unload a version that is AVAILABLE. Returns at once."""
        with self._lock:
            unload = _Unload(servable_id, self._registry.unloading(servable_id), self._unload)
            self._unloads[servable_id] = unload
        self._threads.submit(unload)

    def review(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Limit the time of unloads whose version is wanted again."""
        if not self._timeout_s:
            return
        with self._lock:
            for servable_id, unload in self._unloads.items():
                if servable_id.name == name and servable_id.version in aspired and unload.has_begun:
                    self._set_limit(unload, _WANTED_S, "The version was wanted again during an unload that did not end")

    def hung(self, name: str) -> int:
        """Return the number of a model's unloads that were given up and have not ended."""
        with self._lock:
            return self._hung[name]

    def stop(self) -> None:
        """Wait for all unloads, except those that were given up, and join the threads."""
        self._threads.finish()
        self._limits.stop()

    # The methods below run on other threads: the timer's and the unloading threads.

    def _set_limit(self, unload: _Unload, limit_s: float, reason: str) -> None:
        due_s = self._clock.monotonic_s() + limit_s
        if due_s < unload.due_s:
            unload.due_s, unload.reason = due_s, reason
            self._limits.set(unload.servable_id, limit_s)

    def _limit(self, servable_id: ServableId) -> None:
        """Give up an unload whose time is over."""
        with self._lock:
            unload = self._unloads.get(servable_id)
            # A call for an earlier unload may arrive late.
            if unload is None or unload.due_s > self._clock.monotonic_s():
                return
            del self._unloads[servable_id]
            unload.is_given_up = True
            self._hung[servable_id.name] += 1
            _log.error("Unloading %s is given up: %s", servable_id, unload.reason)
            self._registry.given_up(
                servable_id, DeadlineExceeded(f"{unload.reason}. Its memory remains in use until its last run ends")
            )
        self._threads.give_up(unload)
        self._on_end(servable_id.name)

    def _unload(self, unload: _Unload) -> None:
        servable_id = unload.servable_id
        with self._lock:
            unload.has_begun = True
            if limit_s := self._timeout_s:
                self._set_limit(unload, limit_s, f"Unloading took more than {limit_s:g} s (--load_timeout_seconds)")
        try:
            self._loader.unload(self._registry.wait_idle(unload.version))
        except Exception:
            # The version ends, whatever its model raises.
            _log.exception("Unloading %s failed", servable_id)
        with self._lock:
            if unload.is_given_up:
                self._hung[servable_id.name] -= 1
                unload.version.loaded = None
                _log.warning("The unload of %s that was given up has ended", servable_id)
                return
            del self._unloads[servable_id]
            self._limits.cancel(servable_id)
            self._registry.ended(servable_id)
        _log.info("Unloaded %s", servable_id)
        self._on_end(servable_id.name)
