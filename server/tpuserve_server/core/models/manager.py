"""VersionManager: moves versions through their states as a source requests them."""

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tpuserve_server.core.models.loader import AspiredVersion, Loaded, Loader
from tpuserve_server.core.models.policy import Action, VersionSnapshot, next_action
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.unloads import Unloads
from tpuserve_server.core.system.threads import JobThreads
from tpuserve_server.core.system.timers import VersionTimer
from tpuserve_server.core.terms.deadline import WaitingClock, clock_time
from tpuserve_server.core.terms.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    ResourceExhausted,
    ServingError,
)
from tpuserve_server.core.terms.options import LoadOptions
from tpuserve_server.core.terms.types import ServableId, State

logger = logging.getLogger(__name__)

# Loads and unloads of a model that were given up and still run. Each keeps a thread and its memory.
_MAX_HUNG = 4
# Time that a load has left when its version changes or is no longer wanted, so that a version whose load hangs can be
# replaced.
_STALE_S = 60.0


@dataclass(slots=True)
class _Failing:
    """A version whose last load failed. `waits` is True until its next try is due."""

    attempts: int
    error: ServingError
    tried: AspiredVersion
    waits: bool


@dataclass(slots=True, eq=False)
class _Attempt:
    """A load in the queue or in progress. `aspired` is set when it begins.

    `due_s` is the end of its time, and `reason` why it is given up then.
    """

    servable_id: ServableId
    load: Callable[["_Attempt"], None]
    aspired: AspiredVersion | None = None
    due_s: float = math.inf
    reason: str = ""
    is_given_up: bool = False

    def run(self) -> None:
        """Implement Job.run."""
        self.load(self)


class VersionManager:
    """Loads and unloads on its own threads. A slow or failing model does not keep others from loading.

    A load that takes too long is given up: its version fails, and another thread takes the place of its thread, which
    cannot be ended. If the load ends later, its result is discarded.

    `_attempts` holds the loads that were submitted to the threads, have not ended and were not given up. `_hung` counts
    those of each model that were given up and have not ended. `_lock` guards these, `_failing` and `_stopping`, and the
    decisions about the next step. The registry's lock is taken inside it.
    """

    def __init__(
        self, registry: ModelRegistry, loader: Loader[Loaded], clock: WaitingClock, options: LoadOptions
    ) -> None:
        """Load nothing before the first `aspire`."""
        self._registry = registry
        self._loader = loader
        self._clock = clock
        self._options = options
        self._lock = threading.Lock()
        self._attempts: dict[ServableId, _Attempt] = {}
        self._hung: Counter[str] = Counter()
        self._failing: dict[ServableId, _Failing] = {}
        self._stopping = False
        self._retries = VersionTimer(clock, self._retry, name="load-retries")
        self._limits = VersionTimer(clock, self._limit, name="load-limits")
        self._loads = JobThreads(max(options.threads, 1))
        self._unloads = Unloads(registry, loader, clock, options.timeout_s, self._ended)

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Set the versions of a model that should be served. Returns at once. Called by the source's thread."""
        with self._lock:
            self._registry.aspire(name, aspired)
            self._review_failing(name, aspired)
            self._review_attempts(name, aspired)
            self._unloads.review(name, aspired)
            self._advance(name)

    def configure(self, names: Iterable[str], on_demand: Collection[str] = ()) -> None:
        """Keep these models and unload all others when their requests have ended. Returns at once.

        The models `on_demand` load after `demand`, and unload after `dismiss`.
        """
        with self._lock:
            self._registry.configure(names, on_demand)
            configured = set(self._registry.model_names())
            for name in self._registry.all_models():
                if name not in configured:
                    self._review_failing(name, {})
                    self._review_attempts(name, {})
                self._advance(name)

    def demand(self, name: str) -> bool:
        """Load a model that loads on demand. Returns at once: True if the model was not loaded."""
        with self._lock:
            is_new = self._registry.demand(name)
            self._advance(name)
            return is_new

    def dismiss(self, name: str) -> bool:
        """Unload a model that loads on demand when its requests have ended, until the next `demand`. Returns at once.

        Return False for a model that cannot leave.
        """
        with self._lock:
            if not self._registry.dismiss(name):
                return False
            self._advance(name)
            return True

    def retry(self, name: str) -> None:
        """Load the failed versions of a model again, at once, and those that load on demand. Returns at once."""
        with self._lock:
            self._registry.demand(name)
            self._registry.retry(name)
            for servable_id, failing in self._failing.items():
                if servable_id.name == name and failing.waits and not self._stopping:
                    self._retries.cancel(servable_id)
                    # Before the load begins on its thread: a caller that waits for it must not see the old failure.
                    self._registry.waiting(servable_id, "")
                    self._begin_retry(servable_id, failing)
            self._advance(name)

    def stop(self) -> None:
        """Unload all versions and join the threads. Loads in progress that do not end soon are given up."""
        with self._lock:
            self._stopping = True
        self._registry.close()
        self._retries.stop()
        self._loads.stop()
        self._limits.stop()
        for name in self._registry.all_models():
            for aspired, state, _ in self._registry.snapshot(name):
                if state is State.AVAILABLE:
                    self._unloads.begin(aspired.servable)
        self._unloads.stop()

    # The methods up to `_retry` are called with `_lock` held.

    def _advance(self, name: str) -> None:
        """Begin all steps that are due for the model now. The end of each step calls this again."""
        while not self._stopping and (step := next_action(self._snapshot(name))) is not None:
            action, number = step
            servable_id = ServableId(name, number)
            if action is Action.LOAD:
                self._begin_load(servable_id)
            else:
                self._unloads.begin(servable_id)

    def _snapshot(self, name: str) -> list[VersionSnapshot]:
        """Return the model's versions, with queued loads as LOADING.

        A load stays in the queue for a moment after its version is AVAILABLE. A change of the configuration in that
        moment must unload the version.
        """
        return [
            VersionSnapshot(
                aspired.servable.version,
                State.LOADING if aspired.servable in self._attempts and state is not State.AVAILABLE else state,
                is_aspired,
            )
            for aspired, state, is_aspired in self._registry.snapshot(name)
        ]

    def _begin_load(self, servable_id: ServableId) -> None:
        attempt = self._attempts[servable_id] = _Attempt(servable_id, self._load)
        self._loads.submit(attempt)

    def _begin_retry(self, servable_id: ServableId, failing: _Failing) -> None:
        failing.waits = False
        self._begin_load(servable_id)

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

    def _review_attempts(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Limit the time of loads whose version has changed since their start, or is no longer wanted."""
        for attempt in self._attempts.values():
            if attempt.servable_id.name == name and attempt.aspired is not None and self._options.timeout_s:
                wanted = aspired.get(attempt.servable_id.version)
                if wanted is None or wanted.has_changed_since(attempt.aspired):
                    self._set_limit(attempt, _STALE_S, "The version changed during a load that did not end")

    def _set_limit(self, attempt: _Attempt, limit_s: float, reason: str) -> None:
        due_s = self._clock.monotonic_s() + limit_s
        if due_s < attempt.due_s:
            attempt.due_s, attempt.reason = due_s, reason
            self._limits.set(attempt.servable_id, limit_s)

    def _give_up(self, servable_id: ServableId) -> None:
        """Cancel the retries of a version. A load in progress detects at its end that the version is not wanted."""
        failing = self._failing.pop(servable_id)
        self._retries.cancel(servable_id)
        if failing.waits:
            self._registry.failed(servable_id, failing.error)

    def _load_failed(self, aspired: AspiredVersion, error: ServingError) -> None:
        """Try the load again after a pause if its error may pass, otherwise fail the version.

        An error with its own time of the next try fails the version until then. A model that loads on demand gets its
        next try with the next request.
        """
        servable_id = aspired.servable
        if self._is_wanted(servable_id) and not self._registry.is_current(aspired) and not self._stopping:
            # The failed version was given up. The version that is wanted now has not been tried.
            self._failing.pop(servable_id, None)
            self._begin_load(servable_id)
            return
        if error.may_pass and not self._stopping and self._registry.postponed(servable_id, error):
            self._failing.pop(servable_id, None)
            logger.warning("%s is not loaded; the next request tries again", servable_id)
            return
        attempts = self._failing[servable_id].attempts + 1 if servable_id in self._failing else 1
        max_retries = self._options.max_retries if error.may_pass else 0
        if attempts > max_retries or not self._is_wanted(servable_id) or self._stopping:
            self._failing.pop(servable_id, None)
            self._registry.failed(servable_id, error)
            if next_try := aspired.next_try(error):
                logger.warning("%s has failed; %s", servable_id, next_try)
            if error.retry_after_s is not None:
                self._retries.set(servable_id, error.retry_after_s)
            return
        self._failing[servable_id] = _Failing(attempts, error, aspired, waits=True)
        pause_s = self._options.retry_interval_s
        total = 1 + max_retries
        next_try = f"next attempt at {clock_time(pause_s)}"
        logger.warning("Loading %s again: %s", servable_id, next_try)
        self._registry.waiting(servable_id, f"load attempt {attempts} of {total} failed: {error.message}; {next_try}")
        self._retries.set(servable_id, pause_s)

    def _is_wanted(self, servable_id: ServableId) -> bool:
        return any(a.servable == servable_id and wanted for a, _, wanted in self._registry.snapshot(servable_id.name))

    # The methods below run on other threads: the timer's, the loading threads and the unloading threads.

    def _retry(self, servable_id: ServableId) -> None:
        with self._lock:
            failing = self._failing.get(servable_id)
            if failing is None and not self._stopping:
                # The end of a quarantine.
                self._registry.retry(servable_id.name, servable_id.version)
                self._advance(servable_id.name)
            elif failing is not None and failing.waits and not self._stopping:
                self._begin_retry(servable_id, failing)

    def _limit(self, servable_id: ServableId) -> None:
        """Give up a load whose time is over."""
        with self._lock:
            attempt = self._attempts.get(servable_id)
            # A call for an earlier load may arrive late.
            if attempt is None or attempt.aspired is None or attempt.due_s > self._clock.monotonic_s():
                return
            attempt.is_given_up = True
            del self._attempts[servable_id]
            self._hung[servable_id.name] += 1
            self._loads.give_up(attempt)
            logger.error("Loading %s is given up: %s", servable_id, attempt.reason)
            self._load_failed(
                attempt.aspired,
                DeadlineExceeded(f"{attempt.reason}. Its thread and memory remain in use until it ends"),
            )
            self._advance(servable_id.name)

    def _load(self, attempt: _Attempt) -> None:
        servable_id = attempt.servable_id
        try:
            aspired = self._registry.loading(servable_id)
            if aspired is None:
                self._cancelled(servable_id)
            else:
                self._begin_limit(attempt, aspired)
                self._try_load(attempt, aspired)
        except Exception:
            # The top of a loading thread.
            logger.exception("Loading %s failed", servable_id)
        finally:
            self._end(attempt)

    def _begin_limit(self, attempt: _Attempt, aspired: AspiredVersion) -> None:
        with self._lock:
            attempt.aspired = aspired
            if limit_s := self._options.timeout_s:
                self._set_limit(attempt, limit_s, f"Loading took more than {limit_s:g} s (--load_timeout_seconds)")

    def _end(self, attempt: _Attempt) -> None:
        servable_id = attempt.servable_id
        with self._lock:
            if attempt.is_given_up:
                logger.warning("The load of %s that was given up has ended", servable_id)
                self._hung[servable_id.name] -= 1
            elif self._attempts.get(servable_id) is attempt:
                del self._attempts[servable_id]
                self._limits.cancel(servable_id)
            self._advance(servable_id.name)

    def _try_load(self, attempt: _Attempt, aspired: AspiredVersion) -> None:
        servable_id = aspired.servable
        logger.info("Loading %s", servable_id)
        try:
            self._check_hung(servable_id.name)
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
            self._loaded(attempt, aspired, loaded)
            return
        with self._lock:
            if not attempt.is_given_up:
                # It stays in `_attempts` until `_end`, and must not fail a second time by its limit.
                attempt.due_s = math.inf
                self._load_failed(aspired, failure)

    def _check_hung(self, name: str) -> None:
        with self._lock:
            hung = self._hung[name] + self._unloads.hung(name)
        if hung >= _MAX_HUNG:
            raise ResourceExhausted(f"{hung} earlier loads or unloads of the model were given up and have not ended")

    def _cancelled(self, servable_id: ServableId) -> None:
        """Fail a version that was given up while its load was queued. The registry has already removed one in START."""
        with self._lock:
            if (servable_id, State.LOADING) in [
                (a.servable, s) for a, s, _ in self._registry.snapshot(servable_id.name)
            ]:
                self._registry.failed(
                    servable_id, Cancelled("Loading was cancelled: the version is no longer requested")
                )

    def _loaded(self, attempt: _Attempt, aspired: AspiredVersion, loaded: Loaded) -> None:
        servable_id = aspired.servable
        with self._lock:
            is_current = not attempt.is_given_up and self._registry.is_current(aspired)
            if not attempt.is_given_up:
                self._failing.pop(servable_id, None)
            if is_current:
                attempt.due_s = math.inf
                self._registry.available(servable_id, loaded)
        if is_current:
            logger.info("Serving %s", servable_id)
        else:
            self._discard(attempt, loaded)

    def _discard(self, attempt: _Attempt, loaded: Loaded) -> None:
        """Discard a load that was given up, or whose model was removed and added during the load and may have moved.

        The latter is loaded again.
        """
        try:
            self._loader.unload(loaded)
        except Exception:
            # Like in `_unload`: the server continues, whatever the model raises.
            logger.exception("Unloading %s failed", attempt.servable_id)
        with self._lock:
            if not attempt.is_given_up and not self._stopping:
                self._begin_load(attempt.servable_id)

    def _ended(self, name: str) -> None:
        """Begin the next steps of a model, one of whose versions has ended."""
        with self._lock:
            self._advance(name)
