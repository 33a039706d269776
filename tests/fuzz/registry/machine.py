"""A state machine of the registry and its manager: reloads, labels, loads, failures, requests and unloads in any order.

The loader is scripted, so each load and unload ends when a rule says so. After each rule the machine waits until
nothing moves by itself, and checks: no request gets a wrong version, no handle loses its version, and a model that
serves goes on serving while it has wanted versions.
"""

import threading
from collections.abc import Mapping

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fuzz.registry.scripted_loader import PATIENCE_S, ScriptedLoader
from tests.support.fake_device import RecordingMetrics
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.policy import VersionSnapshot, next_action
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.servable_handle import ServableHandle
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, Unavailable
from tpuserve_server.core.terms.options import LoadOptions
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State

MODELS = ("m", "n")
VERSIONS = (1, 2, 3)
LABELS = ("stable", "canary")
# More than all versions at once, so that a load never waits for a thread.
_THREADS = 12
_REFUSALS = (InvalidArgument, NotFound, Unavailable)

_names = st.sampled_from(MODELS)
_versions = st.sampled_from(VERSIONS)


class RegistryMachine(RuleBasedStateMachine):
    """The rules. Hypothesis's thread calls them; the manager's threads run the loads and unloads."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.loader = ScriptedLoader(self._wake)
        self.registry = ModelRegistry(MODELS, RecordingMetrics())
        self.registry.subscribe(self._wake)
        options = LoadOptions(threads=_THREADS, max_retries=0)
        self.manager = VersionManager(self.registry, self.loader, SystemClock(), options)
        self.configured = set(MODELS)
        self.wanted: dict[str, set[int]] = {name: set() for name in MODELS}
        # Every version that a label was assigned to since the model was configured.
        self.assigned: dict[str, dict[str, list[int]]] = {name: {} for name in MODELS}
        self.serves: set[str] = set()
        self.handles: list[ServableHandle] = []

    @initialize(numbers=st.sets(_versions, min_size=1), label=st.sampled_from(LABELS), version=_versions)
    def server_starts(self, numbers: set[int], label: str, version: int) -> None:
        """Begin with a model that serves: most sequences would end before its first load does."""
        self.source_reports("m", numbers, "a")
        self.reload_assigns_labels("m", {label: version}, False)
        self.settles()
        for step in self.loader.steps(unloads=False):
            step.end(fails=False)

    @rule(name=_names, numbers=st.sets(_versions), fingerprint=st.sampled_from("ab"))
    def source_reports(self, name: str, numbers: set[int], fingerprint: str) -> None:
        if name in self.configured:
            self.wanted[name] = numbers
            if not numbers:
                self.serves.discard(name)
        self.manager.aspire(name, {number: _aspired(name, number, fingerprint) for number in numbers})

    @rule(names=st.sets(_names))
    def reload_changes_models(self, names: set[str]) -> None:
        self.manager.configure(names)
        for name in set(MODELS) - names:
            self.wanted[name] = set()
            self.assigned[name] = {}
            self.serves.discard(name)
        self.configured = names

    @rule(name=_names, labels=st.dictionaries(st.sampled_from(LABELS), _versions), at_once=st.booleans())
    def reload_assigns_labels(self, name: str, labels: Mapping[str, int], at_once: bool) -> None:
        if name not in self.configured:
            return
        self.registry.assign_labels(name, labels, even_if_unavailable=at_once)
        before = self.assigned[name]
        self.assigned[name] = {label: [*before.get(label, []), number] for label, number in labels.items()}

    @rule(name=_names)
    def operator_retries(self, name: str) -> None:
        self.manager.retry(name)

    @precondition(lambda self: self.loader.steps(unloads=False))
    @rule(index=st.integers(0, 5), fails=st.booleans())
    def load_ends(self, index: int, fails: bool) -> None:
        steps = self.loader.steps(unloads=False)
        steps[index % len(steps)].end(fails=fails)

    @precondition(lambda self: self.loader.steps(unloads=True))
    @rule(index=st.integers(0, 5), fails=st.booleans())
    def unload_ends(self, index: int, fails: bool) -> None:
        steps = self.loader.steps(unloads=True)
        steps[index % len(steps)].end(fails=fails)

    @rule(name=_names, version=st.none() | _versions)
    def request_begins(self, name: str, version: int | None) -> None:
        serving = self._serving(name)
        handle = self._acquire(ModelSpec(name, version=version))
        if handle is None:
            assert not serving if version is None else version not in serving, f"{name} {version}: {serving}"
        else:
            wanted = max(serving) if version is None else version
            assert handle.servable_id == ServableId(name, wanted), f"{handle.servable_id} for {name} {version}"

    @precondition(lambda self: any(self._serving(name) for name in MODELS))
    @rule(index=st.integers(0, 9))
    def request_for_serving_version_begins(self, index: int) -> None:
        serving = [(name, number) for name in MODELS for number in self._serving(name)]
        self.request_begins(*serving[index % len(serving)])

    @rule(name=_names, label=st.sampled_from(LABELS))
    def request_with_label_begins(self, name: str, label: str) -> None:
        serving, assigned = self._serving(name), self.assigned[name].get(label, [])
        handle = self._acquire(ModelSpec(name, version_label=label))
        if handle is not None:
            assert handle.servable_id.name == name
            # The version of the label, or an earlier one while the new one does not serve.
            assert handle.servable_id.version in assigned
            assert handle.servable_id.version == assigned[-1] or assigned[-1] not in serving
        elif assigned:
            assert assigned[-1] not in serving, f"{name}: {label} is {assigned[-1]}, which serves"

    @precondition(lambda self: self.handles)
    @rule(index=st.integers(0, 9))
    def request_ends(self, index: int) -> None:
        self.handles.pop(index % len(self.handles)).release()

    @invariant()
    def settles(self) -> None:
        """Check that the versions come to rest, and then all other rules."""
        with self._changed:
            assert self._changed.wait_for(self._is_at_rest, PATIENCE_S), self._describe()
        assert self.loader.faults == []
        unloading = [step.loaded for step in self.loader.steps(unloads=True)]
        for handle in self.handles:
            aspired = self.loader.find(handle.loaded)
            assert aspired is not None, f"{handle.servable_id} is not in memory, but a request holds it"
            assert aspired.servable == handle.servable_id
            assert not any(handle.loaded is loaded for loaded in unloading), f"{handle.servable_id} unloads under use"
        for name in self.serves:
            assert self._serving(name), f"{name} stopped serving: {self._describe()}"
        self.serves |= {name for name in self.configured if self.wanted[name] and self._serving(name)}

    def teardown(self) -> None:
        for handle in self.handles:
            handle.release()
        stopping = threading.Thread(target=self.manager.stop)
        stopping.start()
        with self._changed:
            while stopping.is_alive():
                for step in [*self.loader.steps(unloads=False), *self.loader.steps(unloads=True)]:
                    step.end(fails=False)
                self._changed.wait(0.01)
        stopping.join()
        assert self.loader.faults == []
        assert self.loader.held == 0, f"{self.loader.held} versions stay in memory: {self._describe()}"

    def _acquire(self, spec: ModelSpec) -> ServableHandle | None:
        try:
            handle = self.registry.acquire(spec)
        except _REFUSALS:
            return None
        self.handles.append(handle)
        return handle

    def _serving(self, name: str) -> list[int]:
        snapshot = self.registry.snapshot(name)
        return [aspired.servable.version for aspired, state, _ in snapshot if state is State.AVAILABLE]

    def _is_at_rest(self) -> bool:
        waiting = {step.servable_id for unloads in (False, True) for step in self.loader.steps(unloads=unloads)}
        held = {handle.servable_id for handle in self.handles}
        # The manager takes the next step a moment after the state that makes it due.
        if any(next_action(self._snapshot(name)) for name in MODELS):
            return False
        return all(
            state in (State.AVAILABLE, State.END)
            or aspired.servable in waiting
            or (state is State.UNLOADING and aspired.servable in held)
            for name in MODELS
            for aspired, state, _ in self.registry.snapshot(name)
        )

    def _snapshot(self, name: str) -> list[VersionSnapshot]:
        return [
            VersionSnapshot(aspired.servable.version, state, is_aspired)
            for aspired, state, is_aspired in self.registry.snapshot(name)
        ]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _describe(self) -> str:
        steps = [
            (step.servable_id, step.loaded is not None) for u in (False, True) for step in self.loader.steps(unloads=u)
        ]
        return f"{[self.registry.snapshot(name) for name in MODELS]}, steps {steps}, {len(self.handles)} handles"


def _aspired(name: str, number: int, fingerprint: str) -> AspiredVersion:
    return AspiredVersion(ServableId(name, number), VersionLocation(f"/models/{name}/{number}"), fingerprint)
