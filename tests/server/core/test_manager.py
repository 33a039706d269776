import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.fake_device import FakeServable, RecordingMetrics
from tpuserve_server.core.errors import FailedPrecondition, Unavailable
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.manager import VersionManager
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.storage import VersionLocation
from tpuserve_server.core.types import AspiredVersion, ModelSpec, ServableId, State


@dataclass
class FakeLoader:
    """Loads at once, or when its gate opens; fails by version."""

    faults: dict[int, Exception] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    unloaded: list[LoadedVersion] = field(default_factory=list)
    unload_fault: Exception | None = None

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        if gate := self.gates.get(aspired.servable.name):
            assert gate.wait(10)
        if fault := self.faults.get(aspired.servable.version):
            raise fault
        return LoadedVersion(FakeServable(), None)  # type: ignore[arg-type]  # nobody predicts here

    def unload(self, loaded: LoadedVersion) -> None:
        self.unloaded.append(loaded)
        if self.unload_fault:
            raise self.unload_fault


class House:
    """A manager with its registry, and a way to wait for a state."""

    def __init__(self) -> None:
        self.loader = FakeLoader()
        self.metrics = RecordingMetrics()
        self.registry = ModelRegistry(["m", "n"], self.metrics)
        self.manager = VersionManager(self.registry, self.loader, load_threads=2)
        self._changed = threading.Condition()
        self.registry.subscribe(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def aspire(self, version: int | None, name: str = "m", fingerprint: str = "") -> None:
        wanted = {} if version is None else {version: aspired(name, version, fingerprint)}
        self.manager.aspire(name, wanted)

    def wait_for(self, version: int, state: State, name: str = "m") -> str:
        def find() -> list[str]:
            return [
                status.error
                for status in self.registry.statuses(name)
                if (status.servable.version, status.state) == (version, state)
            ]

        with self._changed:
            assert self._changed.wait_for(find, 10), self.registry.statuses(name)
            return find()[0]


def aspired(name: str, version: int, fingerprint: str) -> AspiredVersion:
    return AspiredVersion(ServableId(name, version), VersionLocation(f"/models/{name}/{version}"), fingerprint)


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    for gate in house.loader.gates.values():
        gate.set()
    house.manager.stop()


def test_the_old_version_leaves_only_after_the_new_one_serves(house: House) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    house.aspire(2)
    house.wait_for(1, State.END)
    order = [change for change in house.metrics.states if change[1] in (State.AVAILABLE, State.UNLOADING)]
    assert order == [(1, State.AVAILABLE), (2, State.AVAILABLE), (1, State.UNLOADING)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (FailedPrecondition("weights are corrupt"), "weights are corrupt"),
        (ValueError("/a/path"), "ValueError while loading"),
    ],
)
def test_a_version_that_fails_leaves_the_old_one_serving_and_says_why(
    house: House, fault: Exception, reason: str
) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    house.loader.faults[2] = fault
    house.aspire(2)
    error = house.wait_for(2, State.END)
    assert reason in error
    assert "/a/path" not in error
    with house.registry.acquire(ModelSpec("m")) as handle:
        assert handle.servable_id.version == 1


def test_a_mended_version_is_loaded(house: House) -> None:
    house.loader.faults[1] = FailedPrecondition("half copied")
    house.aspire(1, fingerprint="half")
    house.wait_for(1, State.END)
    del house.loader.faults[1]
    house.aspire(1, fingerprint="whole")
    house.wait_for(1, State.AVAILABLE)


def test_one_slow_model_does_not_keep_another_from_loading(house: House) -> None:
    house.loader.gates["m"] = threading.Event()
    house.aspire(1, "m")
    house.aspire(1, "n")
    house.wait_for(1, State.AVAILABLE, "n")
    assert house.registry.statuses("m")[0].state is State.LOADING


def test_versions_aspired_during_a_load_are_taken_up_after_it(house: House) -> None:
    house.loader.gates["m"] = threading.Event()
    house.aspire(1)
    house.aspire(2)
    house.aspire(3)
    house.loader.gates["m"].set()
    house.wait_for(3, State.AVAILABLE)
    house.wait_for(1, State.END)
    assert not any(version == 2 for version, _ in house.metrics.states)


def test_a_model_that_is_no_longer_wanted_is_unloaded(house: House) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    house.aspire(None)
    house.wait_for(1, State.END)
    assert len(house.loader.unloaded) == 1


def test_a_version_ends_even_if_unloading_it_fails(house: House) -> None:
    house.loader.unload_fault = RuntimeError("stuck")
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    house.aspire(None)
    house.wait_for(1, State.END)


def test_stop_unloads_everything_and_takes_no_more(house: House) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    house.manager.stop()
    assert len(house.loader.unloaded) == 1
    with pytest.raises(Unavailable, match="shutting down"):
        house.registry.acquire(ModelSpec("m"))
    house.aspire(2)
    assert house.registry.statuses("m")[0].state is State.START
