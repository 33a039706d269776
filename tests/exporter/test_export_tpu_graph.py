"""Tests that the `.meta` graph of a TPU training run becomes a version for any device or an error that explains why."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import serve

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "1,3")
INFEED = ("--input-tensor", "InfeedQueue/dequeue=image", "--output-tensor", "probabilities", *SIZES)
X = ("--input-tensor", "input0=x", *SIZES)
SCORES = ("--output-tensor", "scores", *X)


@pytest.fixture(scope="module")
def estimator(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the .meta file of the example after forty steps."""
    from examples.tpu_estimator.train import train

    return train(tmp_path_factory.mktemp("estimator"), steps=40)


def _save(folder: Path, model: str, inputs: int = 1) -> Path:
    from tests.exporter import tpu_graphs

    return tpu_graphs.save(folder, getattr(tpu_graphs, model), inputs)


def test_training_graph_of_tpu_estimator_serves_as_its_inference_graph_does(
    export: Export, estimator: Path, tmp_path: Path
) -> None:
    from examples.tpu_estimator.example import EXAMPLE

    assert {"TPUReplicatedInput", "InfeedEnqueueTuple", "InfeedDequeueTuple", "TPUReplicatedOutput"} <= {
        node.op for node in _read(estimator).graph_def.node
    }
    finished = export(estimator, tmp_path / "digits", *INFEED)
    assert finished.code == 0, finished.err
    assert "7 matched, 12 of optimizer state not used" in finished.out
    assert "removed dropout, which applies only in training: cnn/dropout/SelectV2" in finished.out
    assert "now uses its moving statistics: cnn/FusedBatchNormV3" in finished.out
    for request in EXAMPLE.requests():
        expected = EXAMPLE.answer(estimator, request)["probabilities"]
        served = serve(tmp_path / "digits/1", **request)["probabilities"]
        np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-5)
    manifest = read_manifest(tmp_path / "digits/1")
    source = {"kind": "tf1-meta", "name": "model.ckpt-40.meta", "step": 40, "builder": None}
    assert manifest["source"] == source | {"provenance": [{"kind": "parameters", "count": 7}]}
    assert manifest["signatures"]["serving_default"]["rows_independent"] is True


def test_a_training_step_that_is_a_function_is_found_in_its_loop(
    export: Export, estimator: Path, tmp_path: Path
) -> None:
    from examples.tpu_estimator.example import EXAMPLE
    from examples.tpu_estimator.train import save_tpu_graph

    folder = shutil.copytree(estimator.parent, tmp_path / "source")
    meta = save_tpu_graph(folder / estimator.name, tensorflow_1=False)
    graph = _read(meta).graph_def
    assert "While" in {node.op for node in graph.node}
    assert "probabilities" not in {node.name for node in graph.node}
    finished = export(meta, tmp_path / "digits", *INFEED)
    assert finished.code == 0, finished.err
    assert "removed dropout" in finished.out
    request = EXAMPLE.requests()[1]
    served = serve(tmp_path / "digits/1", **request)["probabilities"]
    np.testing.assert_allclose(served, EXAMPLE.answer(meta, request)["probabilities"], rtol=1e-4, atol=1e-5)


def test_beside_its_graph_a_checkpoint_takes_the_builder_that_is_given(
    export: Export, estimator: Path, tmp_path: Path
) -> None:
    by_graph = export(estimator.parent, tmp_path / "graph", *INFEED)
    assert by_graph.code == 0, by_graph.err
    assert "tf1-meta model.ckpt-40.meta" in by_graph.out
    builder = ("--model", "examples.tpu_estimator.model:predict", "--input", "image:float32[batch,8,8,1]", *SIZES)
    by_builder = export(estimator.parent, tmp_path / "builder", *builder)
    assert by_builder.code == 0, by_builder.err
    assert "tf1-ckpt model.ckpt-40" in by_builder.out
    image = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 8, 8, 1)
    graph, built = (serve(tmp_path / name / "1", image=image)["probabilities"] for name in ("graph", "builder"))
    np.testing.assert_allclose(graph, built, rtol=1e-4, atol=1e-6)


def test_a_loop_of_the_models_own_stays(export: Export, tensorflow: None, tmp_path: Path) -> None:
    meta = _save(tmp_path / "source", "recurrent")
    finished = export(meta, tmp_path / "m", "--output-tensor", "output0=state", *X)
    assert finished.code == 0, finished.err
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    expected = x
    for _ in range(3):
        expected = np.tanh(expected @ _value(meta, "cell/kernel") + _value(meta, "cell/bias"))
    np.testing.assert_allclose(serve(tmp_path / "m/1", x=x)["state"], expected, rtol=1e-4, atol=1e-6)


def test_a_sum_over_replicas_is_warned_of(export: Export, tensorflow: None, tmp_path: Path) -> None:
    finished = export(_save(tmp_path / "source", "averaging"), tmp_path / "m", *SCORES)
    assert finished.code == 0, finished.err
    assert "sums over replicas become sums over one replica: CrossReplicaSum" in finished.out


def test_a_graph_for_one_size_of_batch_is_served_so_if_that_is_said(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    meta = _save(tmp_path / "source", "one_batch_only")
    refused = export(meta, tmp_path / "m", *SCORES)
    assert refused.code == 2
    assert "the graph works only for batches of 4" in refused.err
    assert "--input 'x:float32[4, 3]'" in " ".join(refused.err.split())
    finished = export(meta, tmp_path / "m", *SCORES, "--input", "x:float32[4, 3]")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "m/1")["signatures"]["serving_default"]["inputs"]["x"]["shape"] == [4, 3]


def test_what_the_checkpoint_lacks_and_has_otherwise_is_listed(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    meta, other = _save(tmp_path / "source", "recurrent"), _save(tmp_path / "other", "averaging")
    shutil.copy(other, meta)
    finished = export(meta, tmp_path / "m", *SCORES, "--json")
    assert finished.code == 2
    fates = {one["name"]: one["fate"] for one in finished.document["restore"]["variables"]}
    assert fates == {
        "head/kernel": "missing",
        "head/bias": "missing",
        "cell/kernel": "unused",
        "cell/bias": "unused",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((*INFEED, "--output-tensor", "InfeedQueue/dequeue"), 2, "is both an --input-tensor and an --output-tensor"),
        ((*INFEED, "--input-tensor", "InfeedQueue/dequeue:1=label"), 2, "no output depends on label. Omit it"),
        ((*INFEED, "--output-tensor", "cnn/BiasAdd=probabilities"), 2, "several outputs have the name 'probabilities'"),
        ((*INFEED, "--output", "a"), 2, "--output does not apply to a .meta graph"),
        ((*INFEED, "--input", "image:int32[batch,8,8,1]"), 2, "describes image: int32[?, 8, 8, 1], but the graph has"),
        ((*INFEED, "--input", "x:float32[batch]"), 2, "--input x names no --input-tensor"),
        ((*INFEED, "--output-tensor", "=a"), 2, "'=a' is neither TENSOR nor TENSOR=NAME"),
        ((*INFEED, "--allow-missing", "*", "--rename", "^cnn=net", "--allow-unused", "*"), 2, "the values of a .meta"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_the_graph_say_so(
    export: Export, estimator: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    finished = export(estimator, tmp_path / "m", *arguments)
    assert finished.code == code, finished.err
    assert message in " ".join(finished.err.split())
    assert "Traceback" not in finished.err
    assert list(tmp_path.iterdir()) == []


def test_an_operation_of_a_library_that_is_not_there_is_named(export: Export, estimator: Path, tmp_path: Path) -> None:
    """Check that an unknown operation fails only in the served part of the graph."""
    folder = shutil.copytree(estimator.parent, tmp_path / "source")

    def make_custom(name: str) -> None:
        graph = _read(estimator)
        node = next(node for node in graph.graph_def.node if node.name == name)
        node.op = "CustomGelu"
        (folder / estimator.name).write_bytes(graph.SerializeToString())

    make_custom("cnn/Relu")
    finished = export(folder, tmp_path / "m", *INFEED)
    assert finished.code == 6
    assert "this TensorFlow does not have operations that the graph needs: CustomGelu (node cnn/Relu)" in " ".join(
        finished.err.split()
    )
    make_custom("sparse_softmax_cross_entropy_loss/Mul")
    assert export(folder, tmp_path / "m", *INFEED).code == 0


def _read(meta: Path) -> "MetaGraphDef":
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    return MetaGraphDef.FromString(meta.read_bytes())


def _value(meta: Path, name: str) -> np.ndarray:
    import tensorflow as tf

    value: np.ndarray = tf.train.load_checkpoint(str(meta.with_suffix(""))).get_tensor(name)
    return value
