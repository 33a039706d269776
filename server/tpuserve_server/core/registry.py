"""ModelRegistry: which versions exist, what state each is in, and who is using them."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tpuserve_server.core.errors import InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.types import AspiredVersion, ModelSpec, ServableId, State, VersionStatus

logger = logging.getLogger(__name__)

# Ended versions kept in a model's status. TensorFlow Serving keeps all of them, for ever (issue 1488).
_MAX_ENDED = 32


@dataclass(slots=True, eq=False)
class _Version:
    """One version's record. Guarded by the registry's lock."""

    aspired: AspiredVersion
    is_aspired: bool = True
    state: State = State.START
    error: ServingError | None = None
    loaded: LoadedVersion | None = None
    handles: int = 0


@dataclass(slots=True, eq=False)
class _Model:
    versions: dict[int, _Version] = field(default_factory=dict)
    latest: _Version | None = None


class ServableHandle:
    """A loaded version, held: it is not unloaded before `release`. Release once, or use as a context manager."""

    __slots__ = ("_registry", "_version", "loaded", "servable_id")

    def __init__(self, registry: "ModelRegistry", version: _Version, loaded: LoadedVersion) -> None:
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
        """No model has versions yet."""
        self._metrics = metrics
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._models = {name: _Model() for name in sorted(model_names)}
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    # Asked by requests.

    def acquire(self, spec: ModelSpec) -> ServableHandle:
        """Hold the version a spec resolves to.

        Raises:
            InvalidArgument: the label is not known.
            NotFound: no such model or version.
            Unavailable: the model's first version is still on its way.
        """
        if spec.version_label is not None:
            raise InvalidArgument(f"Unrecognized servable version label: {spec.version_label}")
        with self._lock:
            version = self._find(spec)
            if self._closed or version is None or version.loaded is None or version.state is not State.AVAILABLE:
                raise self._why_not(spec)
            version.handles += 1
            return ServableHandle(self, version, version.loaded)

    def statuses(self, name: str) -> list[VersionStatus]:
        """Every version of a model, newest first; empty for an unknown model."""
        with self._lock:
            model = self._models.get(name)
            if model is None:
                return []
            return [_status(model.versions[number]) for number in sorted(model.versions, reverse=True)]

    def model_names(self) -> list[str]:
        """Every configured model, sorted."""
        return list(self._models)

    def missing(self) -> list[str]:
        """Models without an AVAILABLE version."""
        with self._lock:
            return [name for name, model in self._models.items() if model.latest is None]

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after each change of state, on the thread that made it; returns the way out."""
        with self._lock:
            self._listeners.append(on_change)

        def leave() -> None:
            with self._lock:
                self._listeners.remove(on_change)

        return leave

    # Told by the manager, which alone changes states.

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Say which versions of a model ought to be served. A failed one is tried again when its contents changed."""
        with self._lock:
            versions = self._models[name].versions
            for number, version in list(versions.items()):
                version.is_aspired = number in aspired
                if not version.is_aspired and version.state is State.START:
                    del versions[number]
            for number, wanted in aspired.items():
                known = versions.get(number)
                if known is None or (known.state is State.END and _worth_retrying(known, wanted)):
                    versions[number] = _Version(wanted)
            _forget_old(versions)

    def close(self) -> None:
        """No handles from here on: the server is going, and who still asks should ask another one."""
        with self._lock:
            self._closed = True

    def snapshot(self, name: str) -> list[tuple[AspiredVersion, State, bool]]:
        """Each version with its state and whether it is aspired."""
        with self._lock:
            return [(v.aspired, v.state, v.is_aspired) for v in self._models[name].versions.values()]

    def loading(self, servable_id: ServableId) -> bool:
        """Loading begins; False if the version is no longer wanted and has been forgotten."""
        with self._lock:
            if servable_id.version not in self._models[servable_id.name].versions:
                return False
        self._change(servable_id, State.LOADING)
        return True

    def available(self, servable_id: ServableId, loaded: LoadedVersion) -> None:
        """Loading has succeeded."""
        self._change(servable_id, State.AVAILABLE, loaded=loaded)

    def failed(self, servable_id: ServableId, error: ServingError) -> None:
        """Loading has failed."""
        self._change(servable_id, State.END, error=error)

    def unloading(self, servable_id: ServableId) -> LoadedVersion:
        """No new handles from here on; blocks until those given out have come back, then returns what to unload."""
        self._change(servable_id, State.UNLOADING)
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
            if loaded is not None:
                version.loaded = loaded
            self._choose_latest(self._models[servable_id.name])
            listeners = list(self._listeners)
        self._metrics.version_changed(servable=servable_id, state=state)
        for listener in listeners:
            try:
                listener()
            except Exception:
                # Who listens must not be able to stop a version on its way.
                logger.exception("A listener to %s failed", servable_id)

    def _get(self, servable_id: ServableId) -> _Version:
        return self._models[servable_id.name].versions[servable_id.version]

    def _choose_latest(self, model: _Model) -> None:
        serving = [number for number, version in model.versions.items() if version.state is State.AVAILABLE]
        model.latest = model.versions[max(serving)] if serving else None

    def _find(self, spec: ModelSpec) -> _Version | None:
        model = self._models.get(spec.name)
        if model is None:
            return None
        return model.latest if spec.version is None else model.versions.get(spec.version)

    def _why_not(self, spec: ModelSpec) -> ServingError:
        if self._closed:
            return Unavailable("The server is shutting down")
        model = self._models.get(spec.name)
        if spec.version is not None:
            return NotFound(f"Servable not found for request: Specific({spec.name}, {spec.version})")
        if model is not None and _is_on_its_way(model):
            return Unavailable(f"Model {spec.name} has no version ready yet: {_describe(model)}")
        return NotFound(f"Servable not found for request: Latest({spec.name})")

    def _release(self, version: _Version) -> None:
        with self._lock:
            version.handles -= 1
            if version.handles == 0 and version.state is State.UNLOADING:
                self._idle.notify_all()


def _is_on_its_way(model: _Model) -> bool:
    """Whether asking again later may help: nothing has been found yet, or something is being loaded."""
    states = {version.state for version in model.versions.values()}
    return not states or not states.isdisjoint({State.START, State.LOADING, State.UNLOADING})


def _worth_retrying(known: _Version, wanted: AspiredVersion) -> bool:
    """A version that ended well was unloaded and is wanted again; one that failed may have been mended since."""
    return known.error is None or known.aspired.fingerprint != wanted.fingerprint


def _forget_old(versions: dict[int, _Version]) -> None:
    ended = sorted(
        number for number, version in versions.items() if version.state is State.END and not version.is_aspired
    )
    for number in ended[:-_MAX_ENDED]:
        del versions[number]


def _describe(model: _Model) -> str:
    if not model.versions:
        return "no version directory found"
    return ", ".join(f"version {number} is {version.state.name}" for number, version in sorted(model.versions.items()))


def _status(version: _Version) -> VersionStatus:
    return VersionStatus(
        servable=version.aspired.servable,
        state=version.state,
        error=version.error.message if version.error else "",
        error_code=version.error.code if version.error else 0,
        notes=version.loaded.notes if version.loaded else (),
    )
