"""ModelRegistry: which versions exist, what state each is in, and who is using them."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from tpuserve_server.core.aspired_version import AspiredVersion
from tpuserve_server.core.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.model_record import ModelRecord, VersionRecord
from tpuserve_server.core.types import ModelSpec, Pending, ServableId, State, VersionStatus

logger = logging.getLogger(__name__)

# Models that were taken away whose ended versions still show in their status, as upstream's do for ever.
_MAX_REMOVED = 32


class ServableHandle:
    """A loaded version, held: it is not unloaded before `release`. Release once, or use as a context manager."""

    __slots__ = ("_registry", "_version", "loaded", "servable_id")

    def __init__(self, registry: "ModelRegistry", version: VersionRecord, loaded: LoadedVersion) -> None:
        self._registry = registry
        self._version = version
        self.servable_id = version.aspired.servable
        self.loaded = loaded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let go of the version."""
        self._registry._release(self._version)


class ModelRegistry:
    """The versions of every configured model. All methods may be called from any thread; none blocks for long.

    States move forward only: START, LOADING, AVAILABLE, UNLOADING, END. A state is reported before the work it names
    begins and AVAILABLE after it has succeeded, so that nobody is ever sent to a version that cannot answer.
    """

    def __init__(self, model_names: Iterable[str], metrics: Metrics) -> None:
        """These models are awaited: the server is not ready without them. No model has versions yet."""
        self._metrics = metrics
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._models = {name: ModelRecord(is_awaited=True) for name in model_names}
        self._names = tuple(sorted(self._models))
        self._listeners: list[Callable[[], None]] = []
        self._has_served = False
        self._closed = False

    # Asked by requests.

    def acquire(self, spec: ModelSpec) -> ServableHandle:
        """Hold the version a spec resolves to.

        Raises:
            InvalidArgument: the label is not known.
            NotFound: no such model or version.
            Unavailable: the model's first version is still on its way.
        """
        with self._lock:
            number = spec.version if spec.version_label is None else self._resolve(spec.name, spec.version_label)
            model = self._models.get(spec.name)
            version = model.find(number) if model is not None else None
            if self._closed or version is None or version.loaded is None or version.state is not State.AVAILABLE:
                raise self._why_not(spec.name, number)
            version.handles += 1
            return ServableHandle(self, version, version.loaded)

    def statuses(self, name: str) -> list[VersionStatus]:
        """Every version of a model, newest first; empty for an unknown model."""
        with self._lock:
            model = self._models.get(name)
            return [] if model is None else model.statuses(name)

    def why_no_versions(self, name: str) -> str:
        """Give the reason why a model has no version; empty for an unknown reason."""
        with self._lock:
            model = self._models.get(name)
            return model.arriving.reason if model is not None else ""

    def model_names(self) -> tuple[str, ...]:
        """Every configured model, sorted."""
        return self._names

    def labels(self, name: str) -> dict[str, int]:
        """The labels that requests for a model may use."""
        with self._lock:
            model = self._models.get(name)
            return dict(model.labels) if model is not None else {}

    def why_not_ready(self) -> str:
        """A sentence for people, empty when ready: what the server began with serves or has failed for good.

        A model that failed does not hold the others back, unless there are no others. One that was added later does
        not take readiness away while it is loaded.
        """
        with self._lock:
            models = {name: self._models[name] for name in self._names}
            missing = [name for name, model in models.items() if model.latest is None]
            awaited = [name for name in missing if models[name].is_awaited and not models[name].has_failed()]
            nothing = len(missing) == len(models)
            return self._describe_missing(awaited or missing) if awaited or (missing and nothing) else ""

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after each change of state, on the thread that made it; returns the way out."""
        with self._lock:
            self._listeners.append(on_change)

        def leave() -> None:
            with self._lock:
                self._listeners.remove(on_change)

        return leave

    # Asked by those who wait for models.

    def is_available(self, servable_id: ServableId) -> bool:
        """Whether requests for this version are answered."""
        with self._lock:
            model = self._models.get(servable_id.name)
            return model is not None and model.is_available(servable_id.version)

    def is_awaited_by_label(self, servable_id: ServableId) -> bool:
        """Whether a label takes effect once this version is AVAILABLE."""
        with self._lock:
            model = self._models.get(servable_id.name)
            return model is not None and servable_id.version in model.pending.values()

    def failures(self, name: str) -> list[tuple[ServableId, ServingError]] | None:
        """None while the model may still come; empty when it serves; else what became of each wanted version.

        Raises:
            Unavailable: the model is no longer configured, or the server is shutting down.
        """
        with self._lock:
            model = self._models.get(name)
            if self._closed:
                raise _closing()
            if model is None or not model.is_configured:
                raise Unavailable(f"Model {name} was taken away by a later configuration")
            if model.latest is not None:
                return []
            return model.failures() if model.has_failed() else None

    def failure(self, servable_id: ServableId) -> ServingError | None:
        """Why a version that is wanted could not be loaded; None if it was, or may still be."""
        with self._lock:
            model = self._models.get(servable_id.name)
            version = model.versions.get(servable_id.version) if model is not None else None
            return version.error if version is not None and version.is_aspired else None

    def start_failures(self) -> list[tuple[ServableId, ServingError]]:
        """What became of each version when nothing could be served since the start, nor will be; empty before."""
        with self._lock:
            models = [self._models[name] for name in self._names]
            if self._has_served or self._closed or not all(model.has_failed() for model in models):
                return []
            return [failure for model in models for failure in model.failures()]

    # Told by the configuration.

    def configure(self, names: Iterable[str]) -> None:
        """Have these models and no others. What is no longer wanted is unaspired; a manager has to unload it."""
        with self._lock:
            wanted = set(names)
            for name in wanted:
                self._models.setdefault(name, ModelRecord()).is_configured = True
            for name, model in self._models.items():
                if name not in wanted and model.is_configured:
                    model.remove()
            self._names = tuple(sorted(wanted))
            self._forget_removed()
        self._tell()

    def assign_labels(self, name: str, labels: Mapping[str, int], *, even_if_unavailable: bool = False) -> None:
        """Replace a model's labels. One to a version that is not AVAILABLE takes effect when it is, or at once."""
        with self._lock:
            self._models[name].assign_labels(labels, even_if_unavailable=even_if_unavailable)

    # Told by the source.

    def expect(self, name: str, pending: Pending) -> None:
        """Take over what a model lacks in its base path."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_configured or model.arriving == pending:
                return
            model.arriving = pending
        # The report of a start names the reason.
        self._tell()

    # Told by the manager, which alone changes states.

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Say which versions of a model ought to be served. A failed one is tried again when its contents changed."""
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.is_configured:
                return
            had_failed = model.has_failed()
            model.aspire(aspired)
            changed = model.has_failed() != had_failed
        if changed:
            self._tell()

    def close(self) -> None:
        """No handles from here on: the server is going, and who still asks should ask another one."""
        with self._lock:
            self._closed = True
        self._tell()

    def all_models(self) -> list[str]:
        """Every model with versions, configured or on its way out."""
        with self._lock:
            return list(self._models)

    def snapshot(self, name: str) -> list[tuple[AspiredVersion, State, bool]]:
        """Each version with its state and whether it is aspired."""
        with self._lock:
            model = self._models.get(name)
            return [(v.aspired, v.state, v.is_aspired) for v in model.versions.values()] if model is not None else []

    def loading(self, servable_id: ServableId) -> AspiredVersion | None:
        """Loading begins, or begins again after a failure; None if the version is no longer wanted."""
        with self._lock:
            version = self._find(servable_id)
            if version is None or not version.is_aspired:
                return None
            aspired, is_again = version.aspired, version.state is State.LOADING
            version.waits = ""
        if not is_again:
            self._change(servable_id, State.LOADING)
        return aspired

    def is_current(self, aspired: AspiredVersion) -> bool:
        """Whether a load that began with this is still the one to serve: not if it was given up, and wanted anew."""
        with self._lock:
            version = self._find(aspired.servable)
            return version is not None and version.aspired == aspired

    def waiting(self, servable_id: ServableId, why: str) -> None:
        """A load has failed and will be tried again; `why` shows in the status until then."""
        with self._lock:
            self._get(servable_id).waits = why
        self._tell()

    def available(self, servable_id: ServableId, loaded: LoadedVersion) -> None:
        """Loading has succeeded."""
        self._change(servable_id, State.AVAILABLE, loaded=loaded)

    def failed(self, servable_id: ServableId, error: ServingError) -> None:
        """Loading has failed for good."""
        self._change(servable_id, State.END, error=error)

    def unloading(self, servable_id: ServableId) -> None:
        """No new handles from here on."""
        self._change(servable_id, State.UNLOADING)

    def wait_idle(self, servable_id: ServableId) -> LoadedVersion:
        """Block until the handles of an UNLOADING version have come back; what to unload."""
        with self._lock:
            version = self._get(servable_id)
            self._idle.wait_for(lambda: version.handles == 0)
            loaded, version.loaded = version.loaded, None
        if loaded is None:
            raise AssertionError(f"{servable_id} was available but not loaded")
        return loaded

    def ended(self, servable_id: ServableId) -> None:
        """Unloading is done."""
        self._change(servable_id, State.END)

    def _change(
        self,
        servable_id: ServableId,
        state: State,
        *,
        loaded: LoadedVersion | None = None,
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
            self._models[servable_id.name].settle(is_closing=self._closed)
        self._metrics.version_changed(servable=servable_id, state=state)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:
                # Who listens must not be able to stop a version on its way.
                logger.exception("A listener to the models' states failed")

    def _find(self, servable_id: ServableId) -> VersionRecord | None:
        model = self._models.get(servable_id.name)
        return model.versions.get(servable_id.version) if model is not None else None

    def _get(self, servable_id: ServableId) -> VersionRecord:
        return self._models[servable_id.name].versions[servable_id.version]

    def _describe_missing(self, names: Iterable[str]) -> str:
        reasons = {name: self._models[name].arriving.describe() for name in names}
        described = [f"{name} ({reason})" if reason else name for name, reason in reasons.items()]
        return f"no version available of: {', '.join(described)}"

    def _resolve(self, name: str, label: str) -> int:
        model = self._models.get(name)
        number = model.labels.get(label) if model is not None else None
        if number is None:
            raise InvalidArgument(f"Unrecognized servable version label: {label}")
        return number

    def _why_not(self, name: str, number: int | None) -> ServingError:
        if self._closed:
            return _closing()
        if number is not None:
            return NotFound(f"Servable not found for request: Specific({name}, {number})")
        model = self._models.get(name)
        if model is not None and model.is_on_its_way():
            return Unavailable(f"Model {name} has no version ready yet: {model.describe()}")
        return NotFound(f"Servable not found for request: Latest({name})")

    def _release(self, version: VersionRecord) -> None:
        with self._lock:
            version.handles -= 1
            if version.handles == 0 and version.state is State.UNLOADING:
                self._idle.notify_all()

    def _forget_removed(self) -> None:
        """Of models that were taken away the statuses of the last few, so that they do not pile up."""
        over = [
            name
            for name, model in self._models.items()
            if not model.is_configured and all(v.state is State.END for v in model.versions.values())
        ]
        for name in over[:-_MAX_REMOVED]:
            del self._models[name]


def _closing() -> Unavailable:
    return Unavailable("The server is shutting down")
