"""ModelLoad: the wait until an explicit load of one model has ended. The messages are Triton's."""

from collections.abc import Iterable, Mapping
from typing import Final

from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import Code, DeadlineExceeded, Internal, InvalidArgument
from tpuserve_server.core.terms.types import ServableId, VersionStatus

# Triton's names of codes (core/src/status.cc, Status::CodeString), where they differ from gRPC's.
_CODE_NAMES: Final = {
    Code.INVALID_ARGUMENT: "Invalid argument",
    Code.NOT_FOUND: "Not found",
    Code.UNIMPLEMENTED: "Unsupported",
    Code.ALREADY_EXISTS: "Already exists",
}


class ModelLoad:
    """The pending load of a configured model. It continues whether or not a caller waits."""

    def __init__(self, registry: ModelRegistry, name: str, ensembles: Mapping[str, Ensemble]) -> None:
        """Read the model's state from `registry`. `ensembles` are the model, if it is one, and all within it."""
        self._registry = registry
        self._name = name
        self._ensembles = ensembles

    def is_settled(self) -> bool:
        """Return whether every version that the model's policy chooses is available.

        Raises:
            Internal: the model, or a step of the ensemble, has no version to load.
            InvalidArgument: the load of a version, or of a step's version, failed. The server may retry it.
            Unavailable: the server is shutting down, or a later change removed the model or a step.
        """
        progress = self._registry.progress(self._name)
        if progress.absent:
            raise self._unpolled(progress.absent)
        # A loaded ensemble stays AVAILABLE without a step, and the failure of a step is the reason for the ensemble's.
        if not self._are_steps_settled(self._name):
            return False
        if progress.failed:
            raise self._failed(_describe(progress.failed))
        return progress.serves

    def too_late(self) -> DeadlineExceeded:
        """Return the error for a caller whose deadline has passed."""
        return DeadlineExceeded(
            f"failed to load '{self._name}' before the deadline: {self._registry.describe(self._name)}. The server "
            "continues to load it"
        )

    def _are_steps_settled(self, name: str) -> bool:
        """Return whether every step of a model serves. Raise the error of a step that will not serve by itself."""
        steps = self._ensembles[name].steps if name in self._ensembles else ()
        # All steps: one that has failed is reported while others are pending.
        settled = [self._are_steps_settled(step.model.name) and self._is_step_settled(name, step) for step in steps]
        return all(settled)

    def _is_step_settled(self, ensemble: str, step: EnsembleStep) -> bool:
        name, number, label = step.model.name, step.model.version, step.model.version_label
        progress = self._registry.progress(name)
        if label is not None:
            number = self._registry.labels(name).get(label)
        is_named = number is not None or label is not None
        if not is_named and self._registry.failures(name) == []:
            return True
        if number is not None and self._registry.is_available(ServableId(name, number)):
            return True
        if progress.absent:
            raise self._unpolled(f"model '{name}' of {step}: {progress.absent}")
        if progress.failed:
            raise self._failed(
                f"ensemble '{ensemble}' depends on '{name}' which has no loaded version. Model '{name}' loading failed "
                f"with error: {_describe(progress.failed)}"
            )
        if progress.serves and is_named:
            wanted = f"version {number}" if label is None else f"version label '{label}'"
            raise self._failed(f"ensemble '{ensemble}' depends on '{name}' whose required {wanted} is not loaded.")
        return progress.serves

    def _unpolled(self, reason: str) -> Internal:
        return Internal(f"failed to load '{self._name}', failed to poll from model repository: {reason}")

    def _failed(self, reason: str) -> InvalidArgument:
        return InvalidArgument(f"load failed for model '{self._name}': {reason}")


def describe_error(status: VersionStatus) -> str:
    """Return why a version failed, such as `Internal: …`, or why its load waits, or ""."""
    if not status.error:
        return status.waits
    code = Code(status.error_code)
    return f"{_CODE_NAMES.get(code) or code.name.capitalize().replace('_', ' ')}: {status.error}"


def _describe(failed: Iterable[VersionStatus]) -> str:
    return " ".join(
        f"version {status.servable.version} is at UNAVAILABLE state: {describe_error(status)};" for status in failed
    )
