"""Loader: turns an aspired version into a loaded one that answers requests, and releases it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel, CurveSnapshot
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.ends import VersionEnds
from tpuserve_server.core.models.model_memory import HeldMemory
from tpuserve_server.core.models.response_cache import CacheCounts, VersionResponses
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Precision, ServableId, Signature, Tensors


@dataclass(frozen=True, slots=True)
class AspiredVersion:
    """A version that should be served, and its location. `fingerprint` changes when its contents change.

    `batching` and `response_cache_max_bytes` are those of its model's configuration. A version of an `ensemble` has no
    files; its fingerprint changes with the versions of its steps. `refusal` is that of its storage.
    """

    servable: ServableId
    location: VersionLocation
    fingerprint: str = ""
    batching: BatchingParameters | None = None
    response_cache_max_bytes: int | None = None
    ensemble: Ensemble | None = None
    refusal: str = ""

    def next_try(self, error: ServingError) -> str:
        """Return when the server loads it again after it failed for good, for people. Empty if `error` has the time."""
        if error.retry_after_s is not None:
            return ""
        changed = "its files change" if self.ensemble is None else "the versions of its steps change"
        return f"{'' if error.may_pass else 'permanent: '}tried again when {changed}"

    def has_changed_since(self, tried: "AspiredVersion") -> bool:
        """Return whether a load that failed for `tried` may succeed for this version."""
        return (self.fingerprint, self.batching) != (tried.fingerprint, tried.batching)


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A warmed servable and its batcher, which continues to update `costs`.

    `path` is the result of its storage's `fetch`. `labels` are the names of its classes, in the order of its scores.
    `precision` is the manifest's, or None without one. `responses` is None for a version without response cache.
    `load_s` is the duration of the load without its warm-up, or None if it is unknown. `ends` has the forms of input
    that it refuses, or is None without a journal. `evaluation` is the manifest's as JSON, or None without one.
    `memory` is what the version holds.
    """

    servable: Servable
    batcher: Batcher
    notes: tuple[str, ...] = ()
    path: Path | None = None
    costs: CostModel = field(default_factory=CostModel)
    labels: tuple[str, ...] = ()
    precision: Precision | None = None
    responses: VersionResponses | None = None
    load_s: float | None = None
    ends: VersionEnds | None = None
    evaluation: Mapping[str, object] | None = None
    memory: HeldMemory | None = None

    def queued(self) -> QueueDepth:
        """Return the waiting requests of all signatures."""
        return reduce(QueueDepth.plus, self.batcher.queued().values(), QueueDepth())

    def hung_s(self) -> float:
        """Return for how long the longest hung run has taken, or 0 if none hangs."""
        return self.batcher.hung_s()

    def refuses(self) -> str:
        """Return which input shapes it refuses, because they ended the process, for people, or ""."""
        return "" if self.ends is None else self.ends.describe_refusals()


class HeldSteps(Protocol):
    """The versions of an ensemble's steps, held for one request."""

    @property
    def signature(self) -> Signature:
        """The ensemble's signature over these versions."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of the last step that has any."""
        ...

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a request."""
        ...

    async def run(
        self, inputs: Tensors, output_names: tuple[str, ...], deadline: Deadline, priority: Priority
    ) -> Tensors:
        """Run the steps that the outputs need, each through its model's batcher, and return the outputs.

        The caller has checked the names of `inputs`. Cancelling the coroutine cancels the running steps.

        Raises:
            ServingError: the error of a step, with the names of the ensemble and of the step.
        """
        ...

    def times(self) -> tuple[TaskTimes, ...]:
        """Return when the steps that have ended passed through their batchers."""
        ...

    def release(self) -> None:
        """Release the versions. Call once."""
        ...


class Steps(Protocol):
    """The steps of a loaded ensemble. Thread-safe."""

    @property
    def ensemble(self) -> Ensemble:
        """The configuration of the steps."""
        ...

    def hold(self) -> HeldSteps:
        """Hold the versions that serve the steps now.

        Raises:
            Unavailable: a step has no version that serves. The message names it.
            FailedPrecondition: the signatures of these versions do not fit the connections.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """An ensemble. It owns no version: its steps are versions of other models, and each has its batcher.

    `costs` stay empty.
    """

    steps: Steps
    notes: tuple[str, ...] = ()
    costs: CostModel = field(default_factory=CostModel)

    @property
    def responses(self) -> None:
        """None: only steps have response caches."""
        return None

    def queued(self) -> QueueDepth:
        """Return no requests: they wait in the queues of the steps."""
        return QueueDepth()

    def hung_s(self) -> float:
        """Return 0: the runs are those of the steps."""
        return 0.0

    def refuses(self) -> str:
        """Return "": the steps refuse."""
        return ""


# The registry serves either under a model's name and a version number.
Loaded: TypeAlias = LoadedVersion | LoadedEnsemble
LoadedT = TypeVar("LoadedT", bound=Loaded)


class Loader(Protocol[LoadedT]):
    """Loads and unloads versions, of all kinds or only one.

    Obligations:

    1. `load` returns only when the version can answer at full speed: verified, loaded, every bucket warmed.
    2. `load` either returns or raises. If it raises, it has released everything that it acquired.
    3. `unload` is called once for each `load` that returned, after the last request has ended.
    """

    def load(self, aspired: AspiredVersion) -> LoadedT:
        """Load and warm a version. Slow; runs on a loading thread.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...

    def unload(self, loaded: LoadedT) -> None:
        """Unload a version. Blocks until its memory and threads are released."""
        ...


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """One version at one moment.

    `batching` has the signatures whose requests share batches. `queued` has those with waiting requests. `cache` is
    None without response cache. `path` is the local directory, and None for an ensemble.
    """

    signatures: Mapping[str, Signature] = field(default_factory=dict)
    batching: Mapping[str, BatchingOptions] = field(default_factory=dict)
    queued: Mapping[str, QueueDepth] = field(default_factory=dict)
    costs: tuple[CurveSnapshot, ...] = ()
    labels: tuple[str, ...] = ()
    cache: CacheCounts | None = None
    load_s: float | None = None
    path: Path | None = None
    evaluation: Mapping[str, object] | None = None
    is_ensemble: bool = False


def details_of(loaded: Loaded) -> VersionDetails:
    """Return the details of a version that a handle keeps loaded."""
    return _ensemble_details(loaded) if isinstance(loaded, LoadedEnsemble) else _version_details(loaded)


def _version_details(loaded: LoadedVersion) -> VersionDetails:
    signatures, batcher = loaded.servable.signatures, loaded.batcher
    options = {name: batcher.options.get(name) for name in signatures}
    return VersionDetails(
        signatures=signatures,
        batching={name: one for name, one in options.items() if one is not None},
        queued=batcher.queued(),
        costs=loaded.costs.snapshot(),
        labels=loaded.labels,
        cache=None if loaded.responses is None else loaded.responses.counts(),
        load_s=loaded.load_s,
        path=loaded.path,
        evaluation=loaded.evaluation,
    )


def _ensemble_details(loaded: LoadedEnsemble) -> VersionDetails:
    """Return the signature of an ensemble over the versions that serve its steps now, or none if a step has none."""
    try:
        steps = loaded.steps.hold()
    except ServingError:
        return VersionDetails(is_ensemble=True)
    try:
        return VersionDetails({steps.signature.name: steps.signature}, labels=steps.labels, is_ensemble=True)
    finally:
        steps.release()
