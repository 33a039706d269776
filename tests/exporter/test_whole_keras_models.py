"""Tests that whole Keras models get all values of their file, also large ones, which variables take without a copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter import keras_layers
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.kinds import detect, open_source
from tpuserve_exporter.terms.signature import Array

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
]
# 20 MB of float32.
LARGE = (1_250_000, 4)
FEATURES = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def _quiet(tensorflow: None) -> None:
    pass


def fill(model: Any) -> None:  # noqa: ANN401 - keras is untyped
    for weight in model.trainable_variables:
        weight.assign(np.random.default_rng(len(weight.path)).normal(size=weight.shape))


def answer_of_version(path: Path, values: Array, builder: str | None = None) -> Array:
    import tensorflow as tf

    options = ModelOptions(builder=builder, imports=("tests.exporter.keras_layers",) if builder is None else ())
    opened = open_source(detect(path, builder is not None), path, options)
    assert not isinstance(opened.model, Path)
    outputs = opened.model.trace()[1](**{name: tf.constant(values) for name in opened.model.inputs})
    return np.asarray(outputs["y"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_a_large_table_is_read_bit_by_bit(tmp_path: Path, dtype: str, name: str) -> None:
    ids = np.array([[0], [LARGE[0] // 2], [LARGE[0] - 1]], np.int32)
    model = keras_layers.table(LARGE[0] * (1 if dtype == "float32" else 2), dtype)
    fill(model)
    (model.save if name == "m.keras" else model.save_weights)(tmp_path / name)
    builder = None if name == "m.keras" else f"tests.exporter.keras_layers:{dtype}_table"
    served = answer_of_version(tmp_path / name, ids, builder)
    assert np.ptp(served) > 0
    np.testing.assert_array_equal(served, np.asarray(model(ids)))


def _own_methods() -> Any:  # noqa: ANN401 - keras is untyped
    table = keras_layers.Memory(LARGE[0])
    table.values[:] = np.linspace(0, 1, LARGE[0])[:, None]
    return table


def _fresh_values() -> Any:  # noqa: ANN401 - keras is untyped
    return keras_layers.Projection(5)


def _one_layer_twice() -> Any:  # noqa: ANN401 - keras is untyped
    import keras

    layer = keras.layers.Dense(3)
    return keras_layers.Both(layer, layer)


@pytest.mark.parametrize("make", [_own_methods, _fresh_values, _one_layer_twice])
def test_layers_of_the_user_answer_as_before(tmp_path: Path, make: Callable[[], Any]) -> None:
    import keras

    features = keras.Input((3,))
    model = keras.Model(features, keras.layers.Dense(2, name="y")(make()(features)))
    fill(model)
    model.save(tmp_path / "m.keras")
    served = answer_of_version(tmp_path / "m.keras", FEATURES)
    # A graph that uses one layer twice may round the last bit of a product otherwise than Keras' own calls.
    np.testing.assert_array_max_ulp(served, np.asarray(model(FEATURES)), maxulp=2)
