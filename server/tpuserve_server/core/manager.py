"""VersionManager: moves versions through their states as a source requests them."""

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tpuserve_server.core.aspired_version import AspiredVersion
from tpuserve_server.core.deadline import WaitingClock
from tpuserve_server.core.errors import Cancelled, Internal, ServingError
from tpuserve_server.core.load_options import LoadOptions
from tpuserve_server.core.loader import Loaded, Loader
from tpuserve_server.core.policy import Action, VersionSnapshot, next_action
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.retry_timer import RetryTimer
from tpuserve_server.core.types import ServableId, State

logger = logging.getLogger(__name__)

# An unload waits for the requests that hold the version, which may take minutes. One model's requests must not keep the
# memory of another model.
_UNLOAD_THREADS = 8


@dataclass(slots=True)
class _Failing:
    """A version whose last load failed. `waits` is True until its next try is due."""

    attempts: int
    error: ServingError
    tried: AspiredVersion
    waits: bool


class VersionManager:
    """Loads and unloads on its own threads. A slow or failing model does not keep others from loading.

    `_queued` holds the loads that were submitted to the threads and have not ended. `_lock` guards `_queued`,
    `_failing` and `_stopping`, and the decisions about the next step. The registry's lock is taken inside it.
    """

    def __init__(
        self, registry: ModelRegistry, loader: Loader[Loaded], clock: WaitingClock, options: LoadOptions
    ) -> None:
        """Load nothing before the first `aspire`."""
        self._registry = registry
        self._loader = loader
        self._options = options
        self._lock = threading.Lock()
        self._queued: set[ServableId] = set()
        self._failing: dict[ServableId, _Failing] = {}
        self._stopping = False
        self._retries = RetryTimer(clock, self._retry)
        self._loads = ThreadPoolExecutor(max_workers=max(options.threads, 1), thread_name_prefix="load")
        self._unloads = ThreadPoolExecutor(max_workers=_UNLOAD_THREADS, thread_name_prefix="unload")

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Set the versions of a model that should be served. Returns at once. Called by the source's thread."""
        with self._lock:
            self._registry.aspire(name, aspired)
            self._review_failing(name, aspired)
            self._advance(name)

    def configure(self, names: Iterable[str]) -> None:
        """Keep these models and unload all others when their requests have ended. Returns at once."""
        with self._lock:
            self._registry.configure(names)
            for name in self._registry.all_models():
                if name not in self._registry.model_names():
                    self._review_failing(name, {})
                    self._advance(name)

    def retry(self, name: str) -> None:
        """Load the failed versions of a model again, at once. Returns at once."""
        with self._lock:
            self._registry.retry(name)
            for servable_id, failing in self._failing.items():
                if servable_id.name == name and failing.waits and not self._stopping:
                    self._retries.cancel(servable_id)
                    # Before the load begins on its thread: a caller that waits for it must not see the old failure.
                    self._registry.waiting(servable_id, "")
                    self._begin_retry(servable_id, failing)
            self._advance(name)

    def stop(self) -> None:
        """Unload all versions and join the threads, after running loads have finished."""
        with self._lock:
            self._stopping = True
        self._registry.close()
        self._retries.stop()
        self._loads.shutdown(wait=True, cancel_futures=True)
        for name in self._registry.all_models():
            for aspired, state, _ in self._registry.snapshot(name):
                if state is State.AVAILABLE:
                    self._begin_unload(aspired.servable)
        self._unloads.shutdown(wait=True)

    # The methods up to `_retry` are called with `_lock` held.

    def _advance(self, name: str) -> None:
        """Begin all steps that are due for the model now. The end of each step calls this again."""
        while not self._stopping and (step := next_action(self._snapshot(name))) is not None:
            action, number = step
            servable_id = ServableId(name, number)
            if action is Action.LOAD:
                self._begin_load(servable_id)
            else:
                self._begin_unload(servable_id)

    def _snapshot(self, name: str) -> list[VersionSnapshot]:
        """Return the model's versions, with queued loads as LOADING.

        A load stays in the queue for a moment after its version is AVAILABLE. A change of the configuration in that
        moment must unload the version.
        """
        return [
            VersionSnapshot(
                aspired.servable.version,
                State.LOADING if aspired.servable in self._queued and state is not State.AVAILABLE else state,
                is_aspired,
            )
            for aspired, state, is_aspired in self._registry.snapshot(name)
        ]

    def _begin_load(self, servable_id: ServableId) -> None:
        self._queued.add(servable_id)
        self._loads.submit(self._load, servable_id)

    def _begin_retry(self, servable_id: ServableId, failing: _Failing) -> None:
        failing.waits = False
        self._begin_load(servable_id)

    def _begin_unload(self, servable_id: ServableId) -> None:
        self._registry.unloading(servable_id)
        self._unloads.submit(self._unload, servable_id)

    def _review_failing(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Give up failed versions that are no longer wanted. Retry those that have changed since their failure."""
        for servable_id, failing in [item for item in self._failing.items() if item[0].name == name]:
            wanted = aspired.get(servable_id.version)
            if wanted is None:
                self._give_up(servable_id)
            elif failing.waits and wanted.has_changed_since(failing.tried) and not self._stopping:
                del self._failing[servable_id]
                self._retries.cancel(servable_id)
                self._begin_load(servable_id)

    def _give_up(self, servable_id: ServableId) -> None:
        """Cancel the retries of a version. A load in progress detects at its end that the version is not wanted."""
        failing = self._failing.pop(servable_id)
        self._retries.cancel(servable_id)
        if failing.waits:
            self._registry.failed(servable_id, failing.error)

    def _load_failed(self, aspired: AspiredVersion, error: ServingError) -> None:
        servable_id = aspired.servable
        if self._is_wanted(servable_id) and not self._registry.is_current(aspired) and not self._stopping:
            # The failed version was given up. The version that is wanted now has not been tried.
            self._failing.pop(servable_id, None)
            self._begin_load(servable_id)
            return
        attempts = self._failing[servable_id].attempts + 1 if servable_id in self._failing else 1
        max_retries = self._options.max_retries if aspired.is_worth_retrying else 0
        if attempts > max_retries or not self._is_wanted(servable_id) or self._stopping:
            self._failing.pop(servable_id, None)
            self._registry.failed(servable_id, error)
            return
        self._failing[servable_id] = _Failing(attempts, error, aspired, waits=True)
        pause_s = self._options.retry_interval_s
        total = 1 + max_retries
        logger.warning("Retrying to load %s in %g s", servable_id, pause_s)
        self._registry.waiting(
            servable_id, f"load attempt {attempts} of {total} failed: {error.message}; next attempt in {pause_s:g} s"
        )
        self._retries.set(servable_id, pause_s)

    def _is_wanted(self, servable_id: ServableId) -> bool:
        return any(a.servable == servable_id and wanted for a, _, wanted in self._registry.snapshot(servable_id.name))

    # The methods below run on other threads: the timer's, the loading threads and the unloading threads.

    def _retry(self, servable_id: ServableId) -> None:
        with self._lock:
            failing = self._failing.get(servable_id)
            if failing is not None and failing.waits and not self._stopping:
                self._begin_retry(servable_id, failing)

    def _load(self, servable_id: ServableId) -> None:
        try:
            aspired = self._registry.loading(servable_id)
            if aspired is None:
                self._cancelled(servable_id)
            else:
                self._try_load(aspired)
        except Exception:
            # The top of a loading thread. No code reads its future.
            logger.exception("Loading %s failed", servable_id)
        finally:
            with self._lock:
                self._queued.discard(servable_id)
                self._advance(servable_id.name)

    def _try_load(self, aspired: AspiredVersion) -> None:
        servable_id = aspired.servable
        logger.info("Loading %s", servable_id)
        try:
            loaded = self._loader.load(aspired)
        except ServingError as error:
            logger.error("Loading %s failed: %s", servable_id, error.message)
            failure: ServingError = error.copy()
        except Exception as error:
            # The top of a loading thread: a failing model must not stop the others, and its status must show the
            # failure.
            logger.exception("Loading %s failed", servable_id)
            failure = Internal(f"{type(error).__name__} while loading; see the server's log")
        else:
            self._loaded(aspired, loaded)
            return
        with self._lock:
            self._load_failed(aspired, failure)

    def _cancelled(self, servable_id: ServableId) -> None:
        """Fail a version that was given up while its load was queued. The registry has already removed one in START."""
        with self._lock:
            if (servable_id, State.LOADING) in [
                (a.servable, s) for a, s, _ in self._registry.snapshot(servable_id.name)
            ]:
                self._registry.failed(
                    servable_id, Cancelled("Loading was cancelled: the version is no longer requested")
                )

    def _loaded(self, aspired: AspiredVersion, loaded: Loaded) -> None:
        servable_id = aspired.servable
        with self._lock:
            self._failing.pop(servable_id, None)
            is_current = self._registry.is_current(aspired)
            if is_current:
                self._registry.available(servable_id, loaded)
        if is_current:
            logger.info("Serving %s", servable_id)
        else:
            self._discard_and_reload(servable_id, loaded)

    def _discard_and_reload(self, servable_id: ServableId, loaded: Loaded) -> None:
        """Discard a load and load again: the model was removed and added during the load, and may have moved."""
        try:
            self._loader.unload(loaded)
        except Exception:
            # Like in `_unload`: the server continues, whatever the model raises.
            logger.exception("Unloading %s failed", servable_id)
        with self._lock:
            if not self._stopping:
                self._begin_load(servable_id)

    def _unload(self, servable_id: ServableId) -> None:
        try:
            self._loader.unload(self._registry.wait_idle(servable_id))
        except Exception:
            # The version ends, whatever its model raises.
            logger.exception("Unloading %s failed", servable_id)
        self._registry.ended(servable_id)
        logger.info("Unloaded %s", servable_id)
        with self._lock:
            self._advance(servable_id.name)
