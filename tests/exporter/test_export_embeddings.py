"""Tests that checkpoints of tf.tpu.experimental.embedding.TPUEmbedding become versions or errors that explain why."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter.conftest import Finished
from tests.exporter.served import serve

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
POOLED = (
    "--model",
    "tests.exporter.embedding_builders:pooled",
    "--input",
    "ids:int32[batch,3]",
    "--batch-sizes",
    "1,2",
)


@pytest.fixture(scope="module")
def tables(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the files of a training with TPUEmbedding: a table with Adam's state, a model and the step."""
    import keras
    import tensorflow as tf

    from tests.exporter import embedding_builders

    embedding = embedding_builders.tpu_embedding.TPUEmbedding(
        embedding_builders.features(), embedding_builders.tpu_embedding.Adam(0.1)
    )
    embedding.build()
    head = keras.layers.Dense(2, name="head")
    head.build((None, 4))
    checkpoint = tf.train.Checkpoint(embedding=embedding, head=head, step=tf.Variable(5, dtype=tf.int64))
    folder = tmp_path_factory.mktemp("tables")
    checkpoint.save(str(folder / "ckpt"))
    return folder


def test_recommender_serves_as_tensorflows_own_lookup(export: Export, tensorflow: None, tmp_path: Path) -> None:
    from examples.recommender.example import EXAMPLE
    from examples.recommender.train import train

    source = train(tmp_path / "source", epochs=1)
    finished = export(source, tmp_path / "recommender", *EXAMPLE.export_options, "--batch-sizes", "1,4")
    assert finished.code == 0, finished.err
    assert "at step 30; 6 matched, 2 of optimizer state not used" in finished.out
    for request in EXAMPLE.requests():
        served = serve(tmp_path / "recommender/1", **request)["liked"]
        np.testing.assert_allclose(served, EXAMPLE.answer(source, request)["liked"], rtol=1e-5, atol=1e-6)


def test_tables_and_keras_layers_of_one_module_are_restored(export: Export, tables: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    finished = export(tables, tmp_path / "m", *POOLED)
    assert finished.code == 0, finished.err
    assert "at step 5; 3 matched, 2 of optimizer state not used" in finished.out
    reader = tf.train.load_checkpoint(str(tables / "ckpt-1"))
    keys = reader.get_variable_to_shape_map()
    table, kernel = (
        reader.get_tensor(next(key for key in keys if key.startswith(start)))
        for start in ("embedding/words/.ATT", "head/_kernel")
    )
    served = serve(tmp_path / "m/1", ids=np.array([[1, 5, -1]], np.int32))["pooled"]
    np.testing.assert_allclose(served, [(table[1] + table[5]) / 2**0.5 @ kernel], rtol=1e-5, atol=1e-6)


def test_tables_of_another_size_are_all_listed(export: Export, tables: Path, tmp_path: Path) -> None:
    finished = export(tables, tmp_path / "m", *POOLED, "--model-arg", "rows=7", "--model-arg", "dim=5", "--json")
    assert finished.code == 2, finished.out
    found = {(one["name"], one["fate"]) for one in finished.document["restore"]["variables"]}
    assert found == {("words", "shape differs"), ("head/kernel", "shape differs"), ("head/bias", "matched")}
    assert list(tmp_path.iterdir()) == []
