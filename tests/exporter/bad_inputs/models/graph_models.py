"""Functions of tensors that build TensorFlow 1 graphs, valid and invalid: a user's `models.py`."""

from typing import Any

from tests.exporter import tf1_graphs

mlp = tf1_graphs.mlp
other = tf1_graphs.wider
no_tensor = tf1_graphs.no_tensor
with_table = tf1_graphs.with_table


def mlp_of(features: Any, classes: int) -> dict[str, Any]:  # noqa: ANN401 - tensors
    if classes != 3:
        raise ValueError(f"trained for 3 classes, not {classes}")
    return mlp(features)
