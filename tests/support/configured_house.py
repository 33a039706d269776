"""Models that configuration adds and removes: the core on real directories, with a loader that a test can block."""

import threading
from collections.abc import Mapping
from pathlib import Path

from tests.support.fake_device import DOUBLE, NO_BATCHER, FakeServable, RecordingMetrics
from tpuserve_server.access.caller import for_server
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.configuration_rules import ConfigurationRules, ReloadRoots
from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.ensemble_source import EnsembleSource
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.models.transition import ModelLoad
from tpuserve_server.core.serving.service import InferenceService, ModelAccess
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.options import LoadOptions, ReloadOptions
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State
from tpuserve_server.ensembles.runner import EnsembleLoader

CLOCK = SystemClock()


class GatedLoader:
    """A loader that fails for versions with a file `bad`. Versions in `held` wait for the gate.

    `signatures` are those of versions that differ from DOUBLE.
    """

    def __init__(self) -> None:
        self.held: set[ServableId] = set()
        self.gate = threading.Event()
        self.signatures: dict[ServableId, Mapping[str, Signature]] = {}

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        if aspired.servable in self.held:
            assert self.gate.wait(10)
        if Path(aspired.location.uri, "bad").exists():
            raise Internal("broken")
        servable = FakeServable(self.signatures.get(aspired.servable, {DOUBLE.name: DOUBLE}))
        return LoadedVersion(servable, NO_BATCHER)

    def unload(self, loaded: LoadedVersion) -> None:
        pass


class House:
    """The server without front-ends, on real directories."""

    def __init__(
        self,
        root: Path,
        *,
        allow: bool = False,
        allow_no_models: bool = True,
        initial: tuple[str, ...] = ("a",),
        loader: GatedLoader | None = None,
        metrics: Metrics | None = None,
        roots: ReloadRoots | None = None,
        access: ModelAccess | None = None,
        record: ChangeRecord | None = None,
    ) -> None:
        self.root = root
        self.loader = loader or GatedLoader()
        self.registry = ModelRegistry(initial, metrics or RecordingMetrics())
        self.service = InferenceService(self.registry, CLOCK, access=access)
        both = EnsembleLoader(self.loader, for_server(self.service.acquire))
        self.manager = VersionManager(self.registry, both, CLOCK, LoadOptions(threads=4, max_retries=0))
        storage = LocalStorage(lambda path: "")
        self.source = Source(
            storage, self.manager.aspire, poll_wait_s=0.01, clock=CLOCK, on_pending=self.registry.expect
        )
        self.ensembles = EnsembleSource(self.registry, self.manager.aspire, self.registry.expect)
        self.models = ConfiguredModels(
            self.registry,
            self.manager,
            self.source,
            self.ensembles,
            storage,
            CLOCK,
            ConfigurationRules(roots or ReloadRoots(ReloadOptions()), allow, allow_no_models),
            record,
        )
        self._changed = threading.Condition()
        self.registry.subscribe(self._wake)

    def start(self, *configs: ModelConfig) -> None:
        self.models.start(configs)
        self.source.start()
        self.ensembles.start()

    def stop(self) -> None:
        self.loader.gate.set()
        self.ensembles.stop()
        self.source.stop()
        self.manager.stop()

    def save(self, name: str, *versions: int) -> Path:
        for version in versions:
            (self.root / name / str(version)).mkdir(parents=True)
        return self.root / name

    def save_bad(self, name: str, version: int) -> None:
        """Add a version that fails, in one step: a poll must not find it without its file."""
        built = self.root / "built" / str(version)
        built.mkdir(parents=True)
        (built / "bad").touch()
        built.rename(self.root / name / str(version))

    def config(
        self, name: str, labels: Mapping[str, int] | None = None, policy: VersionPolicy | None = None
    ) -> ModelConfig:
        path = str(self.root / name)
        return ModelConfig(name, path, version_labels=labels or {}, version_policy=policy or VersionPolicy.latest())

    def apply(self, *configs: ModelConfig, timeout_s: float = 10) -> None:
        self.models.apply(configs, deadline=Deadline.after(timeout_s, CLOCK))

    def number(self, name: str, label: str | None = None) -> int:
        with self.registry.acquire(ModelSpec(name, version_label=label)) as handle:
            return handle.servable_id.version

    def wait_for(self, name: str, version: int, state: State) -> None:
        def is_there() -> bool:
            return (version, state) in [(s.servable.version, s.state) for s in self.registry.statuses(name)]

        with self._changed:
            assert self._changed.wait_for(is_there, 10), self.registry.statuses(name)

    def settle(self, load: ModelLoad) -> None:
        """Wait until a load has ended. Raises its error."""
        with self._changed:
            assert self._changed.wait_for(load.is_settled, 10), load.too_late()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
