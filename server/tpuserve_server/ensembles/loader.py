"""EnsembleLoader: loads ensembles, and hands versions with files to the loader of version directories."""

from tpuserve_server.core.models.aspired_version import AspiredVersion
from tpuserve_server.core.models.loader import Loaded, LoadedEnsemble, LoadedVersion, Loader
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.ensembles.runner import Acquire, EnsembleSteps


class EnsembleLoader:
    """Loader of every kind of version. Thread-safe; keeps no state between loads."""

    def __init__(self, versions: Loader[LoadedVersion], acquire: Acquire) -> None:
        """Load version directories with `versions`, and take the steps of ensembles from `acquire`."""
        self._versions = versions
        self._acquire = acquire

    def load(self, aspired: AspiredVersion) -> Loaded:
        """Implement Loader.load. An ensemble is checked against the versions that serve its steps now.

        Raises:
            Unavailable: a step has no version that serves.
            FailedPrecondition: the signatures of the steps do not fit the connections.
            ServingError: as the loader of version directories.
        """
        if aspired.ensemble is None:
            return self._versions.load(aspired)
        steps = EnsembleSteps(aspired.servable.name, aspired.ensemble, self._acquire)
        steps.hold().release()
        return LoadedEnsemble(steps, _notes(aspired.ensemble))

    def unload(self, loaded: Loaded) -> None:
        """Implement Loader.unload. An ensemble holds nothing after its last request."""
        if isinstance(loaded, LoadedVersion):
            self._versions.unload(loaded)


def _notes(ensemble: Ensemble) -> tuple[str, ...]:
    return tuple(f"{step}: {', '.join(step.takes)} -> {', '.join(step.produces)}" for step in ensemble.steps)
