"""Loader: turns a version directory or an ensemble into a version that answers requests, and releases it again."""

from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.aspired_version import AspiredVersion
from tpuserve_server.core.models.ends import VersionEnds
from tpuserve_server.core.models.response_cache import VersionResponses
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.types import Precision, Signature, Tensors


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A warmed servable and its batcher, which continues to update `costs`.

    `path` is the result of its storage's `fetch`. `labels` are the names of its classes, in the order of its scores.
    `precision` is the manifest's, or None without one. `responses` is None for a version without response cache.
    `load_s` is the duration of the load without its warm-up, or None if it is unknown. `ends` has the forms of input
    that it refuses, or is None without a journal.
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
