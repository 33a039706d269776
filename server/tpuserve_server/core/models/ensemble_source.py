"""EnsembleSource: reports the configured ensembles as versions to serve, once their steps have versions that serve."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.models.loader import AspiredVersion, LoadedEnsemble
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Pending, ServableId

logger = logging.getLogger(__name__)

OnAspired: TypeAlias = Callable[[str, Mapping[int, AspiredVersion]], None]

_NO_FILES = VersionLocation("")
# Removed ensembles whose version numbers the source remembers, as many as the registry has statuses of.
_MAX_REMOVED = 32


@dataclass(slots=True)
class _Configured:
    """A configured ensemble, and its version number: 1, and one more for each change of its steps in the configuration.

    `waits` counts the reviews that found a step without a version, because a step may return with the same number. It
    also counts the calls of `report_again`.
    """

    ensemble: Ensemble
    number: int
    waits: int = 0


class EnsembleSource:
    """Looks at the steps of every ensemble after each change of state, on its own thread.

    An ensemble whose steps do not serve yet is pending, like a version with missing files. An ensemble with a step that
    has failed for good is reported, and its load gives the reason. A change of a step's version changes the
    ensemble's fingerprint, so that a failed ensemble is loaded again.

    `_lock` guards `_ensembles`, `_removed`, `_labels` and the right to report.
    """

    def __init__(
        self, registry: ModelRegistry, on_aspired: OnAspired, on_pending: Callable[[str, Pending], None]
    ) -> None:
        """Report nothing before `configure` and `start`. Neither callback may block."""
        self._registry = registry
        self._on_aspired = on_aspired
        self._on_pending = on_pending
        self._lock = threading.Lock()
        self._ensembles: dict[str, _Configured] = {}
        self._removed: dict[str, _Configured] = {}
        self._labels: dict[str, Mapping[str, int]] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ensembles")

    def start(self) -> None:
        """Start to watch the models' states."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and join the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        """Report these ensembles and no others from now on. A changed ensemble becomes a new version.

        An ensemble that returns without a change has its old number.
        """
        with self._lock:
            self._labels = {config.name: config.version_labels for config in configs}
            known = {**self._removed, **self._ensembles}
            self._ensembles = {
                config.name: _configure(config.ensemble, known.pop(config.name, None))
                for config in configs
                if config.ensemble is not None
            }
            self._removed = dict([*known.items()][-_MAX_REMOVED:])
        self._wake.set()

    def report_again(self, name: str) -> None:
        """Expect and make a new report on an ensemble. If its load has failed, it starts again when its steps serve."""
        # With the lock, so that a review that has begun cannot report the old fingerprint after `expect_report`.
        with self._lock:
            self._ensembles[name].waits += 1
            self._registry.expect_report(name)
        self._wake.set()

    def review(self) -> None:
        """Look at the steps of every ensemble once, and report."""
        with self._lock:
            for name, configured in self._ensembles.items():
                self._review(name, configured)

    def _run(self) -> None:
        unsubscribe = self._registry.subscribe(self._wake.set)
        try:
            self._review_changes()
        finally:
            unsubscribe()

    def _review_changes(self) -> None:
        while True:
            self._wake.wait()
            # Clear the event before the review, so that changes during the review start another one.
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.review()
            except Exception:
                # The top of a thread. An unexpected error must not end it.
                logger.exception("Reviewing the ensembles failed")

    def _review(self, name: str, configured: _Configured) -> None:
        versions: list[str] = []
        missing: list[str] = []
        for step in configured.ensemble.steps:
            try:
                with self._registry.acquire(step.model) as handle:
                    if isinstance(handle.loaded, LoadedEnsemble):
                        # It is AVAILABLE while its own steps may not be.
                        handle.loaded.steps.hold().release()
                    versions.append(str(handle.servable_id.version))
            except ServingError as error:
                if self._has_failed(step):
                    versions.append("failed")
                else:
                    missing.append(f"{step}: {error.message}")
        if missing:
            configured.waits += 1
            self._on_pending(name, Pending(versions={configured.number: "; ".join(missing)}))
            return
        servable_id = ServableId(name, configured.number)
        fingerprint = f"{configured.waits} {' '.join(versions)}"
        self._on_pending(name, Pending())
        self._on_aspired(
            name,
            {configured.number: AspiredVersion(servable_id, _NO_FILES, fingerprint, ensemble=configured.ensemble)},
        )

    def _has_failed(self, step: EnsembleStep) -> bool:
        """Return whether the version that the step needs has failed for good."""
        model = step.model
        number = model.version
        if model.version_label is not None:
            # A client may have unloaded the model.
            number = self._labels.get(model.name, {}).get(model.version_label)
        if number is not None:
            return self._registry.failure(ServableId(model.name, number)) is not None
        try:
            return bool(self._registry.failures(model.name))
        except ServingError:
            # The model is unloaded, or the configuration that removes it is about to arrive here.
            return False


def _configure(ensemble: Ensemble, known: _Configured | None) -> _Configured:
    if known is None:
        return _Configured(ensemble, 1)
    return known if known.ensemble == ensemble else _Configured(ensemble, known.number + 1)
