"""Requests of a front-end's service run on the engine's batchers, over real sockets and real shared memory."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.fake_device import RecordingMetrics
from tests.support.fakes import FakeMetrics
from tests.support.lane_house import LaneHouse
from tpuserve_server.core.deadline import Deadline, SystemClock
from tpuserve_server.core.errors import DeadlineExceeded, InvalidArgument, NotFound, TooLate, Unavailable
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.task_times import TaskTimes
from tpuserve_server.core.types import ModelSpec, PredictResult, ServableId
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.engine import INSTALLATION, EngineLink
from tpuserve_server.link.front_end import FrontEndLink
from tpuserve_server.link.messages import Kind
from tpuserve_server.link.publisher import EngineRules


@dataclass
class Linked:
    """An engine and a front-end, each with its end of a connection."""

    house: LaneHouse
    engine: EngineLink
    theirs: Connection
    front_end: FrontEndLink
    service: InferenceService
    registry: ModelRegistry
    metrics: RecordingMetrics

    async def predict(
        self, rows: list[list[float]], deadline: Deadline | None = None
    ) -> tuple[PredictResult, tuple[TaskTimes, ...]]:
        with self.service.acquire(ModelSpec("m")) as model:
            result = await model.predict({"x": np.array(rows, np.float32)}, deadline or Deadline.never())
            return result, model.times

    async def occupy(self) -> "asyncio.Task[tuple[PredictResult, tuple[TaskTimes, ...]]]":
        """Close the gate of version 1, and return a request that holds its device."""
        servable = self.house.servables[1]
        servable.gate.clear()
        running = asyncio.create_task(self.predict([[1, 2]]))
        await asyncio.to_thread(servable.entered.acquire)
        return running


@asynccontextmanager
async def linked() -> AsyncIterator[Linked]:
    ours, theirs = socket.socketpair()
    house = LaneHouse()
    house.serve(1)
    engine_end, front_end_end = Connection(ours), Connection(theirs)
    rules = EngineRules(house.logs.has_log, is_oip_in_engine=False)
    engine = EngineLink(engine_end, house.registry, rules, {}, lambda _: None)
    registry, metrics = ModelRegistry([], FakeMetrics()), RecordingMetrics()
    front_end = FrontEndLink(front_end_end, registry, SystemClock(), metrics)
    await front_end.start({}, lambda: None)
    try:
        service = InferenceService(registry, SystemClock())
        yield Linked(house, engine, front_end_end, front_end, service, registry, metrics)
    finally:
        front_end_end.close()
        engine.close()
        await house.stop()


async def test_a_request_runs_in_the_engine_and_reports_the_times_of_its_batch() -> None:
    async with linked() as link:
        result, times = await link.predict([[1, 2], [3, 4]])
        assert result.outputs["y"].tolist() == [[2, 4], [6, 8]]
        assert result.servable == ServableId("m", 1)
        (run,) = times[0].runs
        assert (run.rows, run.requests, run.bucket) == (2, 1, 2)
        assert times[0].enqueued_s <= run.started_s <= run.ended_s <= times[0].resumed_s


async def test_errors_of_the_model_and_of_the_checks_are_the_same_as_in_the_engine() -> None:
    async with linked() as link:
        for rows in ([[-1, 2]], [[1, 2]] * 5):
            errors = []
            for service in (link.service, link.house.service):
                with pytest.raises(InvalidArgument) as raised, service.acquire(ModelSpec("m")) as model:
                    await model.predict({"x": np.array(rows, np.float32)}, Deadline.never())
                errors.append(str(raised.value))
            assert errors[0] == errors[1]
        with pytest.raises(NotFound, match="Servable not found for request: Specific\\(m, 9\\)"):
            link.service.acquire(ModelSpec("m", 9))


async def test_many_requests_of_one_tick_share_batches() -> None:
    async with linked() as link:
        results = await asyncio.gather(*[link.predict([[k, k]]) for k in range(200)])
        assert [result.outputs["y"][0, 0] for result, _ in results] == [2 * k for k in range(200)]
        assert len(link.house.servables[1].batches) < 200


async def test_large_arrays_travel_in_segments_that_are_used_again() -> None:
    async with linked() as link:
        wide = np.zeros((20_000, 2), np.float32)
        writer = link.front_end._coding._writer
        for _ in range(5):
            with pytest.raises(InvalidArgument), link.service.acquire(ModelSpec("m")) as model:
                await model.predict({"x": wide}, Deadline.never())
            await settled(lambda: not writer._used)
        await settled(lambda: not writer._used)
        assert writer._count == 1
        assert writer._idle


async def test_a_version_unloads_only_after_the_front_ends_last_request() -> None:
    async with linked() as link:
        servable = link.house.servables[1]
        running = await link.occupy()
        link.house.serve(2)
        record = link.house.registry.unloading(ServableId("m", 1))
        waiting = asyncio.create_task(asyncio.to_thread(link.house.registry.wait_idle, record))
        await link.engine.publisher.synced()
        result, _ = await link.predict([[5, 5]])
        assert result.servable.version == 2
        assert not waiting.done()
        servable.gate.set()
        assert (await running)[0].servable.version == 1
        await waiting


async def test_a_deadline_and_a_cancellation_free_the_engines_queue() -> None:
    async with linked() as link:
        servable = link.house.servables[1]
        first = await link.occupy()
        late = link.predict([[1, 2]], deadline=Deadline.after(0.05, SystemClock()))
        gone = asyncio.create_task(link.predict([[3, 4]]))
        with pytest.raises(DeadlineExceeded):
            await late
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await settled(lambda: not link.house.batchers[1].queued())
        servable.gate.set()
        await first


async def test_a_front_end_refuses_late_requests_itself_under_overload() -> None:
    async with linked() as link:
        servable, clock = link.house.servables[1], SystemClock()
        gate = OverloadGate(lambda: link.registry.serving, link.metrics, clock)
        link.house.batchers[1]._costs.learn("serving_default", 1, 30.0)
        first = await link.occupy()
        with link.service.acquire(ModelSpec("m")) as model:
            hopeless = Deadline.after(0.2, clock)
            model.check_deadline(hopeless, Priority.HIGH)
            assert not gate.lateness_s(hopeless)
            with pytest.raises(TooLate):
                await link.predict([[1, 2]], deadline=hopeless)
            loaded = link.registry.serving[0]
            assert isinstance(loaded, LoadedVersion)
            refusals = loaded.batcher.refusals
            await settled(lambda: refusals.forecast() is not None)
            for priority in Priority:
                with pytest.raises(TooLate, match="would finish this request in"):
                    model.check_deadline(Deadline.after(0.2, clock), priority)
            assert gate.lateness_s(Deadline.after(0.2, clock)) > 0
            model.check_deadline(Deadline.after(600.0, clock), Priority.HIGH)
        assert link.metrics.dropped == ["too_late", "too_late"]
        servable.gate.set()
        await first
        # The next forecast knows that the device is idle. A second later nothing is checked.
        await settled(lambda: not gate.lateness_s(Deadline.after(0.2, clock)))
        model.check_deadline(Deadline.after(0.2, clock), Priority.HIGH)
        await settled(lambda: not refusals.is_active)
        assert refusals.forecast() is None


async def test_the_end_of_a_front_end_frees_everything_that_it_holds() -> None:
    async with linked() as link:
        servable = link.house.servables[1]
        running = await link.occupy()
        waiting = asyncio.create_task(link.predict([[3, 4]]))
        await asyncio.sleep(0)
        link.theirs.close()
        await settled(lambda: not link.house.batchers[1].queued())
        servable.gate.set()
        record = link.house.registry.unloading(ServableId("m", 1))
        await asyncio.to_thread(link.house.registry.wait_idle, record)
        for task in (running, waiting):
            task.cancel()


async def test_the_end_of_the_engine_answers_every_request() -> None:
    async with linked() as link:
        servable = link.house.servables[1]
        running = await link.occupy()
        link.engine.close()
        servable.gate.set()
        with pytest.raises(Unavailable, match="The engine process of the server has ended"):
            await running


async def test_another_installation_is_refused_with_the_reason_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Play a front-end whose package was installed over that of the engine."""
    house = LaneHouse()
    ours, theirs = (Connection(end) for end in socket.socketpair())
    ended = asyncio.Event()
    states: list[memoryview] = []
    rules = EngineRules(house.logs.has_log, is_oip_in_engine=False)
    EngineLink(ours, house.registry, rules, {}, lambda _: None)
    theirs.start({Kind.STATE: states.append}, ended.set)
    theirs.send(Kind.HELLO, b"0.0.0")
    await asyncio.wait_for(ended.wait(), 20)
    assert not states
    assert f"runs tpuserve-server 0.0.0, and the engine runs {INSTALLATION}" in caplog.text
    assert "Restart the server" in caplog.text
    await house.stop()


async def test_a_front_end_that_the_engine_refuses_reports_the_end_of_the_engine() -> None:
    ours, theirs = (Connection(end) for end in socket.socketpair())
    ours.start({Kind.HELLO: lambda _: ours.close()}, lambda: None)
    front_end = FrontEndLink(theirs, ModelRegistry([], FakeMetrics()), SystemClock(), RecordingMetrics())
    with pytest.raises(ConnectionError, match="The engine process ended during the start"):
        await front_end.start({}, lambda: None)


async def settled(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            gc.collect()
            await asyncio.sleep(0.01)
