"""ModelRegistry: the existing versions, their states, and how many handles requests hold on them."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from tpuserve_server.core.models.loader import AspiredVersion, Loaded
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.models.model_record import ModelRecord, VersionRecord, why_not_ready
from tpuserve_server.core.models.servable_handle import ServableHandle
from tpuserve_server.core.system.changes import Listeners
from tpuserve_server.core.terms.errors import (
    InvalidArgument,
    NotFound,
    NotLoaded,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.terms.types import LoadProgress, ModelSpec, Pending, ServableId, State, VersionStatus

# Resolution of a request's label or version, and the errors for requests that no version can answer.
#
# The registry calls these functions under its lock.


def resolve_label(model: ModelRecord | None, name: str, label: str) -> int:
    """Return the version of a label. `model` is None if no model has this name.

    Raises:
        InvalidArgument: the label is unknown.
        Unavailable: the version of the label is not loaded yet.
        NotLoaded: it loads on demand.
    """
    number = model.labels.get(label) if model is not None else None
    if number is not None:
        return number
    if model is not None and label in model.pending and model.comes_on_demand():
        raise not_loaded(model, name)
    if model is not None and model.is_label_coming(label):
        raise Unavailable(f"Label {label} of model {name} has no version ready yet: {model.describe()}")
    raise InvalidArgument(f"Unrecognized servable version label: {label}")


def why_not(model: ModelRecord | None, name: str, number: int | None) -> ServingError:
    """Return why a version does not answer requests, or why none does if `number` is None."""
    if model is not None and (number is None or number in model.versions) and model.comes_on_demand():
        return not_loaded(model, name)
    if number is not None:
        if model is not None and model.is_starting(number):
            return Unavailable(f"Model {name} version {number} is not ready yet: {model.describe()}")
        why = "" if model is None or number not in model.versions else model.why_not_loaded()
        return NotFound(f"Servable not found for request: Specific({name}, {number}){why}")
    if model is not None and model.is_arriving():
        return Unavailable(f"Model {name} has no version ready yet: {model.describe()}")
    why = "" if model is None else model.why_not_loaded()
    return NotFound(f"Servable not found for request: Latest({name}){why}")


def not_loaded(model: ModelRecord, name: str) -> NotLoaded:
    """Return the error of a request that does not wait for a model that loads on demand."""
    why = model.why_postponed()
    return NotLoaded(f"Model {name} is not loaded yet{f' (the last load failed: {why})' if why else ''}")


def shutting_down() -> Unavailable:
    """Return the error of every request once the registry is closed."""
    return Unavailable("The server is shutting down")


_T = TypeVar("_T")

# Removed models whose ended versions stay in their status. Upstream keeps all of them forever.
_MAX_REMOVED = 32


class ModelRegistry:
    """The versions of every configured model. Thread-safe. Only `wait_idle` blocks for long.

    States move forward only: START, LOADING, AVAILABLE, UNLOADING, END. The registry reports a state before the work it
    names begins, but AVAILABLE after the load has succeeded. Requests therefore never reach a version that cannot
    answer.
    """

    def __init__(self, model_names: Iterable[str], metrics: Metrics, now: Callable[[], float] = time.monotonic) -> None:
        """Await these models: the server is not ready without them. No model has versions yet.

        `now` returns the monotonic time in seconds.
        """
        self._metrics = metrics
        self._now = now
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._models = {name: ModelRecord(is_awaited=True) for name in model_names}
        self._names = tuple(sorted(self._models))
        self._listeners = Listeners("the models' states")
        self._has_served = False
        self._closed = False
        self._serving: tuple[Loaded, ...] = ()
        # The models of which a version has or had a response cache. Requests read it without a lock.
        self.cached_models: set[str] = set()
        # Hash of the configuration in force, or "" if flags are the configuration. ConfiguredModels sets it.
        self.configuration_sha256 = ""

    # Called for requests.

    def serving(self) -> tuple[Loaded, ...]:
        """Return the versions that answer requests, of all models. Needs no lock."""
        return self._serving

    def acquire(self, spec: ModelSpec, *, is_use: bool = True) -> ServableHandle:
        """Return a handle on the version that a spec resolves to.

        A model is idle if no acquire `is_use`: a look at its state or details is none.

        Raises:
            InvalidArgument: the label is unknown.
            NotFound: the model or version does not exist.
            Unavailable: the model's first versions are not loaded yet, or the server is shutting down.
            NotLoaded: `Residency.loaded` waits until the version answers.
        """
        with self._lock:
            model, label = self._models.get(spec.name), spec.version_label
            number = spec.version if label is None else resolve_label(model, spec.name, label)
            version = None
            if model is not None:
                # Without a number, the latest version that is AVAILABLE.
                version = model.latest if number is None else model.versions.get(number)
            if self._closed or version is None or version.loaded is None or version.state is not State.AVAILABLE:
                raise shutting_down() if self._closed else why_not(model, spec.name, number)
            if model is not None and model.loads_on_demand:
                if model.is_warming:
                    # Another version may be the one that the spec means.
                    raise not_loaded(model, spec.name)
                if is_use:
                    model.used_s = self._now()
            version.handles += 1
            return ServableHandle(self._release, version, version.loaded)

    def statuses(self, name: str) -> list[VersionStatus]:
        """Return the status of every version of a model, newest first, or [] for an unknown model."""
        with self._lock:
            model = self._models.get(name)
            return [] if model is None else model.statuses(name)

    def why_no_versions(self, name: str) -> str:
        """Return the reason why a model has no version, or "" if it is unknown."""
        with self._lock:
            model = self._models.get(name)
            return model.arriving.reason if model is not None else ""

    def must_wait(self, name: str) -> bool:
        """Note a request for a model. Return whether it must wait: `demand` loads the model, or it is loading."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.loads_on_demand or self._closed:
                return False
            model.used_s = self._now()
            return model.comes_on_demand()

    def is_warming(self, name: str) -> bool:
        """Return whether a model is loading for requests."""
        with self._lock:
            model = self._models.get(name)
            return model is not None and not self._closed and model.is_warming and model.comes_on_demand()

    def is_unread(self, name: str) -> bool:
        """Return whether the server has not read the base path of a model yet, so that its versions are unknown."""
        with self._lock:
            model = self._models.get(name)
            return model is not None and model.is_unread()

    def model_names(self) -> tuple[str, ...]:
        """Return the names of all configured models, sorted."""
        return self._names

    def labels(self, name: str) -> dict[str, int]:
        """Return the labels that requests for a model may use."""
        with self._lock:
            model = self._models.get(name)
            return dict(model.labels) if model is not None else {}

    def why_not_ready(self) -> str:
        """Return why the server is not ready, as a sentence for people, or "" if it is ready.

        The server is ready when each model that it started with serves or has failed for good, and at least one model
        serves. At the start, each version that a policy chose must have loaded or failed, and the labels must have
        taken effect. A model or version that is added later does not affect readiness while another serves.
        """
        return self.read(lambda models: why_not_ready(models, self._now()))

    def why_hung(self, servable_id: ServableId) -> str:
        """Return for how long a run of this version hangs, for people, or "" if none does."""
        with self._lock:
            version = self._find(servable_id)
            return version.why_hung() if version is not None else ""

    def read(self, reader: Callable[[Mapping[str, ModelRecord]], _T]) -> _T:
        """Call `reader` with the records of the configured models, under the lock. It must be cheap, and keep none."""
        with self._lock:
            return reader({name: self._models[name] for name in self._names})

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after each change of state, on the thread that made it. Return a function to unsubscribe."""
        return self._listeners.subscribe(on_change)

    # Called by code that waits for models.

    def is_available(self, servable_id: ServableId) -> bool:
        """Return whether the server answers requests for this version."""
        with self._lock:
            model = self._models.get(servable_id.name)
            return model is not None and model.is_available(servable_id.version)

    def is_awaited_by_label(self, servable_id: ServableId) -> bool:
        """Return whether a label takes effect once this version is AVAILABLE."""
        with self._lock:
            model = self._models.get(servable_id.name)
            return model is not None and servable_id.version in model.pending.values() and not model.is_dormant

    def failures(self, name: str) -> list[tuple[ServableId, ServingError]] | None:
        """Return None while the model may still become available, [] once it serves, else each wanted version's error.

        A model that loads on demand serves once its versions are known.

        Raises:
            Unavailable: the model is no longer configured, or the server is shutting down.
        """
        with self._lock:
            model = self._configured(name)
            if model.latest is not None or (model.is_dormant and model.wanted):
                return []
            return model.failures() if model.has_failed() else None

    def progress(self, name: str) -> LoadProgress:
        """Return the progress of the load since `expect_report`. Raises Unavailable as `failures`."""
        with self._lock:
            return self._configured(name).progress()

    def describe(self, name: str) -> str:
        """Describe a model's versions and their states, for people. Empty for an unknown model."""
        with self._lock:
            model = self._models.get(name)
            return model.describe() if model is not None else ""

    def failure(self, servable_id: ServableId) -> ServingError | None:
        """Return why a wanted version could not be loaded, or None if it was loaded or may still be."""
        with self._lock:
            model = self._models.get(servable_id.name)
            version = model.versions.get(servable_id.version) if model is not None else None
            return version.error if version is not None and version.is_aspired else None

    def start_failures(self) -> list[tuple[ServableId, ServingError]]:
        """Return each version's error if no model has ever served and all have failed for good, otherwise []."""
        with self._lock:
            models = [self._models[name] for name in self._names]
            if self._has_served or self._closed or not all(model.has_failed() for model in models):
                return []
            return [failure for model in models for failure in model.failures()]

    # Called by the configuration.

    def configure(self, names: Iterable[str], on_demand: Collection[str] = ()) -> None:
        """Keep these models and remove all others. The manager must then unload the removed models' versions.

        The models `on_demand` load at their first request.
        """
        with self._lock:
            wanted = set(names)
            for name in wanted:
                model = self._models.setdefault(name, ModelRecord())
                model.is_configured = True
                # A model that was loaded from the start stays until it is idle.
                model.is_demanded = model.is_demanded or model.latest is not None
                model.loads_on_demand = name in on_demand
            for name, model in self._models.items():
                if name not in wanted and model.is_configured:
                    model.remove()
            self._names = tuple(sorted(wanted))
            self._forget_removed()
        self._notify()

    def assign_labels(self, name: str, labels: Mapping[str, int], *, even_if_unavailable: bool = False) -> None:
        """Replace a model's labels. A label takes effect when its version is AVAILABLE.

        With `even_if_unavailable` a new label takes effect at once.
        """
        with self._lock:
            self._models[name].assign_labels(labels, even_if_unavailable=even_if_unavailable)

    def expect_report(self, name: str) -> None:
        """Forget the source's last report on a configured model, so that `progress` waits for the next."""
        with self._lock:
            self._models[name].expect_report()

    # Called by the source.

    def expect(self, name: str, pending: Pending) -> None:
        """Set what a model lacks in its base path."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_configured or model.arriving == pending:
                return
            model.arriving = pending
        # The start-up log shows the reason.
        self._notify()

    # Called by the manager, which alone changes states.

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Set the versions of a model that should be served. Failed versions with changed contents start again."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_configured:
                return
            before = (model.has_failed(), model.progress(), model.settle_start() == "")
            model.aspire(aspired)
            changed = (model.has_failed(), model.progress(), model.settle_start() == "") != before
        if changed:
            self._notify()

    def retry(self, name: str, version: int | None = None) -> None:
        """Start the wanted versions of a model again that have failed for good, or only this one."""
        with self._lock:
            model = self._models.get(name)
            if model is not None:
                model.retry(version)

    def demand(self, name: str) -> bool:
        """Want a model in memory that loads on demand. Return False if it already was wanted, or is of another kind."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.loads_on_demand:
                return False
            was_dormant = model.is_dormant
            model.demand(self._now())
            return was_dormant

    def dismiss(self, name: str) -> bool:
        """Want a model out of memory until its next request. The manager then unloads its versions.

        Return False for a model that cannot leave.
        """
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.can_leave():
                return False
            model.is_demanded = False
            return True

    def close(self) -> None:
        """Return no more handles, because the server is shutting down. Clients must use another server."""
        with self._lock:
            self._closed = True
        self._notify()

    def all_models(self) -> list[str]:
        """Return every model with versions, configured or being removed."""
        with self._lock:
            return list(self._models)

    def snapshot(self, name: str) -> list[tuple[AspiredVersion, State, bool]]:
        """Return each version with its state and whether it should be in memory."""
        with self._lock:
            model = self._models.get(name)
            if model is None:
                return []
            return [(v.aspired, v.state, v.is_aspired and not model.is_dormant) for v in model.versions.values()]

    def loading(self, servable_id: ServableId) -> AspiredVersion | None:
        """Begin a load, or begin it again after a failure. Return None if the version is no longer requested."""
        with self._lock:
            version = self._find(servable_id)
            if version is None or not version.is_aspired:
                return None
            aspired, is_retry = version.aspired, version.state is State.LOADING
            version.waits, version.loading_since_s = "", self._now()
        if not is_retry:
            self._change(servable_id, State.LOADING)
        return aspired

    def is_current(self, aspired: AspiredVersion) -> bool:
        """Return whether a load of `aspired` is still the one to serve, and was not given up and requested again."""
        with self._lock:
            version = self._find(aspired.servable)
            return version is not None and version.aspired == aspired

    def waiting(self, servable_id: ServableId, why: str) -> None:
        """Record why the next try of a failed load waits, for the status. Empty: the try begins now."""
        with self._lock:
            self._get(servable_id).waits = why
            self._models[servable_id.name].settle_warming()
        self._notify()

    def available(self, servable_id: ServableId, loaded: Loaded) -> None:
        """Record that a load has succeeded."""
        self._change(servable_id, State.AVAILABLE, loaded=loaded)

    def failed(self, servable_id: ServableId, error: ServingError) -> None:
        """Record that a load has failed for good."""
        self._change(servable_id, State.END, error=error)

    def postponed(self, servable_id: ServableId, error: ServingError) -> bool:
        """Leave the next try of a failed load to the next request. Return False if that is not possible.

        It is possible for a model that loads on demand, and of which no other version serves or loads.
        """
        with self._lock:
            is_postponed = self._models[servable_id.name].postpone(servable_id.version, error)
        if is_postponed:
            self._metrics.version_changed(servable=servable_id, state=State.END)
            self._notify()
        return is_postponed

    def unloading(self, servable_id: ServableId) -> VersionRecord:
        """Return no more handles on a version that will be unloaded. Return its record, for `wait_idle`."""
        self._change(servable_id, State.UNLOADING)
        with self._lock:
            return self._get(servable_id)

    def wait_idle(self, version: VersionRecord) -> Loaded:
        """Block until all handles on a version are released, and return what to unload."""
        with self._lock:
            self._idle.wait_for(lambda: version.handles == 0)
            loaded = version.loaded
        if loaded is None:
            raise AssertionError(f"{version.aspired.servable} was available but not loaded")
        return loaded

    def ended(self, servable_id: ServableId) -> None:
        """Record that an unload has finished."""
        self._change(servable_id, State.END)

    def given_up(self, servable_id: ServableId, error: ServingError) -> None:
        """Record that an unload does not end, so that the version can be loaded again. Its handles stay valid."""
        with self._lock:
            self._models[servable_id.name].give_up(servable_id.version, error, is_closing=self._closed)
        self._metrics.version_changed(servable=servable_id, state=State.END)
        self._notify()

    def _change(
        self,
        servable_id: ServableId,
        state: State,
        *,
        loaded: Loaded | None = None,
        error: ServingError | None = None,
    ) -> None:
        with self._lock:
            version = self._get(servable_id)
            if state <= version.state:
                raise AssertionError(f"{servable_id}: {version.state.name} to {state.name} is not forward")
            version.state = state
            version.error = error
            version.waits = ""
            if loaded is not None:
                version.loaded = loaded
                self._has_served = True
                if loaded.responses is not None:
                    self.cached_models.add(servable_id.name)
                # The time of a model that no request has used since a long load.
                self._models[servable_id.name].used_s = self._now()
            elif state is State.END:
                version.loaded = None
            self._models[servable_id.name].settle(is_closing=self._closed)
            self._serving = self._find_serving()
        self._metrics.version_changed(servable=servable_id, state=state)
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            for name in self._names:
                # Even if no listener asks: the start of a model ends at most once.
                self._models[name].settle_start()
        self._listeners.notify()

    def _find_serving(self) -> tuple[Loaded, ...]:
        versions = [version for model in self._models.values() for version in model.versions.values()]
        return tuple(
            version.loaded for version in versions if version.loaded is not None and version.state is State.AVAILABLE
        )

    def _configured(self, name: str) -> ModelRecord:
        if self._closed:
            raise shutting_down()
        model = self._models.get(name)
        if model is None or not model.is_configured:
            raise Unavailable(f"Model {name} was removed by a later configuration")
        return model

    def _find(self, servable_id: ServableId) -> VersionRecord | None:
        model = self._models.get(servable_id.name)
        return model.versions.get(servable_id.version) if model is not None else None

    def _get(self, servable_id: ServableId) -> VersionRecord:
        return self._models[servable_id.name].versions[servable_id.version]

    def _release(self, version: VersionRecord) -> None:
        with self._lock:
            version.handles -= 1
            if version.handles == 0 and version.state in (State.UNLOADING, State.END):
                self._idle.notify_all()

    def _forget_removed(self) -> None:
        """Keep the statuses of only the last few removed models, so that they do not accumulate."""
        over = [
            name
            for name, model in self._models.items()
            if not model.is_configured and all(v.state is State.END for v in model.versions.values())
        ]
        for name in over[:-_MAX_REMOVED]:
            del self._models[name]
