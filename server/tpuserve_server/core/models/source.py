"""Source: watches base paths and reports the versions that should be served."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import directory_stamp
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.watched_model import STILL_S, Found, WatchedModel
from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.storage import Storage, is_uri
from tpuserve_server.core.terms.types import Pending

logger = logging.getLogger(__name__)

# Number of base paths in stores that are listed at the same time.
_PARALLEL: Final = 32
# Part of the time that a store may be listed, while nothing changes in it.
_MAX_SHARE: Final = 0.1
# Longest pause that a slow or failing store causes.
_MAX_PAUSE_S: Final = 60.0
# Part of the time that the files in directories may be looked at, while nothing changes, and the longest pause for it.
_MAX_FOLDER_SHARE: Final = 0.005
_MAX_FOLDER_PAUSE_S: Final = 30.0
# A pause of a second has then reached any interval.
_MOST_DOUBLINGS: Final = 32


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a model's base path, and the time that it took."""

    model: WatchedModel
    found: Found
    took_s: float


class Source:
    """Polls each model's base path and reports the versions that its policy chooses.

    A base path that does not exist changes nothing, because a volume may be unmounted for a while. A base path that
    exists and holds no version unloads the model.

    A version is reported once it is complete, so that the server does not load a copy in progress. With a manifest, a
    version is complete when all listed files are there. Without one, it is complete when no file has changed for a
    second, or for a minute by the files' own times. After 30 seconds without a change, an incomplete version is
    reported too. Its load reports the error. The source looks at an incomplete version each second.

    Each poll is a round on the polling thread. It looks at directories itself, and at base paths in stores through a
    few threads, because each listing waits for a network. The polling thread waits for them. A poll of many directories
    lists only those whose entries have changed, and looks at the files in the others from time to time.

    `_lock` guards `_configs`, `_changed`, `_stopping` and the right to report. The polling thread owns the other
    fields, and lends each WatchedModel to the thread that looks.
    """

    def __init__(
        self,
        storage: Storage,
        on_aspired: Callable[[str, Mapping[int, AspiredVersion]], None],
        *,
        poll_wait_s: float,
        clock: WaitingClock,
        on_pending: Callable[[str, Pending], None] = lambda _name, _pending: None,
        prepare: Callable[[Sequence[str]], None] = lambda _base_paths: None,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """Watch nothing before `watch`. `on_aspired` and `on_pending` (missing parts of a model) must not block.

        `prepare` gets the base paths in stores before the source looks at each of them. It may block.

        With a `poll_wait_s` of 0 the source polls until every version is complete, and then waits for the next change
        by `watch`. `unix_s` is the time of day, by which files have ages.
        """
        self._storage = storage
        self._on_aspired = on_aspired
        self._on_pending = on_pending
        self._prepare = prepare
        self._poll_wait_s = poll_wait_s
        self._clock = clock
        self._unix_s = unix_s
        self._lock = threading.Condition()
        self._configs: dict[str, ModelConfig] = {}
        # The models to look at again at once, or to forget.
        self._changed: set[str] = set()
        self._models: dict[str, WatchedModel] = {}
        # The last pause because of a slow store that was logged.
        self._store_pause_s = 0.0
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="source-look")
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="source")

    def start(self) -> None:
        """Start polling. The first poll happens at once, on the source's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling and join the threads."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown()

    def watch(self, configs: Iterable[ModelConfig]) -> None:
        """Watch these models and no others from now on. No report on other models follows.

        Poll each model at once whose configuration is another object than before.
        """
        with self._lock:
            before, self._configs = self._configs, {config.name: config for config in configs}
            names = before.keys() | self._configs.keys()
            self._changed |= {name for name in names if before.get(name) is not self._configs.get(name)}
            self._lock.notify_all()

    def poll(self) -> bool:
        """Poll every base path once and report. Return False while a version is not yet complete."""
        self._update()
        return self._look_at(list(self._models.values()))

    def _run(self) -> None:
        while True:
            self._update()
            now_s = self._clock.monotonic_s()
            due = [model for model in self._models.values() if model.due_s <= now_s]
            self._look_at([model for model in due if not self._is_settled(model, now_s)])
            due_s = min((model.due_s for model in self._models.values()), default=math.inf)
            with self._lock:
                while not self._stopping and not self._changed and self._clock.monotonic_s() < due_s:
                    self._clock.wait_until(self._lock, due_s)
                if self._stopping:
                    return

    def _update(self) -> None:
        """Take the configurations of the last `watch`. A model that is added again starts fresh."""
        with self._lock:
            configs = self._configs
            changed, self._changed = self._changed, set()
        known = self._models
        self._models = {
            name: known.get(name)
            or WatchedModel(config, self._storage, self._report, self._report_pending, self._clock, self._unix_s)
            for name, config in configs.items()
        }
        for name, model in self._models.items():
            model.config = configs[name]
            if name in changed:
                model.due_s, model.failures, model.settled_until_s = 0.0, 0, 0.0

    def _is_settled(self, model: WatchedModel, now_s: float) -> bool:
        """Return whether a model needs no look at this poll, and plan the next poll of it."""
        if now_s >= model.settled_until_s or directory_stamp(model.config.base_path) != model.stamp:
            return False
        model.due_s = now_s + self._poll_wait_s
        return True

    def _look_at(self, models: Sequence[WatchedModel]) -> bool:
        """Look at these models, directories first, and choose when to look again. Return whether all are complete."""
        in_stores = [model for model in models if is_uri(model.config.base_path)]
        looks = [self._look_into(model) for model in models if not is_uri(model.config.base_path)]
        self._plan(looks, store_pause_s=0.0)
        pause_s = min(sum(look.took_s for look in looks) / _MAX_FOLDER_SHARE, _MAX_FOLDER_PAUSE_S)
        for look in looks:
            is_settled = look.found is Found.COMPLETE and look.model.stamp is not None
            look.model.settled_until_s = self._clock.monotonic_s() + pause_s if is_settled else 0.0
        began_s = self._clock.monotonic_s()
        if in_stores:
            self._prepare([model.config.base_path for model in in_stores])
        prepared_s = self._clock.monotonic_s() - began_s
        looks_at_stores = list(self._pool.map(self._look, in_stores))
        self._plan(looks_at_stores, store_pause_s=self._find_store_pause_s(looks_at_stores, prepared_s))
        return all(look.found is Found.COMPLETE for look in (*looks, *looks_at_stores))

    def _look_into(self, model: WatchedModel) -> "_Look":
        # Before the look, so that the next stamp differs if an entry is added during the look.
        model.stamp = directory_stamp(model.config.base_path)
        return self._look(model)

    def _look(self, model: WatchedModel) -> "_Look":
        began_s = self._clock.monotonic_s()
        found = Found.UNREADABLE if self._stopping else model.look()
        return _Look(model, found, self._clock.monotonic_s() - began_s)

    def _find_store_pause_s(self, looks: Sequence["_Look"], prepared_s: float) -> float:
        """Return the shortest pause after a round of looks at stores that keeps the share of the time."""
        in_looks_s = sum(look.took_s for look in looks if look.found is not Found.UNREADABLE)
        busy_s = prepared_s + in_looks_s / max(min(len(looks), _PARALLEL), 1)
        pause_s = min(busy_s / _MAX_SHARE, _MAX_PAUSE_S)
        if pause_s > self._poll_wait_s > 0 and pause_s > 2 * self._store_pause_s:
            # Once for each order of magnitude, instead of at every poll.
            self._store_pause_s = pause_s
            logger.info("Listing %d base paths is slow: the next listing follows after %.1f s", len(looks), pause_s)
        return pause_s

    def _plan(self, looks: Iterable["_Look"], store_pause_s: float) -> None:
        now_s = self._clock.monotonic_s()
        for look in looks:
            look.model.due_s = now_s + self._pause_s(look.model, look.found, store_pause_s)

    def _pause_s(self, model: WatchedModel, found: Found, store_pause_s: float) -> float:
        """Return the pause before the next look at a model."""
        wait_s = self._poll_wait_s
        look_s = min(wait_s or STILL_S, STILL_S)
        failures, model.failures = model.failures, 0
        if found is Found.INCOMPLETE:
            return max(look_s, store_pause_s * _MAX_SHARE)
        if found is Found.COMPLETE:
            return max(wait_s, store_pause_s) if wait_s else math.inf
        model.failures = failures + 1
        # A base path that is absent or unreadable may soon appear, whatever the interval of polls. A store that fails
        # is asked less and less often.
        longest_s = wait_s or look_s
        if is_uri(model.config.base_path) and (found is Found.UNREADABLE or not wait_s):
            longest_s = max(longest_s, _MAX_PAUSE_S)
        return max(min(look_s * 2.0 ** min(failures, _MOST_DOUBLINGS), longest_s), store_pause_s)

    def _report(self, config: ModelConfig, versions: Mapping[int, AspiredVersion]) -> None:
        """Report the versions, unless the model was removed or reconfigured during the look."""
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_aspired(config.name, versions)

    def _report_pending(self, config: ModelConfig, pending: Pending) -> None:
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_pending(config.name, pending)
