"""Tests that texts of every length get the same result batched and padded as alone, with a real model."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.fake_device import DOUBLE_WIDE, FakeServable, RecordingMetrics
from tests.support.saved_models import predict_request, save_mlp, write_manifest, write_warmup
from tests.support.sequence_models import TOKENS, save_tagger
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.startup.config_files import read_model_batching_parameters
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader, choose_batching
from tpuserve_server.versions.manifest import Manifest, SignatureEntry, missing_file

OPTIONS = LoadingOptions(
    enable_batching=True,
    parameters=BatchingParameters(allowed_batch_sizes=(1, 2, 4), sequence_buckets=(4, 8, 16)),
)
EVERY = ("tags", "attention", "pooled")


class Loads:
    """Loads with real TensorFlow, and unloads all remaining versions at the end."""

    def __init__(self) -> None:
        self.loaded: list[LoadedVersion] = []
        self.loader = self._loader(OPTIONS)

    def __call__(self, path: Path, options: LoadingOptions = OPTIONS) -> LoadedVersion:
        loaded = self._loader(options).load(AspiredVersion(ServableId("m", 1), VersionLocation(str(path))))
        self.loaded.append(loaded)
        return loaded

    def _loader(self, options: LoadingOptions) -> VersionLoader:
        executor = TensorFlowExecutor(TensorFlowOptions())
        return VersionLoader(
            LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), RecordingMetrics())
        )


@pytest.fixture
def load() -> Iterator[Loads]:
    loads = Loads()
    yield loads
    for loaded in loads.loaded:
        loads.loader.unload(loaded)


def texts(count: int, longest: int, *, mask: bool) -> list[Tensors]:
    """Return texts of random lengths, rows and words."""
    random = np.random.default_rng(7)
    made: list[Tensors] = []
    for _ in range(count):
        shape = (int(random.integers(1, 4)), int(random.integers(1, longest + 1)))
        ids = random.integers(1, TOKENS, shape).astype(np.int32)
        made.append({"ids": ids, "mask": np.ones(shape, np.int32)} if mask else {"ids": ids})
    return made


async def run(loaded: LoadedVersion, inputs: Tensors) -> Tensors:
    task = Task(
        "serving_default",
        EVERY,
        inputs,
        len(inputs["ids"]),
        Deadline.never(),
        asyncio.get_running_loop().create_future(),
        shareable=True,
    )
    loaded.batcher.submit(task)
    outcome = await task.future
    if isinstance(outcome, ServingError):
        raise outcome
    return outcome


@pytest.mark.parametrize("mask", [False, True])
async def test_texts_of_all_lengths_get_what_each_gets_alone(tmp_path: Path, load: Loads, mask: bool) -> None:
    loaded = load(save_tagger(tmp_path / "1", mask=mask))
    requests = texts(40, 16, mask=mask)
    answers = await asyncio.gather(*(run(loaded, request) for request in requests))
    for request, answer in zip(requests, answers, strict=True):
        alone = loaded.servable.dispatch("serving_default", request, EVERY).result()
        for name in EVERY:
            assert answer[name].shape == alone[name].shape
            np.testing.assert_allclose(answer[name], alone[name], rtol=1e-4, atol=1e-5)


async def test_a_text_longer_than_the_last_bucket_is_refused(tmp_path: Path, load: Loads) -> None:
    loaded = load(save_tagger(tmp_path / "1"))
    with pytest.raises(InvalidArgument, match=r"Input 'ids' has length 17 in dimension 1; the largest .* is 16"):
        await run(loaded, {"ids": np.ones((1, 17), np.int32)})


async def test_lengths_that_the_model_would_refuse_are_refused_though_padding_makes_them_fit(
    tmp_path: Path, load: Loads
) -> None:
    loaded = load(save_tagger(tmp_path / "1", mask=True))
    with pytest.raises(InvalidArgument, match="Lengths must be equal"):
        await run(loaded, {"ids": np.ones((1, 7), np.int32), "mask": np.ones((1, 6), np.int32)})


@pytest.mark.parametrize("mask", [False, True])
def test_every_shape_of_batch_is_warmed_and_the_status_says_how_lengths_are_padded(
    tmp_path: Path, load: Loads, mask: bool
) -> None:
    notes = load(save_tagger(tmp_path / "1", mask=mask)).notes
    assert "warm-up: 9 runs" in notes
    assert "serving_default: batches of 1, 2, 4 rows, lengths padded to 4, 8, 16" in notes


def test_recorded_texts_are_warmed_padded_and_at_every_length(tmp_path: Path, load: Loads) -> None:
    path = save_tagger(tmp_path / "1")
    write_warmup(path, predict_request(ids=np.ones((3, 6), np.int32)))
    # Nine shapes, including the recorded one.
    assert "warm-up: 9 runs" in load(path).notes


def test_a_recorded_text_that_is_too_long_fails_the_load(tmp_path: Path, load: Loads) -> None:
    path = save_tagger(tmp_path / "1")
    write_warmup(path, predict_request(ids=np.ones((1, 17), np.int32)))
    with pytest.raises(InvalidArgument, match=r"Warm-up record 0 .*Input 'ids' has length 17"):
        load(path)


async def test_an_exporter_that_has_checked_padding_says_buckets_and_values(tmp_path: Path, load: Loads) -> None:
    path = save_tagger(tmp_path / "1")
    checked = {
        "batch_sizes": [2],
        "rows_independent": True,
        "sequence_buckets": [8],
        "inputs": {"ids": {"pad_value": 0}},
    }
    write_manifest(path, signatures={"serving_default": checked})
    loaded = load(path, LoadingOptions())
    assert "serving_default: batches of 2 rows, lengths padded to 8" in loaded.notes
    answer = await run(loaded, {"ids": np.ones((1, 5), np.int32)})
    assert answer["tags"].shape == (1, 5, 5)


def test_sequence_buckets_for_all_models_do_no_harm_to_those_without_sequences(tmp_path: Path, load: Loads) -> None:
    notes = load(save_mlp(tmp_path / "1")).notes
    assert any(note.startswith("the server ignores sequence_buckets: no batched signature") for note in notes)


def test_a_version_that_asks_for_sequence_buckets_without_having_sequences_is_refused(
    tmp_path: Path, load: Loads
) -> None:
    path = save_mlp(tmp_path / "1")
    (path / "batching_params.pbtxt").write_text("sequence_buckets: 4\nsequence_buckets: 8\n")
    options = LoadingOptions(enable_batching=True, read_parameters=read_model_batching_parameters)
    message = r"sequence_buckets cannot be used: no batched signature .*\. Remove sequence_buckets"
    with pytest.raises(InvalidArgument, match=message):
        load(path, options)


WIDE = FakeServable({DOUBLE_WIDE.name: DOUBLE_WIDE})


def manifest(**entry: object) -> Manifest:
    signature = {"batch_sizes": [4], "rows_independent": True, **entry}
    return Manifest(format_version=1, signatures={"serving_default": SignatureEntry.model_validate(signature)})


def test_what_the_operator_says_of_padding_goes_over_the_manifest() -> None:
    exported = manifest(sequence_buckets=[4, 8], inputs={"x": {"pad_value": 7}})
    for parameters, buckets in [
        (BatchingParameters(), (4, 8)),
        (BatchingParameters(sequence_buckets=(16,)), (16,)),
        (BatchingParameters(pad_variable_length_inputs=True), ()),
    ]:
        options = choose_batching(WIDE, exported, LoadingOptions(parameters=parameters))["serving_default"]
        assert options.sequence_buckets == buckets
        assert options.sequences is None or options.sequences.pad_values == {"x": 7}
        assert (options.sequences is None) == (not buckets)


def test_two_ways_to_pad_are_refused() -> None:
    parameters = BatchingParameters(sequence_buckets=(4,), pad_variable_length_inputs=True)
    with pytest.raises(InvalidArgument, match="pad the same inputs in different ways: set only one of them"):
        choose_batching(WIDE, None, replace(OPTIONS, parameters=parameters))


@pytest.mark.parametrize("buckets", [[8, 4], [0], [4, 4]])
def test_buckets_of_a_manifest_must_ascend(buckets: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="sequence_buckets entries must be positive and in ascending order"):
        choose_batching(WIDE, manifest(sequence_buckets=buckets), LoadingOptions())


def test_a_pad_value_must_be_of_the_inputs_kind() -> None:
    with pytest.raises(InvalidArgument, match="Input 'x' cannot be padded with 'nothing': its dtype is float32"):
        choose_batching(WIDE, manifest(sequence_buckets=[4], inputs={"x": {"pad_value": "nothing"}}), LoadingOptions())
