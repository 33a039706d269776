"""ScriptedLoader: a loader whose loads and unloads end, or fail, when a test lets them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.fake_device import NO_BATCHER, FakeServable
from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedVersion
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.types import ServableId

PATIENCE_S = 60.0


@dataclass(eq=False)
class Step:
    """A load or an unload in progress. `loaded` is the version that an unload releases."""

    servable_id: ServableId
    loaded: Loaded | None = None
    fails: bool = False
    ends: threading.Event = field(default_factory=threading.Event)

    def end(self, *, fails: bool) -> None:
        """Let the step end."""
        self.fails = fails
        self.ends.set()


class ScriptedLoader:
    """Loads any version. `_lock` guards the lists. `on_change` is called when a step begins, without the lock."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        # Versions in memory with what they are, and their fingerprint.
        self._held: list[tuple[Loaded, AspiredVersion]] = []
        self.faults: list[str] = []

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        """Wait, then load or fail (Loader)."""
        step = Step(aspired.servable)
        self._run(step)
        if step.fails:
            raise FailedPrecondition("scripted")
        loaded = LoadedVersion(FakeServable(), NO_BATCHER)
        with self._lock:
            self._held.append((loaded, aspired))
        return loaded

    def unload(self, loaded: Loaded) -> None:
        """Wait, then unload, and raise an error if the step fails (Loader)."""
        aspired = self.find(loaded)
        if aspired is None:
            with self._lock:
                self.faults.append("a version that is not in memory was unloaded")
            return
        step = Step(aspired.servable, loaded)
        self._run(step)
        with self._lock:
            self._held = [pair for pair in self._held if pair[0] is not loaded]
        if step.fails:
            raise RuntimeError("scripted")

    def find(self, loaded: Loaded) -> AspiredVersion | None:
        """Return what was loaded, or None if it is not in memory."""
        with self._lock:
            return next((aspired for each, aspired in self._held if each is loaded), None)

    def steps(self, *, unloads: bool) -> list[Step]:
        """Return the loads or the unloads that wait for the test."""
        with self._lock:
            return [step for step in self._steps if (step.loaded is not None) == unloads and not step.ends.is_set()]

    @property
    def held(self) -> int:
        """The number of versions in memory."""
        with self._lock:
            return len(self._held)

    def _run(self, step: Step) -> None:
        with self._lock:
            self._steps.append(step)
        self._on_change()
        if not step.ends.wait(PATIENCE_S):
            with self._lock:
                self.faults.append(f"{step.servable_id}: the test never ended a step")
