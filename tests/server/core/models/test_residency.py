"""Tests for models that load on demand: requests that wait, idle models, and room for the next load."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.fake_device import NO_BATCHER, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedVersion
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.model_memory import ModelMemory
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.residency import Residency
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import (
    FailedPrecondition,
    NotFound,
    NotLoaded,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.terms.options import LoadOptions, ResidencyOptions
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State
from tpuserve_server.protocols.oip.models import why_model_not_ready

GIB = 2**30
IDLE_S = 30.0


class MeasuredLoader:
    """A loader whose versions take as much memory as `sizes` says for their model. Loads wait for `gate`."""

    def __init__(self, memory: ModelMemory) -> None:
        self.memory = memory
        self.sizes: dict[str, int] = {}
        self.faults: dict[str, ServingError] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.loads: list[ServableId] = []
        self.began: queue.SimpleQueue[ServableId] = queue.SimpleQueue()

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        name = aspired.servable.name
        with self.memory.loading(aspired.servable, aspired.fingerprint, self.sizes.get(name, GIB)) as held:
            self.loads.append(aspired.servable)
            self.began.put(aspired.servable)
            assert self.gate.wait(10)
            if name in self.faults:
                raise self.faults[name].copy()
            return replace(LoadedVersion(FakeServable(), NO_BATCHER), memory=held)

    def unload(self, loaded: Loaded) -> None:
        assert isinstance(loaded, LoadedVersion)
        assert loaded.memory is not None
        loaded.memory.release()


class House:
    """Models a, b and c, which load on demand, and `pinned`, in a memory of `limit` GiB."""

    def __init__(self, limit: int = 0, idle_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.registry = ModelRegistry(["a"], RecordingMetrics(), self.clock.monotonic_s)
        self.memory = ModelMemory(self.clock, limit * GIB)
        self.loader = MeasuredLoader(self.memory)
        self.manager = VersionManager(self.registry, self.loader, self.clock, LoadOptions(threads=2, max_retries=0))
        self.residency = Residency(self.registry, self.clock, ResidencyOptions(idle_unload_s=idle_s), self.memory)
        self._changed = threading.Condition()
        self.registry.subscribe(self._wake)
        self.manager.configure(["a", "b", "c", "pinned"], {"a", "b", "c"})
        self.residency.start(self.manager)

    def stop(self) -> None:
        self.loader.gate.set()
        self.residency.stop()
        self.manager.stop()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def aspire(self, name: str, *versions: int) -> None:
        location = VersionLocation(f"/models/{name}")
        wanted = {number: AspiredVersion(ServableId(name, number), location) for number in versions}
        self.manager.aspire(name, wanted)

    def states(self, name: str) -> dict[int, State]:
        return {status.servable.version: status.state for status in self.registry.statuses(name)}

    def loaded(self) -> set[str]:
        names = self.registry.model_names()
        return {name for name in names if State.AVAILABLE in self.states(name).values()}

    def wait_for(self, *names: str) -> None:
        """Wait until exactly these models are loaded, and no load or unload is in progress."""

        def is_so() -> bool:
            states = {state for name in self.registry.model_names() for state in self.states(name).values()}
            return self.loaded() == set(names) and states.isdisjoint({State.LOADING, State.UNLOADING})

        with self._changed:
            assert self._changed.wait_for(is_so, 10), [self.registry.statuses(n) for n in self.registry.model_names()]

    def wait_for_state(self, name: str, version: int, state: State) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.states(name).get(version) is state, 10), self.states(name)

    async def use(self, name: str, **spec: object) -> int:
        """Use a model as a request does, and return the version that answers."""
        await self.residency.loaded(name, Deadline.never())
        with self.registry.acquire(ModelSpec(name, **spec)) as handle:  # type: ignore[arg-type]
            self.clock.advance(1)
            version = handle.servable_id.version
        # Models that requests have waited for may leave from the loop's next step on.
        await asyncio.sleep(0)
        return version


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.stop()


@pytest.fixture
def small_house() -> Iterator[House]:
    """Provide a house with room for two models."""
    house = House(limit=2)
    yield house
    house.stop()


async def test_the_first_request_loads_the_model(house: House) -> None:
    house.aspire("a", 1)
    [status] = house.registry.statuses("a")
    assert (status.state, status.error) == (State.START, "")
    assert "not loaded: the next request for the model loads it" in status.notes
    with pytest.raises(NotLoaded):
        house.registry.acquire(ModelSpec("a"))
    assert await house.use("a") == 1
    assert house.states("a") == {1: State.AVAILABLE}


async def test_requests_share_one_load(house: House) -> None:
    house.aspire("a", 1)
    assert await asyncio.gather(*(house.use("a") for _ in range(8))) == [1] * 8
    assert house.loader.loads == [ServableId("a", 1)]


async def test_a_request_waits_within_its_deadline_and_the_load_continues(house: House) -> None:
    house.aspire("a", 1)
    house.loader.gate.clear()
    with pytest.raises(NotLoaded, match="Model a is not loaded yet") as caught:
        await house.residency.loaded("a", Deadline.after(0.2, house.clock))
    assert caught.value.retry_after_s > 0
    house.loader.gate.set()
    house.wait_for("a")


async def test_a_failed_load_answers_the_requests_that_wait(house: House) -> None:
    house.aspire("a", 1)
    house.loader.faults["a"] = FailedPrecondition("weights are corrupt")
    with pytest.raises(NotFound, match="It cannot be loaded: weights are corrupt"):
        await house.use("a")
    [status] = house.registry.statuses("a")
    assert status.state is State.END
    assert "weights are corrupt" in status.error


async def test_the_server_is_ready_once_the_versions_are_known(house: House) -> None:
    assert "a" in house.registry.why_not_ready()
    house.aspire("a", 1)
    assert "a" not in house.registry.why_not_ready()
    for name in ("b", "c", "pinned"):
        house.aspire(name, 1)
    house.wait_for("pinned")
    assert house.registry.why_not_ready() == ""
    # A load at a request leaves the server ready.
    house.loader.gate.clear()
    waiting = asyncio.create_task(house.use("a"))
    await asyncio.to_thread(house.loader.began.get, timeout=10)
    assert house.registry.why_not_ready() == ""
    house.loader.gate.set()
    await waiting


async def test_requests_without_a_version_wait_for_the_newest_one(house: House) -> None:
    house.aspire("a", 1, 2, 3)
    assert await house.use("a") == 3
    assert await house.use("a", version=1) == 1


async def test_a_label_loads_the_model(house: House) -> None:
    house.registry.assign_labels("a", {"stable": 1})
    house.aspire("a", 1, 2)
    assert await house.use("a", version_label="stable") == 1


async def test_a_new_version_loads_at_once_only_for_a_loaded_model(house: House) -> None:
    house.aspire("a", 1)
    house.aspire("b", 1)
    await house.use("a")
    house.aspire("a", 2)
    house.aspire("b", 2)
    house.wait_for_state("a", 2, State.AVAILABLE)
    assert house.states("b") == {2: State.START}


async def test_an_idle_model_unloads_and_the_next_request_loads_it_again() -> None:
    house = House(idle_s=IDLE_S)
    try:
        for name in ("a", "b", "pinned"):
            house.aspire(name, 1)
        await house.use("a")
        await house.use("b")
        await house.residency.loaded("a", Deadline.never())
        with house.registry.acquire(ModelSpec("a")):
            house.clock.advance(IDLE_S + 1)
            # The request still holds the model.
            house.wait_for("a", "pinned")
        house.clock.advance(IDLE_S + 1)
        house.wait_for("pinned")
        [status] = house.registry.statuses("a")
        assert "not loaded: the next request for the model loads it" in status.notes
        assert await house.use("a") == 1
    finally:
        house.stop()


async def test_looks_at_a_model_do_not_keep_it_loaded() -> None:
    house = House(idle_s=IDLE_S)
    service = InferenceService(house.registry, house.clock, residency=house.residency)
    try:
        house.aspire("a", 1)
        await house.use("a")
        house.clock.advance(IDLE_S - 5)
        # Probes of readiness, and a look at its details.
        assert service.probe(ModelSpec("a")) == ServableId("a", 1)
        assert why_model_not_ready(service, ModelSpec("a")) == ""
        house.registry.acquire(ModelSpec("a"), is_use=False).release()
        house.clock.advance(10)
        house.wait_for()
        assert why_model_not_ready(service, ModelSpec("a")) == ""
        house.wait_for()
    finally:
        house.stop()


async def test_a_version_that_is_absent_is_not_found_for_its_own_reason(house: House) -> None:
    house.aspire("a", 1)
    house.loader.faults["a"] = FailedPrecondition("weights are corrupt")
    with pytest.raises(NotFound, match=r"Specific\(a, 1\)\. It cannot be loaded: weights are corrupt"):
        await house.use("a", version=1)
    with pytest.raises(NotFound, match=r"Specific\(a, 7\)$"):
        await house.use("a", version=7)


async def test_the_least_recently_used_model_makes_room(small_house: House) -> None:
    for name in ("a", "b", "c"):
        small_house.aspire(name, 1)
    for name in ("a", "b", "a", "c"):
        await small_house.use(name)
    small_house.wait_for("a", "c")


async def test_a_model_that_always_stays_makes_no_room(small_house: House) -> None:
    for name in ("pinned", "a", "b"):
        small_house.aspire(name, 1)
    small_house.wait_for("pinned")
    for name in ("a", "b", "a", "b"):
        await small_house.use(name)
    small_house.wait_for("b", "pinned")


async def test_a_model_above_the_limit_is_refused_with_both_sizes(small_house: House) -> None:
    small_house.loader.sizes["c"] = 3 * GIB
    for name in ("a", "c"):
        small_house.aspire(name, 1)
    await small_house.use("a")
    with pytest.raises(NotLoaded, match=r"needs 3072 MiB, and .* of the 2048 MiB of --model_memory_bytes"):
        await small_house.use("c")
    # It makes no other model leave, because that would not help.
    small_house.wait_for("a")


async def test_the_next_request_tries_again_after_an_error_that_may_pass(house: House) -> None:
    house.aspire("a", 1)
    house.loader.faults["a"] = Unavailable("the store does not answer")
    with pytest.raises(NotLoaded, match=r"Model a is not loaded yet .the last load failed: the store does not answer"):
        await house.use("a")
    [status] = house.registry.statuses("a")
    assert (status.state, status.error) == (State.START, "")
    assert "the last load failed: the store does not answer" in status.waits
    del house.loader.faults["a"]
    assert await house.use("a") == 1


async def test_a_request_that_waits_keeps_its_model(small_house: House) -> None:
    """The load of a third model waits for the model that was loaded for a request, instead of dismissing it."""
    for name in ("a", "b", "c"):
        small_house.aspire(name, 1)
    results = await asyncio.gather(*(small_house.use(name) for name in ("a", "b", "c") * 4))
    assert results == [1] * 12


def test_memory_that_is_released_lets_a_load_continue() -> None:
    clock = FakeClock()
    memory = ModelMemory(clock, 2 * GIB)
    first, second = ServableId("a", 1), ServableId("b", 1)
    with memory.loading(first, "", 2 * GIB) as held:
        pass

    def unload() -> str:
        held.release()
        return "a"

    memory.make_room_with(unload)
    with memory.loading(second, "", GIB):
        assert set(memory.sizes()) == {second}


def test_a_load_that_hangs_does_not_hold_the_others() -> None:
    memory = ModelMemory(FakeClock(), GIB, patience_s=0.1)
    began, ends = threading.Event(), threading.Event()

    def hang() -> None:
        with memory.loading(ServableId("a", 1), "", 10):
            began.set()
            assert ends.wait(10)

    thread = threading.Thread(target=hang)
    thread.start()
    assert began.wait(10)
    with memory.loading(ServableId("b", 1), "", 10) as held:
        assert set(memory.sizes()) == {ServableId("a", 1), ServableId("b", 1)}
    held.release()
    ends.set()
    thread.join()


def test_a_failed_load_holds_no_memory() -> None:
    memory = ModelMemory(FakeClock(), GIB)
    with pytest.raises(FailedPrecondition), memory.loading(ServableId("a", 1), "", GIB):
        raise FailedPrecondition("damaged")
    assert memory.sizes() == {}


def test_the_size_is_measured_at_the_first_load_and_kept() -> None:
    memory = ModelMemory(FakeClock(), GIB)
    servable_id = ServableId("a", 1)
    with memory.loading(servable_id, "f", 10) as held:
        runtime = bytearray(2**24)
    # The first load of the process starts a runtime, which does not belong to the version.
    assert held.size_bytes == 10
    assert runtime is not None
    held.release()
    with memory.loading(servable_id, "f", 10) as held:
        weights = bytearray(2**24)
    measured = held.size_bytes
    # Other threads of the process may free a little meanwhile.
    assert 15 * 2**20 <= measured < 2**25
    held.release()
    del weights
    with memory.loading(servable_id, "f", 10) as held:
        assert held.size_bytes == measured
    assert held.size_bytes == measured


def test_a_version_that_outgrows_its_files_makes_others_leave() -> None:
    memory = ModelMemory(FakeClock(), 2**25)
    dismissed: list[str] = []

    def dismiss_once() -> str:
        if dismissed:
            return ""
        dismissed.append("a")
        return "a"

    memory.make_room_with(dismiss_once)
    with memory.loading(ServableId("a", 1), "", 2**24):
        pass
    with memory.loading(ServableId("b", 1), "", 10):
        weights = bytearray(2**24 + 2**20)
    assert dismissed == ["a"]
    assert weights is not None


def test_no_room_names_the_need_and_the_limit() -> None:
    memory = ModelMemory(FakeClock(), GIB, patience_s=0)
    with memory.loading(ServableId("a", 1), "", GIB):
        pass
    with (
        pytest.raises(ResourceExhausted, match="needs 512 MiB, and 1024 of the 1024 MiB of --model_memory_bytes"),
        memory.loading(ServableId("b", 1), "", GIB // 2),
    ):
        pass
