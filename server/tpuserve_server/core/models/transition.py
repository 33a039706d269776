"""Transition: the wait until an accepted configuration is in effect."""

import math
import threading
from collections.abc import Collection, Sequence

from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, ServingError, Unknown
from tpuserve_server.core.terms.types import ServableId

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
