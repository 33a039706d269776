import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.fake_device import FakeClock, FakeExecutor, FakeServable, RecordingMetrics, WatchedDevice
from tests.support.saved_models import (
    predict_request,
    save_broken,
    save_function,
    save_half_plus_two,
    save_mlp,
    write_manifest,
    write_warmup,
)
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, PaddingPolicy
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.response_cache import VersionResponses
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.startup.config_files import read_model_batching_parameters
from tpuserve_server.versions import loading
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader, choose_batching
from tpuserve_server.versions.manifest import Manifest, SignatureEntry, missing_file
from tpuserve_server.versions.warmup import WarmupCount
from tpuserve_server.versions.warmup_options import WarmupOptions

ID = ServableId("m", 1)

# A runtime that frees 64 MB in small pieces during the load, and as much at the end of the servable.
PROGRAM = """
import resource, sys
from pathlib import Path
from tests.support.fake_device import FakeExecutor, FakeServable, RecordingMetrics
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.system.memory import keep_freed_memory
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import missing_file

keep_freed_memory()

def pieces():
    return [bytearray(b"x") * 2**16 for _ in range(2**10)]

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6

class Servable(FakeServable):
    def close(self):
        self.weights = None

class Executor(FakeExecutor):
    def load(self, servable_id, version):
        servable, temporary = Servable(), pieces()
        servable.weights = pieces()
        return servable

services = DeviceServices(SystemClock(), RecordingMetrics())
loader = VersionLoader(LocalStorage(missing_file), Executor(), LoadingOptions(), services)
Path(sys.argv[1], "saved_model.pb").write_bytes(b"")
before_mb = resident_mb()
loaded = loader.load(AspiredVersion(ServableId("m", 1), VersionLocation(sys.argv[1])))
loaded_mb = resident_mb()
loader.unload(loaded)
print(60 < loaded_mb - before_mb < 90, resident_mb() - before_mb < 20)
"""


class Loads:
    """Loads with real TensorFlow, and unloads all remaining versions at the end."""

    def __init__(self) -> None:
        self.loaded: list[tuple[VersionLoader, LoadedVersion]] = []
        self.metrics = RecordingMetrics()

    def __call__(self, path: Path, options: LoadingOptions | None = None) -> LoadedVersion:
        loader = VersionLoader(
            LocalStorage(missing_file),
            TensorFlowExecutor(TensorFlowOptions()),
            options or LoadingOptions(),
            DeviceServices(SystemClock(), self.metrics),
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


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="glibc on Linux")
def test_memory_that_a_load_and_an_unload_free_returns_to_the_system(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True True", done.stderr


def test_an_exported_version_is_batched_and_warmed_as_its_manifest_says(tmp_path: Path, load: Loads) -> None:
    path = save_mlp(tmp_path / "1")
    write_warmup(path, predict_request(x=np.zeros((1, 64), np.float32)), predict_request(x=np.ones((4, 64), "f")))
    write_manifest(path)
    loaded = load(path)
    assert "serving_default" in loaded.batcher.options
    assert "warm-up: 3 runs" in loaded.notes
    assert "serving_default: batches of 1, 2, 4 rows" in loaded.notes


async def test_a_plain_saved_model_answers_one_request_at_a_time(tmp_path: Path, load: Loads) -> None:
    loaded = load(save_half_plus_two(tmp_path / "1"))
    assert "serving_default" not in loaded.batcher.options
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


def test_signatures_that_are_treated_alike_share_a_line(tmp_path: Path, load: Loads) -> None:
    module = tf.Module()
    column = tf.TensorSpec([None, 2], tf.float32, name="x")
    functions = {f"s{number}": tf.function(lambda x: {"y": x + 1}, input_signature=[column]) for number in range(5)}
    scalar = tf.TensorSpec([], tf.float32, name="x")
    functions["alone"] = tf.function(lambda x: {"y": x + 1}, input_signature=[scalar])
    tf.saved_model.save(module, tmp_path / "1", signatures=functions)
    alone = "alone: one request at a time"
    unchecked = "one request at a time, because no manifest states that rows are independent (see --enable_batching)"
    assert load(tmp_path / "1").notes[2:] == (alone, f"the other 5 signatures: {unchecked}")
    options = LoadingOptions(enable_batching=True, parameters=BatchingParameters(max_batch_size=2))
    assert load(tmp_path / "1", options).notes[2:] == (alone, "the other 5 signatures: batches of up to 2 rows")


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


def test_signatures_that_do_not_answer_made_up_rows_are_in_the_notes_and_the_log(
    tmp_path: Path, load: Loads, caplog: pytest.LogCaptureFixture
) -> None:
    column, texts = tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.string, "x")
    broken = tf.function(lambda x: tf.raw_ops.CollectivePermute(input=x, source_target_pairs=[[0, 0]]))
    functions = {
        "broken": tf.function(lambda x: {"y": broken(x)}, input_signature=[column]),
        "parses": tf.function(lambda x: {"y": tf.io.parse_tensor(x[0], tf.float32)}, input_signature=[texts]),
    }
    tf.saved_model.save(tf.Module(), str(tmp_path / "1"), signatures=functions)
    with caplog.at_level("INFO"):
        assert load(tmp_path / "1").notes[2].startswith("broken cannot answer: No OpKernel was registered")
    assert "{name: m version: 1} is served, but its signature 'broken' cannot answer: No OpKernel was" in caplog.text
    unknown = (
        "Made-up rows do not show whether 1 signature of {name: m version: 1} can answer. 'parses': Could not parse"
    )
    assert unknown in caplog.text


def test_a_version_that_may_have_ended_the_process_runs_no_made_up_rows(tmp_path: Path) -> None:
    with Journal.open(tmp_path, "", SystemClock()).loading(ID, "") as entry:
        entry.begin_run()
    loader = VersionLoader(
        LocalStorage(missing_file),
        TensorFlowExecutor(TensorFlowOptions()),
        LoadingOptions(),
        DeviceServices(SystemClock(), RecordingMetrics()),
        journal=Journal.open(tmp_path, "signal SIGABRT", SystemClock()),
    )
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(save_broken(tmp_path / "1")))))
    assert "warm-up: 0 runs" in loaded.notes
    loader.unload(loaded)


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
    parameters = BatchingParameters(enable_large_batch_splitting=True, max_execution_batch_size=2000)
    options = LoadingOptions(enable_batching=True, parameters=parameters)
    metrics = RecordingMetrics()
    loader = VersionLoader(LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), metrics))
    with pytest.raises(InvalidArgument, match="they were 1000 and 2000"):
        loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    assert executor.loaded[ID].closed
    assert metrics.failed_loads == [ID]
    assert metrics.load_s == {}
    assert metrics.load_paths == [str(tmp_path)]


def test_the_time_of_a_load_excludes_its_warmup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, metrics = FakeClock(), RecordingMetrics()

    class SlowExecutor(FakeExecutor):
        def load(self, servable_id: ServableId, version: VersionFiles) -> FakeServable:
            clock.now_s += 2.5
            return super().load(servable_id, version)

    def slow_warm_up(*arguments: object) -> WarmupCount:
        clock.now_s += 40.0
        return WarmupCount(0, 1)

    monkeypatch.setattr(loading, "warm_up", slow_warm_up)
    loader = VersionLoader(LocalStorage(missing_file), SlowExecutor(), LoadingOptions(), DeviceServices(clock, metrics))
    loader.unload(loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path)))))
    assert metrics.load_s == {ID.version: 2.5}
    assert metrics.restore_s == {ID.version: 2.5}
    assert metrics.load_paths == [str(tmp_path)]
    assert metrics.failed_loads == []


class BrokenMetrics(RecordingMetrics):
    """Metrics that raise in one method."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self._broken = broken

    def version_warmed(self, **measured: object) -> None:
        self._break("version_warmed")

    def version_loaded(self, **measured: object) -> None:
        self._break("version_loaded")

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        super().cache_opened(servable=servable, responses=responses)
        self._break("cache_opened")

    def _break(self, method: str) -> None:
        if method == self._broken:
            raise ZeroDivisionError(f"a bug in {method}")


class CountingStorage(LocalStorage):
    """Counts fetched versions that are not released."""

    held = 0

    def fetch(self, location: VersionLocation) -> Path:
        self.held += 1
        return super().fetch(location)

    def release(self, path: Path) -> None:
        self.held -= 1


def keeps(responses: VersionResponses) -> bool:
    """Return whether a cache is open."""
    responses.store(b"k", {"y": np.zeros(1)})
    return responses.find(b"k") is not None


@pytest.mark.parametrize(
    "step",
    [
        "_try_sequences",
        "_warm_up",
        "version_warmed",
        "check_objectives",
        "Batcher",
        "version_loaded",
        "_notes",
        "why_not_cached",
        "cache_opened",
        "LoadedVersion",
    ],
)
def test_whatever_raises_during_a_load_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Check obligation 2 of core/models/loader.py for each step after the executor's, including internal errors."""

    def fail(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError(f"a bug in {step}")

    if hasattr(loading, step):
        monkeypatch.setattr(loading, step, fail)
    elif hasattr(VersionLoader, step):
        monkeypatch.setattr(VersionLoader, step, fail)
    executor, storage, device = FakeExecutor(), CountingStorage(missing_file), DeviceShare(1)
    options, metrics = LoadingOptions(response_cache_max_bytes=1 << 20), BrokenMetrics(step)
    loader = VersionLoader(storage, executor, options, DeviceServices(SystemClock(), metrics, device=device))
    with pytest.raises(ZeroDivisionError, match=step):
        loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    assert not any(keeps(responses) for responses in metrics.caches.values())
    assert executor.loaded[ID].closed
    assert storage.held == 0
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("device-")] == []
    # The model has left the share, so the one slot is free.
    with pytest.raises(KeyError):
        device.leave(ID)


@pytest.mark.parametrize(
    ("flag", "own", "bound"), [(0, None, 0), (10, None, 10), (10, 0, 0), (0, 20, 20), (10, 20, 20)]
)
def test_a_models_own_bound_of_the_cache_overrides_the_flag(
    tmp_path: Path, flag: int, own: int | None, bound: int
) -> None:
    options, metrics = LoadingOptions(response_cache_max_bytes=flag), RecordingMetrics()
    loader = VersionLoader(LocalStorage(missing_file), FakeExecutor(), options, DeviceServices(SystemClock(), metrics))
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path)), response_cache_max_bytes=own))
    assert (loaded.responses is not None) == bool(bound)
    assert metrics.caches == ({1: loaded.responses} if bound else {})
    notes = [note for note in loaded.notes if "response cache" in note]
    assert notes == ([f"response cache: up to {bound} bytes of its model"] if bound else [])
    loader.unload(loaded)


def test_an_unloaded_version_keeps_no_response(tmp_path: Path) -> None:
    options = LoadingOptions(response_cache_max_bytes=1 << 20)
    loader = VersionLoader(
        LocalStorage(missing_file), FakeExecutor(), options, DeviceServices(SystemClock(), RecordingMetrics())
    )
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    assert loaded.responses is not None
    assert keeps(loaded.responses)
    loader.unload(loaded)
    assert not keeps(loaded.responses)
    assert loaded.responses.counts().size_bytes == 0


def test_a_version_that_may_not_be_cached_is_served_and_says_why(
    load: Loads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def add_noise(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x + tf.random.uniform([2])}

    path = save_function(tmp_path / "1", add_noise, tf.TensorSpec([None, 2], tf.float32, "x"))
    loaded = load(path, LoadingOptions(response_cache_max_bytes=1 << 20))
    reason = "signature 'serving_default' has the operation RandomUniform, which has state or is random"
    assert loaded.responses is None
    assert f"no response cache: {reason}" in loaded.notes
    assert f"{ID} is served without response cache: {reason}" in caplog.text


CHECKED = Manifest(
    format_version=1, signatures={"serving_default": SignatureEntry(batch_sizes=(1, 4), rows_independent=True)}
)
UNCHECKED = Manifest(format_version=1, signatures={"serving_default": SignatureEntry(batch_sizes=(1, 4))})


@pytest.mark.parametrize(
    ("manifest", "enabled", "batching"),
    [
        (CHECKED, None, BatchingOptions(4, (1, 4))),
        (CHECKED, True, BatchingOptions(4, (1, 4))),
        (CHECKED, False, None),
        (UNCHECKED, None, None),
        (None, None, None),
        (None, True, BatchingOptions(1000)),
    ],
)
def test_who_is_batched(manifest: Manifest | None, enabled: bool | None, batching: BatchingOptions | None) -> None:
    chosen = choose_batching(FakeServable(), manifest, LoadingOptions(enable_batching=enabled))
    assert chosen == ({} if batching is None else {"serving_default": batching})


@pytest.mark.parametrize("enabled", [True, None, False])
def test_with_parameters_for_each_model_who_says_nothing_is_batched_by_its_manifest_alone(
    tmp_path: Path, enabled: bool | None
) -> None:
    options = LoadingOptions(enable_batching=enabled, read_parameters=lambda path: None).of_version(tmp_path)
    assert choose_batching(FakeServable(), None, options) == {}
    assert ("serving_default" in choose_batching(FakeServable(), CHECKED, options)) is (enabled is not False)


def test_a_versions_own_parameters_go_over_the_servers(tmp_path: Path) -> None:
    ours = BatchingParameters(max_batch_size=64, batch_timeout_micros=1000)
    own = BatchingParameters(max_batch_size=2)
    options = LoadingOptions(enable_batching=True, parameters=ours, read_parameters=lambda path: own)
    chosen = choose_batching(FakeServable(), None, options.of_version(tmp_path))
    padded_up = BatchingOptions(2, timeout_s=0.001, padding_policy=PaddingPolicy.PAD_UP)
    assert chosen == {"serving_default": padded_up}


def test_a_models_own_parameters_lie_between_its_versions_and_the_servers(tmp_path: Path) -> None:
    options = LoadingOptions(
        enable_batching=True,
        parameters=BatchingParameters(max_batch_size=64, batch_timeout_micros=1000, max_enqueued_batches=3),
        read_parameters=lambda path: BatchingParameters(max_batch_size=2),
    )
    model = BatchingParameters(max_batch_size=8, latency_objective_ms=20)
    found = options.of_model(model).of_version(tmp_path)
    assert found.parameters == BatchingParameters(max_batch_size=2, latency_objective_ms=20, max_enqueued_batches=3)
    assert options.of_model(None) is options


def test_with_parameters_for_each_model_a_configured_one_has_said_something(tmp_path: Path) -> None:
    options = LoadingOptions(enable_batching=True, read_parameters=lambda path: None)
    model = options.of_model(BatchingParameters(max_batch_size=2)).of_version(tmp_path)
    assert choose_batching(FakeServable(), None, model) == {"serving_default": BatchingOptions(2)}


def test_a_version_is_loaded_with_what_its_models_configuration_says(tmp_path: Path) -> None:
    loader = VersionLoader(
        LocalStorage(missing_file),
        FakeExecutor(),
        LoadingOptions(enable_batching=True),
        DeviceServices(SystemClock(), RecordingMetrics()),
    )
    batching = BatchingParameters(max_batch_size=4, allowed_batch_sizes=(2, 4))
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path)), batching=batching))
    loader.unload(loaded)
    assert "serving_default: batches of 2, 4 rows" in loaded.notes


def test_a_configuration_that_does_not_go_with_the_servers_is_refused(tmp_path: Path) -> None:
    options = LoadingOptions(parameters=BatchingParameters(max_batch_size=4, enable_large_batch_splitting=True))
    fits = ModelConfig("a", "/a", batching=BatchingParameters(max_execution_batch_size=4))
    options.check([fits, ModelConfig("b", "/b")])
    with pytest.raises(InvalidArgument, match=r"^Model c: .* they were 4 and 8$"):
        options.check([fits, ModelConfig("c", "/c", batching=BatchingParameters(max_execution_batch_size=8))])


def test_a_versions_own_parameters_that_are_wrong_fail_its_load(tmp_path: Path) -> None:
    (tmp_path / "batching_params.pbtxt").write_text("max_batch_size { value: 8 }\nallowed_batch_sizes: 4\n")
    executor = FakeExecutor()
    options = LoadingOptions(enable_batching=True, read_parameters=read_model_batching_parameters)
    loader = VersionLoader(
        LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), RecordingMetrics())
    )
    with pytest.raises(InvalidArgument, match="last entry was 4; expected 8") as raised:
        loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    assert str(tmp_path) not in raised.value.message
    assert not executor.loaded


def ask(loaded: LoadedVersion) -> Task:
    future = asyncio.get_running_loop().create_future()
    x = np.ones((1, 2), np.float32)
    task = Task("serving_default", ("y",), {"x": x}, 1, Deadline.never(), future, shareable=False)
    loaded.batcher.submit(task)
    return task


async def test_versions_take_turns_on_the_device_by_their_weights(tmp_path: Path) -> None:
    device = WatchedDevice(1)
    executor = FakeExecutor()
    options = LoadingOptions(parameters=BatchingParameters(scheduling_weight=3), warmup=WarmupOptions(enabled=False))
    loader = VersionLoader(
        LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), RecordingMetrics(), device=device)
    )
    ids = [ServableId(name, 1) for name in "ab"]
    loaded = [loader.load(AspiredVersion(servable_id, VersionLocation(str(tmp_path)))) for servable_id in ids]
    assert device.weights == {"a": 3, "b": 3}
    first, second = (executor.loaded[servable_id] for servable_id in ids)
    first.gate.clear()
    tasks = [ask(loaded[0])]
    await asyncio.to_thread(first.entered.acquire)
    tasks.append(ask(loaded[1]))
    await asyncio.to_thread(device.lined_up.acquire)
    assert not second.batches
    first.gate.set()
    for task in tasks:
        assert not isinstance(await task.future, ServingError)
    for version in loaded:
        await asyncio.to_thread(loader.unload, version)
    assert device.weights == {}


def test_the_status_says_how_a_version_is_batched(tmp_path: Path) -> None:
    parameters = BatchingParameters(
        max_batch_size=64,
        batch_timeout_micros=1500,
        enable_large_batch_splitting=True,
        max_execution_batch_size=16,
        pad_variable_length_inputs=True,
        num_batch_threads=2,
    )
    options = LoadingOptions(enable_batching=True, parameters=parameters)
    loader = VersionLoader(
        LocalStorage(missing_file), FakeExecutor(), options, DeviceServices(SystemClock(), RecordingMetrics())
    )
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    loader.unload(loaded)
    assert loaded.notes[2:] == (
        "serving_default: batches of up to 16 rows, full or after 1.5 ms, requests of up to 64 rows split over several "
        "batches, rows padded to one shape, 2 batches at a time",
    )


def test_the_status_says_the_objective(tmp_path: Path) -> None:
    parameters = BatchingParameters(max_batch_size=4, latency_objective_ms=20, latency_percentile=99.5)
    options = LoadingOptions(enable_batching=True, parameters=parameters)
    loader = VersionLoader(
        LocalStorage(missing_file), FakeExecutor(), options, DeviceServices(SystemClock(), RecordingMetrics())
    )
    loaded = loader.load(AspiredVersion(ID, VersionLocation(str(tmp_path))))
    loader.unload(loaded)
    assert loaded.notes[2] == "serving_default: batches of 1, 2, 4 rows, 99.5 % of requests within 20 ms"
