import contextlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from tests.support.ensembles import make_ensemble
from tests.support.fake_device import NO_BATCHER, FakeClock, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedVersion
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.deadline import SystemClock, WaitingClock
from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, NotFound, Quarantined, Unavailable
from tpuserve_server.core.terms.options import LoadOptions
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State


@dataclass
class FakeLoader:
    """A loader that loads at once or when its gate opens, and fails by version."""

    faults: dict[int, Exception] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)
    loads: list[AspiredVersion] = field(default_factory=list)
    unloaded: list[Loaded] = field(default_factory=list)
    on_load: Callable[[], object] = lambda: None
    on_unload: Callable[[], object] = lambda: None
    unload_fault: Exception | None = None
    began: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def load(self, aspired: AspiredVersion) -> LoadedVersion:
        self.loads.append(aspired)
        gate = self.gates.get(aspired.servable.name)
        self.began.release()
        if gate:
            assert gate.wait(10)
        self.on_load()
        if fault := self.faults.get(aspired.servable.version):
            raise fault
        return LoadedVersion(FakeServable(), NO_BATCHER)

    def unload(self, loaded: Loaded) -> None:
        self.unloaded.append(loaded)
        self.on_unload()
        if self.unload_fault:
            raise self.unload_fault


class House:
    """A manager with its registry, and a way to wait for a state."""

    def __init__(self, options: LoadOptions, clock: WaitingClock | None = None) -> None:
        self.loader = FakeLoader()
        self.metrics = RecordingMetrics()
        self.registry = ModelRegistry(["m", "n"], self.metrics)
        self.manager = VersionManager(self.registry, self.loader, clock or SystemClock(), options)
        self._changed = threading.Condition()
        self.registry.subscribe(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def aspire(
        self, version: int | None, name: str = "m", fingerprint: str = "", batching: BatchingParameters | None = None
    ) -> None:
        wanted = {} if version is None else {version: aspired(name, version, fingerprint, batching)}
        self.manager.aspire(name, wanted)

    def wait_for_note(self, version: int, text: str) -> None:
        """Wait until a retry of this version of `m` is pending and its note contains `text`."""

        def is_said() -> bool:
            statuses = {status.servable.version: status for status in self.registry.statuses("m")}
            return version in statuses and any(text in note for note in statuses[version].notes)

        self.wait_until(is_said)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, 10), self.registry.statuses("m")

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


def aspired(name: str, version: int, fingerprint: str, batching: BatchingParameters | None = None) -> AspiredVersion:
    location = VersionLocation(f"/models/{name}/{version}")
    return AspiredVersion(ServableId(name, version), location, fingerprint, batching)


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(getattr(request, "param", LoadOptions(threads=2, max_retries=0)))
    yield house
    for gate in house.loader.gates.values():
        gate.set()
    house.manager.stop()


PERMANENT = "(permanent: tried again when its files change)"
ONE_AT_A_TIME = LoadOptions(threads=1, max_retries=0)
AGAIN_AT_ONCE = LoadOptions(threads=1, max_retries=2, retry_interval_micros=0)
AGAIN_MUCH_LATER = LoadOptions(threads=1, max_retries=2, retry_interval_micros=10**12)


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


@pytest.mark.parametrize("house", [ONE_AT_A_TIME], indirect=True)
def test_versions_aspired_during_a_load_are_taken_up_after_it(house: House) -> None:
    house.loader.gates["m"] = threading.Event()
    house.aspire(1)
    house.wait_for(1, State.LOADING)
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


def test_several_versions_are_served_when_several_are_wanted(house: House) -> None:
    house.manager.aspire("m", {version: aspired("m", version, "") for version in (1, 2, 3)})
    for version in (1, 2, 3):
        house.wait_for(version, State.AVAILABLE)
    house.manager.aspire("m", {version: aspired("m", version, "") for version in (2, 4)})
    house.wait_for(4, State.AVAILABLE)
    house.wait_for(1, State.END)
    house.wait_for(3, State.END)
    assert house.registry.is_available(ServableId("m", 2))


@pytest.mark.parametrize("house", [AGAIN_AT_ONCE], indirect=True)
def test_a_failed_load_is_tried_again_and_may_succeed(house: House) -> None:
    house.loader.faults[1] = Unavailable("the volume is away")
    house.loader.on_load = lambda: house.loader.faults.pop(1) if len(house.loader.loads) == 3 else None
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    assert len(house.loader.loads) == 3


@pytest.mark.parametrize("house", [AGAIN_AT_ONCE], indirect=True)
def test_a_load_that_has_failed_often_enough_is_given_up_with_its_error(house: House) -> None:
    house.loader.faults[1] = Unavailable("corrupt")
    house.aspire(1)
    assert house.wait_for(1, State.END) == "corrupt (tried again when its files change)"
    assert len(house.loader.loads) == 3
    house.aspire(1)
    assert len(house.loader.loads) == 3


@pytest.mark.parametrize("house", [AGAIN_AT_ONCE], indirect=True)
def test_a_permanent_error_is_tried_again_only_with_other_files_or_on_request(house: House) -> None:
    house.aspire(1, "n")
    house.loader.faults[2] = DataLoss("truncated")
    house.aspire(2, fingerprint="half")
    assert house.wait_for(2, State.END) == f"truncated {PERMANENT}"
    # The other model is ready at once.
    house.wait_for(1, State.AVAILABLE, "n")
    assert house.registry.why_not_ready() == ""
    house.aspire(2, fingerprint="half")
    house.aspire(2, fingerprint="still half")
    house.wait_until(lambda: len(house.loader.loads) == 3)
    house.wait_for(2, State.END)
    del house.loader.faults[2]
    house.manager.retry("m")
    house.wait_for(2, State.AVAILABLE)
    assert [load.fingerprint for load in house.loader.loads if load.servable.version == 2] == [
        "half",
        "still half",
        "still half",
    ]


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_while_a_retry_waits_status_says_why_and_other_versions_load(house: House) -> None:
    house.loader.faults[2] = Unavailable("corrupt")
    wanted = {version: aspired("m", version, "") for version in (1, 2)}
    house.manager.aspire("m", wanted)
    house.wait_for(1, State.AVAILABLE)
    house.aspire(1, "n")
    house.wait_for(1, State.AVAILABLE, "n")
    failing = house.registry.statuses("m")[0]
    assert (failing.state, failing.error) == (State.LOADING, "")
    assert re.fullmatch(r"load attempt 1 of 3 failed: corrupt; next attempt at \d{4}-.* UTC", failing.notes[0])


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_an_ensemble_is_not_retried_until_its_steps_have_changed(house: House) -> None:
    house.loader.faults[1] = FailedPrecondition("a step does not fit")
    ensemble = replace(aspired("m", 1, "steps 1 1"), ensemble=make_ensemble("n x=1 -> y=2"))
    house.manager.aspire("m", {1: ensemble})
    error = house.wait_for(1, State.END)
    assert error == "a step does not fit (permanent: tried again when the versions of its steps change)"
    del house.loader.faults[1]
    house.manager.aspire("m", {1: replace(ensemble, fingerprint="steps 1 2")})
    house.wait_for(1, State.AVAILABLE)
    assert len(house.loader.loads) == 2


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_retry_that_waits_is_cancelled_at_once_when_nobody_wants_it(house: House) -> None:
    house.loader.faults[2] = Unavailable("corrupt")
    house.aspire(2)
    house.wait_for_note(2, "corrupt")
    house.aspire(1)
    assert house.wait_for(2, State.END) == "corrupt"
    house.wait_for(1, State.AVAILABLE)
    # A version that is aspired again gets all its retries again.
    house.aspire(2)
    house.wait_for_note(2, "load attempt 1 of 3")


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_retry_does_not_wait_once_the_contents_have_changed(house: House) -> None:
    house.loader.faults[1] = Unavailable("half copied")
    house.aspire(1, fingerprint="half")
    house.wait_for_note(1, "half copied")
    del house.loader.faults[1]
    house.aspire(1, fingerprint="whole")
    house.wait_for(1, State.AVAILABLE)
    assert [load.fingerprint for load in house.loader.loads] == ["half", "whole"]


TIGHT, WIDE = BatchingParameters(latency_objective_ms=0.1), BatchingParameters(latency_objective_ms=20)


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_retry_does_not_wait_once_its_model_is_configured_otherwise(house: House) -> None:
    house.loader.faults[1] = Unavailable("below the smallest batch's cost")
    house.aspire(1, batching=TIGHT)
    house.wait_for_note(1, "smallest batch")
    del house.loader.faults[1]
    house.aspire(1, batching=WIDE)
    house.wait_for(1, State.AVAILABLE)
    assert [load.batching for load in house.loader.loads] == [TIGHT, WIDE]


def test_what_has_failed_is_tried_again_once_its_model_is_configured_otherwise(house: House) -> None:
    house.loader.faults[1] = FailedPrecondition("below the smallest batch's cost")
    house.aspire(1, batching=TIGHT)
    house.wait_for(1, State.END)
    del house.loader.faults[1]
    house.aspire(1, batching=WIDE)
    house.wait_for(1, State.AVAILABLE)
    assert [load.batching for load in house.loader.loads] == [TIGHT, WIDE]


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_load_given_up_while_it_waits_for_a_thread_ends_as_cancelled(house: House) -> None:
    house.loader.faults[1] = Unavailable("half copied")
    house.aspire(1, fingerprint="half")
    house.wait_for_note(1, "half copied")
    house.loader.gates["n"] = threading.Event()
    house.aspire(7, "n")
    house.wait_for(7, State.LOADING, "n")
    house.aspire(1, fingerprint="whole")
    house.aspire(None)
    house.loader.gates["n"].set()
    assert "no longer requested" in house.wait_for(1, State.END)
    assert len(house.loader.loads) == 2


def test_a_version_that_is_wanted_again_while_it_leaves_comes_back(house: House) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    with house.registry.acquire(ModelSpec("m")):
        house.aspire(None)
        house.wait_for(1, State.UNLOADING)
        house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    assert len(house.loader.loads) == 2


def elsewhere(version: int) -> dict[int, AspiredVersion]:
    return {version: AspiredVersion(ServableId("m", version), VersionLocation("/elsewhere/1"), "other")}


def test_a_model_that_comes_again_from_elsewhere_while_it_leaves_is_loaded_from_there(house: House) -> None:
    house.aspire(1)
    house.wait_for(1, State.AVAILABLE)
    with house.registry.acquire(ModelSpec("m")):
        house.manager.configure(["n"])
        house.manager.configure(["m", "n"])
        house.manager.aspire("m", elsewhere(1))
    house.wait_for(1, State.AVAILABLE)
    assert [load.location.uri for load in house.loader.loads] == ["/models/m/1", "/elsewhere/1"]


@pytest.mark.parametrize("fault", [None, FailedPrecondition("corrupt")])
def test_a_model_that_comes_again_from_elsewhere_while_it_loads_is_served_from_there(
    house: House, fault: Exception | None
) -> None:
    house.loader.gates["m"] = threading.Event()
    house.aspire(1)
    house.wait_for(1, State.LOADING)
    house.manager.configure(["n"])
    house.manager.configure(["m", "n"])
    house.manager.aspire("m", elsewhere(1))
    if fault is not None:
        house.loader.faults[1] = fault
        house.loader.on_load = lambda: house.loader.faults.clear() if len(house.loader.loads) > 1 else None
    house.loader.gates["m"].set()
    house.wait_for(1, State.AVAILABLE)
    assert [load.location.uri for load in house.loader.loads] == ["/models/m/1", "/elsewhere/1"]
    assert len(house.loader.unloaded) == (fault is None)
    assert [state for _, state in house.metrics.states].count(State.AVAILABLE) == 1


def test_a_model_reconfigured_as_soon_as_it_serves_is_loaded_again(house: House) -> None:
    larger = BatchingParameters(max_batch_size=16)

    class Reconfigure(logging.Handler):
        """Acts on the loading thread, between the version's last change of state and the end of its load."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.msg == "Serving %s" and len(house.loader.loads) == 1:
                house.aspire(None)
                house.aspire(1, batching=larger)

    logger, reconfigure = logging.getLogger("tpuserve_server.core.models.manager"), Reconfigure()
    level = logger.level
    logger.addHandler(reconfigure)
    logger.setLevel(logging.INFO)
    try:
        house.aspire(1)
        house.wait_until(lambda: len(house.loader.loads) == 2)
    finally:
        logger.removeHandler(reconfigure)
        logger.setLevel(level)
    assert house.loader.loads[1].batching == larger


@pytest.mark.parametrize("fails", [True, False])
def test_an_ensemble_whose_steps_change_while_it_loads_is_loaded_again(house: House, fails: bool) -> None:
    gate = house.loader.gates["m"] = threading.Event()
    if fails:
        house.loader.faults[1] = Unavailable("no step")
    before = replace(aspired("m", 1, "before"), ensemble=make_ensemble("a x=1 -> y=2"))
    after = replace(before, fingerprint="after")
    house.manager.aspire("m", {1: before})
    house.wait_for(1, State.LOADING)
    assert house.loader.began.acquire(timeout=10)
    house.manager.aspire("m", {1: after})

    def repair_for_the_second() -> None:
        if len(house.loader.loads) == 2:
            house.loader.faults.clear()

    house.loader.on_load = repair_for_the_second
    gate.set()
    house.wait_for(1, State.AVAILABLE)
    assert house.loader.loads == [before, after]
    assert (1, State.END) not in house.metrics.states


def test_a_request_that_holds_one_model_keeps_no_other_in_memory(house: House) -> None:
    house.aspire(1, "m")
    house.aspire(1, "n")
    house.wait_for(1, State.AVAILABLE, "m")
    house.wait_for(1, State.AVAILABLE, "n")
    with house.registry.acquire(ModelSpec("m")):
        house.aspire(None, "m")
        house.aspire(None, "n")
        house.wait_for(1, State.END, "n")
        house.wait_for(1, State.UNLOADING, "m")
    house.wait_for(1, State.END, "m")


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_model_taken_away_is_unloaded_and_its_retries_end(house: House) -> None:
    house.loader.faults[2] = Unavailable("corrupt")
    house.manager.aspire("m", {version: aspired("m", version, "") for version in (1, 2)})
    house.wait_for_note(2, "corrupt")
    house.wait_for(1, State.AVAILABLE)
    house.manager.configure(["n"])
    house.wait_for(1, State.END)
    house.wait_for(2, State.END)
    house.aspire(1)
    assert all(status.state is State.END for status in house.registry.statuses("m"))
    with pytest.raises(NotFound):
        house.registry.acquire(ModelSpec("m"))


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_stop_does_not_wait_for_retries(house: House) -> None:
    house.loader.faults[1] = Unavailable("corrupt")
    house.aspire(1)
    house.wait_for_note(1, "corrupt")
    house.manager.stop()
    assert len(house.loader.loads) == 1


class PatientHouse(House):
    """A manager with one thread, which gives up a load after 100 s."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(LoadOptions(threads=1, max_retries=5, timeout_s=100), self.clock)

    def give_up(self, version: int) -> str:
        """Let the time of the load or unload in progress pass, and return the error of its version.

        A wait that an ended load has left looks the same, so more than one may have to pass.
        """
        while not self.has_ended(version):
            with contextlib.suppress(queue.Empty):
                if self.clock.waits.get(timeout=0.05) == self.clock.now_s + 100:
                    self.clock.advance(100)
        return self.wait_for(version, State.END)

    def has_ended(self, version: int) -> bool:
        return any(
            (status.servable.version, status.state) == (version, State.END) for status in self.registry.statuses("m")
        )

    def let_pass(self, limit_s: float) -> None:
        """Wait until a load has this time left, and let it pass."""
        while self.clock.waits.get(timeout=10) != self.clock.now_s + limit_s:
            pass
        self.clock.advance(limit_s)


@pytest.fixture
def patient() -> Iterator[PatientHouse]:
    house = PatientHouse()
    yield house
    house.manager.stop()


def test_a_load_that_hangs_fails_and_the_next_load_runs(patient: PatientHouse) -> None:
    gate = patient.loader.gates["m"] = threading.Event()
    patient.aspire(1)
    assert patient.give_up(1) == (
        "Loading took more than 100 s (--load_timeout_seconds). Its thread and memory remain in use until it ends "
        + PERMANENT
    )
    del patient.loader.gates["m"]
    patient.aspire(2)
    patient.wait_for(2, State.AVAILABLE)
    assert not gate.is_set()
    # A stop does not wait for the load that hangs.
    patient.manager.stop()
    gate.set()


def test_the_late_result_of_a_load_that_was_given_up_is_discarded(patient: PatientHouse) -> None:
    gate = patient.loader.gates["m"] = threading.Event()
    patient.aspire(1)
    patient.give_up(1)
    discarded = threading.Event()
    patient.loader.on_unload = discarded.set
    gate.set()
    assert discarded.wait(10)
    assert [status.state for status in patient.registry.statuses("m")] == [State.END]
    # The files have changed, so the server loads the version again.
    patient.aspire(1, fingerprint="repaired")
    patient.wait_for(1, State.AVAILABLE)


def test_a_version_whose_load_hangs_can_be_replaced_soon(patient: PatientHouse) -> None:
    gate = patient.loader.gates["m"] = threading.Event()
    patient.aspire(1, fingerprint="hangs")
    assert patient.loader.began.acquire(timeout=10)
    del patient.loader.gates["m"]
    patient.aspire(1, fingerprint="repaired")
    patient.let_pass(60)
    assert patient.wait_for(1, State.END).startswith("The version changed during a load that did not end")
    # The next poll reports it again.
    patient.aspire(1, fingerprint="repaired")
    patient.wait_for(1, State.AVAILABLE)
    gate.set()


def test_a_removed_model_whose_load_hangs_can_be_added_again_soon(patient: PatientHouse) -> None:
    gate = patient.loader.gates["m"] = threading.Event()
    patient.aspire(1, fingerprint="hangs")
    assert patient.loader.began.acquire(timeout=10)
    del patient.loader.gates["m"]
    patient.manager.configure(["n"])
    patient.manager.configure(["m", "n"])
    patient.aspire(1, fingerprint="repaired")
    patient.let_pass(60)
    patient.wait_for(1, State.AVAILABLE)
    gate.set()


def test_a_model_whose_loads_hang_again_and_again_gets_no_more_threads(patient: PatientHouse) -> None:
    gate = patient.loader.gates["m"] = threading.Event()
    for version in range(1, 5):
        patient.aspire(version)
        patient.give_up(version)
    patient.aspire(5)
    patient.wait_for_note(5, "4 earlier loads or unloads of the model were given up and have not ended")
    patient.aspire(1, "n")
    patient.wait_for(1, State.AVAILABLE, "n")
    gate.set()


@pytest.mark.parametrize("house", [LoadOptions(threads=1, max_retries=0, timeout_s=0)], indirect=True)
def test_without_a_limit_a_load_may_take_any_time(house: House) -> None:
    gate = house.loader.gates["m"] = threading.Event()
    house.aspire(1)
    assert house.loader.began.acquire(timeout=10)
    gate.set()
    house.wait_for(1, State.AVAILABLE)


@pytest.mark.parametrize("house", [AGAIN_MUCH_LATER], indirect=True)
def test_a_refused_version_is_not_retried(house: House) -> None:
    house.loader.faults[1] = FailedPrecondition("saved_model.pb is a named pipe")
    refused = replace(aspired("m", 1, ""), refusal="saved_model.pb is a named pipe")
    house.manager.aspire("m", {1: refused, 2: aspired("m", 2, "")})
    assert house.wait_for(1, State.END) == f"saved_model.pb is a named pipe {PERMANENT}"
    house.wait_for(2, State.AVAILABLE)


class HeldUnload:
    """Unloads of a manager that do not end until the gate opens."""

    def __init__(self, house: House) -> None:
        self.gate = threading.Event()
        self.began = threading.Semaphore(0)
        house.loader.on_unload = self._run

    def _run(self) -> None:
        self.began.release()
        self.gate.wait(10)


def test_a_version_whose_unload_hangs_can_be_loaded_again(patient: PatientHouse) -> None:
    unload = HeldUnload(patient)
    patient.aspire(1)
    patient.wait_for(1, State.AVAILABLE)
    patient.manager.configure(["n"])
    assert unload.began.acquire(timeout=10)
    patient.manager.configure(["m", "n"])
    patient.aspire(1)
    patient.let_pass(60)
    patient.wait_for(1, State.AVAILABLE)
    assert patient.registry.statuses("m")[0].notes[0] == (
        "The version was wanted again during an unload that did not end. Its memory remains in use until its last run "
        "ends"
    )
    with patient.registry.acquire(ModelSpec("m")) as handle:
        assert handle.servable_id == ServableId("m", 1)
    unload.gate.set()


def test_an_unload_that_hangs_is_given_up_with_the_reason(patient: PatientHouse) -> None:
    unload = HeldUnload(patient)
    patient.aspire(1)
    patient.wait_for(1, State.AVAILABLE)
    patient.aspire(None)
    assert unload.began.acquire(timeout=10)
    assert patient.give_up(1).startswith("Unloading took more than 100 s (--load_timeout_seconds).")
    unload.gate.set()


def test_requests_that_hold_a_version_outlive_its_unload(patient: PatientHouse) -> None:
    patient.aspire(1)
    patient.wait_for(1, State.AVAILABLE)
    unloaded = threading.Event()
    patient.loader.on_unload = unloaded.set
    with patient.registry.acquire(ModelSpec("m")) as handle:
        patient.aspire(None)
        patient.give_up(1)
        assert patient.loader.unloaded == []
        assert handle.loaded is not None
    # The last request releases the memory, although the unload was given up.
    assert unloaded.wait(10)


def test_a_model_whose_unloads_hang_again_and_again_is_not_loaded_again(patient: PatientHouse) -> None:
    unload = HeldUnload(patient)
    for version in range(1, 5):
        patient.aspire(version)
        patient.wait_for(version, State.AVAILABLE)
        patient.aspire(None)
        assert unload.began.acquire(timeout=10)
        patient.give_up(version)
    patient.aspire(5)
    patient.wait_for_note(5, "4 earlier loads or unloads of the model were given up and have not ended")
    unload.gate.set()


def test_quarantined_version_has_failed_until_its_pause_is_over_and_then_gets_one_try(patient: PatientHouse) -> None:
    patient.aspire(1, "n")
    patient.wait_for(1, State.AVAILABLE, "n")
    patient.loader.faults = {1: FailedPrecondition("corrupt"), 2: Quarantined("quarantined", 300)}
    corrupt = replace(aspired("m", 1, ""), refusal="corrupt")
    patient.manager.aspire("m", {1: corrupt, 2: aspired("m", 2, "")})
    assert patient.wait_for(2, State.END) == "quarantined"
    patient.wait_for(1, State.END)
    assert patient.registry.why_not_ready() == ""
    patient.loader.faults[2] = Quarantined("quarantined again", 600)
    patient.let_pass(300)
    patient.wait_until(lambda: patient.registry.statuses("m")[0].error == "quarantined again")
    patient.loader.gates["m"] = threading.Event()
    del patient.loader.faults[2]
    patient.let_pass(600)
    patient.wait_for(2, State.LOADING)
    # The other models keep the server ready.
    assert patient.registry.why_not_ready() == ""
    patient.loader.gates["m"].set()
    patient.wait_for(2, State.AVAILABLE)
    assert [load.servable for load in patient.loader.loads].count(ServableId("m", 2)) == 3
    assert patient.registry.statuses("m")[1].error == f"corrupt {PERMANENT}"


def test_quarantine_ends_at_once_with_other_files(patient: PatientHouse) -> None:
    patient.loader.faults[1] = Quarantined("quarantined", 300)
    patient.aspire(1)
    patient.wait_for(1, State.END)
    del patient.loader.faults[1]
    patient.aspire(1, fingerprint="repaired")
    patient.wait_for(1, State.AVAILABLE)
    patient.let_pass(300)
    patient.aspire(2)
    patient.wait_for(2, State.AVAILABLE)
    assert len(patient.loader.loads) == 3
