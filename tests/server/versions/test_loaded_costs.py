"""Tests for the batch costs that a load learns, with real TensorFlow."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.fake_device import FakeExecutor, RecordingMetrics
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_record import describe_costs
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.servable import Executor
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import missing_file
from tpuserve_server.versions.warmup_options import WarmupOptions


def loader(executor: Executor, options: LoadingOptions, metrics: RecordingMetrics) -> VersionLoader:
    return VersionLoader(LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), metrics))


def aspired(path: Path) -> AspiredVersion:
    return AspiredVersion(ServableId("m", 1), VersionLocation(str(path)))


@pytest.fixture
async def load(tmp_path: Path) -> AsyncIterator[Callable[..., tuple[LoadedVersion, RecordingMetrics]]]:
    """Return a function that loads an exported MLP with batches of 1, 2 and 4 rows."""
    path = save_mlp(tmp_path / "1")
    write_manifest(path)
    ends: list[Callable[[], None]] = []

    def load_it(warmup: WarmupOptions) -> tuple[LoadedVersion, RecordingMetrics]:
        metrics = RecordingMetrics()
        loading = loader(TensorFlowExecutor(TensorFlowOptions()), LoadingOptions(warmup=warmup), metrics)
        loaded = loading.load(aspired(path))
        ends.append(lambda: loading.unload(loaded))
        return loaded, metrics

    yield load_it
    for end in ends:
        end()


async def predict(loaded: LoadedVersion, rows: int) -> None:
    future = asyncio.get_running_loop().create_future()
    inputs = {"x": np.ones((rows, 64), np.float32)}
    loaded.batcher.submit(Task("serving_default", ("y",), inputs, rows, Deadline.never(), future, shareable=True))
    assert not isinstance(await future, ServingError)


def runs(loaded: LoadedVersion) -> dict[int, int]:
    return {cost.rows: cost.runs for curve in loaded.costs.snapshot() for cost in curve.costs}


async def test_every_bucket_is_timed_at_load_and_live_batches_go_on(
    load: Callable[..., tuple[LoadedVersion, RecordingMetrics]],
) -> None:
    loaded, metrics = load(WarmupOptions())
    timed = runs(loaded)
    assert list(timed) == [1, 2, 4]
    assert all(1 <= count <= 5 for count in timed.values())
    line = loaded.costs.line("serving_default")
    assert line is not None
    assert 0 < line.at(4) < 1
    assert metrics.costs == {1: loaded.costs}
    assert describe_costs(loaded.costs)[0].startswith("serving_default: 1 row in ")
    await predict(loaded, 3)
    assert runs(loaded) == {**timed, 4: timed[4] + 1}


async def test_a_shape_that_was_warmed_is_no_first_run(
    load: Callable[..., tuple[LoadedVersion, RecordingMetrics]],
) -> None:
    loaded, metrics = load(WarmupOptions())
    await predict(loaded, 3)
    assert metrics.unwarmed == []


async def test_without_warmup_every_shape_is_a_first_run_once(
    load: Callable[..., tuple[LoadedVersion, RecordingMetrics]],
) -> None:
    loaded, metrics = load(WarmupOptions(enabled=False))
    assert loaded.costs.snapshot() == ()
    for rows in (1, 1, 4, 3):
        await predict(loaded, rows)
    assert metrics.unwarmed == ["serving_default"] * 2
    assert runs(loaded) == {1: 2, 4: 2}


def test_an_objective_that_no_batch_can_keep_refuses_the_load(tmp_path: Path) -> None:
    executor, metrics = FakeExecutor(), RecordingMetrics()
    parameters = BatchingParameters(max_batch_size=4, latency_objective_ms=1e-6)
    loading = loader(executor, LoadingOptions(enable_batching=True, parameters=parameters), metrics)
    with pytest.raises(InvalidArgument, match=r"the fastest batch of signature 'serving_default', of . rows?, takes"):
        loading.load(aspired(tmp_path))
    assert executor.loaded[ServableId("m", 1)].closed
    assert metrics.costs == {}
