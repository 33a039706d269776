"""Tests of the batcher with device programs on JAX's CPU client: what is dispatched before the result of a run."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.device_programs import double_and_add, write_programs
from tests.support.fake_device import RecordingMetrics
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import Executor, InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

SIGNATURE = "serving_default"


def no_host() -> Executor:
    raise AssertionError("no version here has a host part")


class Held:
    """Device programs, of which each result needs a permit. `rows` are those that JAX has got, with padding."""

    never_blocks = False

    def __init__(self, programs: Servable) -> None:
        self._programs = programs
        self.signatures, self.device = programs.signatures, programs.device
        self.max_in_flight, self.unrepeatable = programs.max_in_flight, programs.unrepeatable
        self.rows: list[int] = []
        self.dispatches, self.waits, self.permits = (threading.Semaphore(0) for _ in range(3))
        self.close = programs.close

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        flight = self._programs.dispatch(signature_name, inputs, output_names)
        self.rows.append(len(inputs["x"]))
        self.dispatches.release()
        return HeldRun(self, flight)


class HeldRun:
    def __init__(self, held: Held, flight: InFlight) -> None:
        self._held, self._flight = held, flight

    def result(self) -> Tensors:
        self._held.waits.release()
        assert self._held.permits.acquire(timeout=120), "the test never let it end"
        return self._flight.result()


class Model:
    def __init__(self, name: str, path: Path, device: DeviceShare) -> None:
        executor = PjrtExecutor(PjrtOptions("cpu"), no_host, DeviceMeasurements(), SystemClock())
        self.held = Held(executor.load(ServableId(name, 1), VersionFiles(path)))
        self.batcher = Batcher(
            BatchedVersion(ServableId(name, 1), self.held, {SIGNATURE: BatchingOptions(4, (1, 2, 4))}),
            BatchingParameters(),
            DeviceServices(SystemClock(), RecordingMetrics(), device=device),
        )

    async def submit(self, value: float, rows: int) -> Task:
        """Queue a request, and let the loop wake a worker."""
        inputs = {"x": np.full((rows, 2), value, np.float32)}
        future = asyncio.get_running_loop().create_future()
        task = Task(SIGNATURE, ("double",), inputs, rows, Deadline.never(), future, shareable=True)
        self.batcher.submit(task)
        await asyncio.sleep(0)
        return task


@pytest.fixture
def models(tmp_path: Path) -> Iterator[list[Model]]:
    """Return two models on one device that has no limit of slots while all weights are equal."""
    path = write_programs(tmp_path, double_and_add())
    device = DeviceShare(1, only_weighted=True)
    made = [Model(name, path, device) for name in ("a", "b")]
    yield made
    for model in made:
        model.held.permits.release(100)
        model.batcher.stop()
        model.held.close()


async def test_jax_gets_the_next_batch_of_each_model_before_the_result_of_the_last(models: list[Model]) -> None:
    first = [await model.submit(1, 1) for model in models]
    for model in models:
        await asyncio.to_thread(model.held.waits.acquire)
    # The second request closes the batch of the first one, which is padded.
    next_ones = [[await model.submit(2, 3), await model.submit(3, 2)] for model in models]
    for model in models:
        for _ in range(2):
            await asyncio.to_thread(model.held.dispatches.acquire)
        assert model.held.rows == [1, 4]
        assert not model.held.waits.acquire(blocking=False)
    for model in models:
        model.held.permits.release(3)
    for task, value, rows in [
        *((task, 1, 1) for task in first),
        *((task, value, rows) for tasks in next_ones for task, value, rows in zip(tasks, (2, 3), (3, 2), strict=True)),
    ]:
        outcome = await task.future
        assert not isinstance(outcome, ServingError)
        assert outcome["double"].tolist() == [[2 * value] * 2] * rows
    assert [model.held.rows for model in models] == [[1, 4, 2]] * 2
