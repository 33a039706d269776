"""Tests that the export serves a training run's `.meta` as inference, for any form of batch norm and dropout."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.exporter.conftest import Finished
from tests.exporter.served import serve

if TYPE_CHECKING:
    from tests.exporter.tf1_idioms import Saved

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.usefixtures("tensorflow"),
    pytest.mark.filterwarnings("ignore:`tf.layers:UserWarning"),
]
Export = Callable[..., Finished]
PICTURES = (6, 6, 2)
# The inputs are so large that batch statistics differ clearly from the moving statistics.
ROWS = np.random.default_rng(7).normal(1.0, 2.0, (5, 6)).astype(np.float32)
IMAGES = np.random.default_rng(7).normal(1.0, 2.0, (5, *PICTURES)).astype(np.float32)


def _save(folder: Path, model: str, **options: Any) -> "Saved":  # noqa: ANN401 - as tf1_idioms.save takes them
    from tests.exporter import tf1_idioms

    return tf1_idioms.save(folder, getattr(tf1_idioms, model), **options)


def _is_training() -> Any:  # noqa: ANN401 - a tensor
    import tensorflow as tf

    return tf.compat.v1.placeholder(tf.bool, [], name="is_training")


def _trains_by_default() -> Any:  # noqa: ANN401 - a tensor
    import tensorflow as tf

    return tf.compat.v1.placeholder_with_default(True, [], name="is_training")


def _answers(saved: "Saved", *, fixed: bool = False) -> np.ndarray:
    """Return the outputs of the opened source, row by row, or with all rows at once for a fixed batch."""
    import tensorflow as tf

    from tpuserve_exporter.models.served_function import ServedFunction
    from tpuserve_exporter.options.export_options import InputNaming, ModelOptions, TensorNaming
    from tpuserve_exporter.sources.tf1.meta import open_source

    arguments = f"x:float32{[32, *saved.shape]}".replace(" ", "")
    options = ModelOptions(
        input_tensors=(TensorNaming("x"),),
        output_tensors=(TensorNaming("scores"),),
        inputs=(InputNaming.parse(arguments),) if fixed else (),
    )
    served = open_source(saved.meta, options).model
    assert isinstance(served, ServedFunction)
    call = tf.function(served.call, autograph=False)
    rows = _rows(saved)
    if fixed:
        answers: np.ndarray = call(x=tf.constant(np.resize(rows, (32, *saved.shape))))["scores"].numpy()
        return answers[:5]
    return np.concatenate([call(x=tf.constant(rows[index : index + 1]))["scores"].numpy() for index in range(5)])


def _rows(saved: "Saved") -> np.ndarray:
    return ROWS if len(saved.shape) == 1 else IMAGES


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("layers", {}),
        ("layers", {"rows": None}),
        ("layers", {"training": _is_training, "feeds": {"is_training": True}}),
        ("layers", {"training": _is_training, "feeds": {"is_training": 1}, "control_flow_v2": True, "resource": True}),
        ("layers_not_fused", {"shape": PICTURES}),
        ("layers_of_pictures", {"shape": PICTURES}),
        ("layers_of_pictures", {"shape": PICTURES, "training": _is_training, "feeds": {"is_training": True}}),
        ("slim", {}),
        ("slim", {"resource": True}),
        ("slim_zero_debiased", {}),
        ("by_hand", {}),
        ("by_hand", {"training": _trains_by_default}),
        ("by_hand", {"training": _is_training, "feeds": {"is_training": True}, "control_flow_v2": True}),
        ("population", {}),
        ("sufficient", {}),
        ("weighted", {}),
        ("keras_layers", {}),
        ("fused_by_hand", {}),
        ("fused_by_hand", {"resource": True}),
        ("codebook", {}),
        ("kept_share", {"feeds": {"keep_prob": 0.5}}),
        ("fused_layer_norm", {}),
        ("group_norm", {"shape": PICTURES}),
        ("instance_norm", {"shape": PICTURES}),
        ("layer_norm", {}),
        ("attention", {}),
        ("counted", {}),
        ("projected", {}),
        ("quantized", {}),
        ("quantized", {"resource": True}),
        ("recurrent", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value) or "plain",
)  # fmt: skip
def test_a_training_graph_answers_as_inference_does(tmp_path: Path, model: str, options: dict[str, Any]) -> None:
    saved = _save(tmp_path, model, **options)
    np.testing.assert_allclose(_answers(saved), saved.answer(_rows(saved)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["layers", "ensembling"])
def test_a_fixed_batch_answers_as_inference_does(tmp_path: Path, model: str) -> None:
    saved = _save(tmp_path, model)
    np.testing.assert_allclose(_answers(saved, fixed=True), saved.answer(ROWS), rtol=1e-4, atol=1e-6)


def _export(export: Export, saved: "Saved", out: Path, *options: str) -> Finished:
    tensors = ("--input-tensor", "x", "--output-tensor", "scores", "--batch-sizes", "1,4")
    return export(saved.meta, out, *tensors, *options)


def _output(finished: Finished) -> str:
    return " ".join((finished.out + finished.err).split())


def test_what_was_changed_is_told_and_served(export: Export, tmp_path: Path) -> None:
    saved = _save(tmp_path / "source", "layers")
    finished = _export(export, saved, tmp_path / "m")
    assert finished.code == 0, finished.err
    expected = (
        "now uses its moving statistics: batch_normalization/moments/Squeeze, batch_normalization/moments/Squeeze_1"
    )
    assert expected in _output(finished)
    for row in range(5):
        alone = serve(tmp_path / "m/1", x=ROWS[row : row + 1])["scores"]
        np.testing.assert_allclose(alone, saved.answer(ROWS[row : row + 1]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fixed", [False, True], ids=["free", "fixed"])
@pytest.mark.parametrize(
    ("model", "places"),
    [("without_statistics", "whitening/mean, whitening/variance"), ("looped", "while/moments/mean, while/moments/var")],
)
def test_statistics_without_an_average_are_refused(
    export: Export, tmp_path: Path, model: str, places: str, fixed: bool
) -> None:
    arguments = ("--input", "x:float32[32,6]") if fixed else ()
    finished = _export(export, _save(tmp_path / "source", model), tmp_path / "m", *arguments)
    assert finished.code == 3, finished.out
    assert f"uses averages over the batch: {places}" in _output(finished)
    assert "The graph has no variable with their moving average. Export the inference graph" in _output(finished)
    assert not (tmp_path / "m").exists()


def test_batch_renormalisation_is_refused(export: Export, tmp_path: Path) -> None:
    finished = _export(export, _save(tmp_path / "source", "renorm"), tmp_path / "m")
    assert finished.code == 3
    assert "This is batch renormalization in training mode. Export the inference graph" in _output(finished)


def test_virtual_batches_are_refused(export: Export, tmp_path: Path) -> None:
    saved = _save(tmp_path / "source", "virtual")
    finished = _export(export, saved, tmp_path / "m", "--input", "x:float32[32,6]")
    assert finished.code == 3
    assert "batch_normalization/moments/mean" in _output(finished)


@pytest.mark.parametrize("model", ["ranking", "ranking_by_hand", "loudest"])
def test_rows_that_depend_on_each_other_by_design_share_no_batch(export: Export, tmp_path: Path, model: str) -> None:
    finished = _export(export, _save(tmp_path / "source", model), tmp_path / "m")
    assert finished.code == 0, finished.err
    assert "a row of serving_default depends on the batch size" in _output(finished)


def test_a_size_of_batch_that_a_loop_hides_is_named_as_it_can_be_given(export: Export, tmp_path: Path) -> None:
    saved = _save(tmp_path / "source", "recurrent_of_one_size")
    refused = _export(export, saved, tmp_path / "m")
    assert refused.code == 2
    assert "the graph works only for batches of 32" in _output(refused)
    assert "--input 'x:float32[32, 6]'" in _output(refused)
    finished = _export(export, saved, tmp_path / "m", "--input", "x:float32[32, 6]")
    assert finished.code == 0, finished.err


def test_random_numbers_are_served_if_that_is_allowed(export: Export, tmp_path: Path) -> None:
    from tests.exporter import tpu_graphs

    meta = tpu_graphs.save(tmp_path / "source", tpu_graphs.random)
    tensors = ("--input-tensor", "input0=x", "--output-tensor", "scores", "--batch-sizes", "1,3")
    finished = export(meta, tmp_path / "m", *tensors, "--allow-nondeterminism")
    assert finished.code == 0, finished.err
    assert "serving_default answers the same request differently when it is repeated" in _output(finished)
