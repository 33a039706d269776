"""Transition: from a configuration that was accepted to the one in force."""

import math
import threading
from collections.abc import Collection, Sequence

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import DeadlineExceeded, ServingError, Unknown
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.types import ServableId

Failures = Sequence[tuple[ServableId, ServingError]]


class Transition:
    """What an accepted configuration still waits for: models that are new, and versions that labels were given to.

    It takes effect whether or not anybody waits here, and is not undone by what is raised here.
    """

    def __init__(
        self, registry: ModelRegistry, new_models: Collection[str], labelled: Collection[ServableId], clock: Clock
    ) -> None:
        """Ask `registry`."""
        self._registry = registry
        self._new_models = sorted(new_models)
        self._labelled = sorted(labelled)
        self._clock = clock

    def wait(self, deadline: Deadline) -> None:
        """Block until all has come.

        Raises:
            Unknown: something failed for good; upstream's code and words.
            DeadlineExceeded: `deadline` passed first.
            Unavailable: the server is shutting down, or a later configuration took one of the models away.
        """
        changed = threading.Condition()

        def tell() -> None:
            with changed:
                changed.notify_all()

        leave = self._registry.subscribe(tell)
        try:
            with changed:
                while not self.is_settled():
                    if deadline.expired(self._clock.monotonic_s()):
                        raise self.too_late()
                    remaining_s = deadline.remaining_s(self._clock.monotonic_s())
                    changed.wait(None if remaining_s == math.inf else min(remaining_s, threading.TIMEOUT_MAX))
        finally:
            leave()

    def is_settled(self) -> bool:
        """Whether all has come.

        Raises:
            ServingError: as `wait`, once nothing more can come.
        """
        outcomes = [self._registry.failures(name) for name in self._new_models]
        for servable_id in self._labelled:
            # Nothing of a model that was taken away comes any more.
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
        """The error for a caller who does not wait any longer; it says what is still on its way."""
        waiting = [f"model {name}" for name in self._new_models if self._registry.failures(name) is None]
        waiting += [str(servable_id) for servable_id in self._loading_labelled()]
        return DeadlineExceeded(
            f"The configuration is accepted and in force, but these are not loaded yet: {', '.join(waiting)}"
        )

    def _loading_labelled(self) -> list[ServableId]:
        return [
            servable_id
            for servable_id in self._labelled
            if self._registry.is_awaited_by_label(servable_id) and self._registry.failure(servable_id) is None
        ]


def describe_failures(failures: Failures, what: str) -> str:
    """`1 model(s) did not become available: {…}`, upstream's words (model_servers/server_core.cc)."""
    each = "".join(
        f"{{{servable_id} due to error: {error.code.name}: {error.message}}}, " for servable_id, error in failures
    )
    return f"{len(failures)} {what} did not become available: {{{each}}}"
