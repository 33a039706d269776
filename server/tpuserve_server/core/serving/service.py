"""InferenceService: the entry point to the models for every protocol and host."""

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from tpuserve_server.core.batching.demand import DemandTotals
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.batching.watchdog import Watchdog
from tpuserve_server.core.models.loader import Loaded, LoadedEnsemble, LoadedVersion, VersionDetails, details_of
from tpuserve_server.core.models.model_record import ModelStates, is_starting, loaded_of, states_of
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.residency import Residency
from tpuserve_server.core.models.response_cache import LARGE_INPUT_BYTES, Recall
from tpuserve_server.core.models.servable_handle import ServableHandle
from tpuserve_server.core.serving.acquired import AcquiredModel, AcquiredVersion
from tpuserve_server.core.serving.acquired_ensemble import AcquiredEnsemble, AcquiredEnsembleVersion
from tpuserve_server.core.system.changes import Listeners
from tpuserve_server.core.system.timers import RareTimersByLoop
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import FailedPrecondition, NotFound, ServingError, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.server_state import ServerState, Traffic
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    Body,
    ModelMetadata,
    ModelSpec,
    ServableId,
    VersionStatus,
)
from tpuserve_server.core.terms.validation import EXACT_SHAPES, ShapeRules


class ModelAccess(Protocol):
    """Answers for the current request, on any thread. Work that no request started may use every model."""

    def check(self, model: str) -> None:
        """Check that the client may use a model, whether or not it exists. Raises PermissionDenied."""
        ...

    def allows(self, model: str) -> bool:
        """Return whether the client may use a model."""
        ...


__all__ = ["AcquiredModel", "AcquiredVersion", "InferenceService"]


class InferenceService:
    """Predict, metadata and status for the models in the registry.

    Coroutines run on any event loop and do not block it. The other methods are cheap and may be called from any thread.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        clock: Clock,
        watchdog: Watchdog | None = None,
        access: ModelAccess | None = None,
        shapes: ShapeRules = EXACT_SHAPES,
        residency: Residency | None = None,
    ) -> None:
        """Serve the models in `registry`. Without `watchdog`, the process is always live.

        `access` limits the models that requests name or list. None: all clients may use all models.
        `shapes` are the rules for the inputs of requests. `residency` loads models on demand; None: all are loaded.
        """
        self._registry = registry
        # The models for which a call of `recall` may be useful: a version of theirs has or had a response cache.
        self.cached_models: Container[str] = registry.cached_models
        self._watchdog = watchdog
        self._access = access
        self._shapes = shapes
        self._residency = residency
        self._clock = clock
        self._timers = RareTimersByLoop()
        self._draining = False
        self._drain_listeners = Listeners("the drain")

    async def loaded(self, spec: ModelSpec, deadline: Deadline) -> None:
        """Wait until the model is in memory, if it loads on demand. Call it before `acquire`.

        Return at once for all other models, and for those that do not exist or that the client may not use.

        Raises:
            NotLoaded: `deadline` is near. The load continues.
        """
        if self._residency is not None and self.allows(spec.name):
            await self._residency.loaded(spec.name, deadline)

    def acquire(self, spec: ModelSpec) -> AcquiredModel:
        """Hold the model and signature that a spec resolves to. Front-ends use the signature to decode, then predict.

        Raises:
            PermissionDenied: the client of the request may not use the model.
            ServingError: with TensorFlow Serving's code and wording if the spec names nothing that exists.
        """
        # Like `check_access`, without its frame, because every prediction passes here.
        if self._access is not None:
            self._access.check(spec.name)
        handle = self._registry.acquire(spec)
        try:
            loaded = handle.loaded
            if isinstance(loaded, LoadedEnsemble):
                return self._hold_steps(handle, loaded, spec)
            name = spec.signature_name or DEFAULT_SIGNATURE_NAME
            signature = loaded.servable.signatures.get(name)
            if signature is None:
                raise _no_signature(name)
            return AcquiredModel(handle, loaded, signature, self._clock, self._timers, self._shapes)
        except BaseException:
            handle.release()
            raise

    def acquire_version(self, spec: ModelSpec) -> AcquiredVersion:
        """Hold the version that a spec resolves to, and ignore its signature.

        Raises:
            ServingError: as `acquire` for the same model and version.
        """
        self.check_access(spec.name)
        handle = self._registry.acquire(spec)
        try:
            loaded = handle.loaded
            if isinstance(loaded, LoadedEnsemble):
                acquired = AcquiredEnsemble(handle, loaded.steps.hold(), self._shapes)
                return AcquiredEnsembleVersion(acquired, loaded.steps.ensemble)
            return AcquiredVersion(handle, loaded, self._clock, self._timers, self._shapes)
        except BaseException:
            handle.release()
            raise

    async def recall(self, spec: ModelSpec, kind: str, body: Body) -> Recall | None:
        """Look up a request by its bytes, or return None for a version without response cache and an unknown spec.

        Also return None for a model that the client may not use: the request itself gets the error.
        `kind` states how the bytes are read and the response is encoded. The bytes and `spec` must determine the
        signature, the requested outputs and the inputs.
        """
        try:
            self.check_access(spec.name)
            handle = self._registry.acquire(spec)
        except ServingError:
            # The request itself gets the error, after the errors in its body.
            return None
        with handle:
            responses = handle.loaded.responses
            if responses is None:
                return None
            started_s = self._clock.monotonic_s()
            if len(body) < LARGE_INPUT_BYTES:
                key = responses.body_key(kind, body)
            else:
                key = await asyncio.to_thread(responses.body_key, kind, body)
            recall = Recall(handle.servable_id, responses, key)
            if recall.found is not None:
                responses.add_hit_s(self._clock.monotonic_s() - started_s)
            return recall

    def check_deadline(self, spec: ModelSpec, deadline: Deadline, priority: Priority) -> None:
        """Check whether a request would be in time, before its body is parsed. Cheap.

        A spec without a signature means the default one. Ignores an unknown spec: the request itself gets the error.

        Raises:
            TooLate: it would be answered after its deadline.
        """
        if not deadline.is_finite:
            return
        try:
            model = self.acquire(spec)
        except ServingError:
            return
        with model:
            model.check_deadline(deadline, priority)

    def probe(self, spec: ModelSpec) -> ServableId:
        """Return the version that a spec resolves to, which answers now. A probe is no use of the model.

        Raises:
            ServingError: as `acquire` for the same model and version.
        """
        self.check_access(spec.name)
        with self._registry.acquire(spec, is_use=False) as handle:
            if isinstance(handle.loaded, LoadedEnsemble):
                handle.loaded.steps.hold().release()
            return handle.servable_id

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        """Return the signatures, labels, precision and evaluation of the version that a spec resolves to.

        Raises:
            ServingError: as `acquire` for the same model and version.
        """
        with self.acquire_version(spec) as version:
            return ModelMetadata(
                version.servable_id,
                version.signatures,
                version.labels,
                version.precision,
                version.evaluation,
                is_ensemble=version.ensemble is not None,
                configuration_sha256=self._registry.configuration_sha256,
            )

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Return every version of the model, newest first, or only the version that the spec names.

        Raises:
            PermissionDenied: the client of the request may not use the model.
            NotFound: the model has no versions, or not the one that the spec names.
        """
        self.check_access(spec.name)
        versions = self._registry.statuses(spec.name)
        if not versions:
            reason = self._registry.why_no_versions(spec.name)
            raise NotFound(f"Could not find any versions of model {spec.name}{f': {reason}' if reason else ''}")
        if spec.version is None:
            return versions
        named = [status for status in versions if status.servable.version == spec.version]
        if not named:
            raise NotFound(f"Could not find version {spec.version} of model {spec.name}")
        return named

    def status_once_read(self, spec: ModelSpec) -> list[VersionStatus]:
        """Return the same as `status`, for clients.

        Raises:
            Unavailable: the server has just started or got the model, and has not read its base path yet.
            ServingError: as `status`.
        """
        try:
            return self.status(spec)
        except NotFound:
            if self._registry.is_unread(spec.name):
                why = "the server has not read its base path"
                raise Unavailable(f"The versions of model {spec.name} are not known yet: {why}") from None
            raise

    def is_served(self, name: str) -> bool:
        """Return whether requests for a configured model get answers, perhaps after a load."""
        return self._registry.read(lambda models: name in models and states_of({name: models[name]})[name].answers)

    def models(self) -> list[str]:
        """Return the names of all configured models that the client of the request may use, sorted."""
        names, access = self._registry.model_names(), self._access
        return list(names) if access is None else [name for name in names if access.allows(name)]

    def check_access(self, name: str) -> None:
        """Check that the client of the request may use a model, whether or not it exists. Raises PermissionDenied."""
        if self._access is not None:
            self._access.check(name)

    def allows(self, name: str) -> bool:
        """Return whether the client of the request may use a model."""
        return self._access is None or self._access.allows(name)

    def labels(self, name: str) -> dict[str, int]:
        """Return the labels that requests for a model may use, with their versions. An unknown model has none."""
        return self._registry.labels(name)

    def configuration_sha256(self) -> str:
        """Return the hash of the configuration in force, or "" if flags are the configuration."""
        return self._registry.configuration_sha256

    def why_no_versions(self, name: str) -> str:
        """Return the reason why a model has no version, or "" if it is unknown."""
        return self._registry.why_no_versions(name)

    def states(self) -> dict[str, ModelStates]:
        """Return the states and the labels of every configured model. Cheap."""
        return self._registry.read(states_of)

    def queued(self) -> dict[ServableId, QueueDepth]:
        """Return the waiting requests of each version that is loaded."""
        return {servable: loaded.queued() for servable, loaded in self._registry.read(loaded_of)}

    def demand(self) -> dict[ServableId, DemandTotals]:
        """Return the device time that requests for each loaded version have needed. Ensembles have only steps."""
        return {
            servable: loaded.batcher.demand.totals()
            for servable, loaded in self._registry.read(loaded_of)
            if isinstance(loaded, LoadedVersion)
        }

    def details(self, servable_id: ServableId) -> VersionDetails | None:
        """Return the details of a version, or None if it does not serve."""
        try:
            handle = self._registry.acquire(ModelSpec(servable_id.name, servable_id.version), is_use=False)
        except ServingError:
            return None
        with handle:
            return details_of(handle.loaded)

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after a change of state or readiness, on any thread. Return a function to unsubscribe."""
        leaves = [self._registry.subscribe(on_change), self._drain_listeners.subscribe(on_change)]
        if self._watchdog is not None:
            leaves.append(self._watchdog.subscribe(on_change))

        def unsubscribe() -> None:
            for leave in leaves:
                leave()

        return unsubscribe

    def start_failures(self) -> list[tuple[ServableId, ServingError]]:
        """Return each version's error if no model has ever served and all have failed for good, otherwise []."""
        return self._registry.start_failures()

    def is_ready(self) -> bool:
        """Return whether the server is ready and does not drain. See `ModelRegistry.why_not_ready`."""
        return self.why_not_ready() == ""

    def why_not_ready(self) -> str:
        """Return why the server is not ready or drains, as a sentence for people, or "" if it is ready."""
        if self._draining:
            return "draining: the server is shutting down"
        if self._watchdog is not None and (lost := self._watchdog.lost_device()):
            return lost
        return self._registry.why_not_ready()

    def state(self) -> ServerState:
        """Return the state of the server."""
        if self._draining:
            return ServerState.DRAINING
        if self.is_ready():
            return ServerState.READY
        return ServerState.STARTING if self._registry.read(is_starting) else ServerState.NOT_READY

    def why_not_live(self) -> str:
        """Return why only a restart of the process would help, as a phrase for people, or "" if it is live."""
        return "" if self._watchdog is None else self._watchdog.why_not_live()

    def why_hung(self, servable_id: ServableId) -> str:
        """Return for how long a run of this version hangs, for people, or "" if none does."""
        return self._registry.why_hung(servable_id)

    def is_draining(self) -> bool:
        """Return whether the server is shutting down."""
        return self._draining

    def drain(self) -> None:
        """Report not ready from now on, so that load balancers use other servers. Requests are still served."""
        self._draining = True
        self._drain_listeners.notify()

    def _hold_steps(self, handle: ServableHandle, loaded: LoadedEnsemble, spec: ModelSpec) -> AcquiredEnsemble:
        steps = loaded.steps.hold()
        if spec.signature_name and spec.signature_name != steps.signature.name:
            steps.release()
            raise _no_signature(spec.signature_name)
        return AcquiredEnsemble(handle, steps, self._shapes)


def _no_signature(name: str) -> FailedPrecondition:
    return FailedPrecondition(f'Serving signature key "{name}" not found.')


class OverloadGate:
    """Decides about a request before its message is read, so without its model, signature and priority.

    It refuses a deadline only while each version that serves would refuse a request of high priority. Ensembles,
    versions with a response cache and signatures with a latency objective refuse nothing here. A refusal costs much
    less than one that knows the model. The thread of the host's event loop owns it.
    """

    def __init__(self, serving: Callable[[], Sequence[Loaded]], traffic: Traffic, clock: Clock) -> None:
        """Ask `serving` for the versions that answer requests, and count refusals in `traffic`."""
        self._serving = serving
        self._traffic = traffic
        self._clock = clock

    @property
    def may_refuse(self) -> bool:
        """Whether every version has refused requests lately. Most requests end the check here."""
        serving = self._serving()
        for loaded in serving:
            if not isinstance(loaded, LoadedVersion) or loaded.responses is not None:
                return False
            if not loaded.batcher.refusals.until_s:
                return False
        return bool(serving)

    def lateness_s(self, deadline: Deadline, arrived_s: float | None = None) -> float:
        """Return by how many seconds any request would miss `deadline`, 0 for a request to accept.

        Count a request that would be late as refused. The request arrived at `arrived_s`, or just now.
        """
        if not deadline.is_finite or not self.may_refuse:
            return 0.0
        lateness_s = self._least_lateness_s(deadline)
        if lateness_s:
            timeout_s = deadline.remaining_s(self._clock.monotonic_s() if arrived_s is None else arrived_s)
            self._traffic.refused["impossible_deadline" if timeout_s <= self._fastest_s() else "too_late"] += 1
        return lateness_s

    def _fastest_s(self) -> float:
        """Return a lower bound of the seconds that any request takes on an idle server."""
        serving = [loaded for loaded in self._serving() if isinstance(loaded, LoadedVersion)]
        return min((loaded.costs.fastest_s(loaded.servable.signatures) for loaded in serving), default=0.0)

    def _least_lateness_s(self, deadline: Deadline) -> float:
        now_s, least_s = self._clock.monotonic_s(), float("inf")
        for loaded in self._serving():
            if not isinstance(loaded, LoadedVersion):
                return 0.0
            lateness_s = loaded.batcher.refusals.lateness_s(deadline, now_s)
            if not lateness_s:
                return 0.0
            least_s = min(least_s, lateness_s)
        # Infinite if the last version was unloaded meanwhile.
        return least_s if least_s < float("inf") else 0.0
