"""Ensembles in a short form for tests, and a registry of fake models that serve their steps."""

from typing import TYPE_CHECKING

from tests.support.fake_device import DOUBLE, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedEnsemble, LoadedVersion
from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM, ModelConfig
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature
from tpuserve_server.ensembles.runner import EnsembleSteps

if TYPE_CHECKING:
    from tpuserve_server.core.models.model_record import VersionRecord


def make_ensemble(*steps: str, inputs: str = "", outputs: str = "") -> Ensemble:
    """Return an ensemble of steps such as `double:3 x=image -> y=twice`: model, version or label, keys and tensors.

    `_` stands for a model without a name.
    """
    made = (_step(number, text) for number, text in enumerate(steps, start=1))
    return Ensemble(tuple(made), tuple(inputs.split()), tuple(outputs.split()))


def _step(number: int, text: str) -> EnsembleStep:
    before, after = text.split("->")
    model, *inputs = before.split()
    name, _, version = model.removeprefix("_").partition(":")
    spec = ModelSpec(name, int(version)) if version.isdigit() else ModelSpec(name, version_label=version or None)
    pairs = [
        [(key, tensor) for key, _, tensor in (pair.partition("=") for pair in side)] for side in (inputs, after.split())
    ]
    return EnsembleStep(number, spec, tuple(pairs[0]), tuple(pairs[1]))


def ensemble_config(name: str, ensemble: Ensemble) -> ModelConfig:
    """Return the configuration of an ensemble."""
    return ModelConfig(name, "", ENSEMBLE_PLATFORM, ensemble=ensemble)


class StepModels:
    """A registry and a service with fake models, each with a batcher. A test adds and removes versions by hand."""

    def __init__(self) -> None:
        self.registry = ModelRegistry([], RecordingMetrics())
        self.service = InferenceService(self.registry, SystemClock())
        self.servables: dict[ServableId, FakeServable] = {}
        self.batchers: dict[ServableId, Batcher] = {}
        self._removed: dict[str, VersionRecord] = {}

    def add(
        self, name: str, version: int = 1, signature: Signature = DOUBLE, labels: tuple[str, ...] = ()
    ) -> FakeServable:
        """Make a version available, and the newest of its model."""
        servable_id = ServableId(name, version)
        servable = self.servables[servable_id] = FakeServable({signature.name: signature})
        batcher = self.batchers[servable_id] = Batcher(
            BatchedVersion(servable_id, servable, {signature.name: BatchingOptions(4, (1, 2, 4))}),
            BatchingParameters(),
            DeviceServices(SystemClock(), RecordingMetrics()),
        )
        self._bring_up(servable_id, LoadedVersion(servable, batcher, labels=labels))
        return servable

    def add_ensemble(self, name: str, ensemble: Ensemble) -> None:
        """Make version 1 of an ensemble available."""
        self._bring_up(ServableId(name, 1), LoadedEnsemble(EnsembleSteps(name, ensemble, self.service.acquire)))

    def remove(self, name: str, version: int = 1) -> None:
        """Begin to unload a version. Requests that hold it may end."""
        aspired = {one.servable.version: one for one, _, _ in self.registry.snapshot(name)}
        del aspired[version]
        self.registry.aspire(name, aspired)
        self._removed[name] = self.registry.unloading(ServableId(name, version))

    def wait_released(self, name: str) -> None:
        """Wait until no request holds the version of a model that was removed last."""
        self.registry.wait_idle(self._removed[name])

    def stop(self) -> None:
        for servable in self.servables.values():
            servable.gate.set()
        for batcher in self.batchers.values():
            batcher.stop()

    def _bring_up(self, servable_id: ServableId, loaded: Loaded) -> None:
        name = servable_id.name
        aspired = {one.servable.version: one for one, _, _ in self.registry.snapshot(name)}
        self.registry.configure([*self.registry.model_names(), name])
        self.registry.aspire(
            name, {**aspired, servable_id.version: AspiredVersion(servable_id, VersionLocation(f"/{name}"))}
        )
        self.registry.loading(servable_id)
        self.registry.available(servable_id, loaded)
