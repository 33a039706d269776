"""Transition and ModelLoad: the waits until a configuration, or an explicit load of one model, is in effect."""

import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import Code, DeadlineExceeded, Internal, InvalidArgument, ServingError, Unknown
from tpuserve_server.core.terms.types import ServableId, VersionStatus

Failures = Sequence[tuple[ServableId, ServingError]]


class Transition:
    """The pending parts of an accepted configuration: new models, and versions that labels refer to.

    The configuration takes effect whether or not a caller waits. An error raised here does not undo it.
    """

    def __init__(
        self, registry: ModelRegistry, new_models: Collection[str], labelled: Collection[ServableId], clock: Clock
    ) -> None:
        """Read the states from `registry`."""
        self._registry = registry
        self._new_models = sorted(new_models)
        self._labelled = sorted(labelled)
        self._clock = clock

    def wait(self, deadline: Deadline) -> None:
        """Block until all models and versions are available.

        Raises:
            Unknown: a version failed for good. Upstream's code and words.
            DeadlineExceeded: `deadline` passed first.
            Unavailable: the server is shutting down, or a later configuration removed one of the models.
        """
        changed = threading.Condition()

        def notify() -> None:
            with changed:
                changed.notify_all()

        unsubscribe = self._registry.subscribe(notify)
        try:
            with changed:
                while not self.is_settled():
                    if deadline.expired(self._clock.monotonic_s()):
                        raise self.too_late()
                    remaining_s = deadline.remaining_s(self._clock.monotonic_s())
                    changed.wait(None if remaining_s == math.inf else min(remaining_s, threading.TIMEOUT_MAX))
        finally:
            unsubscribe()

    def is_settled(self) -> bool:
        """Return whether all models and versions are available.

        Raises:
            ServingError: as `wait`, once nothing more can become available.
        """
        outcomes = [self._registry.failures(name) for name in self._new_models]
        for servable_id in self._labelled:
            # Raises if the model was removed, because its versions can no longer become available.
            self._registry.failures(servable_id.name)
        if None in outcomes or self._loading_labelled():
            return False
        # Read the failures last: a version may fail just before the check above.
        failures = [failure for outcome in outcomes for failure in outcome or ()]
        failures += [
            (servable_id, error)
            for servable_id in self._labelled
            if (error := self._registry.failure(servable_id)) is not None and (servable_id, error) not in failures
        ]
        if failures:
            raise Unknown(describe_failures(failures, "model(s)"))
        return True

    def too_late(self) -> DeadlineExceeded:
        """Return the error for a caller whose deadline has passed. It names what is not loaded yet."""
        waiting = [f"model {name}" for name in self._new_models if self._registry.failures(name) is None]
        waiting += [str(servable_id) for servable_id in self._loading_labelled()]
        return DeadlineExceeded(
            f"The configuration is accepted and in effect, but these are not loaded yet: {', '.join(waiting)}"
        )

    def _loading_labelled(self) -> list[ServableId]:
        return [
            servable_id
            for servable_id in self._labelled
            if self._registry.is_awaited_by_label(servable_id) and self._registry.failure(servable_id) is None
        ]


def describe_failures(failures: Failures, what: str) -> str:
    """Return `1 model(s) did not become available: {…}`, upstream's words (model_servers/server_core.cc)."""
    each = "".join(
        f"{{{servable_id} due to error: {error.code.name}: {error.message}}}, " for servable_id, error in failures
    )
    return f"{len(failures)} {what} did not become available: {{{each}}}"


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
