"""AcquiredEnsemble: an ensemble and the versions of its steps that a request holds while it runs."""

import math
from collections.abc import Mapping

from tpuserve_server.core.models.loader import HeldSteps
from tpuserve_server.core.models.servable_handle import ServableHandle
from tpuserve_server.core.serving.acquired import AcquiredModel, AcquiredVersion, PreparedRequest
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Precision, PredictResult, ServableId, Signature, Tensors
from tpuserve_server.core.terms.validation import EXACT_SHAPES, ShapeRules, check_inputs, check_names, choose_outputs


class AcquiredEnsemble(AcquiredModel):
    """An ensemble and the versions of its steps, held for a request."""

    __slots__ = ("_steps",)

    def __init__(self, handle: ServableHandle, steps: HeldSteps, shapes: ShapeRules = EXACT_SHAPES) -> None:
        """Own `handle` and `steps` until the context ends. `shapes` are the rules for inputs."""
        self._handle = handle
        self._shapes = shapes
        self._steps = steps
        self.is_recalled = False
        self.signature = steps.signature

    def release(self) -> None:
        """Release the ensemble and the versions of its steps."""
        self._steps.release()
        self._handle.release()

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of the last step that has any."""
        return self._steps.labels

    @property
    def times(self) -> tuple[TaskTimes, ...]:
        """The passes of the steps that have ended."""
        return self._steps.times()

    def has_objective(self, signature_name: str) -> bool:
        """Return False: only the batchers of the steps have objectives."""
        return False

    def fastest_s(self, signature_name: str) -> float:
        """Return 0: the fastest runs of the steps are no bound, because some run at the same time."""
        return 0.0

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a request: that of the step that takes the fewest."""
        return self._steps.max_rows

    @property
    def max_repeated_rows(self) -> float:
        """Return inf: steps without a batch dimension do not count the rows of a request."""
        return math.inf

    def check_deadline(self, deadline: Deadline, priority: Priority) -> None:
        """Do nothing: the batchers of the steps check the deadline."""

    def prepare(self, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> None:
        """Return None: the steps check their inputs."""

    def is_prepared(self, prepared: PreparedRequest) -> bool:
        """Return False."""
        return False

    async def predict(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run one request through the batchers of the steps. Cancelling the coroutine cancels the running steps.

        Raises:
            ServingError: as `AcquiredModel.predict`. The error of a step names the ensemble and the step.
        """
        signature, servable_id = self.signature, self._handle.servable_id
        check_names(signature, inputs)
        try:
            outputs = await self._steps.run(inputs, choose_outputs(signature, output_filter), deadline, priority)
        except InvalidArgument:
            # The steps make these checks, too. Report errors by the name of the ensemble's input.
            check_inputs(servable_id, signature, inputs, self._shapes)
            raise
        return PredictResult(servable_id, signature.name, outputs)


class AcquiredEnsembleVersion(AcquiredVersion):
    """An ensemble, held for a request that finds its only signature itself."""

    __slots__ = ("_acquired", "_ensemble")

    def __init__(self, acquired: AcquiredEnsemble, ensemble: Ensemble) -> None:
        """Own `acquired` until the context ends. `ensemble` is its configuration."""
        self._acquired = acquired
        self._ensemble = ensemble
        self.is_recalled = False

    def release(self) -> None:
        """Release the ensemble and the versions of its steps."""
        self._acquired.release()

    @property
    def servable_id(self) -> ServableId:
        """The version that is held."""
        return self._acquired.servable_id

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of the last step that has any."""
        return self._acquired.labels

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signature by name."""
        return {self._acquired.signature.name: self._acquired.signature}

    @property
    def ensemble(self) -> Ensemble:
        """The steps."""
        return self._ensemble

    @property
    def precision(self) -> Precision | None:
        """None: exporters check models, not pipelines."""
        return None

    @property
    def evaluation(self) -> Mapping[str, object] | None:
        """None: exporters evaluate models, not pipelines."""
        return None

    @property
    def has_cache(self) -> bool:
        """False: only steps have response caches."""
        return False

    @property
    def times(self) -> tuple[TaskTimes, ...]:
        """The passes of the steps that have ended."""
        return self._acquired.times

    def has_objective(self, signature_name: str) -> bool:
        """Return False: only the batchers of the steps have objectives."""
        return False

    def fastest_s(self, signature_name: str) -> float:
        """Return 0: the fastest runs of the steps are no bound, because some run at the same time."""
        return 0.0

    def batching(self, signature_name: str) -> None:
        """Return None: requests share batches in the steps alone."""

    @property
    def default_rows(self) -> int:
        """Maximum number of rows of a request."""
        return self._acquired.max_rows

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run the ensemble like `AcquiredEnsemble.predict`."""
        return await self._acquired.predict(inputs, deadline, output_filter, priority)
