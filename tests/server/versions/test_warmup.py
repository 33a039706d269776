"""Tests for warm-up with real SavedModels, whose runs are recorded."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    prediction_log_pb2,
    regression_pb2,
    session_service_pb2,
)

from tests.support.example_models import CLASSIFY, REGRESS, example, save_example_model
from tests.support.saved_models import predict_request, save_function, save_mlp, write_logs, write_warmup
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.terms.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unimplemented,
)
from tpuserve_server.core.terms.servable import InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.versions.warmup import RECORDS_PATH, WarmupCount, warm_up
from tpuserve_server.versions.warmup_options import WarmupOptions

EXAMPLES = input_pb2.Input(
    example_list=input_pb2.ExampleList(examples=[example(x=1.0), example(x=2.0), example(x=3.0)])
)
PREDICTS = BatchingOptions(4, (1, 2, 4))


class Watched:
    """A servable and its runs: signature, rows of its first input, outputs."""

    def __init__(self, servable: Servable) -> None:
        self._servable = servable
        self.runs: list[tuple[str, int, tuple[str, ...]]] = []

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._servable.signatures

    @property
    def device(self) -> str:
        return self._servable.device

    @property
    def max_in_flight(self) -> int:
        return self._servable.max_in_flight

    @property
    def unrepeatable(self) -> str:
        return self._servable.unrepeatable

    @property
    def never_blocks(self) -> bool:
        return self._servable.never_blocks

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        self.runs.append((signature_name, len(next(iter(inputs.values()))), tuple(output_names)))
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        self._servable.close()


def load(path: Path) -> Watched:
    executor = TensorFlowExecutor(TensorFlowOptions())
    return Watched(executor.load(ServableId("m", 1), VersionFiles(path)))


@pytest.fixture
def mlp(tmp_path: Path) -> Iterator[Watched]:
    servable = load(save_mlp(tmp_path / "1"))
    yield servable
    servable.close()


@pytest.fixture(scope="module")
def example_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watched, Path]]:
    path = save_example_model(tmp_path_factory.mktemp("example") / "1")
    servable = load(path)
    yield servable, path
    servable.close()


def rows(count: int) -> Array:
    return np.ones((count, 64), np.float32)


def test_records_and_every_bucket_run(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(1)), predict_request(x=rows(4)))
    count = warm_up(mlp, tmp_path / "1", {"serving_default": PREDICTS}, WarmupOptions())
    assert count == WarmupCount(records=2, runs=3)
    # A size that a record has run does not run again.
    assert [ran[1] for ran in mlp.runs] == [1, 4, 2]


def test_a_record_runs_as_a_request_padded_to_its_bucket(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(3)))
    warm_up(mlp, tmp_path / "1", {"serving_default": PREDICTS}, WarmupOptions())
    assert mlp.runs[0] == ("serving_default", 4, ("y",))


def test_a_record_runs_as_it_came_where_nothing_is_batched(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(3)))
    assert warm_up(mlp, tmp_path / "1", {}, WarmupOptions()) == WarmupCount(1, 1)
    assert mlp.runs[0][1] == 3


def test_a_record_is_split_where_requests_are(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(7)))
    options = BatchingOptions(8, (2, 4, 8), max_execution_batch_size=4)
    assert warm_up(mlp, tmp_path / "1", {"serving_default": options}, WarmupOptions()).records == 1
    assert [ran[1] for ran in mlp.runs[:2]] == [4, 4]


def test_a_record_too_large_for_a_batch_lends_its_first_row(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(5)), predict_request(x=rows(2)))
    count = warm_up(mlp, tmp_path / "1", {"serving_default": PREDICTS}, WarmupOptions())
    assert (count.records, count.too_large) == (1, 1)
    assert sorted(ran[1] for ran in mlp.runs) == [1, 2, 4]


def test_records_run_as_often_as_asked_for(tmp_path: Path, mlp: Watched) -> None:
    write_warmup(tmp_path / "1", predict_request(x=rows(1)), predict_request(x=rows(2)))
    assert warm_up(mlp, tmp_path / "1", {}, WarmupOptions(iterations=3)) == WarmupCount(2, 6)
    assert [ran[1] for ran in mlp.runs] == [1, 1, 1, 2, 2, 2]


def test_a_predict_record_fetches_what_it_filters(tmp_path: Path) -> None:
    spec = tf.TensorSpec([None], tf.float32, "x")
    path = save_function(tmp_path / "1", lambda x: {"y": 2 * x, "z": 3 * x}, spec)
    servable = load(path)
    try:
        request = predict_request(x=np.ones(1, np.float32))
        request.output_filter.append("z")
        write_warmup(path, request)
        warm_up(servable, path, {}, WarmupOptions())
        assert servable.runs == [("serving_default", 1, ("z",))]
    finally:
        servable.close()


def classify_log(signature: str = "classify") -> prediction_log_pb2.PredictionLog:
    request = classification_pb2.ClassificationRequest(model_spec={"signature_name": signature}, input=EXAMPLES)
    return prediction_log_pb2.PredictionLog(classify_log={"request": request})


def regress_log(signature: str = "") -> prediction_log_pb2.PredictionLog:
    request = regression_pb2.RegressionRequest(model_spec={"signature_name": signature}, input=EXAMPLES)
    return prediction_log_pb2.PredictionLog(regress_log={"request": request})


def multi_inference_log(*names: str, method: str = CLASSIFY) -> prediction_log_pb2.PredictionLog:
    tasks = [
        inference_pb2.InferenceTask(model_spec={"name": "any", "signature_name": name}, method_name=method)
        for name in names
    ]
    request = inference_pb2.MultiInferenceRequest(tasks=tasks, input=EXAMPLES)
    return prediction_log_pb2.PredictionLog(multi_inference_log={"request": request})


def replay(
    example_model: tuple[Watched, Path], *logs: prediction_log_pb2.PredictionLog, options: WarmupOptions | None = None
) -> list[tuple[str, int, tuple[str, ...]]]:
    servable, path = example_model
    servable.runs.clear()
    write_logs(path, *logs)
    assert warm_up(servable, path, {}, options or WarmupOptions()).records == len(logs)
    return list(servable.runs)


def test_logs_of_every_kind_are_replayed(example_model: tuple[Watched, Path]) -> None:
    predict_log = prediction_log_pb2.PredictLog(request=predict_request("raw", x=np.ones((2, 1), np.float32)))
    logs = [
        prediction_log_pb2.PredictionLog(predict_log=predict_log),
        classify_log(),
        regress_log(),
        multi_inference_log("scores", "classes"),
        # Upstream skips an empty record.
        prediction_log_pb2.PredictionLog(),
    ]
    assert replay(example_model, *logs) == [
        ("raw", 2, ("y",)),
        ("classify", 3, ("classes", "scores")),
        ("serving_default", 3, ("outputs",)),
        ("scores", 3, ("scores",)),
        ("classes", 3, ("classes",)),
    ]


def test_a_model_spec_may_be_missing_where_the_model_is_known(example_model: tuple[Watched, Path]) -> None:
    request = regression_pb2.RegressionRequest(input=EXAMPLES)
    log = prediction_log_pb2.PredictionLog(regress_log={"request": request})
    assert replay(example_model, log) == [("serving_default", 3, ("outputs",))]


def test_recorded_examples_warm_the_buckets_too(example_model: tuple[Watched, Path]) -> None:
    servable, path = example_model
    servable.runs.clear()
    write_logs(path, classify_log())
    count = warm_up(servable, path, {"classify": PREDICTS}, WarmupOptions())
    # The made-up rows, empty strings, are not Examples with an x: only recorded requests count.
    assert count == WarmupCount(1, 3)
    assert [ran[1] for ran in servable.runs] == [4, 1, 2]


SESSION_RUN = prediction_log_pb2.PredictionLog(
    session_run_log=prediction_log_pb2.SessionRunLog(request=session_service_pb2.SessionRunRequest())
)


@pytest.mark.parametrize(
    ("log", "error", "text"),
    [
        (SESSION_RUN, Unimplemented, "Unsupported log_type for warmup: session_run_log"),
        (
            prediction_log_pb2.PredictionLog(predict_streamed_log=prediction_log_pb2.PredictStreamedLog()),
            Unimplemented,
            "Unsupported log_type for warmup: predict_streamed_log",
        ),
        (classify_log("s"), InvalidArgument, "No signature was found with the name: s"),
        (regress_log("classify"), InvalidArgument, "Expected one output Tensor."),
        # Outputs that cannot become a response.
        (regress_log("wide_regression"), InvalidArgument, "Expected output Tensor shape to be either"),
        (multi_inference_log("uneven"), InvalidArgument, "Tensors class and score should match"),
        (multi_inference_log("scores", "scores"), InvalidArgument, "Duplicate evaluation of signature: scores"),
        (multi_inference_log("", method="x"), Unimplemented, "Unsupported signature method_name: x"),
        (
            prediction_log_pb2.PredictionLog(predict_log={"request": predict_request("s")}),
            FailedPrecondition,
            'Serving signature key "s" not found.',
        ),
        (
            prediction_log_pb2.PredictionLog(predict_log={"request": predict_request("raw", z=1.0)}),
            InvalidArgument,
            "Sent extra: {z}",
        ),
        (
            prediction_log_pb2.PredictionLog(classify_log=prediction_log_pb2.ClassifyLog()),
            InvalidArgument,
            "Expected classification signature outputs",
        ),
        (
            prediction_log_pb2.PredictionLog(regress_log=prediction_log_pb2.RegressLog()),
            InvalidArgument,
            "Input is empty.",
        ),
    ],
)
def test_a_record_that_fails_fails_with_its_own_code(
    example_model: tuple[Watched, Path],
    log: prediction_log_pb2.PredictionLog,
    error: type[ServingError],
    text: str,
) -> None:
    servable, path = example_model
    write_logs(path, regress_log(), log)
    with pytest.raises(ServingError) as caught:
        warm_up(servable, path, {}, WarmupOptions())
    assert type(caught.value) is error
    assert caught.value.message.startswith(f"Warm-up record 1 in {RECORDS_PATH}: ")
    assert text in caught.value.message
    assert str(path) not in caught.value.message


def test_method_names_are_checked_when_requests_are(example_model: tuple[Watched, Path]) -> None:
    checked = WarmupOptions(check_method_names=True)
    assert replay(example_model, classify_log(), multi_inference_log("", method=REGRESS), options=checked)
    with pytest.raises(InvalidArgument, match="Expected classification signature method_name to be"):
        replay(example_model, classify_log("serving_default"), options=checked)


def test_a_record_that_is_no_log_is_told_by_number(tmp_path: Path, mlp: Watched) -> None:
    path = tmp_path / "1"
    write_logs(path)
    with tf.io.TFRecordWriter(str(path / RECORDS_PATH)) as writer:
        writer.write(b"\xff\xff")
    with pytest.raises(InvalidArgument, match=r"Warm-up record 0 in .*: Failed to parse warmup record"):
        warm_up(mlp, path, {}, WarmupOptions())


def test_a_file_that_is_cut_short_is_lost_data(tmp_path: Path, mlp: Watched) -> None:
    path = tmp_path / "1"
    write_warmup(path, predict_request(x=rows(1)))
    records = path / RECORDS_PATH
    records.write_bytes(records.read_bytes()[:-3])
    with pytest.raises(DataLoss, match="verify your warmup data is in TFRecord format"):
        warm_up(mlp, path, {}, WarmupOptions())


@pytest.mark.parametrize(("count", "fails"), [(1000, False), (1001, True)])
def test_too_many_records_are_an_error(tmp_path: Path, mlp: Watched, count: int, fails: bool) -> None:
    write_warmup(tmp_path / "1", *[predict_request(x=rows(1))] * count)
    if fails:
        with pytest.raises(InvalidArgument, match=r"Number of warmup records exceeds the maximum \(1000\)"):
            warm_up(mlp, tmp_path / "1", {}, WarmupOptions())
    else:
        assert warm_up(mlp, tmp_path / "1", {}, WarmupOptions()).records == count


def save_decoder(path: Path) -> Path:
    def decode(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "y": tf.map_fn(lambda one: tf.reduce_mean(tf.cast(tf.io.decode_png(one), tf.float32)), image, tf.float32)
        }

    return save_function(path, decode, tf.TensorSpec([None], tf.string, "image"))


def test_blank_rows_that_a_model_refuses_are_no_error(tmp_path: Path) -> None:
    servable = load(save_decoder(tmp_path / "1"))
    try:
        options = {"serving_default": PREDICTS}
        only_blank = WarmupOptions(makes_up_rows=False)
        assert warm_up(servable, tmp_path / "1", options, only_blank) == WarmupCount(0, 0)
        png = tf.io.encode_png(np.zeros((2, 2, 1), np.uint8)).numpy()
        write_warmup(tmp_path / "1", predict_request(image=np.array([png], object)))
        assert warm_up(servable, tmp_path / "1", options, WarmupOptions()) == WarmupCount(1, 3)
    finally:
        servable.close()


def test_a_file_of_records_of_any_size_is_not_read(tmp_path: Path, mlp: Watched) -> None:
    path = tmp_path / RECORDS_PATH
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(InvalidArgument, match="has 8796093022208 bytes; the limit is 2147483648"):
        warm_up(mlp, tmp_path, {}, WarmupOptions())
