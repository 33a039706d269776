"""Tests of made-up rows with real SavedModels: which signatures they prove to answer, and which to be broken."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import save_broken, save_function
from tpuserve_server.core.terms.deadline import limit_runs
from tpuserve_server.core.terms.errors import DeadlineExceeded, FailedPrecondition
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Signature, TensorSpec
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.versions.made_up_rows import made_up_rows, try_signatures
from tpuserve_server.versions.warmup import WarmupCount, warm_up
from tpuserve_server.versions.warmup_options import WarmupOptions

Build = Callable[[tf.Tensor], tf.Tensor]

NUMBERS = tf.TensorSpec([None, 2], tf.float32, "x")
IDS = tf.TensorSpec([None], tf.int32, "x")
TEXTS = tf.TensorSpec([None], tf.string, "x")
IMAGES = tf.TensorSpec([None, None, None, 3], tf.float32, "x")


def load(path: Path) -> Servable:
    return TensorFlowExecutor(TensorFlowOptions()).load(ServableId("m", 1), VersionFiles(path))


def decode(images: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda one: tf.cast(tf.io.decode_jpeg(one, 3), tf.float32), images, fn_output_signature=tf.float32)


def save_counter(path: Path) -> Path:
    """Save a model that counts its runs."""
    module = tf.Module()
    module.count = tf.Variable(0.0)
    module.serve = tf.function(lambda x: {"y": x + module.count.assign_add(1.0)}, input_signature=[NUMBERS])
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path


@pytest.mark.parametrize(
    ("build", "spec"),
    [
        (lambda x: 2 * x, NUMBERS),
        (lambda x: 1 // x, IDS),
        (lambda x: tf.gather(tf.range(1), x), IDS),
        (lambda x: tf.strings.length(x), TEXTS),
        (lambda x: tf.strings.to_number(x), TEXTS),
        (decode, TEXTS),
        (lambda x: tf.nn.conv2d(x, tf.ones((9, 9, 3, 1)), 1, "VALID"), IMAGES),
        (lambda x: x + 1, tf.TensorSpec([], tf.float32, "x")),
    ],
    ids=["numbers", "divisors", "ids of one row", "texts", "numbers in texts", "images", "kernels", "scalars"],
)  # fmt: skip
def test_a_signature_that_answers_any_of_the_rows_answers(build: Build, spec: tf.TensorSpec, tmp_path: Path) -> None:
    servable = load(save_function(tmp_path / "1", lambda x: {"y": build(x)}, spec))
    tried = try_signatures(servable, servable.signatures)
    servable.close()
    assert (tried.runs, tried.broken) == (1, {})


def test_rows_that_the_model_refuses_show_nothing(tmp_path: Path) -> None:
    def parse(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.io.parse_example(x, {"a": tf.io.FixedLenFeature([2], tf.float32)})["a"]}

    servable = load(save_function(tmp_path / "1", parse, TEXTS))
    count = warm_up(servable, tmp_path / "1", {}, WarmupOptions())
    servable.close()
    assert (count.runs, count.tried.broken) == (0, {})
    assert count.tried.unknown == {"serving_default": "Could not parse example input, value: 'text'"}


def test_a_version_without_a_working_signature_fails_with_the_reason(tmp_path: Path) -> None:
    servable = load(save_broken(tmp_path / "1"))
    with pytest.raises(FailedPrecondition) as caught:
        warm_up(servable, tmp_path / "1", {}, WarmupOptions())
    assert warm_up(servable, tmp_path / "1", {}, WarmupOptions(makes_up_rows=False)) == WarmupCount()
    servable.close()
    assert caught.value.message.startswith(
        "the version cannot answer any request. signature 'serving_default' fails: No OpKernel was registered to "
        "support Op 'CollectivePermute' used by "
    )
    assert caught.value.message.endswith(
        ". Export the model again. The server's flag --lenient_loads serves such versions, as TensorFlow Serving does"
    )


def test_a_broken_signature_beside_a_working_one_is_reported(tmp_path: Path) -> None:
    servable = load(save_broken(tmp_path / "1", "broken", "serving_default"))
    count = warm_up(servable, tmp_path / "1", {}, WarmupOptions())
    servable.close()
    assert (count.runs, list(count.tried.broken)) == (1, ["broken"])
    assert count.tried.broken["broken"].startswith("No OpKernel was registered to support Op 'CollectivePermute'")


def save_stage(path: Path) -> Path:
    """Save a model that counts its runs in an area that it names."""

    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.raw_ops.Stage(values=[x], shared_name="area")]):
            return {"y": x + tf.cast(tf.raw_ops.StageSize(dtypes=[tf.float32], shared_name="area"), tf.float32)}

    return save_function(path, count, NUMBERS)


@pytest.mark.parametrize("save", [save_counter, save_stage])
def test_a_signature_that_changes_the_model_is_not_tried(save: Callable[[Path], Path], tmp_path: Path) -> None:
    servable = load(save(tmp_path / "1"))
    assert warm_up(servable, tmp_path / "1", {}, WarmupOptions()).runs == 0
    first = servable.dispatch("serving_default", {"x": np.zeros((1, 2), np.float32)}, ("y",)).result()
    servable.close()
    assert first["y"].tolist() == [[1.0, 1.0]]


def test_a_run_that_never_ends_shows_nothing(tmp_path: Path) -> None:
    def wait(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.while_loop(lambda y: tf.reduce_sum(y) >= 0.0, lambda y: [tf.abs(y)], [x])[0]}

    servable = load(save_function(tmp_path / "1", wait, NUMBERS))
    tried = try_signatures(servable, ["serving_default", "serving_default"], limit_s=0.2)
    with limit_runs(0.2), pytest.raises(DeadlineExceeded, match=r"the run does not end within 0\.2 s"):
        servable.dispatch("serving_default", {"x": np.ones((1, 2), np.float32)}, ("y",))
    # A request of a client has no such limit, and ends.
    last = servable.dispatch("serving_default", {"x": np.full((1, 2), np.nan, np.float32)}, ("y",)).result()
    servable.close()
    assert (tried.runs, tried.broken, tried.is_late) == (0, {}, True)
    assert np.isnan(last["y"]).all()


def test_a_loop_that_ends_runs(tmp_path: Path) -> None:
    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: [y + 1.0], [x])[0]}

    servable = load(save_function(tmp_path / "1", count, NUMBERS))
    tried = try_signatures(servable, servable.signatures)
    servable.close()
    assert (tried.runs, tried.unknown, tried.is_late) == (1, {}, False)


def signature(*specs: TensorSpec, **others: object) -> Signature:
    return Signature("s", {spec.name: spec for spec in specs}, {}, **others)  # type: ignore[arg-type]  # fields by name


def test_operations_may_not_bear_another_rank() -> None:
    assert list(made_up_rows(signature(TensorSpec("x", np.dtype("f"), None)))) == []


def test_ragged_rows_and_defaults_fit_the_signature() -> None:
    specs = (
        TensorSpec("values", np.dtype("f"), (None, 3)),
        TensorSpec("splits", np.dtype("i8"), (5,)),
        TensorSpec("limit", np.dtype("i4"), ()),
    )
    default = np.array(7, np.int32)
    made = list(made_up_rows(signature(*specs, ragged_inputs={"values": ("splits",)}, defaults={"limit": default})))
    assert [row["values"].tolist() for row in made] == [[[1.0] * 3], [[0.0] * 3]]
    assert [(row["splits"].tolist(), row["limit"]) for row in made] == [([0, 1, 1, 1, 1], default)] * 2


def test_large_rows_are_not_made_larger() -> None:
    frames = TensorSpec("x", np.dtype("f"), (None, None, 1024, 1024, 3))
    assert [row["x"].shape for row in made_up_rows(signature(frames))] == [(1, 1, 1024, 1024, 3)] * 2


def test_rows_beyond_the_memory_limit_are_not_made() -> None:
    square = TensorSpec("x", np.dtype("f"), (None, 200_000, 200_000))
    assert list(made_up_rows(signature(square))) == []
