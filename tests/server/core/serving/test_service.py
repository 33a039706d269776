import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE, FakeServable, RecordingMetrics
from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedVersion
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.response_cache import ResponseCaches, VersionResponses
from tpuserve_server.core.serving.service import InferenceService, OverloadGate
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    TooLate,
    Unavailable,
)
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ModelSpec, PredictResult, ServableId, State, Tensors
from tpuserve_server.core.terms.validation import ShapeRules

ID = ServableId("m", 3)
X = np.ones((1, 2), np.float32)


@dataclass
class House:
    """A service with one loaded version on a fake device."""

    batching: dict[str, BatchingOptions] = field(
        default_factory=lambda: {"serving_default": BatchingOptions(4, (1, 2, 4))}
    )
    responses: VersionResponses | None = None

    def __post_init__(self) -> None:
        self.servable = FakeServable()
        self.metrics = RecordingMetrics()
        self.clock = SystemClock()
        self.registry = ModelRegistry(["m"], self.metrics)
        self.service = InferenceService(self.registry, self.clock)
        self.batcher = Batcher(
            BatchedVersion(ID, self.servable, self.batching),
            BatchingParameters(max_enqueued_batches=4),
            DeviceServices(self.clock, self.metrics),
        )

    def accept_any_shape(self) -> None:
        self.service = InferenceService(self.registry, self.clock, shapes=ShapeRules(is_lenient=True))

    def bring_up(self) -> None:
        self.registry.aspire("m", {3: AspiredVersion(ID, VersionLocation("/models/m/3"))})
        self.registry.loading(ID)
        self.registry.available(ID, LoadedVersion(self.servable, self.batcher, responses=self.responses))

    async def predict(
        self,
        inputs: Tensors,
        spec: ModelSpec = ModelSpec("m"),  # noqa: B008 - frozen
        deadline: Deadline = Deadline.never(),  # noqa: B008 - as above
        output_filter: tuple[str, ...] = (),
    ) -> Tensors:
        with self.service.acquire(spec) as model:
            result = await model.predict(inputs, deadline, output_filter)
        assert result.servable == ID
        return result.outputs

    async def hold(self) -> "asyncio.Task[Tensors]":
        self.servable.gate.clear()
        task = asyncio.create_task(self.predict({"x": X}))
        await asyncio.to_thread(self.servable.entered.acquire)
        return task


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    house.bring_up()
    yield house
    house.servable.gate.set()
    house.batcher.stop()


async def test_predict_answers_every_output(house: House) -> None:
    outputs = await house.predict({"x": X})
    assert set(outputs) == {"y", "x"}
    np.testing.assert_array_equal(outputs["y"], 2 * X)


async def test_output_filter_chooses(house: House) -> None:
    assert set(await house.predict({"x": X}, output_filter=("y",))) == {"y"}


@pytest.mark.parametrize(
    ("inputs", "fields", "error", "message"),
    [
        (
            {},
            {},
            InvalidArgument,
            "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}.",
        ),
        (
            {"x": X, "z": X},
            {},
            InvalidArgument,
            "input size does not match signature: 2!=1 len({x,z}) != len({x}). "
            "Sent extra: {z}. Missing but required: {}.",
        ),
        (
            {"x": X.astype(np.int32)},
            {},
            InvalidArgument,
            "Input 'x' of signature 'serving_default' of model m version 3 has dtype int32, expected float32",
        ),
        (
            {"x": np.array([[b"a", b"b"]], object)},
            {},
            InvalidArgument,
            "Input 'x' of signature 'serving_default' of model m version 3 has dtype string, expected float32",
        ),
        (
            {"x": X},
            {"output_filter": ("z",)},
            InvalidArgument,
            "output tensor alias not found in signature: z Outputs expected to be in the set {x,y}.",
        ),
        ({"x": X}, {"output_filter": ("y", "y")}, InvalidArgument, "duplicate output tensor alias: y"),
        (
            {"x": X},
            {"spec": ModelSpec("m", signature_name="s")},
            FailedPrecondition,
            'Serving signature key "s" not found.',
        ),
        (
            {"x": np.zeros((5, 2), np.float32)},
            {},
            InvalidArgument,
            "Task size 5 is larger than maximum input batch size 4. Send at most 4 rows in a request; "
            "enable_large_batch_splitting in the server's batching parameters allows larger requests",
        ),
        ({"x": X}, {"spec": ModelSpec("n")}, NotFound, "Servable not found for request: Latest(n)"),
        (
            {"x": X},
            {"deadline": Deadline(0)},
            DeadlineExceeded,
            "Deadline exceeded before request for {name: m version: 3} was queued",
        ),
    ],
)
async def test_bad_requests_get_tensorflow_servings_code_and_words(
    house: House, inputs: Tensors, fields: dict[str, Any], error: type[ServingError], message: str
) -> None:
    with pytest.raises(error) as caught:
        await house.predict(inputs, **fields)
    assert caught.value.message == message
    np.testing.assert_array_equal((await house.predict({"x": X}))["y"], 2 * X)
    assert len(house.servable.batches) == 1


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (1, 1, 2)])
async def test_a_shape_outside_of_the_signature_never_reaches_the_model(house: House, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await house.predict({"x": np.ones(shape, np.float32)})
    assert caught.value.message == (
        f"signature 'serving_default' of model m version 3: input 'x' has shape {list(shape)}, expected [-1, 2]"
        ". The server's flag --lenient_shapes passes other shapes to the model"
    )
    assert not house.servable.batches


async def test_with_lenient_shapes_the_model_judges(house: House) -> None:
    house.accept_any_shape()
    assert (await house.predict({"x": np.ones(3, np.float32)}))["y"].tolist() == [2, 2, 2]
    with pytest.raises(InvalidArgument) as caught:
        await house.predict({"x": -np.ones(3, np.float32)})
    assert caught.value.message == (
        "signature 'serving_default' of model m version 3: input 'x' has shape [3], expected [-1, 2] "
        "(x must not be negative)"
    )


async def test_an_empty_batch_runs_alone(house: House) -> None:
    assert (await house.predict({"x": np.zeros((0, 2), np.float32)}))["y"].shape == (0, 2)


async def test_the_models_own_refusal_is_passed_on(house: House) -> None:
    with pytest.raises(InvalidArgument, match=r"^x must not be negative$"):
        await house.predict({"x": -X})


async def test_a_deadline_that_passes_in_the_queue_answers_at_once_and_never_executes(house: House) -> None:
    held = await house.hold()
    with pytest.raises(DeadlineExceeded, match="while waiting"):
        await house.predict({"x": X}, deadline=Deadline.after(0.5, house.clock))
    house.servable.gate.set()
    await held
    assert len(house.servable.batches) == 1
    assert house.metrics.dropped == ["expired"]


async def test_a_host_that_cancels_at_the_deadline_is_counted_as_such(house: House) -> None:
    held = await house.hold()
    deadline = Deadline.after(0.5, house.clock)
    waiting = asyncio.create_task(house.predict({"x": X}, deadline=deadline))
    await asyncio.sleep(0)
    # Keep the loop busy past the deadline, so that the host's cancellation precedes the service's timer.
    while not deadline.expired(house.clock.monotonic_s()):
        pass
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    house.servable.gate.set()
    await held
    assert house.metrics.dropped == ["expired"]


async def test_a_failed_request_is_gone_with_its_answer(house: House) -> None:
    gc.disable()
    try:
        arrays = [-np.ones((1, 2), np.float32) for _ in range(5)]
        alive = [weakref.ref(array) for array in arrays]
        for array in arrays:
            with pytest.raises(InvalidArgument):
                await house.predict({"x": array})
        del array, arrays
        await house.predict({"x": X})
        assert [reference() for reference in alive] == [None] * 5
    finally:
        gc.enable()


async def test_a_deadline_far_away_changes_nothing(house: House) -> None:
    assert "y" in await house.predict({"x": X}, deadline=Deadline.after(60, house.clock))


async def test_cancelling_frees_the_place_and_the_handle(house: House) -> None:
    held = await house.hold()
    waiting = [asyncio.create_task(house.predict({"x": np.ones((4, 2), np.float32)})) for _ in range(4)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    replacement = asyncio.create_task(house.predict({"x": np.ones((4, 2), np.float32)}))
    await asyncio.sleep(0)
    house.servable.gate.set()
    await asyncio.gather(held, replacement)
    house.registry.unloading(ID)
    assert house.metrics.dropped == ["cancelled"] * 4
    assert len(house.servable.batches) == 2


async def test_different_row_counts_are_refused_where_rows_share_batches(house: House) -> None:
    two = {"x": DOUBLE.inputs["x"], "z": DOUBLE.inputs["x"]}
    house.servable.signatures = {"serving_default": type(DOUBLE)("serving_default", two, DOUBLE.outputs)}
    with pytest.raises(InvalidArgument, match="equal 0th-dimension size"):
        await house.predict({"x": X, "z": np.ones((2, 2), np.float32)})


async def test_status_and_metadata(house: House) -> None:
    assert house.service.models() == ["m"]
    assert [status.state for status in house.service.status(ModelSpec("m"))] == [State.AVAILABLE]
    assert house.service.status(ModelSpec("m", version=3))[0].servable == ID
    assert house.service.metadata(ModelSpec("m")).signatures == {"serving_default": DOUBLE}
    with house.service.acquire(ModelSpec("m")) as model:
        assert model.signature is DOUBLE
    with pytest.raises(NotFound, match="Could not find version 9 of model m"):
        house.service.status(ModelSpec("m", version=9))
    with pytest.raises(NotFound, match="Could not find any versions of model n"):
        house.service.status(ModelSpec("n"))


async def test_status_for_clients_is_unavailable_until_the_base_path_was_read(house: House) -> None:
    assert house.service.status_once_read(ModelSpec("m")) == house.service.status(ModelSpec("m"))
    house.registry.configure(["m", "new"])
    with pytest.raises(Unavailable, match="The versions of model new are not known yet"):
        house.service.status_once_read(ModelSpec("new"))
    house.registry.aspire("new", {})
    with pytest.raises(NotFound, match="Could not find any versions of model new"):
        house.service.status_once_read(ModelSpec("new"))


async def test_readiness_tells_the_truth_and_says_when_it_changes() -> None:
    house = House()
    heard: list[bool] = []
    unsubscribe = house.service.subscribe(lambda: heard.append(house.service.is_ready()))
    assert house.service.why_not_ready() == "no version available for: m"
    house.bring_up()
    assert house.service.is_ready()
    house.service.drain()
    assert "draining" in house.service.why_not_ready()
    assert "y" in await house.predict({"x": X})
    assert heard == [False, True, False]
    unsubscribe()
    house.service.drain()
    assert len(heard) == 3
    house.batcher.stop()


@pytest.fixture
async def cached() -> AsyncIterator[House]:
    """Provide a house with a response cache."""
    house = House(responses=ResponseCaches().open(ID, 1 << 20))
    house.bring_up()
    yield house
    house.servable.gate.set()
    house.batcher.stop()


async def ask(house: House, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> PredictResult:
    with house.service.acquire(ModelSpec("m")) as model:
        return await model.predict(inputs, Deadline.never(), output_filter)


async def test_an_equal_request_is_answered_from_the_cache_bit_by_bit(cached: House) -> None:
    run, recalled = await ask(cached, {"x": X}), await ask(cached, {"x": X.copy()})
    assert (run.cache, recalled.cache) == ("miss", "hit")
    assert (recalled.servable, recalled.signature_name) == (ID, "serving_default")
    assert {name: array.tobytes() for name, array in recalled.outputs.items()} == {
        name: array.tobytes() for name, array in run.outputs.items()
    }
    assert len(cached.servable.batches) == 1
    assert (await ask(cached, {"x": X}, ("y",))).cache == "miss"
    assert (await ask(cached, {"x": X + 1})).cache == "miss"
    assert len(cached.servable.batches) == 3


async def test_a_version_without_a_cache_reports_none(house: House) -> None:
    assert (await ask(house, {"x": X})).cache == ""


async def test_errors_are_not_kept(cached: House) -> None:
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="must not be negative"):
            await ask(cached, {"x": -X})
        with pytest.raises(InvalidArgument, match="has dtype int32"):
            await ask(cached, {"x": X.astype(np.int32)})
    assert len(cached.servable.batches) == 2
    cached.servable.fault = ZeroDivisionError("a bug")
    with pytest.raises(ServingError):
        await ask(cached, {"x": X})
    cached.servable.fault = None
    assert (await ask(cached, {"x": X})).cache == "miss"


async def test_a_cancelled_request_is_not_kept(cached: House) -> None:
    task = await cached.hold()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cached.servable.gate.set()
    assert (await ask(cached, {"x": X})).cache == "miss"


async def test_large_inputs_are_found_too(cached: House) -> None:
    cached.accept_any_shape()
    large = np.ones((1, 1 << 19), np.float32)
    assert [(await ask(cached, {"x": large})).cache for _ in range(2)] == ["miss", "miss"]
    cached.responses = ResponseCaches().open(ID, 1 << 30)
    cached.registry.wait_idle(cached.registry.unloading(ID))
    cached.registry.ended(ID)
    cached.registry.aspire("m", {})
    cached.bring_up()
    assert [(await ask(cached, {"x": large})).cache for _ in range(2)] == ["miss", "hit"]


async def test_equal_requests_in_flight_both_run(cached: House) -> None:
    first = await cached.hold()
    second = asyncio.create_task(cached.predict({"x": X}))
    await asyncio.sleep(0)
    cached.servable.gate.set()
    np.testing.assert_array_equal((await first)["y"], (await second)["y"])
    assert sum(len(batch["x"]) for batch in cached.servable.batches) == 2


async def test_a_response_from_the_cache_does_not_count_towards_the_host_allowance(
    cached: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[float] = []
    monkeypatch.setattr(cached.batcher, "record_latency", lambda name, latency_s: recorded.append(latency_s))
    for latency_s in (1.0, 2.0):
        with cached.service.acquire(ModelSpec("m")) as model:
            await model.predict({"x": X}, Deadline.never())
        model.record_latency("serving_default", latency_s)
    with cached.service.acquire_version(ModelSpec("m")) as version:
        result = await version.predict(DOUBLE, {"x": X}, Deadline.never())
    version.record_latency("serving_default", 3.0)
    assert result.cache == "hit"
    assert recorded == [1.0]


class Served:
    """A version whose batches of one row take a second each."""

    def __init__(self, clock: VirtualClock) -> None:
        self.loop = VirtualLoop(clock)
        costs = CostModel()
        for _ in range(10):
            costs.learn(ROW_TO_ROW.name, 1, 1.0)
        self.device = SimulatedDevice(clock, lambda rows: 1.0)
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), self.device, {ROW_TO_ROW.name: BatchingOptions(1, (1,))}, costs),
            BatchingParameters(max_enqueued_batches=1000),
            DeviceServices(clock, SILENT_METRICS),
        )
        self.loaded = LoadedVersion(self.device, self.batcher, costs=costs)

    def submit(self, due_s: float = float("inf")) -> None:
        future: asyncio.Future[object] = self.loop.create_future()
        inputs = {"x": np.zeros((1, 1), np.float32)}
        task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline(due_s), future, shareable=True)  # type: ignore[arg-type]
        self.batcher.submit(task)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def pair(clock: VirtualClock) -> Iterator[tuple[Served, Served]]:
    # A virtual clock drives one batcher. The second one gets no requests.
    idle_clock = VirtualClock()
    both = Served(clock), Served(idle_clock)
    yield both
    for each, served in zip((clock, idle_clock), both, strict=True):
        each.run()
        served.batcher.stop()


def gate(clock: VirtualClock, traffic: Traffic, *served: Served) -> OverloadGate:
    loaded: Sequence[Loaded] = [each.loaded for each in served]
    return OverloadGate(lambda: loaded, traffic, clock)


def overload(clock: VirtualClock, served: Served) -> None:
    """Run a batch, wait behind it, and let the batcher refuse a request."""
    for _ in range(8):
        served.submit()
    with pytest.raises(TooLate):
        served.submit(2.0)


def test_without_versions_nothing_is_refused(clock: VirtualClock) -> None:
    empty = gate(clock, Traffic())
    assert not empty.may_refuse
    assert empty.lateness_s(Deadline(0.0)) == 0.0


def test_a_version_that_has_refused_nothing_keeps_the_gate_open(
    clock: VirtualClock, pair: tuple[Served, Served]
) -> None:
    assert not gate(clock, Traffic(), pair[0]).may_refuse


def test_every_version_must_refuse(clock: VirtualClock, pair: tuple[Served, Served]) -> None:
    traffic = Traffic()
    alone, both = gate(clock, traffic, pair[0]), gate(clock, traffic, *pair)
    found: dict[str, float] = {}

    def check() -> None:
        overload(clock, pair[0])
        now_s = clock.monotonic_s()
        found["alone"] = alone.lateness_s(Deadline(now_s + 2.0))
        found["long"] = alone.lateness_s(Deadline(now_s + 100.0))
        found["never"] = alone.lateness_s(Deadline.never())
        found["both"] = both.lateness_s(Deadline(now_s + 2.0))
        # A batch takes a second. The second request had 2 s when it arrived.
        found["impossible"] = alone.lateness_s(Deadline(now_s + 0.5))
        found["read late"] = alone.lateness_s(Deadline(now_s + 0.5), arrived_s=now_s - 1.5)

    # The first batch has run, so that the cost of a batch is known.
    clock.at(0.0, pair[0].submit)
    clock.at(1.5, check)
    clock.run()
    assert found["alone"] > 1.0
    assert found["long"] == found["never"] == found["both"] == 0.0
    assert found["impossible"] > 0.0
    assert found["read late"] > 0.0
    assert traffic.refused == {"too_late": 2, "impossible_deadline": 1, "rate": 0, "header_size": 0}
