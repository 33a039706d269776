import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fake_device import FakeExecutor, FakeServable, RecordingMetrics
from tests.saved_models import (
    predict_request,
    save_half_plus_two,
    save_mlp,
    write_manifest,
    write_warmup,
)
from tpuserve_server.core.batching import Task
from tpuserve_server.core.batching_options import BatchingOptions
from tpuserve_server.core.deadline import Deadline, SystemClock
from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.local_storage import LocalStorage
from tpuserve_server.core.storage import VersionLocation
from tpuserve_server.core.types import AspiredVersion, ServableId
from tpuserve_server.executors.session_config import TensorFlowOptions
from tpuserve_server.executors.tensorflow import TensorFlowExecutor
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader, choose_batching
from tpuserve_server.versions.manifest import Manifest, SignatureEntry, is_whole
from tpuserve_server.versions.warmup import WarmupOptions

pytestmark = pytest.mark.timeout(120)
ID = ServableId("m", 1)


class Loads:
    """Loads with real TensorFlow, and unloads whatever a test leaves."""

    def __init__(self) -> None:
        self.loaded: list[tuple[VersionLoader, LoadedVersion]] = []
        self.metrics = RecordingMetrics()

    def __call__(self, path: Path, options: LoadingOptions | None = None) -> LoadedVersion:
        loader = VersionLoader(
            LocalStorage(is_whole),
            TensorFlowExecutor(TensorFlowOptions()),
            options or LoadingOptions(),
            SystemClock(),
            self.metrics,
        )
        loaded = loader.load(AspiredVersion(ID, VersionLocation(str(path))))
        self.loaded.append((loader, loaded))
        return loaded


@pytest.fixture
def load() -> Iterator[Loads]:
    loads = Loads()
    yield loads
    for loader, loaded in loads.loaded:
        loader.unload(loaded)


def test_an_exported_version_is_batched_and_warmed_as_its_manifest_says(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_warmup(path, predict_request(x=np.zeros((1, 64), np.float32)), predict_request(x=np.ones((4, 64), "f")))
    write_manifest(path)
    loaded = load(path)
    assert loaded.batcher.batches("serving_default")
    assert "warm-up: 5 runs" in loaded.notes
    assert "serving_default: batches of 1, 2, 4 rows" in loaded.notes


async def test_a_plain_saved_model_answers_one_request_at_a_time(tmp_path: Path, load: Loads) -> None:
    loaded = load(save_half_plus_two(tmp_path / "1"))
    assert not loaded.batcher.batches("serving_default")
    assert any("one request at a time" in note and "--enable_batching" in note for note in loaded.notes)
    task = Task(
        "serving_default",
        ("y",),
        {"x": np.array([1.0, 2.0, 5.0], np.float32)},
        1,
        Deadline.never(),
        asyncio.get_running_loop().create_future(),
        shareable=False,
    )
    loaded.batcher.submit(task)
    outcome = await task.future
    assert not isinstance(outcome, ServingError)
    assert outcome["y"].tolist() == [2.5, 3.0, 4.5]


def test_corrupt_weights_are_found_before_anything_is_loaded(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_manifest(path)
    data = next((path / "variables").glob("*.data*"))
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.raises(FailedPrecondition, match="is corrupt"):
        load(path)


def test_warmup_can_be_switched_off(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_manifest(path)
    assert "warm-up: 0 runs" in load(path, LoadingOptions(warmup=WarmupOptions(enabled=False))).notes
    assert load.metrics.warmups == []


def test_warmup_is_measured_with_its_records(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_warmup(path, predict_request(x=np.zeros((1, 64), np.float32)))
    load(path)
    assert load.metrics.warmups == [(1, 1)]


@pytest.mark.parametrize("iterations", [1, 3])
def test_records_are_run_as_often_as_asked_for(tmp_path: Path, load: Loads, iterations: int) -> None:
    path = save_half_plus_two(tmp_path / "1")
    write_warmup(path, *[predict_request(x=np.zeros((1, 1), np.float32))] * 2)
    options = LoadingOptions(warmup=WarmupOptions(iterations=iterations))
    assert f"warm-up: {2 * iterations} runs" in load(path, options).notes


def test_a_record_that_the_model_refuses_fails_the_load(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_warmup(path, predict_request(x=np.zeros((1, 3), np.float32)))
    with pytest.raises(InvalidArgument, match="Warm-up record 0"):
        load(path)


def test_a_load_that_fails_late_gives_everything_back(tmp_path: Path) -> None:
    executor = FakeExecutor()
    options = LoadingOptions(enable_batching=True, max_batch_size=4, allowed_batch_sizes=(1, 2))
    loader = VersionLoader(LocalStorage(is_whole), executor, options, SystemClock(), RecordingMetrics())
    with pytest.raises(InvalidArgument, match="Last entry in allowed_batch_sizes"):
        loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    assert executor.loaded[ID].closed


CHECKED = Manifest(
    format_version=1, signatures={"serving_default": SignatureEntry(batch_sizes=(1, 4), rows_independent=True)}
)
UNCHECKED = Manifest(format_version=1, signatures={"serving_default": SignatureEntry(batch_sizes=(1, 4))})


@pytest.mark.parametrize(
    ("manifest", "options", "batching"),
    [
        (CHECKED, LoadingOptions(), BatchingOptions(4, (1, 4))),
        (CHECKED, LoadingOptions(enable_batching=False), None),
        (UNCHECKED, LoadingOptions(), None),
        (None, LoadingOptions(), None),
        (None, LoadingOptions(enable_batching=True), BatchingOptions(1000)),
        (None, LoadingOptions(enable_batching=True, max_batch_size=16), BatchingOptions(16)),
        (None, LoadingOptions(enable_batching=True, allowed_batch_sizes=(2, 8)), BatchingOptions(8, (2, 8))),
        (CHECKED, LoadingOptions(max_batch_size=2), BatchingOptions(2, (1, 2))),
        (CHECKED, LoadingOptions(max_batch_size=8, allowed_batch_sizes=(8,)), BatchingOptions(8, (8,))),
    ],
)
def test_who_is_batched_and_how(
    manifest: Manifest | None, options: LoadingOptions, batching: BatchingOptions | None
) -> None:
    chosen = choose_batching(FakeServable(), manifest, options)
    assert chosen == ({} if batching is None else {"serving_default": batching})
