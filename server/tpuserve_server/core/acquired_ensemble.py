"""AcquiredEnsemble: an ensemble and the versions of its steps that a request holds while it runs."""

from collections.abc import Mapping

from tpuserve_server.core.acquired import AcquiredModel, AcquiredVersion
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.loader import HeldSteps
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.registry import ServableHandle
from tpuserve_server.core.types import Precision, PredictResult, ServableId, Signature, Tensors
from tpuserve_server.core.validation import check_inputs, check_names, choose_outputs


class AcquiredEnsemble(AcquiredModel):
    """An ensemble and the versions of its steps, held for a request."""

    __slots__ = ("_steps",)

    def __init__(self, handle: ServableHandle, steps: HeldSteps) -> None:
        """Own `handle` and `steps` until the context ends."""
        self._handle = handle
        self._steps = steps
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
    def max_rows(self) -> int:
        """Maximum number of rows that every step accepts."""
        return self._steps.max_rows

    def has_objective(self, signature_name: str) -> bool:
        """Return False: only the batchers of the steps have objectives."""
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
            # The steps check dtypes too. A wrong dtype is reported by the name of the ensemble's input.
            check_inputs(servable_id, signature, inputs)
            raise
        return PredictResult(servable_id, signature.name, outputs)


class AcquiredEnsembleVersion(AcquiredVersion):
    """An ensemble, held for a request that finds its only signature itself."""

    __slots__ = ("_ensemble",)

    def __init__(self, ensemble: AcquiredEnsemble) -> None:
        """Own `ensemble` until the context ends."""
        self._ensemble = ensemble

    def release(self) -> None:
        """Release the ensemble and the versions of its steps."""
        self._ensemble.release()

    @property
    def servable_id(self) -> ServableId:
        """The version that is held."""
        return self._ensemble.servable_id

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of the last step that has any."""
        return self._ensemble.labels

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signature by name."""
        return {self._ensemble.signature.name: self._ensemble.signature}

    @property
    def precision(self) -> Precision | None:
        """None: exporters check models, not pipelines."""
        return None

    def batching(self, signature_name: str) -> None:
        """Return None: only the steps share batches."""
        return

    @property
    def default_rows(self) -> int:
        """Maximum number of rows that every step accepts."""
        return self._ensemble.max_rows

    @property
    def has_cache(self) -> bool:
        """False: only steps have response caches."""
        return False

    def has_objective(self, signature_name: str) -> bool:
        """Return False: only the batchers of the steps have objectives."""
        return False

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run the ensemble like `AcquiredEnsemble.predict`."""
        return await self._ensemble.predict(inputs, deadline, output_filter, priority)
